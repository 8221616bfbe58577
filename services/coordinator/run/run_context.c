/* Makes a run's context from its stored configuration, the trainer's files and the datasets, and checks a posted
 * one. */
#include "services/coordinator/run/run_context.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/limits.h"
#include "common/base/log.h"

bool run_is_supervised(const struct run_config *c) { return strcmp(c->training.objective, "cross_entropy") == 0; }
bool run_evaluates(const struct run_config *c) { return strcmp(c->training.objective, "evaluate") == 0; }
bool run_trains_on_rollouts(const struct run_config *c) { return !run_is_supervised(c) && !run_evaluates(c); }
/* NULL: the run's own dataset, which an evaluate run's sets are of too. */
static const struct evaluation_set *set_of(const struct run_config *c, int set) {
  return run_trains_on_rollouts(c) && set >= 0 && set < c->evaluation.count ? &c->evaluation.sets[set] : NULL;
}

const struct reward_rule *run_rule(const struct run_config *c, int set) {
  const struct evaluation_set *s = set_of(c, set);
  return s ? &s->verifier : &c->verifier;
}

double run_temperature(const struct run_config *c, int set) {
  const struct evaluation_set *s = set_of(c, set);
  return s ? s->temperature : c->sampling.temperature;
}

bool run_has_reference(const struct run_config *c) {
  return run_trains_on_rollouts(c) && (float)c->training.kl_coefficient != 0 && c->training.reference_every == 0;
}
bool run_checks_samples(const struct run_config *c) { return c->verify_samples && run_trains_on_rollouts(c); }

bool run_checks_groups(const struct run_config *c) { return run_checks_samples(c) && c->mode != MODE_INFLIGHT; }
bool run_teacher(const struct run_config *c, struct digest *out) {
  return c->training.teacher[0] && digest_from_hex(out, c->training.teacher);
}
bool run_counts_tokens(const struct run_config *c) { return strcmp(c->training.normalization, "tokens") == 0; }

bool run_plans_rounds(const struct run_config *c) {
  return c->mode == MODE_PIPELINED && c->frontier == FRONTIER_PRIORITY;
}
bool run_publishes(const struct run_config *c, int64_t round) {
  if (run_evaluates(c)) return false;
  if (!run_is_supervised(c) || round == c->rounds - 1) return true;
  return c->publish_every > 0 && (round + 1) % c->publish_every == 0;
}

enum rc data_path_resolve(char *out, size_t size, const char *data_dir, const char *path, const char *field,
                          struct err *err) {
  char joined[LIMIT_PATH_MAX * 5], root[PATH_MAX], real[PATH_MAX];
  struct stat st;
  if (path[0] == 0 || path[0] == '/')
    return err_set(err, RC_INVALID, field, "expected a path relative to the data directory, got '%.200s'", path);
  if (strcmp(path, "..") == 0 || strncmp(path, "../", 3) == 0 || strstr(path, "/../") ||
      (strlen(path) > 2 && strcmp(path + strlen(path) - 3, "/..") == 0)) {
    return err_set(err, RC_INVALID, field, "a dataset lies inside the data directory; '%.200s' leads out of it", path);
  }
  if (snprintf(joined, sizeof joined, "%s/%s", data_dir, path) >= (int)sizeof joined)
    return err_set(err, RC_TOO_LARGE, field, "the path is longer than %d bytes", LIMIT_PATH_MAX);
  if (!realpath(data_dir, root)) return err_set_errno(err, RC_IO, "the data directory %s cannot be resolved", data_dir);
  if (!realpath(joined, real) || stat(real, &st) != 0 || !S_ISREG(st.st_mode))
    return err_set(err, RC_INVALID, field, "the data directory holds no file '%.200s'", path);
  size_t len = strlen(root);
  if (strcmp(root, "/") != 0 && (strncmp(real, root, len) != 0 || real[len] != '/')) {
    return err_set(err, RC_INVALID, field,
                   "a dataset lies inside the data directory; '%.200s' is a link that leads out of it", path);
  }
  if (snprintf(out, size, "%s", real) >= (int)size)
    return err_set(err, RC_TOO_LARGE, field, "the resolved path is longer than %zu bytes", size - 1);
  return RC_OK;
}

/* eos_token_id of generation_config.json or config.json: a number or a list. */
static enum rc eos_ids(struct json_i32s *out, const struct json *root, struct arena *arena, struct err *err) {
  const struct json *eos = root ? json_get(root, "eos_token_id") : NULL;
  if (!eos || json_type_of(eos) == JSON_NULL) return RC_OK;
  size_t n = json_type_of(eos) == JSON_ARRAY ? json_length(eos) : 1;
  if (n > LIMIT_STOP_TOKENS)
    return err_set(err, RC_TOO_LARGE, "eos_token_id",
                   "the model names %zu end-of-sequence tokens, at most %d are supported", n, LIMIT_STOP_TOKENS);
  out->items = arena_alloc(arena, LIMIT_STOP_TOKENS, sizeof *out->items);
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "the model's end-of-sequence tokens were refused memory");
  for (size_t i = 0; i < n; i++) {
    const struct json *v = json_type_of(eos) == JSON_ARRAY ? json_at(eos, i) : eos;
    if (json_type_of(v) != JSON_INT || json_int(v) < 0 || json_int(v) >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "eos_token_id", "expected token ids in the model's configuration");
    out->items[i] = (int32_t)json_int(v);
  }
  out->count = n;
  return RC_OK;
}

struct model_facts {
  int64_t vocabulary, positions;
  int64_t trained_max; /* the longest sequence that the trainer takes */
  struct json_i32s eos; /* what ends a sample where the run names no stop tokens */
  int32_t completion_end; /* what a completion ends with; -1: there is none */
  const struct chat *chat; /* borrowed; NULL: messages are refused, with no_chat's sentence */
  struct err no_chat;
};

static enum rc model_read(struct model_facts *m, const struct model_files *files, struct arena *arena,
                          struct err *err) {
  struct json *config = NULL, *generation = NULL;
  const char *file = "config.json";
  enum rc rc = json_parse(&config, files->config.data ? files->config.data : "", files->config.len, 0, err);
  if (rc == RC_OK) {
    const struct json_field fields[] = {
        {.name = "vocab_size",
         .kind = FIELD_I64,
         .target = &m->vocabulary,
         .required = true,
         .min = 1,
         .max = LIMIT_VOCABULARY},
        {.name = "max_position_embeddings", .kind = FIELD_I64, .target = &m->positions, .min = 2, .max = 1e9}};
    rc = json_fields(config, fields, 2, UNKNOWN_IGNORED, arena, err);
  }
  if (rc == RC_OK && files->generation_config.len) {
    file = "generation_config.json";
    rc = json_parse(&generation, files->generation_config.data, files->generation_config.len, 0, err);
    if (rc == RC_OK) rc = eos_ids(&m->eos, generation, arena, err);
  }
  if (rc == RC_OK && m->eos.count == 0) rc = eos_ids(&m->eos, config, arena, err);
  for (size_t i = 0; rc == RC_OK && i < m->eos.count; i++)
    if (m->eos.items[i] >= m->vocabulary)
      rc = err_set(err, RC_INVALID, "eos_token_id", "expected ids below the vocabulary's %lld, got %d",
                   (long long)m->vocabulary, m->eos.items[i]);
  if (rc != RC_OK) err_in_file(err, file);
  json_free(generation);
  json_free(config);
  return rc;
}

static enum rc tokenizer_read(struct tokenizer **out, const struct model_facts *m, const struct buf *file,
                              struct err *err) {
  enum rc rc = tokenizer_parse(out, file->data ? file->data : "", file->len, err);
  if (rc == RC_OK) rc = tokenizer_fit(*out, (int32_t)m->vocabulary, err);
  if (rc != RC_OK) err_in_file(err, "tokenizer.json");
  return rc;
}

/* The tokenizer's own end of text, in runs that know of it: fine-tuned models often have a new one there and the base
 * model's in their configurations.  Other trainers end completions with it, too. */
static enum rc tokenizer_eos_add(struct model_facts *m, const struct run_config *c, const struct tokenizer *t,
                                 const struct model_files *files, struct arena *arena, struct err *err) {
  const int32_t id = c->sampling.tokenizer_eos ? chat_eos_id(&files->tokenizer_config, t) : -1;
  m->completion_end = id >= 0 ? id : m->eos.count ? m->eos.items[0] : -1;
  if (id < 0) return RC_OK;
  for (size_t i = 0; i < m->eos.count; i++)
    if (m->eos.items[i] == id) return RC_OK;
  if (!m->eos.items) m->eos.items = arena_alloc(arena, LIMIT_STOP_TOKENS, sizeof *m->eos.items);
  if (!m->eos.items) return err_set(err, RC_NO_MEMORY, NULL, "a model's end-of-sequence token was refused memory");
  if (m->eos.count < LIMIT_STOP_TOKENS) m->eos.items[m->eos.count++] = id;
  return RC_OK;
}

/* A template that cannot be read stops no run whose prompts are texts. */
static void chat_read(struct chat **out, struct model_facts *m, const struct tokenizer *t,
                      const struct model_files *files) {
  const struct chat_files chat = {.jinja = files->chat_template, .tokenizer_config = files->tokenizer_config};
  chat_parse(out, &chat, t, &m->no_chat);
  m->chat = *out;
}

/* How long a sequence may be that the run makes or trains on, so that a line which the trainer would refuse later is
 * refused at once.  Runs from before this check go on as they began: they may never come to such a line. */
static int64_t sequence_max(const struct run_config *c, const struct model_facts *m, bool trained) {
  int64_t most = m->positions;
  if (!trained || run_evaluates(c) || c->start.from == START_UNNAMED) return most;
  if (m->trained_max < most) most = m->trained_max;
  return c->training.chunk_tokens < most ? c->training.chunk_tokens : most;
}

/* The files of the run's dataset, or of its evaluations. */
struct files {
  const struct dataset_source *sources;
  int count;
  bool trained; /* the run's own */
  const struct reward_rule *rule;
};

static struct files dataset_files(const struct run_config *c) {
  return (struct files){.sources = c->sources, .count = c->source_count, .trained = true, .rule = &c->verifier};
}

/* One file. */
static struct files evaluation_files(const struct run_config *c, int set, struct dataset_source *source) {
  const struct evaluation_set *e = &c->evaluation.sets[set];
  *source = (struct dataset_source){.path = e->path, .reading = e->reading};
  return (struct files){.sources = source, .count = 1, .rule = &e->verifier};
}

static enum rc dataset_rules(struct dataset_options *out, const struct run_config *c, const struct model_facts *m,
                             const struct files *files, int index, struct err *err) {
  const bool supervised = run_is_supervised(c), old = c->start.from == START_UNNAMED;
  const int64_t most = sequence_max(c, m, files->trained);
  int64_t room = most - (supervised ? 1 : c->sampling.max_new_tokens);
  if (room < 1) {
    return err_set(err, RC_INVALID, "sampling.max_new_tokens",
                   "%d new tokens leave no room for a prompt in the %lld that a sequence may have: the least of the "
                   "model's positions, the trainer's --context-max and, for training, `chunk_tokens`; set fewer",
                   c->sampling.max_new_tokens, (long long)most);
  }
  if (room > LIMIT_PROMPT_TOKENS) room = LIMIT_PROMPT_TOKENS;
  *out =
      (struct dataset_options){.field = !files->trained ? c->evaluation.is_list ? "evaluation.sets" : "evaluation.path"
                                        : c->is_mixture ? "dataset.sources"
                                                        : "dataset.path",
                               .name = files->sources[index].path,
                               .reading = &files->sources[index].reading,
                               .chat = m->chat,
                               .no_chat = m->no_chat.rc != RC_OK ? m->no_chat.message : NULL,
                               .prompt_tokens_max = (int)room,
                               .completion_tokens_max = (int)room,
                               .sequence_tokens_max = old ? 0 : (int)most,
                               .new_tokens_max = old || supervised ? 0 : c->sampling.max_new_tokens,
                               .need_completion = supervised,
                               .need_answer = reward_needs_answer(files->rule),
                               .verifier = old ? NULL : files->rule,
                               .eos = m->completion_end};
  return RC_OK;
}

static enum rc file_find(char path[LIMIT_PATH_MAX], struct dataset_options *options, const struct run_config *c,
                         const struct model_facts *m, const struct files *files, int index, const char *data_dir,
                         struct err *err) {
  const enum rc rc = dataset_rules(options, c, m, files, index, err);
  return rc == RC_OK ? data_path_resolve(path, LIMIT_PATH_MAX, data_dir, options->name, options->field, err) : rc;
}

/* An evaluate run goes over all lines once, whatever their weights. */
static void weigh(struct dataset *d, const struct run_config *c, const struct files *files) {
  int32_t weights[DATASET_PARTS_MAX];
  if (run_evaluates(c) || !files->sources[0].weight) return;
  for (int i = 0; i < files->count; i++) weights[i] = files->sources[i].weight;
  dataset_weigh(d, weights);
}

static enum rc files_load(struct dataset **out, const struct run_config *c, const struct model_facts *m,
                          const struct tokenizer *t, struct files files, const char *data_dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct dataset_options options;
  enum rc rc = RC_OK;
  for (int i = 0; rc == RC_OK && i < files.count; i++) {
    rc = file_find(path, &options, c, m, &files, i, data_dir, err);
    if (rc == RC_OK) rc = *out ? dataset_add(*out, path, t, &options, err) : dataset_load(out, path, t, &options, err);
  }
  if (rc == RC_OK) weigh(*out, c, &files);
  return rc;
}

static enum rc files_check(const struct run_config *c, const struct model_facts *m, const struct tokenizer *t,
                           struct files files, const char *data_dir, const struct dataset_watch *watch,
                           struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct dataset_options options;
  enum rc rc = RC_OK;
  for (int i = 0; rc == RC_OK && i < files.count; i++) {
    rc = file_find(path, &options, c, m, &files, i, data_dir, err);
    if (rc == RC_OK) rc = dataset_check(path, t, &options, watch, err);
  }
  return rc;
}

/* A run needs tokens to end with: stop tokens for sampling, an end of sequence for completions. */
static enum rc ends_check(const struct run_config *c, const struct model_facts *m, struct err *err) {
  if (m->eos.count) return RC_OK;
  if (run_is_supervised(c))
    return err_set(err, RC_INVALID, NULL, "the model names no eos_token_id, which completions must end with");
  if (c->sampling.stop_token_ids.count || c->sampling.ignore_eos) return RC_OK;
  return err_set(err, RC_INVALID, "sampling.stop_token_ids", "the model names no eos_token_id: name the stop tokens");
}

/* The driver looks up what a supervised run's units are; whatever a run's kind, the writer writes its groups. */
static enum rc orders_make(struct run_context *c, struct err *err) {
  const struct run_config *config = &c->config;
  enum rc rc = dataset_order_make(&c->writer_order, c->dataset, config->dataset_shuffle, config->seed, err);
  if (rc == RC_OK && run_is_supervised(config))
    rc = dataset_order_make(&c->driver_order, c->dataset, config->dataset_shuffle, config->seed, err);
  return rc;
}

enum rc run_context_create(struct run_context **out, int64_t run, const char *config_text,
                           const struct model_files *files, const char *data_dir, struct err *err) {
  struct run_context *c = calloc(1, sizeof *c);
  struct dataset_source source;
  struct model_facts m = {
      .positions = LIMIT_SEQUENCE_TOKENS, .trained_max = LIMIT_SEQUENCE_TOKENS, .completion_end = -1};
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "a run's context was refused memory");
  atomic_init(&c->users, 1);
  c->run = run;
  enum rc rc = run_config_parse_stored(&c->config, config_text, strlen(config_text), &c->arena, err);
  if (rc == RC_OK) rc = model_read(&m, files, &c->arena, err);
  if (rc == RC_OK) rc = tokenizer_read(&c->tokenizer, &m, &files->tokenizer, err);
  if (rc == RC_OK) rc = tokenizer_eos_add(&m, &c->config, c->tokenizer, files, &c->arena, err);
  if (rc == RC_OK) rc = ends_check(&c->config, &m, err);
  if (rc == RC_OK) chat_read(&c->chat, &m, c->tokenizer, files);
  if (rc == RC_OK) rc = files_load(&c->dataset, &c->config, &m, c->tokenizer, dataset_files(&c->config), data_dir, err);
  if (rc == RC_OK) rc = orders_make(c, err);
  for (int i = 0; rc == RC_OK && evaluation_wanted(&c->config.evaluation) && i < c->config.evaluation.count; i++)
    rc = files_load(&c->evaluation[i], &c->config, &m, c->tokenizer, evaluation_files(&c->config, i, &source), data_dir,
                    err);
  if (rc == RC_OK) {
    c->vocabulary = (int32_t)m.vocabulary;
    const struct sampling_config *s = &c->config.sampling;
    c->stop_token_ids = s->stop_token_ids.count || s->ignore_eos ? s->stop_token_ids : m.eos;
    for (size_t i = 0; i < s->stop.count && rc == RC_OK; i++)
      rc = stop_texts_add(&c->stops, s->stop.items[i], strlen(s->stop.items[i]), &c->arena, err);
  }
  if (rc != RC_OK) {
    run_context_release(c);
    return rc;
  }
  *out = c;
  return RC_OK;
}

enum rc run_context_check(const struct run_config *config, const struct model_files *files, int64_t context_max,
                          const char *data_dir, const struct dataset_watch *watch, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct tokenizer *tokenizer = NULL;
  struct chat *chat = NULL;
  struct dataset_source source;
  struct model_facts m = {
      .positions = LIMIT_SEQUENCE_TOKENS, .trained_max = context_max, .completion_end = -1};
  enum rc rc = files ? model_read(&m, files, &arena, err) : RC_OK;
  if (rc == RC_OK && files) rc = tokenizer_read(&tokenizer, &m, &files->tokenizer, err);
  if (rc == RC_OK && files) rc = tokenizer_eos_add(&m, config, tokenizer, files, &arena, err);
  if (rc == RC_OK && files) rc = ends_check(config, &m, err);
  if (rc == RC_OK && files) chat_read(&chat, &m, tokenizer, files);
  if (rc == RC_OK) rc = files_check(config, &m, tokenizer, dataset_files(config), data_dir, watch, err);
  for (int i = 0; rc == RC_OK && evaluation_wanted(&config->evaluation) && i < config->evaluation.count; i++)
    rc = files_check(config, &m, tokenizer, evaluation_files(config, i, &source), data_dir, watch, err);
  chat_free(chat);
  tokenizer_free(tokenizer);
  arena_free(&arena);
  return rc;
}

static void warn_of_chatml(const struct dataset *d, const char *field, struct json_writer *w) {
  char text[160];
  if (!d || !dataset_used_chatml(d)) return;
  snprintf(text, sizeof text, "%s: messages became prompts in the ChatML form, because the model has no chat template",
           field);
  json_write_string(w, text);
}

void run_context_warnings(const struct run_context *c, const char *start, struct json_writer *w) {
  json_array_begin(w);
  if (start[0]) json_write_string(w, start);
  warn_of_chatml(c->dataset, "dataset", w);
  if (c->config.evaluation.count > 0 && !evaluation_wanted(&c->config.evaluation))
    json_write_string(w, "evaluation: nothing is evaluated, as neither `every_rounds` nor `before` nor `after` is set");
  for (int i = 0; i < c->config.evaluation.count; i++)
    warn_of_chatml(c->evaluation[i], c->config.evaluation.is_list ? c->config.evaluation.sets[i].name : "evaluation",
                   w);
  json_array_end(w);
}

static void counts_write(struct json_writer *w, struct dataset_counts counts) {
  json_kv_int(w, "prompts", counts.prompts);
  json_kv_int(w, "left_out", counts.left_out);
}

void run_context_counts(const struct run_context *c, struct json_writer *w) {
  json_object_begin(w);
  counts_write(w, dataset_counts(c->dataset));
  json_key(w, "sources");
  json_array_begin(w);
  for (int i = 0; i < c->config.source_count; i++) {
    json_object_begin(w);
    json_kv_string(w, "path", c->config.sources[i].path);
    counts_write(w, dataset_file_counts(c->dataset, i));
    json_object_end(w);
  }
  json_array_end(w);
  json_object_end(w);
}

void run_context_preview(const struct run_context *c) {
  enum { LINES = 3 };
  if (run_is_supervised(&c->config) || reward_remote_terms(&c->config.verifier) > 0) return;
  for (int i = 0; i < LINES && i < dataset_count(c->dataset); i++) {
    const struct dataset_item *item = dataset_at(c->dataset, i);
    const struct reward_input input = {
        item->answer, strlen(item->answer), item->answer, item->extra, 0, c->config.sampling.max_new_tokens};
    struct reward_verdict v;
    if (i > 0 && item->line <= dataset_at(c->dataset, i - 1)->line) break; /* of the next file */
    if (!item->answer[0]) continue;
    reward_judge(&c->config.verifier, &input, &v);
    log_info("%s line %d: its answer as a completion would earn %g (%s)", c->config.sources[0].path, item->line,
             v.reward, v.detail);
  }
}

struct run_context *run_context_keep(struct run_context *c) {
  atomic_fetch_add(&c->users, 1);
  return c;
}

void run_context_release(struct run_context *c) {
  if (!c || atomic_fetch_sub(&c->users, 1) != 1) return;
  dataset_order_free(&c->writer_order);
  dataset_order_free(&c->driver_order);
  for (int i = 0; i < EVALUATION_SETS_MAX; i++) dataset_free(c->evaluation[i]);
  dataset_free(c->dataset);
  chat_free(c->chat);
  tokenizer_free(c->tokenizer);
  arena_free(&c->arena);
  free(c);
}

const struct dataset_item *run_unit_item(struct run_context *x, int64_t round, int64_t unit, int sample) {
  int64_t ordinal = (round * x->config.groups_per_round + unit) * x->config.samples_per_group + sample;
  return dataset_at(x->dataset, dataset_index(x->dataset, &x->driver_order, ordinal));
}

int64_t run_unit_tokens(struct run_context *x, int64_t round, int64_t unit) {
  int64_t tokens = 0;
  for (int s = 0; s < x->config.samples_per_group; s++) {
    const struct dataset_item *item = run_unit_item(x, round, unit, s);
    tokens += item->prompt_length + item->completion_length;
  }
  return tokens;
}

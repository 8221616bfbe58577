/* See run_context.h. */
#include "services/coordinator/run_context.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/limits.h"

bool run_is_supervised(const struct run_config *c) { return strcmp(c->training.objective, "cross_entropy") == 0; }
bool run_evaluates(const struct run_config *c) { return strcmp(c->training.objective, "evaluate") == 0; }
bool run_trains_on_rollouts(const struct run_config *c) { return !run_is_supervised(c) && !run_evaluates(c); }

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
  out->items = arena_alloc(arena, n + 1, sizeof *out->items);
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
  struct json_i32s eos;
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
  if (rc == RC_OK) rc = tokenizer_check_fits(*out, (int32_t)m->vocabulary, err);
  if (rc != RC_OK) err_in_file(err, "tokenizer.json");
  return rc;
}

static enum rc datasets_load(struct run_context *c, const struct model_facts *m, const char *data_dir,
                             struct err *err) {
  char path[LIMIT_PATH_MAX];
  const struct run_config *config = &c->config;
  bool supervised = run_is_supervised(config);
  if (m->eos.count == 0 && supervised)
    return err_set(err, RC_INVALID, NULL, "the model names no eos_token_id, which completions must end with");
  int64_t room = m->positions - (supervised ? 1 : config->sampling.max_new_tokens);
  if (room < 1) {
    return err_set(err, RC_INVALID, "sampling.max_new_tokens",
                   "%d new tokens leave no room for a prompt in the model's %lld positions",
                   config->sampling.max_new_tokens, (long long)m->positions);
  }
  if (room > LIMIT_PROMPT_TOKENS) room = LIMIT_PROMPT_TOKENS;
  struct dataset_options options = {.prompt_tokens_max = (int)room,
                                    .completion_tokens_max = (int)room,
                                    .need_completion = supervised,
                                    .need_answer = config->verifier == VERIFIER_NUMERIC,
                                    .eos = m->eos.count ? m->eos.items[0] : -1};
  enum rc rc = data_path_resolve(path, sizeof path, data_dir, config->dataset_path, "dataset.path", err);
  if (rc == RC_OK) rc = dataset_load(&c->dataset, path, c->tokenizer, &options, err);
  if (rc == RC_OK && dataset_count(c->dataset) < 1)
    rc = err_set(err, RC_INVALID, "dataset.path", "the dataset '%.200s' is empty", config->dataset_path);
  if (rc == RC_OK && config->evaluation_every > 0) {
    rc = data_path_resolve(path, sizeof path, data_dir, config->evaluation_path, "evaluation.path", err);
    if (rc == RC_OK) rc = dataset_load(&c->evaluation, path, c->tokenizer, &options, err);
    if (rc == RC_OK && dataset_count(c->evaluation) < 1)
      rc = err_set(err, RC_INVALID, "evaluation.path", "the dataset '%.200s' is empty", config->evaluation_path);
  }
  return rc;
}

enum rc run_context_create(struct run_context **out, int64_t run, const char *config_text,
                           const struct model_files *files, const char *data_dir, struct err *err) {
  struct run_context *c = calloc(1, sizeof *c);
  struct json *config = NULL;
  struct model_facts m = {.positions = LIMIT_SEQUENCE_TOKENS};
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "a run's context was refused memory");
  atomic_init(&c->users, 1);
  c->run = run;
  c->writer_order.epoch = c->driver_order.epoch = -1;
  enum rc rc = json_parse(&config, config_text, strlen(config_text), 0, err);
  if (rc == RC_OK) rc = run_config_parse(&c->config, config, &c->arena, err);
  if (rc == RC_OK) rc = model_read(&m, files, &c->arena, err);
  if (rc == RC_OK) rc = tokenizer_read(&c->tokenizer, &m, &files->tokenizer, err);
  if (rc == RC_OK) rc = datasets_load(c, &m, data_dir, err);
  if (rc == RC_OK) {
    c->vocabulary = (int32_t)m.vocabulary;
    c->stop_token_ids = c->config.sampling.stop_token_ids.count ? c->config.sampling.stop_token_ids : m.eos;
    if (c->stop_token_ids.count == 0 && !run_is_supervised(&c->config))
      rc = err_set(err, RC_INVALID, "sampling.stop_token_ids", "the model names no eos_token_id: name the stop tokens");
  }
  json_free(config);
  if (rc != RC_OK) {
    run_context_release(c);
    return rc;
  }
  *out = c;
  return RC_OK;
}

struct run_context *run_context_keep(struct run_context *c) {
  atomic_fetch_add(&c->users, 1);
  return c;
}

void run_context_release(struct run_context *c) {
  if (!c || atomic_fetch_sub(&c->users, 1) != 1) return;
  dataset_order_free(&c->writer_order);
  dataset_order_free(&c->driver_order);
  dataset_free(c->evaluation);
  dataset_free(c->dataset);
  tokenizer_free(c->tokenizer);
  arena_free(&c->arena);
  free(c);
}

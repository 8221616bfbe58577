/* Reads SGLang's requests. */
#include "services/generation-server/shapes/sglang_request.h"

#include <stdio.h>
#include <string.h>

enum { SGLANG_CHOICES_MAX = 128, SGLANG_TEXT_MAX = 4 << 20 };

/* They cannot change what is sampled: names, logs, hints about where and when. */
static const char *const without_effect[] = {"log_metrics",     "no_logs",       "priority",           "routing_key",
                                             "conversation_id", "session_id",    "extra_key",          "cache_salt",
                                             "custom_labels",   "routed_dp_rank", "data_parallel_rank"};

/* Refused unless they are null or false. */
static const struct {
  const char *name, *why;
} not_offered[] = {
    {"input_embeds", "expected none: prompts are texts or token ids"},
    {"image_data", "expected none: this model reads text"},
    {"video_data", "expected none: this model reads text"},
    {"audio_data", "expected none: this model reads text"},
    {"modalities", "expected none: this model reads text"},
    {"token_ids_logprob", "expected none: ask for top_logprobs_num"},
    {"session_params", "expected none: no request goes on where another one ended"},
    {"lora_path", "expected none: there are no adapters here"},
    {"lora_id", "expected none: there are no adapters here"},
    {"custom_logit_processor", "expected none: no code of a client's is run"},
    {"return_hidden_states", "expected false: only tokens and their log-probabilities leave the server"},
    {"return_routed_experts", "expected false: only tokens and their log-probabilities leave the server"},
    {"return_prompt_token_ids", "expected false: ask for return_logprob with logprob_start_len 0"},
    {"return_entropy", "expected false: only tokens and their log-probabilities leave the server"},
    {"return_sampling_mask", "expected false: only tokens and their log-probabilities leave the server"},
    {"bootstrap_host", "expected none: prompts are computed where tokens are sampled"},
    {"bootstrap_port", "expected none: prompts are computed where tokens are sampled"},
    {"bootstrap_room", "expected none: prompts are computed where tokens are sampled"},
};

static const struct {
  const char *name, *why;
} not_sampled[] = {
    {"stop_regex", "expected none: stop texts are plain texts"},
    {"json_schema", "expected none: answers are not bound to a grammar"},
    {"regex", "expected none: answers are not bound to a grammar"},
    {"ebnf", "expected none: answers are not bound to a grammar"},
    {"structural_tag", "expected none: answers are not bound to a grammar"},
    {"custom_params", "expected none: no code of a client's is run"},
};

enum { REFUSED_COUNT = sizeof not_offered / sizeof not_offered[0],
       IGNORED_COUNT = sizeof without_effect / sizeof without_effect[0],
       FIELDS_MAX = 16 + REFUSED_COUNT + IGNORED_COUNT };

/* What came, before it is known whether it is a batch. */
struct body {
  const struct json *text, *input_ids, *sampling, *rid, *return_logprob, *logprob_start, *top_count;
  bool stream, texts;
};

static bool is_array(const struct json *v) { return v && json_type_of(v) == JSON_ARRAY; }

static enum rc read_body(struct body *b, const struct json *object, struct arena *arena, struct err *err) {
  const struct json *refused[REFUSED_COUNT] = {0}, *ignored;
  struct json_field fields[FIELDS_MAX] = {
      {.name = "text", .kind = FIELD_VALUE, .target = &b->text},
      {.name = "input_ids", .kind = FIELD_VALUE, .target = &b->input_ids},
      {.name = "sampling_params", .kind = FIELD_VALUE, .target = &b->sampling},
      {.name = "rid", .kind = FIELD_VALUE, .target = &b->rid},
      {.name = "return_logprob", .kind = FIELD_VALUE, .target = &b->return_logprob},
      {.name = "logprob_start_len", .kind = FIELD_VALUE, .target = &b->logprob_start},
      {.name = "top_logprobs_num", .kind = FIELD_VALUE, .target = &b->top_count},
      {.name = "return_text_in_logprobs", .kind = FIELD_BOOL, .target = &b->texts},
      {.name = "stream", .kind = FIELD_BOOL, .target = &b->stream},
  };
  size_t count = 9;
  for (size_t i = 0; i < REFUSED_COUNT; i++)
    fields[count++] = (struct json_field){.name = not_offered[i].name, .kind = FIELD_VALUE, .target = &refused[i]};
  for (size_t i = 0; i < IGNORED_COUNT; i++)
    fields[count++] = (struct json_field){.name = without_effect[i], .kind = FIELD_VALUE, .target = &ignored};
  const enum rc rc = json_fields(object, fields, count, UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < REFUSED_COUNT; i++)
    if (refused[i] && !(json_type_of(refused[i]) == JSON_BOOL && !json_bool(refused[i])))
      return err_set(err, RC_UNSUPPORTED, not_offered[i].name, "%s", not_offered[i].why);
  return RC_OK;
}

/* --- prompts --- */

static enum rc read_text(struct generate_prompt *p, const struct json *v, struct err *err) {
  const size_t characters = json_type_of(v) == JSON_STRING ? json_characters(v) : 0;
  if (characters < 1 || characters > SGLANG_TEXT_MAX)
    return err_set(err, RC_INVALID, "text", "expected a text of 1 to %d characters, got %s of %zu", SGLANG_TEXT_MAX,
                   json_type_name(json_type_of(v)), characters);
  p->text = json_string(v, &p->text_len);
  return RC_OK;
}

static enum rc read_ids(struct generate_prompt *p, const struct json *v, struct arena *arena, struct err *err) {
  p->ids.count = is_array(v) ? json_length(v) : 0;
  if (p->ids.count < 1 || p->ids.count > LIMIT_PROMPT_TOKENS)
    return err_set(err, RC_INVALID, "input_ids", "expected 1 to %d token ids, got %s of %zu", LIMIT_PROMPT_TOKENS,
                   json_type_name(json_type_of(v)), p->ids.count);
  p->ids.items = arena_alloc(arena, p->ids.count, sizeof *p->ids.items);
  if (!p->ids.items)
    return err_set(err, RC_NO_MEMORY, "input_ids", "a prompt of %zu ids was refused its memory", p->ids.count);
  for (size_t i = 0; i < p->ids.count; i++) {
    int64_t id;
    if (!json_as_int(json_at(v, i), &id) || id < 0 || id >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "input_ids", "expected token ids below %d, and item %zu is none",
                     LIMIT_VOCABULARY, i);
    p->ids.items[i] = (int32_t)id;
  }
  return RC_OK;
}

/* A text, texts, ids, or arrays of ids. */
static enum rc read_prompts(struct generate_params *p, struct sglang_details *d, const struct body *b,
                            struct arena *arena, struct err *err) {
  if ((b->text != NULL) == (b->input_ids != NULL))
    return err_set(err, RC_INVALID, "text", "expected either text or input_ids, got %s", b->text ? "both" : "neither");
  const struct json *v = b->text ? b->text : b->input_ids;
  const char *name = b->text ? "text" : "input_ids";
  d->batch = is_array(v) && (b->text || is_array(json_at(v, 0)));
  const size_t count = d->batch ? json_length(v) : 1;
  if (count < 1 || count > LIMIT_PROMPTS)
    return err_set(err, RC_INVALID, name, "expected 1 to %d prompts, got %zu", LIMIT_PROMPTS, count);
  struct generate_prompt *prompts = arena_alloc(arena, count, sizeof *prompts);
  if (!prompts) return err_set(err, RC_NO_MEMORY, name, "%zu prompts were refused their memory", count);
  p->prompts = prompts;
  p->prompt_count = count;
  for (size_t i = 0; i < count; i++) {
    const struct json *one = d->batch ? json_at(v, i) : v;
    const enum rc rc = b->text ? read_text(&prompts[i], one, err) : read_ids(&prompts[i], one, arena, err);
    if (rc == RC_OK) continue;
    if (d->batch && err) snprintf(err->field, sizeof err->field, "%s[%zu]", name, i);
    return rc;
  }
  return RC_OK;
}

/* --- sampling --- */

static enum rc read_sampling(struct generate_params *p, struct sglang_item *item, const struct json *v,
                             struct arena *arena, struct err *err) {
  struct sampling_fields f;
  const struct json *interval;
  bool has_seed = false, has_max = false;
  sampling_fields_init(&f, p, SGLANG_CHOICES_MAX);
  const struct json_field fields[] = {
      {.name = "max_new_tokens",
       .kind = FIELD_I32,
       .target = &p->max_new_tokens,
       .min = 0,
       .max = LIMIT_NEW_TOKENS,
       .present = &has_max},
      {.name = "min_new_tokens", .kind = FIELD_I32, .target = &p->min_new_tokens, .min = 0, .max = LIMIT_NEW_TOKENS},
      {.name = "no_stop_trim", .kind = FIELD_BOOL, .target = &p->keeps_stop},
      {.name = "sampling_seed", .kind = FIELD_U64, .target = &p->seed, .present = &has_seed},
      {.name = "stream_interval", .kind = FIELD_VALUE, .target = &interval}, /* how often is not what */
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(&f, fields[i]);
  for (size_t i = 0; i < sizeof not_sampled / sizeof not_sampled[0]; i++)
    sampling_fields_refuse(&f, not_sampled[i].name, NULL, not_sampled[i].why);
  const enum rc rc = v ? sampling_fields_read(&f, v, arena, err) : RC_OK;
  if (rc != RC_OK) return rc;
  if (has_seed && f.has_seed) return err_set(err, RC_INVALID, "seed", "expected seed or sampling_seed, got both");
  if (has_max && p->min_new_tokens > p->max_new_tokens)
    return err_set(err, RC_INVALID, "min_new_tokens", "expected at most max_new_tokens, %d, got %d", p->max_new_tokens,
                   p->min_new_tokens);
  const struct json *most = v ? json_get(v, "max_new_tokens") : NULL;
  p->cuts_to_room = p->cuts_any = !has_max;
  if (most && json_type_of(most) == JSON_NULL) p->max_new_tokens = 0; /* as many as there is room for */
  p->has_seed |= has_seed;
  p->changes.repetition_of_sample = true;
  item->keeps_stop = p->keeps_stop;
  p->only_prompt = has_max && p->max_new_tokens == 0;
  return RC_OK;
}

/* --- what is one for all, or one for each --- */

static const struct json *of_item(const struct json *v, bool batch, size_t i) {
  const struct json *one = batch && is_array(v) ? json_at(v, i) : v;
  return one && json_type_of(one) != JSON_NULL ? one : NULL;
}

static enum rc check_length(const struct json *v, const char *name, const struct generate_params *p, bool batch,
                            struct err *err) {
  if (!batch || !is_array(v) || json_length(v) == p->prompt_count) return RC_OK;
  return err_set(err, RC_INVALID, name, "expected one value, or one for each of %zu prompts, got %zu", p->prompt_count,
                 json_length(v));
}

static enum rc read_int(int32_t *out, const struct json *v, const char *name, int32_t min, int32_t max,
                        struct err *err) {
  int64_t value = 0;
  if (!v) return RC_OK;
  if (!json_as_int(v, &value) || value < min || value > max)
    return err_set(err, RC_INVALID, name, "expected %d to %d, got %s", min, max,
                   json_as_int(v, &value) ? "another number" : json_type_name(json_type_of(v)));
  *out = (int32_t)value;
  return RC_OK;
}

static enum rc read_logprobs(struct sglang_item *item, const struct body *b, bool batch, size_t i, struct err *err) {
  const struct json *wanted = of_item(b->return_logprob, batch, i);
  if (wanted && json_type_of(wanted) != JSON_BOOL)
    return err_set(err, RC_INVALID, "return_logprob", "expected true or false, got %s",
                   json_type_name(json_type_of(wanted)));
  item->logprobs = wanted && json_bool(wanted);
  enum rc rc = read_int(&item->logprob_start, of_item(b->logprob_start, batch, i), "logprob_start_len", -1,
                        LIMIT_PROMPT_TOKENS, err);
  if (rc == RC_OK)
    rc = read_int(&item->top_count, of_item(b->top_count, batch, i), "top_logprobs_num", 0, LIMIT_TOP_LOGPROBS, err);
  return rc;
}

/* Log-probabilities are told of logits / temperature where whole distributions are drawn from; what is shown beside
 * them, and what is told of cut ones, is the raw log-softmax, which is the same at 1 and, by convention, at 0.
 * SGLang's are of logits with penalties and biases, ours of those before them. */
static enum rc check_logprobs(const struct generate_params *p, const struct sglang_item *item, struct err *err) {
  const bool cuts = p->top_k > 0 || p->top_p < 1 || p->min_p > 0;
  if (!item->logprobs) return RC_OK;
  if (logit_changes_any(&p->changes) || p->min_new_tokens > 0)
    return err_set(err, RC_UNSUPPORTED, "return_logprob",
                   "expected no penalties, no logit_bias and no min_new_tokens beside it: they would not show in it");
  if (p->temperature == 1 || p->temperature == 0 || !(item->top_count > 0 || cuts)) return RC_OK;
  return err_set(err, RC_UNSUPPORTED, item->top_count > 0 ? "top_logprobs_num" : "return_logprob",
                 "expected temperature 1 or 0 beside it and %s, got %g", cuts ? "cuts" : "return_logprob",
                 p->temperature);
}

/* A batch's name and the number of a prompt, or the prompt's own. */
static enum rc read_id(const char **out, const struct json *rid, bool batch, size_t i, struct arena *arena,
                       struct err *err) {
  const struct json *v = of_item(rid, batch, i);
  if (!v) return RC_OK;
  const char *word = json_word(v);
  if (!word)
    return err_set(err, RC_INVALID, "rid", "expected a text%s, got %s", batch ? ", or one for each prompt" : "",
                   json_type_name(json_type_of(v)));
  const enum rc rc = client_id_check(word, "rid", err);
  if (rc != RC_OK) return rc;
  const bool numbered = batch && !is_array(rid);
  char name[LIMIT_NAME_MAX + 16];
  const int length =
      numbered ? snprintf(name, sizeof name, "%s_%zu", word, i) : snprintf(name, sizeof name, "%s", word);
  if (length >= LIMIT_NAME_MAX)
    return err_set(err, RC_INVALID, "rid", "expected room for the number of a prompt in %d characters, got %zu",
                   LIMIT_NAME_MAX - 1, strlen(word));
  *out = arena_strdup(arena, name);
  return *out ? RC_OK : err_set(err, RC_NO_MEMORY, "rid", "the request was refused its memory");
}

/* The parameters of prompt i, which become its own. */
static enum rc read_item(struct generate_prompt *prompt, struct sglang_item *item, const struct generate_params *base,
                         const struct body *b, bool batch, size_t i, struct arena *arena, struct err *err) {
  struct generate_params *own = arena_alloc(arena, 1, sizeof *own);
  if (!own) return err_set(err, RC_NO_MEMORY, NULL, "prompt %zu was refused its memory", i);
  *own = *base;
  *item = (struct sglang_item){.logprob_start = -1};
  prompt->own = own;
  prompt->alone = batch && is_array(b->sampling);
  enum rc rc = read_logprobs(item, b, batch, i, err);
  if (rc == RC_OK) {
    rc = read_sampling(own, item, of_item(b->sampling, batch, i), arena, err);
    if (rc != RC_OK) err_in_field(err, "sampling_params");
  }
  if (rc == RC_OK) rc = read_id(&item->id, b->rid, batch, i, arena, err);
  if (rc == RC_OK) rc = check_logprobs(own, item, err);
  if (rc != RC_OK) return rc;
  own->top_logprobs = item->logprobs ? item->top_count : 0;
  own->raw_logprobs = own->top_logprobs > 0;
  own->prompt_logprobs = item->logprobs && item->logprob_start >= 0;
  own->prompt_logprobs_from = item->logprob_start;
  item->told = arena_alloc(arena, (size_t)own->n, sizeof *item->told);
  if (!item->told) return err_set(err, RC_NO_MEMORY, NULL, "prompt %zu was refused its memory", i);
  if (batch) prompt->id = item->id;
  return RC_OK;
}

static enum rc read_items(struct generate_params *p, struct sglang_details *d, const struct body *b,
                          struct arena *arena, struct err *err) {
  struct generate_prompt *prompts = arena_alloc(arena, p->prompt_count, sizeof *prompts);
  struct sglang_item *items = arena_alloc(arena, p->prompt_count, sizeof *items);
  const struct generate_params base = *p;
  if (!prompts || !items)
    return err_set(err, RC_NO_MEMORY, NULL, "%zu prompts were refused their memory", p->prompt_count);
  memcpy(prompts, p->prompts, p->prompt_count * sizeof *prompts);
  p->prompts = prompts;
  d->items = items;
  for (size_t i = 0; i < p->prompt_count; i++) {
    const enum rc rc = read_item(&prompts[i], &items[i], &base, b, d->batch, i, arena, err);
    if (rc != RC_OK) return rc;
    if (i > 0 && prompts[i].own->n != prompts[0].own->n)
      return err_set(err, RC_INVALID, "sampling_params.n", "expected the same n for all prompts, got %d and %d",
                     prompts[0].own->n, prompts[i].own->n);
  }
  p->n = prompts[0].own->n;
  p->seed = prompts[0].own->seed;
  p->has_seed = prompts[0].own->has_seed && !prompts[0].alone;
  return RC_OK;
}

enum rc sglang_request_read(struct generate_params *p, struct http_request *r, struct err *err) {
  const struct json *object;
  struct arena *arena = http_arena(r);
  struct body b = {0};
  struct sglang_details *d = arena_alloc(arena, 1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  enum rc rc = http_body_json(r, &object, err);
  if (rc == RC_OK) rc = read_body(&b, object, arena, err);
  if (rc == RC_OK) rc = read_prompts(p, d, &b, arena, err);
  if (rc == RC_OK) rc = check_length(b.sampling, "sampling_params", p, d->batch, err);
  if (rc == RC_OK) rc = check_length(b.rid, "rid", p, d->batch, err);
  if (rc == RC_OK) rc = check_length(b.return_logprob, "return_logprob", p, d->batch, err);
  if (rc == RC_OK) rc = check_length(b.logprob_start, "logprob_start_len", p, d->batch, err);
  if (rc == RC_OK) rc = check_length(b.top_count, "top_logprobs_num", p, d->batch, err);
  if (rc == RC_OK) rc = read_items(p, d, &b, arena, err);
  if (rc != RC_OK) return rc;
  d->texts = b.texts;
  p->stream = b.stream;
  p->tells_tokens = true;
  p->details = d;
  if (b.rid && !is_array(b.rid)) p->id = arena_strdup(arena, json_word(b.rid));
  return RC_OK;
}

void sglang_request_name_field(struct err *err) {
  static const char *const sampled[] = {"max_new_tokens", "stop_token_ids", "logit_bias", "stop", "n"};
  for (size_t i = 0; i < sizeof sampled / sizeof sampled[0]; i++)
    if (strcmp(err->field, sampled[i]) == 0) err_in_field(err, "sampling_params");
  if (strcmp(err->field, "prompt_logprobs_from") == 0) snprintf(err->field, sizeof err->field, "logprob_start_len");
}

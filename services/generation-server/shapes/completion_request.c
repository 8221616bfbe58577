/* Reads the body of POST /v1/completions into the parameters that both APIs share. */
#include "services/generation-server/requests/completion_request.h"

#include <stdio.h>
#include <string.h>

enum { COMPLETION_TOKENS_DEFAULT = 16, CHOICES_MAX = 128, TEXT_CHARACTERS_MAX = 4 << 20 };

/* --- prompts --- */

static enum rc read_text(struct generate_prompt *p, const struct json *v, struct err *err) {
  const size_t characters = json_characters(v);
  p->text = json_string(v, &p->text_len);
  if (characters < 1 || characters > TEXT_CHARACTERS_MAX)
    return err_set(err, RC_INVALID, "prompt", "expected texts of 1 to %d characters, got %zu", TEXT_CHARACTERS_MAX,
                   characters);
  return RC_OK;
}

static enum rc read_ids(struct generate_prompt *p, const struct json *v, struct arena *arena, struct err *err) {
  p->ids.count = json_length(v);
  if (p->ids.count < 1 || p->ids.count > LIMIT_PROMPT_TOKENS)
    return err_set(err, RC_INVALID, "prompt", "expected 1 to %d token ids, got %zu", LIMIT_PROMPT_TOKENS, p->ids.count);
  p->ids.items = arena_alloc(arena, p->ids.count, sizeof *p->ids.items);
  if (!p->ids.items)
    return err_set(err, RC_NO_MEMORY, "prompt", "a prompt of %zu ids was refused its memory", p->ids.count);
  for (size_t i = 0; i < p->ids.count; i++) {
    const struct json *item = json_at(v, i);
    int64_t id;
    if (!json_as_int(item, &id) || id < 0 || id >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "prompt", "expected token ids, and item %zu is none", i);
    p->ids.items[i] = (int32_t)id;
  }
  return RC_OK;
}

/* One prompt: a text, or ids. */
static enum rc read_prompt(struct generate_prompt *p, const struct json *v, struct arena *arena, struct err *err) {
  if (json_type_of(v) == JSON_STRING) return read_text(p, v, err);
  if (json_type_of(v) == JSON_ARRAY) return read_ids(p, v, arena, err);
  return err_set(err, RC_INVALID, "prompt", "expected a text or an array of token ids, got %s",
                 json_type_name(json_type_of(v)));
}

/* A text, several texts, ids, or several prompts of ids. */
static enum rc read_prompts(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  const size_t length = json_type_of(v) == JSON_ARRAY ? json_length(v) : 0;
  const bool several =
      length > 0 && (json_type_of(json_at(v, 0)) == JSON_STRING || json_type_of(json_at(v, 0)) == JSON_ARRAY);
  const size_t count = several ? length : 1;
  if (count > LIMIT_PROMPTS)
    return err_set(err, RC_INVALID, "prompt", "expected at most %d prompts, got %zu", LIMIT_PROMPTS, count);
  struct generate_prompt *prompts = arena_alloc(arena, count, sizeof *prompts);
  if (!prompts) return err_set(err, RC_NO_MEMORY, "prompt", "%zu prompts were refused their memory", count);
  p->prompts = prompts;
  p->prompt_count = count;
  for (size_t i = 0; i < count; i++) {
    const struct json *item = several ? json_at(v, i) : v;
    enum rc rc = read_prompt(&prompts[i], item, arena, err);
    if (rc == RC_OK && (prompts[i].text == NULL) != (prompts[0].text == NULL))
      rc = err_set(err, RC_INVALID, "prompt", "expected only texts or only arrays of token ids, got both");
    if (rc == RC_OK) continue;
    if (several) snprintf(err->field, sizeof err->field, "prompt[%zu]", i);
    return rc;
  }
  return RC_OK;
}

/* --- where to stop --- */

static enum rc add_stop(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  if (json_type_of(v) != JSON_STRING)
    return err_set(err, RC_INVALID, "stop", "expected a text or an array of up to %d texts, got %s in it",
                   LIMIT_STOP_TEXTS, json_type_name(json_type_of(v)));
  const size_t characters = json_characters(v);
  if (characters < 1 || characters > LIMIT_STOP_TEXT_CHARS)
    return err_set(err, RC_INVALID, "stop", "expected texts of 1 to %d characters, got %zu", LIMIT_STOP_TEXT_CHARS,
                   characters);
  size_t len;
  const char *text = json_string(v, &len);
  return stop_texts_add(&p->stops, text, len, arena, err);
}

static enum rc read_stop(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  if (!v) return RC_OK;
  if (json_type_of(v) == JSON_STRING) return add_stop(p, v, arena, err);
  if (json_type_of(v) != JSON_ARRAY || json_length(v) > LIMIT_STOP_TEXTS)
    return err_set(err, RC_INVALID, "stop", "expected a text or an array of up to %d texts, got %s of %zu",
                   LIMIT_STOP_TEXTS, json_type_name(json_type_of(v)), json_length(v));
  enum rc rc = RC_OK;
  for (size_t i = 0; i < json_length(v) && rc == RC_OK; i++) rc = add_stop(p, json_at(v, i), arena, err);
  return rc;
}

/* --- the rest --- */

/* Refuses fields that would change the result and are not offered; their neutral values are fine. */
static enum rc refuse_others(const struct json *body, int32_t n, struct arena *arena, struct err *err) {
  double presence = 0, frequency = 0, repetition = 1;
  int32_t best_of = n;
  const char *suffix = "";
  const struct json *bias = NULL;
  const struct json_field fields[] = {
      {.name = "presence_penalty", .kind = FIELD_F64, .target = &presence},
      {.name = "frequency_penalty", .kind = FIELD_F64, .target = &frequency},
      {.name = "repetition_penalty", .kind = FIELD_F64, .target = &repetition},
      {.name = "best_of", .kind = FIELD_I32, .target = &best_of, .min = 1, .max = CHOICES_MAX},
      {.name = "suffix", .kind = FIELD_STRING, .target = &suffix},
      {.name = "logit_bias", .kind = FIELD_VALUE, .target = &bias},
  };
  const enum rc rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) return rc;
  if (presence != 0 || frequency != 0 || repetition != 1)
    return err_set(err, RC_UNSUPPORTED,
                   presence != 0    ? "presence_penalty"
                   : frequency != 0 ? "frequency_penalty"
                                    : "repetition_penalty",
                   "expected no penalties: they are not offered");
  if (best_of != n)
    return err_set(err, RC_UNSUPPORTED, "best_of", "expected none, or n: %d; choosing among more is not offered", n);
  if (suffix[0]) return err_set(err, RC_UNSUPPORTED, "suffix", "expected none: texts are only continued");
  if (bias && json_type_of(bias) != JSON_OBJECT)
    return err_set(err, RC_INVALID, "logit_bias", "expected an object, got %s", json_type_name(json_type_of(bias)));
  if (bias && json_length(bias) > 0)
    return err_set(err, RC_UNSUPPORTED, "logit_bias", "expected none: biases are not offered");
  return RC_OK;
}

static enum rc read_stream_options(struct completion_details *d, const struct json *v, bool stream, struct arena *arena,
                                   struct err *err) {
  if (!v) return RC_OK;
  if (!stream) return err_set(err, RC_INVALID, "stream_options", "expected none without stream: true");
  const struct json_field fields[] = {
      {.name = "include_usage", .kind = FIELD_BOOL, .target = &d->include_usage},
  };
  const enum rc rc = json_fields(v, fields, 1, UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) err_in_field(err, "stream_options");
  return rc;
}

static enum rc read_fields(struct generate_params *p, struct completion_details *d, const struct json *body,
                           struct arena *arena, struct err *err) {
  const struct json *prompt = NULL, *stop = NULL, *stream_options = NULL;
  const char *model, *user;
  const struct json_field fields[] = {
      {.name = "prompt", .kind = FIELD_VALUE, .target = &prompt, .required = true},
      {.name = "model", .kind = FIELD_STRING, .target = &model},
      {.name = "user", .kind = FIELD_STRING, .target = &user},
      {.name = "max_tokens", .kind = FIELD_I32, .target = &p->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "temperature", .kind = FIELD_F64, .target = &p->temperature, .min = 0, .max = 100},
      {.name = "top_p", .kind = FIELD_F64, .target = &p->top_p, .min = 1e-6, .max = 1},
      {.name = "top_k", .kind = FIELD_I32, .target = &p->top_k, .min = -1, .max = LIMIT_VOCABULARY},
      {.name = "min_p", .kind = FIELD_F64, .target = &p->min_p, .min = 0, .max = 1},
      {.name = "n", .kind = FIELD_I32, .target = &p->n, .min = 1, .max = CHOICES_MAX},
      {.name = "seed", .kind = FIELD_U64, .target = &p->seed, .present = &p->has_seed},
      {.name = "stop", .kind = FIELD_VALUE, .target = &stop},
      {.name = "stop_token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &p->stop_token_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_STOP_TOKENS},
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &p->ignore_eos},
      {.name = "logprobs",
       .kind = FIELD_I32,
       .target = &p->top_logprobs,
       .min = 0,
       .max = LIMIT_TOP_LOGPROBS,
       .present = &d->logprobs},
      {.name = "echo", .kind = FIELD_BOOL, .target = &p->echo},
      {.name = "stream", .kind = FIELD_BOOL, .target = &p->stream},
      {.name = "stream_options", .kind = FIELD_VALUE, .target = &stream_options},
      {.name = "return_token_ids", .kind = FIELD_BOOL, .target = &d->return_token_ids},
  };
  enum rc rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc == RC_OK) rc = read_prompts(p, prompt, arena, err);
  if (rc == RC_OK) rc = read_stop(p, stop, arena, err);
  if (rc == RC_OK) rc = read_stream_options(d, stream_options, p->stream, arena, err);
  return rc;
}

enum rc completion_request_read(struct generate_params *p, struct http_request *r, struct err *err) {
  const struct json *body;
  struct arena *arena = http_arena(r);
  struct completion_details *d = arena_alloc(arena, 1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  p->max_new_tokens = COMPLETION_TOKENS_DEFAULT;
  p->details = d;
  enum rc rc = http_body_json(r, &body, err);
  if (rc == RC_OK) rc = read_fields(p, d, body, arena, err);
  if (rc == RC_OK) rc = refuse_others(body, p->n, arena, err);
  if (rc != RC_OK) return rc;
  p->raw_logprobs = d->logprobs;
  p->tells_tokens = d->logprobs || d->return_token_ids;
  if (p->echo && d->logprobs)
    return err_set(err, RC_UNSUPPORTED, "echo",
                   "expected echo or logprobs, got both: the log-probabilities of a prompt's tokens are not offered");
  return RC_OK;
}

void completion_request_name_field(struct err *err) {
  const char *name = NULL;
  if (strcmp(err->field, "max_new_tokens") == 0) name = "max_tokens";
  if (strcmp(err->field, "input_ids") == 0 || strcmp(err->field, "text") == 0) name = "prompt";
  if (name) snprintf(err->field, sizeof err->field, "%s", name);
}

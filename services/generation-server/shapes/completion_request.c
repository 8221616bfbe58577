/* Reads the body of POST /v1/completions into the parameters that all shapes share. */
#include "services/generation-server/shapes/completion_request.h"

#include <stdio.h>
#include <string.h>

enum { COMPLETION_TOKENS_DEFAULT = 16, TEXT_CHARACTERS_MAX = 4 << 20 };

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

/* --- the rest --- */

static enum rc read_fields(struct generate_params *p, struct openai_details *d, const struct json *body,
                           struct arena *arena, struct err *err) {
  const struct json *prompt = NULL;
  int32_t best_of = 0, prompt_top = 0;
  const char *suffix = "";
  struct openai_fields f;
  openai_fields_init(&f, p, d, 0);
  const struct json_field fields[] = {
      {.name = "prompt", .kind = FIELD_VALUE, .target = &prompt, .required = true},
      {.name = "logprobs",
       .kind = FIELD_I32,
       .target = &p->top_logprobs,
       .min = 0,
       .max = LIMIT_TOP_LOGPROBS,
       .present = &d->logprobs},
      {.name = "prompt_logprobs",
       .kind = FIELD_I32,
       .target = &prompt_top,
       .min = 0,
       .max = LIMIT_TOP_LOGPROBS,
       .present = &d->prompt_logprobs},
      {.name = "echo", .kind = FIELD_BOOL, .target = &p->echo},
      {.name = "best_of", .kind = FIELD_I32, .target = &best_of, .min = 1, .max = OPENAI_CHOICES_MAX},
      {.name = "suffix", .kind = FIELD_STRING, .target = &suffix},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(&f.sampling, fields[i]);
  const enum rc rc = openai_fields_read(&f, body, arena, err);
  if (rc != RC_OK) return rc;
  if (best_of != 0 && best_of != p->n)
    return err_set(err, RC_UNSUPPORTED, "best_of", "expected none, or n: %d; choosing among more is not offered", p->n);
  if (p->max_new_tokens == 0 && !p->echo)
    return err_set(err, RC_INVALID, "max_tokens", "expected 1 or more, or echo beside 0");
  p->only_prompt = p->max_new_tokens == 0; /* what its own tokens are worth: evaluations ask for it */
  if (d->prompt_logprobs && d->logprobs)
    return err_set(err, RC_UNSUPPORTED, "prompt_logprobs", "expected none beside logprobs: ask for one of them");
  if (d->prompt_logprobs) p->top_logprobs = prompt_top;
  if (suffix[0]) return err_set(err, RC_UNSUPPORTED, "suffix", "expected none: texts are only continued");
  return read_prompts(p, prompt, arena, err);
}

enum rc completion_request_read(struct generate_params *p, struct http_request *r, struct err *err) {
  const struct json *body;
  struct arena *arena = http_arena(r);
  struct openai_details *d = arena_alloc(arena, 1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  p->max_new_tokens = COMPLETION_TOKENS_DEFAULT;
  p->details = d;
  enum rc rc = http_body_json(r, &body, err);
  if (rc == RC_OK) rc = read_fields(p, d, body, arena, err);
  d->prompts_are_texts = rc == RC_OK && p->prompts[0].text != NULL;
  p->raw_logprobs = d->logprobs;
  p->prompt_logprobs = d->prompt_logprobs || (d->logprobs && p->echo);
  p->tells_tokens = d->logprobs || d->prompt_logprobs || d->return_token_ids;
  return rc;
}

void completion_request_name_field(struct err *err) {
  const char *name = NULL;
  if (strcmp(err->field, "max_new_tokens") == 0) name = "max_tokens";
  if (strcmp(err->field, "input_ids") == 0 || strcmp(err->field, "text") == 0) name = "prompt";
  if (name) snprintf(err->field, sizeof err->field, "%s", name);
}

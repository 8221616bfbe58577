/* POST /v1/completions: the OpenAI shape over the same engine, without streaming. Unknown keys are ignored, as
 * clients of that API expect; what would change the result and is not offered (stream, stop strings, penalties) is
 * refused.
 *
 * Only the shape is here: reading its fields and writing its answer.  Limits, submission, hang-ups and the replier
 * are route_generate.c's.  The handler runs on an HTTP thread, the encoder on the replier's. */
#include <string.h>

#include "common/base/clock.h"
#include "services/generation-server/routes.h"

enum { COMPLETION_TOKENS_DEFAULT = 16, CHOICES_MAX = 128, TEXT_BYTES_MAX = 4 << 20 };

static enum rc read_prompt(struct generate_params *p, const struct json *prompt, struct arena *arena, struct err *err) {
  if (prompt && json_type_of(prompt) == JSON_STRING) {
    p->text = json_string(prompt, &p->text_len);
    if (p->text_len < 1 || p->text_len > TEXT_BYTES_MAX)
      return err_set(err, RC_INVALID, "prompt", "expected 1 to %d bytes, got %zu", TEXT_BYTES_MAX, p->text_len);
    return RC_OK;
  }
  if (!prompt || json_type_of(prompt) != JSON_ARRAY || json_length(prompt) < 1 ||
      json_length(prompt) > LIMIT_PROMPT_TOKENS)
    return err_set(err, RC_INVALID, "prompt", "expected a text or an array of 1 to %d token ids", LIMIT_PROMPT_TOKENS);
  p->input_ids.count = json_length(prompt);
  p->input_ids.items = arena_alloc(arena, p->input_ids.count, sizeof *p->input_ids.items);
  if (!p->input_ids.items)
    return err_set(err, RC_NO_MEMORY, "prompt", "a prompt of %zu ids was refused its memory", p->input_ids.count);
  for (size_t i = 0; i < p->input_ids.count; i++) {
    const struct json *item = json_at(prompt, i);
    if (json_type_of(item) != JSON_INT || json_int(item) < 0 || json_int(item) >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "prompt", "expected token ids, item %zu is not one", i);
    p->input_ids.items[i] = (int32_t)json_int(item);
  }
  return RC_OK;
}

static enum rc read_request(struct generate_params *p, struct http_request *r, struct err *err) {
  const struct json *body, *prompt = NULL, *stop = NULL;
  double presence = 0, frequency = 0;
  bool stream = false;
  generate_params_defaults(p);
  p->max_new_tokens = COMPLETION_TOKENS_DEFAULT;
  enum rc rc = http_body_json(r, &body, err);
  if (rc != RC_OK) return rc;
  const struct json_field fields[] = {
      {.name = "prompt", .kind = FIELD_VALUE, .target = &prompt, .required = true},
      {.name = "max_tokens", .kind = FIELD_I32, .target = &p->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "temperature", .kind = FIELD_F64, .target = &p->temperature, .min = 0, .max = 100},
      {.name = "top_p", .kind = FIELD_F64, .target = &p->top_p, .min = 1e-6, .max = 1},
      {.name = "n", .kind = FIELD_I32, .target = &p->n, .min = 1, .max = CHOICES_MAX},
      {.name = "seed", .kind = FIELD_U64, .target = &p->seed, .present = &p->has_seed},
      {.name = "stream", .kind = FIELD_BOOL, .target = &stream},
      {.name = "stop", .kind = FIELD_VALUE, .target = &stop},
      {.name = "presence_penalty", .kind = FIELD_F64, .target = &presence},
      {.name = "frequency_penalty", .kind = FIELD_F64, .target = &frequency},
  };
  rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, http_arena(r), err);
  if (rc != RC_OK) return rc;
  if (stream) return err_set(err, RC_UNSUPPORTED, "stream", "expected false: answers come whole");
  if (stop && json_type_of(stop) != JSON_NULL)
    return err_set(err, RC_UNSUPPORTED, "stop",
                   "expected null: stop ids are offered by /v1/generate, stop texts are not");
  if (presence != 0 || frequency != 0) return err_set(err, RC_UNSUPPORTED, "presence_penalty", "expected no penalties");
  return read_prompt(p, prompt, http_arena(r), err);
}

static void encode_completions(const struct generate_call *call, const struct job *job, struct json_writer *w) {
  int64_t completion_tokens = 0;
  json_object_begin(w);
  json_kv_string(w, "id", job->id);
  json_kv_string(w, "object", "text_completion");
  json_kv_int(w, "created", clock_wall_ms() / 1000);
  json_kv_string(w, "model", job->policy.run[0] ? job->policy.run : "leasehold");
  json_key(w, "choices");
  json_array_begin(w);
  for (int32_t i = 0; i < job->sample_count; i++) {
    const struct sample *s = &job->samples[i];
    completion_tokens += s->count;
    json_object_begin(w);
    json_kv_int(w, "index", i);
    json_key(w, "text");
    generate_write_text(call, s->tokens, (size_t)s->count, w);
    json_key(w, "logprobs");
    json_write_null(w);
    json_kv_string(w, "finish_reason", finish_reason_name(s->finish));
    json_object_end(w);
  }
  json_array_end(w);
  json_key(w, "usage");
  json_object_begin(w);
  json_kv_int(w, "prompt_tokens", job->prompt_count);
  json_kv_int(w, "completion_tokens", completion_tokens);
  json_kv_int(w, "total_tokens", job->prompt_count + completion_tokens);
  json_object_end(w);
  json_object_end(w);
}

void handle_completions(struct http_request *r, void *context) {
  struct server *s = context;
  struct generate_params p;
  struct err err;
  if (read_request(&p, r, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  generate_submit(s, r, &p, encode_completions);
}

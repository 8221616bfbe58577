/* POST /v1/generate: text or ids in, samples out, in the shape that SGLang's clients know; unknown keys are refused.
 *
 * This file knows the shape only: it reads fields on an HTTP thread and writes answers on the replier's.
 *
 * Previous hop of a plain request: the HTTP layer.  Next: requests.c. */
#include <string.h>

#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

enum { CHOICES_MAX = 256, TEXT_CHARACTERS_MAX = 4 << 20 };

/* Shapes the answer, in addition to the call. */
struct generate_details {
  bool return_logprob;
};

/* --- request --- */

static enum rc read_sampling(struct generate_params *p, const struct json *value, struct arena *arena,
                             struct err *err) {
  if (!value) return RC_OK;
  const struct json_field fields[] = {
      {.name = "max_new_tokens", .kind = FIELD_I32, .target = &p->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "temperature", .kind = FIELD_F64, .target = &p->temperature, .min = 0, .max = 100},
      {.name = "top_k", .kind = FIELD_I32, .target = &p->top_k, .min = -1, .max = LIMIT_VOCABULARY},
      {.name = "top_p", .kind = FIELD_F64, .target = &p->top_p, .min = 1e-6, .max = 1},
      {.name = "min_p", .kind = FIELD_F64, .target = &p->min_p, .min = 0, .max = 1},
      {.name = "stop_token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &p->stop_token_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_STOP_TOKENS},
      {.name = "seed", .kind = FIELD_U64, .target = &p->seed, .present = &p->has_seed},
      {.name = "n", .kind = FIELD_I32, .target = &p->n, .min = 1, .max = CHOICES_MAX},
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &p->ignore_eos},
  };
  const enum rc rc = json_fields(value, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) err_in_field(err, "sampling_params");
  return rc;
}

static enum rc read_request(struct generate_params *p, struct generate_prompt *prompt, struct generate_details *details,
                            struct http_request *r, struct err *err) {
  const struct json *body, *sampling = NULL;
  struct json_text text = {NULL, 0};
  bool by_ids = false;
  enum rc rc = http_body_json(r, &body, err);
  if (rc != RC_OK) return rc;
  const struct json_field fields[] = {
      {.name = "text", .kind = FIELD_TEXT, .target = &text, .min = 1, .max = TEXT_CHARACTERS_MAX},
      {.name = "input_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &prompt->ids,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_PROMPT_TOKENS,
       .present = &by_ids},
      {.name = "sampling_params", .kind = FIELD_VALUE, .target = &sampling},
      {.name = "return_logprob", .kind = FIELD_BOOL, .target = &details->return_logprob},
  };
  rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, http_arena(r), err);
  if (rc == RC_OK) rc = read_sampling(p, sampling, http_arena(r), err);
  if (rc != RC_OK) return rc;
  prompt->text = text.bytes;
  prompt->text_len = text.len;
  if (by_ids && prompt->ids.count == 0)
    return err_set(err, RC_INVALID, "input_ids", "expected 1 to %d token ids, got 0", LIMIT_PROMPT_TOKENS);
  if (by_ids == (prompt->text != NULL))
    return err_set(err, RC_INVALID, "text", "expected either text or input_ids, got %s",
                   prompt->text ? "both" : "neither");
  return RC_OK;
}

/* --- answer --- */

static void write_finish(const struct decode_job *job, const struct sample *s, struct json_writer *w) {
  json_key(w, "finish_reason");
  json_object_begin(w);
  json_kv_string(w, "type", finish_reason_name(s->finish));
  if (s->finish == FINISH_STOP && s->count > 0) json_kv_int(w, "matched", s->tokens[s->count - 1]);
  if (s->finish == FINISH_LENGTH) json_kv_int(w, "length", job->max_new);
  json_object_end(w);
}

static void write_logprobs(const struct sample *s, struct json_writer *w) {
  json_key(w, "output_token_logprobs");
  json_array_begin(w);
  for (int32_t i = 0; i < s->count; i++) {
    json_array_begin(w);
    json_write_f32(w, s->logprobs[i]);
    json_write_int(w, s->tokens[i]);
    json_write_null(w);
    json_array_end(w);
  }
  json_array_end(w);
}

static void write_spans(const struct sample *s, struct arena *arena, struct json_writer *w) {
  size_t count = 0;
  const struct version_span *spans = sample_spans(s, &count, arena);
  wire_kv_version_spans(w, spans, spans ? count : 0);
}

static void write_choice(const struct generate_call *call, const struct decode_job *job, const struct sample *s,
                         struct json_writer *w) {
  char hex[DIGEST_HEX_MAX];
  struct arena arena = ARENA_INIT;
  digest_hex(hex, &s->digest);
  json_object_begin(w);
  json_key(w, "text");
  generate_call_write_text(call, s->tokens, (size_t)s->count, w);
  json_kv_i32s(w, "output_ids", s->tokens, (size_t)s->count);
  json_key(w, "meta_info");
  json_object_begin(w);
  json_kv_string(w, "id", job->id);
  write_finish(job, s, w);
  json_kv_int(w, "prompt_tokens", job->prompt_count);
  json_kv_int(w, "completion_tokens", s->count);
  json_kv_int(w, "weight_version", s->count > 0 ? s->versions[s->count - 1] : job->policy.version);
  json_kv_string(w, "weights_digest", hex);
  write_spans(s, &arena, w);
  if (((const struct generate_details *)call->details)->return_logprob) write_logprobs(s, w);
  json_object_end(w);
  json_object_end(w);
  arena_free(&arena);
}

static enum rc write_answer(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                            struct err *err) {
  const struct decode_job *job = call->jobs[0];
  (void)m, (void)err;
  if (job->sample_count > 1) json_array_begin(w);
  for (int32_t i = 0; i < job->sample_count; i++) write_choice(call, job, &job->samples[i], w);
  if (job->sample_count > 1) json_array_end(w);
  return RC_OK;
}

void handle_generate(struct http_request *r, void *context) {
  static const struct generate_shape shape = {.id_prefix = "gen-", .whole = write_answer};
  struct generate_params p;
  struct generate_prompt prompt = {0};
  struct err err;
  struct generate_details *details = arena_alloc(http_arena(r), 1, sizeof *details);
  generate_params_defaults(&p, &shape);
  p.prompts = &prompt;
  p.prompt_count = 1;
  p.details = details;
  enum rc rc = details ? RC_OK : err_set(&err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  if (rc == RC_OK) rc = read_request(&p, &prompt, details, r, &err);
  if (rc == RC_OK) rc = requests_submit(((struct server *)context)->requests, r, &p, &err);
  if (rc != RC_OK) http_fail(r, &err);
}

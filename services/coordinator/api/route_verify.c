/* Answers POST /v1/verify. */
#include "services/coordinator/api/route_verify.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/verifiers/reward_config.h"

enum { SAMPLES_MAX = 256, ANSWER_MAX = 1 << 20 };

struct verify_request {
  struct reward_rule rule;
  const struct json *samples;
};

struct verify_sample {
  struct json_text completion;
  const char *answer;
  int32_t tokens, tokens_max;
};

static enum rc request_read(struct verify_request *m, const struct json *body, struct arena *arena, struct err *err) {
  const struct json *verifier = NULL;
  const struct json_field fields[] = {
      {.name = "verifier", .kind = FIELD_VALUE, .target = &verifier, .required = true},
      {.name = "samples", .kind = FIELD_VALUE, .target = &m->samples, .required = true}};
  reward_rule_of(&m->rule, VERIFIER_NUMERIC);
  enum rc rc = json_fields(body, fields, 2, UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) return rc;
  rc = reward_rule_read(&m->rule, verifier, NULL, arena, err);
  if (rc != RC_OK) {
    err_in_field(err, "verifier");
    return rc;
  }
  if (reward_remote_terms(&m->rule) > 0)
    return err_set(err, RC_INVALID, "verifier.kind",
                   "a verifier of kind 'http' is a server that only runs ask: to try it, send a request to that "
                   "server");
  if (json_type_of(m->samples) == JSON_ARRAY && json_length(m->samples) >= 1 && json_length(m->samples) <= SAMPLES_MAX)
    return RC_OK;
  return err_set(err, RC_INVALID, "samples", "expected an array of 1 to %d samples", SAMPLES_MAX);
}

static void verdict_write(struct json_writer *w, const struct reward_rule *rule, const struct reward_verdict *v) {
  json_kv_f64(w, "reward", v->reward);
  json_kv_bool(w, "well_formed", v->well_formed);
  json_kv_string(w, "detail", v->detail);
  json_key(w, "terms");
  json_array_begin(w);
  for (int i = 0; i < rule->count; i++) {
    json_object_begin(w);
    json_kv_string(w, "kind", verifier_name(rule->terms[i].kind));
    json_kv_f64(w, "weight", rule->terms[i].weight);
    json_kv_f64(w, "value", v->values[i]);
    json_object_end(w);
  }
  json_array_end(w);
}

static enum rc sample_judge(struct json_writer *w, const struct reward_rule *rule, const struct json *sample,
                            struct arena *arena, struct err *err) {
  struct verify_sample s = {.answer = "", .tokens_max = LIMIT_NEW_TOKENS};
  struct buf extra = BUF_INIT;
  struct json_writer e;
  struct err fault = {0};
  const struct json_field fields[] = {
      {.name = "completion",
       .kind = FIELD_TEXT,
       .target = &s.completion,
       .required = true,
       .min = 0,
       .max = LIMIT_DATASET_LINE_BYTES},
      {.name = "answer", .kind = FIELD_STRING, .target = &s.answer, .min = 0, .max = ANSWER_MAX},
      {.name = "tokens", .kind = FIELD_I32, .target = &s.tokens, .min = 0, .max = LIMIT_NEW_TOKENS},
      {.name = "max_new_tokens", .kind = FIELD_I32, .target = &s.tokens_max, .min = 1, .max = LIMIT_NEW_TOKENS}};
  enum rc rc = json_fields(sample, fields, 4, UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) return rc;
  json_writer_init(&e, &extra);
  json_write_value(&e, sample);
  rc = buf_check(&extra, err);
  if (rc == RC_OK) {
    const char *text = arena_strndup(arena, extra.data, extra.len);
    const struct reward_input input = {s.completion.bytes, s.completion.len, s.answer, text, s.tokens, s.tokens_max};
    struct reward_verdict v;
    json_object_begin(w);
    if (!text) {
      rc = err_set(err, RC_NO_MEMORY, NULL, "a sample was refused memory");
    } else if (reward_line_check(rule, s.answer, text, &fault) != RC_OK) {
      json_kv_string(w, "error", fault.message);
    } else {
      reward_judge(rule, &input, &v);
      verdict_write(w, rule, &v);
    }
    json_object_end(w);
  }
  buf_free(&extra);
  return rc;
}

void handle_verify(struct http_request *r, void *context) {
  struct verify_request m = {0};
  struct arena arena = ARENA_INIT;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  const struct json *given;
  (void)context;
  enum rc rc = http_body_json(r, &given, &err);
  if (rc == RC_OK) rc = request_read(&m, given, &arena, &err);
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_key(&w, "results");
  json_array_begin(&w);
  for (size_t i = 0; rc == RC_OK && i < json_length(m.samples); i++) {
    rc = sample_judge(&w, &m.rule, json_at(m.samples, i), &arena, &err);
    if (rc != RC_OK) {
      char field[32];
      snprintf(field, sizeof field, "samples[%zu]", i);
      err_in_field(&err, field);
    }
  }
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
  arena_free(&arena);
}

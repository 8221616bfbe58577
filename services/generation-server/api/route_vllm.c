/* vLLM's wire, so that its clients drive this server unchanged: generation by token ids, tokenizing, and the verbs by
 * which a trainer has an engine rest and go on, which are control.h's.  Its weights are route_weights.c's. */
#include <stdio.h>
#include <string.h>

#include "services/generation-server/api/control.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/shapes/vllm_answer.h"
#include "services/generation-server/shapes/vllm_request.h"

static void reply_status(struct http_request *r, enum rc rc, const char *status, struct err *err) {
  struct buf body = BUF_INIT;
  if (rc == RC_OK) buf_printf(&body, "{\"status\":\"%s\"}", status);
  http_reply_json_or_fail(r, rc, &body, err);
}

void handle_vllm_generate(struct http_request *r, void *context) {
  struct generate_params p;
  struct generate_prompt prompt = {0};
  struct err err;
  generate_params_defaults(&p, &vllm_shape);
  p.prompts = &prompt;
  p.prompt_count = 1;
  enum rc rc = vllm_request_read(&p, &prompt, r, &err);
  if (rc == RC_OK) rc = requests_submit(((struct server *)context)->requests, r, &p, &err);
  if (rc == RC_OK) return;
  vllm_request_name_field(&err);
  http_fail(r, &err);
}

/* --- rest --- */

static void answer_pause(struct http_request *r, enum rc rc, const struct policy *policy, const struct err *err) {
  struct err copy = *err;
  (void)policy;
  reply_status(r, rc, "paused", &copy);
}

void handle_vllm_pause(struct http_request *r, void *context) {
  const char *mode = http_query(r, "mode"), *clear = http_query(r, "clear_cache");
  struct err err;
  enum rc rc = RC_OK;
  const bool waits = mode && strcmp(mode, "wait") == 0, keeps = mode && strcmp(mode, "keep") == 0;
  if (mode && !waits && !keeps && strcmp(mode, "abort") != 0)
    rc = err_set(&err, RC_INVALID, "mode", "expected abort, wait or keep, got \"%.40s\"", mode);
  else if (clear && strcmp(clear, "true") != 0 && strcmp(clear, "false") != 0)
    rc = err_set(&err, RC_INVALID, "clear_cache", "expected true or false, got \"%.40s\"", clear);
  if (rc == RC_OK && waits) {
    rc = control_pause_at_end(r, context, answer_pause, &err);
    if (rc != RC_OK) http_fail(r, &err);
    return;
  }
  if (rc == RC_OK) rc = control_pause(context, keeps ? ENGINE_PAUSE_KEEP : ENGINE_PAUSE_ABORT, &err);
  reply_status(r, rc, "paused", &err);
}

void handle_vllm_resume(struct http_request *r, void *context) {
  struct err err;
  reply_status(r, control_resume(context, &err), "resumed", &err);
}

void handle_vllm_is_paused(struct http_request *r, void *context) {
  struct err err;
  struct buf body = BUF_INIT;
  struct loaded_model *loaded = admission_model(&((struct server *)context)->admission, false, &err);
  if (loaded) buf_printf(&body, "{\"is_paused\":%s}", engine_paused(loaded->engine) ? "true" : "false");
  http_reply_json_or_fail(r, loaded ? RC_OK : err.rc, &body, &err);
}

/* Without ids all open requests are ended. */
void handle_vllm_abort(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct buf answer = BUF_INIT;
  const struct json *body, *ids = NULL;
  int aborted = 0;
  enum rc rc = http_body_json(r, &body, &err);
  const struct json_field fields[] = {
      {.name = "request_ids", .kind = FIELD_VALUE, .target = &ids},
  };
  if (rc == RC_OK) rc = json_fields(body, fields, 1, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK && ids && (json_type_of(ids) != JSON_ARRAY || json_length(ids) > LIMIT_QUEUED_REQUESTS))
    rc = err_set(&err, RC_INVALID, "request_ids", "expected an array of up to %d ids", LIMIT_QUEUED_REQUESTS);
  for (size_t i = 0; rc == RC_OK && i < json_length(ids); i++)
    if (!json_word(json_at(ids, i)) || json_characters(json_at(ids, i)) >= LIMIT_NAME_MAX)
      rc = err_set(&err, RC_INVALID, "request_ids", "expected texts of up to %d characters, and item %zu is none",
                   LIMIT_NAME_MAX - 1, i);
  for (size_t i = 0; rc == RC_OK && i < json_length(ids); i++)
    aborted += requests_abort(s->requests, json_word(json_at(ids, i)));
  if (rc == RC_OK && json_length(ids) == 0) aborted = requests_abort(s->requests, NULL);
  if (rc == RC_OK) buf_printf(&answer, "{\"status\":\"aborted\",\"aborted\":%d}", aborted);
  http_reply_json_or_fail(r, rc, &answer, &err);
}

/* --- tokenizing --- */

void handle_vllm_tokenize(struct http_request *r, void *context) {
  struct err err;
  struct buf body = BUF_INIT;
  struct admission *a = &((struct server *)context)->admission;
  struct loaded_model *loaded = admission_model(a, false, &err);
  const enum rc rc = loaded ? vllm_tokenize(&body, r, a, loaded, &err) : err.rc;
  http_reply_json_or_fail(r, rc, &body, &err);
}

void handle_vllm_detokenize(struct http_request *r, void *context) {
  struct err err;
  struct buf body = BUF_INIT;
  struct admission *a = &((struct server *)context)->admission;
  struct loaded_model *loaded = admission_model(a, false, &err);
  const enum rc rc = loaded ? vllm_detokenize(&body, r, a, loaded, &err) : err.rc;
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* Calls a foreign engine.  Called by weights/loader.c (observe, load) and worker/sampling.c (generate, version),
 * each on threads of its own with clients of its own. */
#include "services/rollout-agent/engine/client.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/json/json.h"

enum { RESUME_DEADLINE_MS = 5000 };

/* What the engine said does not make sense: its fault, not the request's. */
static enum rc not_understood(const char *path, enum rc rc, struct err *err) {
  if (rc != RC_INVALID) return rc;
  err_in_file(err, path);
  if (err) err->rc = RC_INTERNAL;
  return RC_INTERNAL;
}

/* RC_OK with the answer parsed (NULL: an empty one); the caller frees it. */
static enum rc exchange(const struct engine_client *c, const char *method, const char *path, const struct buf *body,
                        struct json **out, int64_t deadline_ms, struct err *err) {
  struct buf url = BUF_INIT;
  struct http_answer answer;
  *out = NULL;
  size_t len = strlen(c->base_url);
  while (len > 0 && c->base_url[len - 1] == '/') len--;
  buf_append(&url, c->base_url, len);
  buf_puts(&url, path);
  enum rc rc = buf_check(&url, err);
  if (rc == RC_OK && body) rc = buf_check(body, err);
  if (rc == RC_OK && deadline_ms <= 0) rc = err_set(err, RC_TIMEOUT, NULL, "%s %s: no time is left", method, path);
  if (rc == RC_OK) {
    const struct http_call call = {.method = method,
                                   .url = url.data,
                                   .body = body && body->len ? body->data : NULL,
                                   .body_len = body ? body->len : 0,
                                   .deadline_ms = deadline_ms,
                                   .response_bytes_max = LIMIT_BATCH_BODY_BYTES};
    rc = http_client_call(c->http, &call, &answer, err);
  }
  buf_free(&url);
  if (rc != RC_OK) return rc;
  if (answer.status == 400)
    rc = err_set(err, RC_INVALID, NULL, "%s %s: status 400: %.300s", method, path,
                 answer.body.len ? answer.body.data : "");
  else if (answer.status == 405)
    rc = err_set(err, RC_NOT_FOUND, NULL, "%s %s: status 405", method, path);
  else if (answer.status < 200 || answer.status > 299)
    rc = http_answer_error(&answer, path, err);
  else if (answer.body.len > 0 &&
           json_parse(out, answer.body.data, answer.body.len, LIMIT_BATCH_BODY_BYTES, err) != RC_OK)
    rc = not_understood(path, RC_INVALID, err);
  http_answer_free(&answer);
  return rc;
}

enum rc engine_generate(const struct engine_client *c, const struct engine_request *r, struct engine_answer *out,
                        struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct buf body = BUF_INIT;
  struct json *root;
  c->wire->write_generate(&body, r);
  enum rc rc = exchange(c, "POST", c->wire->generate_path, &body, &root, deadline_ms, err);
  buf_free(&body);
  if (rc == RC_OK && !root) rc = err_set(err, RC_INTERNAL, NULL, "%s: expected an answer, got an empty "
                                                                 "one", c->wire->generate_path);
  if (rc == RC_OK) {
    rc = c->wire->read_generate(out, root, arena, err);
    if (rc == RC_OK) rc = engine_answer_check(out, r, err);
    rc = not_understood(c->wire->generate_path, rc, err);
  }
  json_free(root);
  return rc;
}

enum rc engine_version(const struct engine_client *c, char out[ENGINE_VERSION_MAX], int64_t deadline_ms,
                       struct err *err) {
  enum rc rc = RC_NOT_FOUND;
  out[0] = '\0';
  for (size_t i = 0; rc == RC_NOT_FOUND && i < 2 && c->wire->version_paths[i]; i++) {
    struct json *root;
    rc = exchange(c, "GET", c->wire->version_paths[i], NULL, &root, deadline_ms, err);
    if (rc == RC_OK && root) engine_version_read(out, json_get(root, "weight_version"));
    json_free(root);
  }
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

/* RC_NOT_FOUND: the engine has no checksum. */
static enum rc read_checksum(const struct engine_client *c, struct digest *out, int64_t deadline_ms, struct err *err) {
  struct buf body = BUF_INIT;
  struct json *root;
  buf_puts(&body, "{\"action\":\"checksum\"}");
  enum rc rc = exchange(c, "POST", c->wire->checksum_path, &body, &root, deadline_ms, err);
  buf_free(&body);
  if (rc == RC_UNSUPPORTED) rc = RC_NOT_FOUND;
  if (rc == RC_OK) rc = not_understood(c->wire->checksum_path, c->wire->read_checksum(out, root, err), err);
  json_free(root);
  return rc;
}

/* A fixed greedy request; out may be NULL. */
static enum rc probe(const struct engine_client *c, int32_t tokens, struct evidence *out, int64_t deadline_ms,
                     struct err *err) {
  int32_t prompt[PROBE_PROMPT];
  struct arena arena = ARENA_INIT;
  struct engine_answer answer;
  for (int32_t i = 0; i < PROBE_PROMPT; i++) prompt[i] = i + 1; /* in every vocabulary */
  const struct engine_request r = {
      .id = "leasehold-probe", .model = c->model, .token_ids = {prompt, PROBE_PROMPT}, .max_new_tokens = tokens};
  const enum rc rc = engine_generate(c, &r, &answer, &arena, deadline_ms, err);
  if (rc == RC_OK && out) {
    out->probe_count = (int32_t)answer.token_ids.count;
    memcpy(out->probe_ids, answer.token_ids.items, answer.token_ids.count * sizeof *out->probe_ids);
    memcpy(out->probe_logprobs, answer.logprobs.items, answer.logprobs.count * sizeof *out->probe_logprobs);
  }
  arena_free(&arena);
  return rc;
}

enum rc engine_observe(const struct engine_client *c, bool wants_checksum, struct evidence *out, int64_t deadline_ms,
                       struct err *err) {
  const int64_t end_ms = clock_monotonic_ms() + deadline_ms;
  *out = (struct evidence){0};
  enum rc rc = engine_version(c, out->version, deadline_ms, err);
  if (rc != RC_OK) return rc;
  if (wants_checksum) {
    rc = read_checksum(c, &out->checksum, end_ms - clock_monotonic_ms(), err);
    out->has_checksum = rc == RC_OK;
    if (rc != RC_NOT_FOUND) return rc;
  }
  return probe(c, PROBE_TOKENS, out, end_ms - clock_monotonic_ms(), err);
}

/* An engine may say in a whole answer that it did nothing. */
static enum rc check_success(const char *path, const struct json *answer, struct err *err) {
  const struct json *success = answer ? json_get(answer, "success") : NULL;
  if (!success || json_type_of(success) != JSON_BOOL || json_bool(success)) return RC_OK;
  const char *message = json_word(json_get(answer, "message"));
  return err_set(err, RC_UNAVAILABLE, NULL, "%s: the engine says that it failed: %.300s", path, message ? message : "");
}

/* RC_NOT_FOUND: the engine does not have the route. */
static enum rc make_call(const struct engine_client *c, const struct engine_call *call, const char *path,
                         const char *version, int64_t deadline_ms, struct err *err) {
  struct buf body = BUF_INIT;
  struct json *root;
  engine_call_body(&body, call, path, version);
  enum rc rc = exchange(c, "POST", call->path, &body, &root, deadline_ms, err);
  buf_free(&body);
  if (rc == RC_OK) rc = check_success(call->path, root, err);
  json_free(root);
  return rc;
}

enum rc engine_load(const struct engine_client *c, const char *path, const char *version, int64_t deadline_ms,
                    struct err *err) {
  const struct engine_call *call = c->wire->load, *end = call + ENGINE_CALLS_MAX;
  const int64_t end_ms = clock_monotonic_ms() + deadline_ms;
  enum rc rc = RC_OK;
  for (; rc == RC_OK && call < end && call->path; call++) {
    rc = make_call(c, call, path, version, end_ms - clock_monotonic_ms(), err);
    if (rc == RC_OK && call->or_next)
      call++;
    else if (rc == RC_NOT_FOUND && (call->optional || call->or_next))
      rc = RC_OK;
  }
  if (rc == RC_OK) return probe(c, 1, NULL, end_ms - clock_monotonic_ms(), err);
  struct engine_client kept = *c; /* an engine that is left paused serves nobody, so this is not cut by a stop */
  kept.http = c->kept_http;
  for (call = c->wire->load; call < end && call->path; call++)
    if (call->always) make_call(&kept, call, path, version, RESUME_DEADLINE_MS, NULL);
  return rc;
}

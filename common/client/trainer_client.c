/* Calls the trainer-server: each function is one endpoint.
 *
 * Previous hop of a rollout: coordinator/driver/batch.c; generation-server/weights/staging.c pulls weights.  Next: the
 * file of trainer-server/api that is named after the path. */
#include "common/client/trainer_client.h"

#include <inttypes.h>

#include "common/client/call.h"
#include "common/wire/claim.h"

/* The trainer has these bytes in memory or in a file, so a trainer that sends nothing for so long is gone. */
enum { TRANSFER_STALL_MS = 5000 };
/* It takes a batch or a step in at once and answers: a transfer that stands still for so long goes nowhere. */
enum { SUBMIT_STALL_MS = 10000 };

static struct client_call call_to(const struct trainer_client *c, const char *what, const char *method,
                                  int64_t deadline_ms) {
  return (struct client_call){.http = c->http, .what = what, .method = method, .deadline_ms = deadline_ms};
}

static enum rc decode_open_run_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return open_run_answer_decode(out, body, arena, err);
}

enum rc trainer_open_run(const struct trainer_client *c, const struct open_run *m, struct open_run_answer *out,
                         struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "opening a run", "POST", deadline_ms);
  struct claim_lines claim;
  claim_write(&claim, m->epoch, m->fence, NULL);
  call.headers = claim.lines;
  client_url(&call.url, c->base_url, "/v1/runs", NULL, "");
  open_run_encode(m, &call.body);
  return client_call_json(&call, decode_open_run_answer, out, arena, err);
}

static enum rc decode_check_run_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return check_run_answer_decode(out, body, arena, err);
}

enum rc trainer_ask_run(const struct trainer_client *c, const struct check_run *m, struct check_run_answer *out,
                        struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "asking the trainer", "POST", deadline_ms);
  client_url(&call.url, c->base_url, "/v1/check-run", NULL, "");
  check_run_encode(m, &call.body);
  return client_call_json(&call, decode_check_run_answer, out, arena, err);
}

enum rc trainer_submit_batch(const struct trainer_client *c, const struct submit_batch *m, int64_t deadline_ms,
                             struct err *err) {
  struct client_call call = call_to(c, "submitting a batch", "POST", deadline_ms);
  struct claim_lines claim;
  struct buf body = BUF_INIT;
  enum rc rc = submit_batch_encode_tensors(m, &body, err);
  if (rc == RC_OK) {
    claim_write(&claim, m->epoch, m->fence, NULL);
    call.headers = claim.lines;
    call.raw = body.data;
    call.raw_len = body.len;
    call.stall_ms = SUBMIT_STALL_MS;
    client_url(&call.url, c->base_url, "/v1/submit-batch", NULL, "");
    rc = client_call_json(&call, NULL, NULL, NULL, err);
  }
  buf_free(&body);
  return rc;
}

/* GET {path}{id}?wait_ms= */
static struct client_call status_call(const struct trainer_client *c, const char *what, const char *path,
                                      const char *id, int32_t wait_ms, int64_t deadline_ms) {
  struct client_call call = call_to(c, what, "GET", deadline_ms);
  call.answer_bytes_max = LIMIT_BATCH_BODY_BYTES;
  client_url(&call.url, c->base_url, path, id, "?wait_ms=");
  buf_printf(&call.url, "%" PRId32, wait_ms);
  return call;
}

static enum rc decode_batch_status(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return batch_status_decode(out, body, arena, err);
}

static enum rc decode_batch_status_tensors(void *out, const void *bytes, size_t len, struct arena *arena,
                                           struct err *err) {
  return batch_status_decode_tensors(out, bytes, len, arena, err);
}

enum rc trainer_batch_status(const struct trainer_client *c, const char *batch_id, int32_t wait_ms, int numbers,
                             struct batch_status *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call =
      status_call(c, "asking for a batch's status", "/v1/batches/", batch_id, wait_ms, deadline_ms);
  buf_puts(&call.url, numbers & STATUS_LOGPROBS ? "&logprobs=1" : "&logprobs=0");
  if (numbers & STATUS_ENTROPIES) buf_puts(&call.url, "&entropies=1");
  if (numbers) buf_puts(&call.url, "&form=tensors");
  return client_call_either(&call, decode_batch_status, decode_batch_status_tensors, out, arena, err);
}

enum rc trainer_submit_step(const struct trainer_client *c, const struct submit_step *m, int64_t deadline_ms,
                            struct err *err) {
  struct client_call call = call_to(c, "submitting a step", "POST", deadline_ms);
  struct claim_lines claim;
  claim_write(&claim, m->epoch, m->fence, NULL);
  call.headers = claim.lines;
  call.stall_ms = SUBMIT_STALL_MS;
  client_url(&call.url, c->base_url, "/v1/submit-step", NULL, "");
  submit_step_encode(m, &call.body);
  return client_call_json(&call, NULL, NULL, NULL, err);
}

static enum rc decode_step_status(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return step_status_decode(out, body, arena, err);
}

enum rc trainer_step_status(const struct trainer_client *c, const char *step_id, int32_t wait_ms,
                            struct step_status *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = status_call(c, "asking for a step's status", "/v1/steps/", step_id, wait_ms, deadline_ms);
  return client_call_json(&call, decode_step_status, out, arena, err);
}

enum rc trainer_model_file(const struct trainer_client *c, const char *name, struct buf *out, int64_t deadline_ms,
                           struct err *err) {
  struct client_call call = call_to(c, "fetching a model file", "GET", deadline_ms);
  call.answer_bytes_max = LIMIT_BATCH_BODY_BYTES; /* a tokenizer.json has tens of megabytes */
  call.stall_ms = TRANSFER_STALL_MS;
  client_url(&call.url, c->base_url, "/v1/model/files/", name, "");
  return client_call_bytes(&call, out, err);
}

enum rc trainer_weights(const struct trainer_client *c, const char *run, int64_t version, size_t bytes_max,
                        struct buf *out, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "pulling weights", "GET", deadline_ms);
  call.answer_bytes_max = bytes_max;
  call.stall_ms = TRANSFER_STALL_MS;
  client_url(&call.url, c->base_url, "/v1/weights/", NULL, "");
  buf_printf(&call.url, "%" PRId64 "?run=", version);
  http_url_escape(&call.url, run);
  return client_call_bytes(&call, out, err);
}

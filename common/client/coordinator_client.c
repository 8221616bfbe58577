/* Calls the coordinator for workers: register, heartbeat, lease, deliver results, ask for passes.  Each function is one
 * endpoint.
 *
 * Previous hop of a rollout: generation-server/worker/leases.c.  Next: coordinator/api/route_leases.c and, with its
 * result, coordinator/api/route_results.c. */
#include "common/client/coordinator_client.h"

#include "common/client/call.h"
#include "common/wire/claim.h"

static struct client_call call_to(const struct coordinator_client *c, const char *what, const char *method,
                                  int64_t deadline_ms) {
  return (struct client_call){.http = c->http, .what = what, .method = method, .deadline_ms = deadline_ms};
}

static enum rc decode_registered(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return worker_registered_decode(out, body, arena, err);
}

enum rc coordinator_register(const struct coordinator_client *c, const struct worker_register *m,
                             struct worker_registered *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "registering", "POST", deadline_ms);
  client_url(&call.url, c->base_url, "/v1/workers", NULL, "");
  worker_register_encode(m, &call.body);
  return client_call_json(&call, decode_registered, out, arena, err);
}

static enum rc decode_heartbeat_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return worker_heartbeat_answer_decode(out, body, arena, err);
}

enum rc coordinator_heartbeat(const struct coordinator_client *c, const char *worker_id,
                              const struct worker_heartbeat *m, struct worker_heartbeat_answer *out,
                              struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "heartbeat", "POST", deadline_ms);
  client_url(&call.url, c->base_url, "/v1/workers/", worker_id, "/heartbeat");
  worker_heartbeat_encode(m, &call.body);
  return client_call_json(&call, decode_heartbeat_answer, out, arena, err);
}

enum rc coordinator_leave(const struct coordinator_client *c, const char *worker_id, int64_t deadline_ms,
                          struct err *err) {
  struct client_call call = call_to(c, "leaving", "DELETE", deadline_ms);
  client_url(&call.url, c->base_url, "/v1/workers/", worker_id, "");
  return client_call_json(&call, NULL, NULL, NULL, err);
}

static enum rc decode_lease_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return lease_answer_decode(out, body, arena, err);
}

enum rc coordinator_leases(const struct coordinator_client *c, const char *worker_id, const struct lease_request *m,
                           struct lease_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "asking for leases", "POST", deadline_ms);
  call.answer_bytes_max = LIMIT_BATCH_BODY_BYTES; /* 64 leases of long prompts and partials */
  client_url(&call.url, c->base_url, "/v1/workers/", worker_id, "/leases");
  lease_request_encode(m, &call.body);
  return client_call_json(&call, decode_lease_answer, out, arena, err);
}

static enum rc decode_result_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return lease_result_answer_decode(out, body, arena, err);
}

/* A result as bytes, with what its headers claim. */
static enum rc put_bytes(struct client_call *call, const struct buf *body, const struct claim_lines *claim,
                         struct lease_result_answer *out, struct arena *arena, struct err *err) {
  call->raw = body->data;
  call->raw_len = body->len;
  call->headers = claim->lines;
  return client_call_json(call, decode_result_answer, out, arena, err);
}

enum rc coordinator_put_result(const struct coordinator_client *c, const char *lease_id, const struct lease_result *m,
                               struct lease_result_answer *out, struct arena *arena, int64_t deadline_ms,
                               struct err *err) {
  struct client_call call = call_to(c, "putting a lease's result", "PUT", deadline_ms);
  struct buf body = BUF_INIT;
  struct claim_lines claim;
  enum rc rc = lease_result_encode_tensors(m, &body, err);
  if (rc == RC_OK) {
    client_url(&call.url, c->base_url, "/v1/leases/", lease_id, "/result");
    claim_write(&claim, m->epoch, m->fence, m->worker_id);
    rc = put_bytes(&call, &body, &claim, out, arena, err);
  }
  buf_free(&body);
  return rc;
}

static enum rc decode_pass_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return pass_answer_decode(out, body, arena, err);
}

enum rc coordinator_passes(const struct coordinator_client *c, const char *worker_id, const struct pass_request *m,
                           struct pass_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "asking for passes", "POST", deadline_ms);
  call.answer_bytes_max = LIMIT_BATCH_BODY_BYTES; /* whole groups */
  client_url(&call.url, c->base_url, "/v1/workers/", worker_id, "/passes");
  pass_request_encode(m, &call.body);
  return client_call_json(&call, decode_pass_answer, out, arena, err);
}

enum rc coordinator_put_pass(const struct coordinator_client *c, const char *pass_id, const struct pass_result *m,
                             struct lease_result_answer *out, struct arena *arena, int64_t deadline_ms,
                             struct err *err) {
  struct client_call call = call_to(c, "putting a pass's result", "PUT", deadline_ms);
  struct buf body = BUF_INIT;
  struct claim_lines claim;
  enum rc rc = pass_result_encode(m, &body, err);
  if (rc == RC_OK) {
    client_url(&call.url, c->base_url, "/v1/passes/", pass_id, "/result");
    claim_write(&claim, m->epoch, m->fence, m->worker_id);
    rc = put_bytes(&call, &body, &claim, out, arena, err);
  }
  buf_free(&body);
  return rc;
}

enum rc coordinator_announce_version(const struct coordinator_client *c, const struct version_announce *m,
                                     int64_t deadline_ms, struct err *err) {
  struct client_call call = call_to(c, "announcing a version", "POST", deadline_ms);
  client_url(&call.url, c->base_url, "/v1/versions", NULL, "");
  version_announce_encode(m, &call.body);
  return client_call_json(&call, NULL, NULL, NULL, err);
}

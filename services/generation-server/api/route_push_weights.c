/* POST /v1/push-weights?run=&version=&epoch=&announced=: takes a version's safetensors bytes, to be staged beside the
 * weights that decode, and checks them against X-Leasehold-Digest.  announced=true: the coordinator has accepted the
 * version, so it is activated as soon as it is staged.  With &token=&rank=&size=&bytes=&wait_ms= the request has no
 * body: the bytes come by broadcast over the communicator of that token (broadcast_intake.h).  With &base=, the digest
 * of the version that is active or staged, the body is what changed since then
 * (common/model/network/weights_changes.h).
 *
 * Answers 409 under a stale epoch, for a superseded version and for a base that is not here, and 503 while the model is
 * unknown, all before the body is read; 422 when the file is wrong or its digest differs.  The stager does the work:
 * the request is suspended, the weights are filled from its body in place.
 *
 * Previous hop of a version: trainer-server/publish/publisher.c.  Next: staging.c. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

enum { PUSH_DEADLINE_MS = 600000 };

/* While the model is unknown every file is refused, so the limit of a JSON body will do. */
size_t push_weights_limit(void *context) {
  const struct loaded_model *loaded = atomic_load(&((struct server *)context)->admission.loaded);
  return loaded ? loaded->weights_file_max : LIMIT_BODY_BYTES;
}

/* The stager replies in any case; it stages a body even when its sender has hung up. */
static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  (void)why;
  staging_push_abandoned(context, r);
}

static enum rc read_offer(struct staging_push *push, struct http_request *r, const struct server *s, size_t bytes_max,
                          struct err *err) {
  const char *token = http_query(r, "token");
  int64_t rank = 0, size = 0, bytes = 0;
  size_t len;
  push->by_broadcast = token != NULL;
  if (!token) return RC_OK;
  http_body(r, &len);
  if (len > 0)
    return err_set(err, RC_INVALID, "token", "expected no body where the bytes come by broadcast, got %zu bytes", len);
  if (strlen(token) >= sizeof push->offer.token)
    return err_set(err, RC_INVALID, "token", "expected at most %zu characters, got %zu", sizeof push->offer.token - 1,
                   strlen(token));
  snprintf(push->offer.token, sizeof push->offer.token, "%s", token);
  enum rc rc = http_query_i64(r, "rank", -1, -1, FABRIC_GROUP_MAX, &rank, err);
  if (rc == RC_OK) rc = http_query_i64(r, "size", 0, 0, FABRIC_GROUP_MAX, &size, err);
  if (rc == RC_OK) rc = http_query_i64(r, "bytes", 0, 0, INT64_MAX, &bytes, err);
  if (rc == RC_OK) rc = http_query_i64(r, "wait_ms", 0, 1, PUSH_DEADLINE_MS, &push->offer.wait_ms, err);
  if (rc != RC_OK) return rc;
  push->offer.rank = (int)rank;
  push->offer.size = (int)size;
  push->offer.bytes = (size_t)bytes;
  if (push->offer.wait_ms == 0) return err_set(err, RC_INVALID, "wait_ms", "expected how long to wait, got none");
  return broadcast_intake_check(s->options.fabric, &push->offer, bytes_max, err);
}

static enum rc read_announced(bool *out, const struct http_request *r, struct err *err) {
  const char *text = http_query(r, "announced");
  *out = text && strcmp(text, "true") == 0;
  if (!text || *out || strcmp(text, "false") == 0) return RC_OK;
  return err_set(err, RC_INVALID, "announced", "expected true or false, got \"%.20s\"", text);
}

static enum rc read_base(struct staging_push *push, const struct http_request *r, struct err *err) {
  const char *text = http_query(r, "base");
  push->from_base = text != NULL;
  if (!text || (digest_from_hex(&push->base, text) && !http_query(r, "token"))) return RC_OK;
  return err_set(err, RC_INVALID, "base", "expected a digest of 64 hexadecimal digits and no token, got \"%.70s\"",
                 text);
}

static enum rc read_push(struct staging_push *push, struct http_request *r, uint64_t our_epoch, struct err *err) {
  const char *run = http_query(r, "run"), *digest = http_header(r, "X-Leasehold-Digest");
  int64_t epoch;
  *push = (struct staging_push){.request = r};
  if (!run || !*run || strlen(run) >= sizeof push->run)
    return err_set(err, RC_INVALID, "run", "expected a run's name of up to %zu bytes, got %s", sizeof push->run - 1,
                   !run || !*run ? "none" : "a longer one");
  snprintf(push->run, sizeof push->run, "%s", run);
  enum rc rc = http_query_i64(r, "version", -1, 0, INT64_MAX, &push->version, err);
  if (rc == RC_OK) rc = http_query_i64(r, "epoch", 0, 0, INT64_MAX, &epoch, err);
  if (rc == RC_OK) rc = read_announced(&push->announced, r, err);
  if (rc == RC_OK) rc = read_base(push, r, err);
  if (rc != RC_OK) return rc;
  if (push->version < 0) return err_set(err, RC_INVALID, "version", "expected a version number, got none");
  if (!digest || !digest_from_hex(&push->digest, digest))
    return err_set(err, RC_INVALID, "digest", "expected header X-Leasehold-Digest with 64 hexadecimal digits, got %s",
                   digest ? digest : "none");
  if ((uint64_t)epoch < our_epoch)
    return err_set(err, RC_CONFLICT, "epoch", "epoch %lld is stale, the coordinator's is %llu", (long long)epoch,
                   (unsigned long long)our_epoch);
  return RC_OK;
}

static enum rc read_head(struct staging_push *push, struct http_request *r, struct server *s, struct err *err) {
  struct heartbeat *beat = atomic_load(&s->beat);
  return read_push(push, r, beat ? heartbeat_epoch(beat) : 0, err);
}

enum rc admit_push_weights(struct http_request *r, void *context, struct err *err) {
  struct server *s = context;
  struct staging_push push;
  if (!admission_model(&s->admission, false, err)) return err->rc;
  const enum rc rc = read_head(&push, r, s, err);
  return rc == RC_OK ? staging_push_check(s->staging, &push, err) : rc;
}

void handle_push_weights(struct http_request *r, void *context) {
  struct server *s = context;
  struct staging_push push;
  struct err err;
  const struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  enum rc rc = loaded ? read_head(&push, r, s, &err) : err.rc;
  size_t len = 0;
  if (rc == RC_OK) rc = read_offer(&push, r, s, loaded->weights_file_max, &err);
  if (rc == RC_OK) http_body(r, &len);
  if (rc == RC_OK && len > loaded->weights_file_max)
    rc = err_set(&err, RC_TOO_LARGE, NULL, "%zu bytes are more than any file of this model, whose limit is %zu", len,
                 loaded->weights_file_max);
  if (rc == RC_OK) {
    log_context_id(push.run);
    log_context_number(LOG_VERSION, push.version);
    http_suspend(r, PUSH_DEADLINE_MS, on_cancelled, s->staging);
    rc = staging_push(s->staging, &push, &err);
  }
  if (rc != RC_OK) http_fail(r, &err);
}

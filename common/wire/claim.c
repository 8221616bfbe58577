/* Writes, reads and compares the claim that the headers of a large message make about its sender. */
#include "common/wire/claim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum rc read_u64(uint64_t *out, const char *field, const char *header, const char *text, struct err *err) {
  errno = 0;
  const unsigned long long value = strtoull(text, NULL, 10);
  if (!*text || strspn(text, "0123456789") != strlen(text) || errno != 0)
    return err_set(err, RC_INVALID, field, "expected 0 to %" PRIu64 " in header %s, got '%.40s'", UINT64_MAX, header,
                   text);
  *out = value;
  return RC_OK;
}

enum rc claim_read(struct claim *out, const char *epoch, const char *fence, const char *worker, struct err *err) {
  *out = (struct claim){.has_epoch = epoch, .has_fence = fence, .worker = worker};
  enum rc rc = epoch ? read_u64(&out->epoch, "epoch", CLAIM_EPOCH_HEADER, epoch, err) : RC_OK;
  if (rc == RC_OK && fence) rc = read_u64(&out->fence, "fence", CLAIM_FENCE_HEADER, fence, err);
  return rc;
}

static enum rc same_u64(const char *field, const char *header, uint64_t said, uint64_t body, struct err *err) {
  if (said == body) return RC_OK;
  return err_set(err, RC_INVALID, field, "header %s says %" PRIu64 ", the body %" PRIu64, header, said, body);
}

enum rc claim_agrees(const struct claim *c, uint64_t epoch, uint64_t fence, const char *worker_id, struct err *err) {
  enum rc rc = c->has_epoch ? same_u64("epoch", CLAIM_EPOCH_HEADER, c->epoch, epoch, err) : RC_OK;
  if (rc == RC_OK && c->has_fence) rc = same_u64("fence", CLAIM_FENCE_HEADER, c->fence, fence, err);
  if (rc != RC_OK || !c->worker || !worker_id || strcmp(c->worker, worker_id) == 0) return rc;
  return err_set(err, RC_INVALID, "worker_id", "header " CLAIM_WORKER_HEADER " says %.100s, the body %.100s", c->worker,
                 worker_id);
}

void claim_write(struct claim_lines *out, uint64_t epoch, uint64_t fence, const char *worker_id) {
  snprintf(out->epoch, sizeof out->epoch, CLAIM_EPOCH_HEADER ": %" PRIu64, epoch);
  snprintf(out->fence, sizeof out->fence, CLAIM_FENCE_HEADER ": %" PRIu64, fence);
  snprintf(out->worker, sizeof out->worker, CLAIM_WORKER_HEADER ": %s", worker_id ? worker_id : "");
  out->lines[0] = out->epoch;
  out->lines[1] = out->fence;
  out->lines[2] = worker_id ? out->worker : NULL;
  out->lines[3] = NULL;
}

/* The claim that a large message makes about its sender in its headers: the epoch and the fence under which it acts,
 * and the worker that sends it.
 *
 *   client: claim_write --headers--> http_route.admit: claim_read, refused or --body--> handler: claim_agrees
 *
 * A zombie's message is refused by its headers, so that nobody reads, parses or keeps its body (I9).  The same numbers
 * stay in the body, which has the last word: headers may be left out by people, and headers that say otherwise than
 * the body make the message malformed.
 *
 * Pure; a read claim borrows the headers' texts. */
#ifndef LEASEHOLD_WIRE_CLAIM_H
#define LEASEHOLD_WIRE_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/rc.h"

#define CLAIM_EPOCH_HEADER  "X-Leasehold-Epoch"
#define CLAIM_FENCE_HEADER  "X-Leasehold-Fence"
#define CLAIM_WORKER_HEADER "X-Leasehold-Worker"

struct claim {
  bool has_epoch, has_fence;
  uint64_t epoch, fence;
  const char *worker; /* NULL: none */
};

/* Reads the three headers' texts, each NULL when it did not come.  RC_INVALID names the field that is not a number. */
enum rc claim_read(struct claim *out, const char *epoch, const char *fence, const char *worker, struct err *err);
/* RC_INVALID when a header contradicts the body; worker_id NULL: the body names none. */
enum rc claim_agrees(const struct claim *c, uint64_t epoch, uint64_t fence, const char *worker_id, struct err *err);

/* The headers of a request, as the client sends them. */
struct claim_lines {
  char epoch[48], fence[48], worker[LIMIT_NAME_MAX + 32];
  const char *lines[4]; /* NULL-terminated; they point into this struct, so it must not be copied */
};
void claim_write(struct claim_lines *out, uint64_t epoch, uint64_t fence, const char *worker_id);

#endif

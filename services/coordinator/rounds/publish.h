/* Makes a version current, in one transaction (I6).  Called from POST /v1/versions (route_versions.c) and from
 * the driver (driver/step.c); the first makes it current, the other is a repeat.
 *
 * Writer's thread only, inside the caller's savepoint; no memory of its own.  Call it only when the version is durable:
 * as a checkpoint of the trainer's, or as an older checkpoint and the rounds since, which the database holds.  Only the
 * version that the stepping round makes is accepted.
 *
 * Previous hop: trainer-server/publish/publisher.c.  Next: workers are told by their polls and heartbeats; round.c
 * opens the next round, and batches.c plans what waits for it in flight. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_PUBLISH_H
#define LEASEHOLD_COORDINATOR_ROUNDS_PUBLISH_H

#include "common/wire/training.h"
#include "services/coordinator/writer/core_state.h"

struct announced_version {
  int64_t run, round, version; /* the version that the round made */
  struct digest digest;
  double grad_norm, lr; /* of its step; NAN: not known */
  bool skipped;
  const struct push_report *pushes;
  size_t push_count;
};

/* Makes v+1 current and v superseded, voids leases, marks groups consumed and the round done, and opens the next one. A
 * repeat with the same digest changes nothing; with another digest it is RC_CONFLICT and an incident (*refused true:
 * the incident must be kept, err says why). */
enum rc publish_version(struct core *c, const struct announced_version *p, bool *refused, struct err *err);

#endif

/* The trainer's end of the fabric that it shares with generation-servers: a version's bytes go to all of them at once.
 *
 *   begin: members -> a seat each --POST /v1/push-weights, by a thread each--> the servers join and wait
 *   carry: join (when the members differ from last time), broadcast
 *   end:   the outcome for each; a server that failed by its own fault is left out from now on (pool_members.h)
 *
 * The communicator, of this trainer (rank 0) and the members in order, is kept while they stay the same and none of
 * them failed; else the next round makes another under a fresh token.  A broadcast has half of the round's
 * stage_timeout_ms, so that the other half is left to push by HTTP to the servers that it did not reach.
 *
 * The publisher's thread calls all of it; any thread may call over, refused and stop. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_POOL_FABRIC_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_POOL_FABRIC_H

#include "common/comm/fabric.h"
#include "common/wire/training.h"

struct pool_fabric;

/* fabric is borrowed; NULL: begin finds no members. */
enum rc pool_fabric_create(struct pool_fabric **out, struct fabric *fabric, struct err *err);
void pool_fabric_destroy(struct pool_fabric *p); /* NULL is fine */
/* Ends the round in hand, and lets none begin. */
void pool_fabric_stop(struct pool_fabric *p);

/* seats[count]: token NULL for a target that is pushed to by HTTP alone.  False when there is no member: then the round
 * has no carry and no end. */
bool pool_fabric_begin(struct pool_fabric *p, const struct push_target *targets, size_t count, size_t bytes,
                       int64_t stage_timeout_ms, struct push_broadcast *seats);
/* A failure has set `over` before it returns. */
enum rc pool_fabric_carry(struct pool_fabric *p, const void *bytes, size_t len, struct err *err);
/* True: nothing comes by broadcast any more in this round, so do not wait for it. */
const atomic_bool *pool_fabric_over(const struct pool_fabric *p);
/* A member answered that it failed, so that the others need not wait for it. */
void pool_fabric_refused(struct pool_fabric *p);

struct pool_outcome {
  const char *worker_id;
  bool member;       /* it had a seat */
  enum rc broadcast; /* what its broadcast came to: RC_OK, or the failure */
  bool staged;       /* by either way */
};
void pool_fabric_end(struct pool_fabric *p, const struct pool_outcome *outcomes, size_t count);

#endif

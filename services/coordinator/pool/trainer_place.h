/* The trainer's place is a lease of its own: one trainer holds it and is given the runs' work; others that register
 * stand by.
 *
 *   registers --place is free--> holder --silent, left--> gone;  the standby that has waited longest is the next holder
 *       |                          ^
 *       |-- it is the holder's ----+  (same identity: the old incarnation ends, whatever its name and address were)
 *       `-- another holds it --> standby
 *
 * The holder keeps the place while it lives, so a newcomer with other weights, or one that is no trainer at all,
 * harms no run.  The fence grows whenever the place changes hands, and with every incarnation of its holder.  After
 * a restart the coordinator keeps the place for its last holder for one time to live.
 *
 * Writer's thread only, inside the caller's savepoint.  Called by route_workers.c and, as time passes, by tick.c.
 * The driver reads the holder from the database. */
#ifndef LEASEHOLD_COORDINATOR_POOL_TRAINER_PLACE_H
#define LEASEHOLD_COORDINATOR_POOL_TRAINER_PLACE_H

#include "common/wire/worker.h"
#include "services/coordinator/pool/pool.h"

/* At the start of an epoch, while the database still tells who was live. */
enum rc place_begin(struct core *c, struct err *err);
/* The live trainer whose next incarnation m is; NULL: none.  By identity; by name where neither has one. */
struct live_worker *place_same_trainer(struct core *c, const struct worker_register *m);
/* Is the place free, and not kept for a trainer other than `identity` (NULL: for any)? */
bool place_is_free(struct core *c, const char *identity);
/* The live trainer that holds the place; NULL: none. */
const struct live_worker *place_holder(const struct core *c);
/* The worker's row becomes the holder's; *fence is its new one.  The caller notes both in memory. */
enum rc place_take(struct core *c, int64_t worker, int64_t *fence, struct err *err);
/* A place that is free goes to the standby that has waited longest. */
enum rc place_fill(struct core *c, struct err *err);

static inline enum worker_role place_role(const struct live_worker *w) {
  return w->kind != WORKER_TRAINER ? ROLE_NONE : w->holder ? ROLE_HOLDER : ROLE_STANDBY;
}

#endif

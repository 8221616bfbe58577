/* Sums up rounds that nothing changes any more, except a late report of the trainer's time, in one row of
 * settled_rounds, and their contributions in one row per worker: otherwise every status of a run of months would read
 * all of its rounds (views/run_sums.h).
 *
 * Writer's thread only, inside the caller's savepoint; no memory of its own. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_SETTLED_H
#define LEASEHOLD_COORDINATOR_ROUNDS_SETTLED_H

#include "services/coordinator/writer/core_state.h"

enum { SETTLED_STEP = 128 }; /* rounds that are settled at once; as many stay behind */

/* The round is closed.  Settles those up to SETTLED_STEP before it, as far as nothing of them is open. */
enum rc settled_advance(struct core *c, int64_t run, int64_t round, struct err *err);
/* The trainer told of so much more waiting and computing in the round. */
enum rc settled_add_times(struct core *c, int64_t run, int64_t round, int64_t wait_us, int64_t work_us,
                          struct err *err);

#endif

/* Attaches a run: from now on its samples can be leased and its results taken.
 *
 *   starting --first time--> running: version 0 is current, round 0 is open     one transaction
 *   opened before ---------> as it was: only the context comes back, and the batches that a lost trainer held
 *
 * Writer's thread only, inside the caller's savepoint.  Called by driver/start.c once the trainer is seen to hold
 * what is recorded.  The context is kept (counted) until the run ends or another is attached. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_RUN_ATTACH_H
#define LEASEHOLD_COORDINATOR_ROUNDS_RUN_ATTACH_H

#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core_state.h"

/* digest: of the weights that the trainer holds.  again: a round whose batches must be sent again, or -1. */
enum rc run_attach(struct core *c, struct run_context *context, const struct digest *digest, int64_t again,
                   struct err *err);

#endif

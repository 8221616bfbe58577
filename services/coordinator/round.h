/* The life of a round in the database: opening it with its groups and samples, and what happens once all groups are
 * in.
 *
 * Writer's thread only, inside the caller's savepoint.  Which prompts a round has is a function of seed and round
 * alone; it must not ask how many servers there are or what came before.
 *
 * Previous hop: publish.c (or driver_start.c for round 0).  Next: leases.c grants its samples, group_seal.c seals its
 * groups, the driver trains it. */
#ifndef LEASEHOLD_COORDINATOR_ROUND_H
#define LEASEHOLD_COORDINATOR_ROUND_H

#include "services/coordinator/core_state.h"

/* Opens round `round` of the active run at `version`: R groups in dataset order, then evaluation groups when due. */
enum rc round_open(struct core *c, int64_t round, int64_t version, struct err *err);
/* All groups are sealed, filtered or evaluated: aggregates, then the round waits for training (or, in an evaluate
 * run, is done and the run completed). */
enum rc round_generated(struct core *c, int64_t run, int64_t round, struct err *err);
/* Pure: is an evaluation due in this round?  Every so many rounds from the first on, and in the last. */
bool round_evaluates(const struct run_config *config, int64_t round);
/* Moves the round's state, checked. */
enum rc round_move(struct core *c, int64_t run, int64_t round, int to, struct err *err);

#endif

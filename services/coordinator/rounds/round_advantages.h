/* Advantages that need the whole round: kinds "batch" and "batch_centered" (common/model/learning/advantages.c).
 *
 * A group is sealed with its values from before the standardization; once the round's last group is in, and before a
 * batch is planned, the advantages of all sealed groups are made from them here.  Called by round.c on the writer's
 * thread, in the transaction that closes the last group. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_ROUND_ADVANTAGES_H
#define LEASEHOLD_COORDINATOR_ROUNDS_ROUND_ADVANTAGES_H

#include "services/coordinator/writer/core_state.h"

/* Nothing where the run's kind needs its groups alone. */
enum rc round_advantages(struct core *c, int64_t run, int64_t round, struct err *err);

#endif

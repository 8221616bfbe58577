/* The engine of every rank but 0: hears the orders of rank 0, and carries out its part.  See ranks/ranks.h.
 *
 *   ranks_hear --> ORDER_BATCH: own units of the batch into the own sums, their reports to rank 0    --.
 *        ^         ORDER_STEP:  own shard of the sums of all, AdamW on it, weights of all             --|
 *        `--------------------------------------------------------------------------------------------'
 *
 * A failure that rank 0 can report to its client (memory refused) is told to it; any other ends all ranks.
 * Previous hop of a rollout: batch.c of rank 0.  Next: batch_units of the same file, here. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_FOLLOW_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_FOLLOW_H

#include "services/trainer-server/engine/engine.h"

/* Until rank 0 tells the end, or a rank is lost.  *led becomes true with the first order of rank 0's engine. */
void follow_rank_0(struct engine *e, atomic_bool *led);

#endif

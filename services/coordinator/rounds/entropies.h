/* The entropies of the distributions that a group's trained tokens were drawn from, as the trainer tells them with a
 * batch's answer: kept beside the group until its rollouts are dropped, to be shown.
 *
 *   driver/batch_answers.c --entropies_gather--> struct batch_answer --entropies_store, batches_answered's transaction--> entropies
 *
 * The trainer computes them anyway, for the policy whose gradient it takes; no run reads them.  A group that is
 * trained on again, by a trainer that lost its gradients, has them written again.
 *
 * Gathering is pure, on any thread; storing is the writer's, inside its savepoint. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_ENTROPIES_H
#define LEASEHOLD_COORDINATOR_ROUNDS_ENTROPIES_H

#include "common/wire/training.h"
#include "services/coordinator/writer/core_state.h"

struct group_entropies {
  int64_t round, ordinal;
  const void *steps; /* store/entropy_bytes.h */
  size_t len;
};

/* Gathers the entropies of each group of the batch; *count 0: the trainer sent none.  RC_CORRUPT when the answer's
 * samples are not the batch's.  Memory: the arena's. */
enum rc entropies_gather(struct group_entropies **out, size_t *count, const struct submit_batch *batch,
                         const struct batch_status *answer, struct arena *arena, struct err *err);
enum rc entropies_store(struct core *c, int64_t run, const struct group_entropies *groups, size_t count,
                        struct err *err);

#endif

/* Which groups travel in which submit-batch: whole groups, in order, under a token budget.
 *
 * A pure function, called once a round by driver_train.c, which stores the plan before anything is sent, so that a
 * restart sends the same batches.  The gradient does not depend on it (int64 sums commute), only message sizes do; it
 * must not drop, split or reorder groups. */
#ifndef LEASEHOLD_COORDINATOR_BATCHING_H
#define LEASEHOLD_COORDINATOR_BATCHING_H

#include <stdint.h>

/* batch_of[i] becomes the batch number of group i, which has tokens[i] tokens, prompts included.  A batch holds at
 * least one group, and more as long as they fit tokens_max together. Returns the number of batches. */
int batching_plan(const int64_t *tokens, int n, int64_t tokens_max, int32_t *batch_of);

#endif

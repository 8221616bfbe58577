/* Which groups go into the next submit-batch: whole groups, in the order of the trainer's FIFO, under a token
 * budget.
 *
 * Pure; called by rounds/batches.c, whose plan is stored before anything is sent, so that a restart sends the same
 * batch. The gradient does not depend on the choice (int64 sums commute); message sizes and the overlap do.  A group
 * is never split. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H
#define LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H

#include <stdint.h>

/* The first n trainable groups have tokens[i] tokens each, prompts included.  Returns how many of them make the batch:
 * at least one (when there is one), and more as long as they fit tokens_max together. */
int batching_select(const int64_t *tokens, int n, int64_t tokens_max);

#endif

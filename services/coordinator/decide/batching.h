/* Which groups travel in the next submit-batch: whole groups, in the order of the trainer's FIFO, under a token budget.
 *
 * A pure function, called by driver/train.c, which stores what it chose before anything is sent, so that a restart
 * sends the same batch.  The gradient does not depend on it (int64 sums commute), only message sizes and the overlap
 * do; it must not split a group. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H
#define LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H

#include <stdint.h>

/* The first n trainable groups have tokens[i] tokens each, prompts included.  Returns how many of them make the batch:
 * at least one (when there is one), and more as long as they fit tokens_max together. */
int batching_select(const int64_t *tokens, int n, int64_t tokens_max);

#endif

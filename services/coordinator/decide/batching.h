/* Decides which groups go into the next submit-batch, and when: whole groups, in the order of the trainer's FIFO, under
 * a token budget, as soon as there are enough of them.
 *
 * Pure; called by rounds/batches.c.  A plan is stored before anything is sent, so that a restart sends the same batch.
 * The gradient does not depend on the choice (int64 sums commute); message sizes and the overlap do.  A group is never
 * split. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H
#define LEASEHOLD_COORDINATOR_DECIDE_BATCHING_H

#include <stdbool.h>
#include <stdint.h>

/* The first n trainable groups have tokens[i] tokens each, prompts included.  Returns how many of them make the batch:
 * at least one (when there is one), and more as long as they fit tokens_max together. */
int batching_select(const int64_t *tokens, int n, int64_t tokens_max);

/* What the next batch would be for. */
struct batch_need {
  bool trainer_idle;    /* no batch is at the trainer */
  bool round_open;      /* groups of the round are still sampled */
  bool completes;       /* the groups at hand complete an optimizer step */
  int groups_per_round; /* as configured */
  int missing;          /* groups of the step that were in no batch before; INT_MAX: the round has but one step */
};
/* How many groups are worth a batch of their own: one when the trainer has nothing to do, or when it is among the last
 * groups of an optimizer step, because the next step's groups wait for them; else a share of the round, because smaller
 * batches would cost more to plan, to build and to compare than they save. */
int batching_worth(const struct batch_need *need);

#endif

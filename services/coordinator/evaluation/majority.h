/* Decides whether the samples' most frequent answer is right.
 *
 * A sample votes for its answer as it is written; one without an answer does not vote.  All right answers are one,
 * however they are written, because the verifier has found each equal to the dataset's.  Of answers with equally many
 * votes one is drawn, so that the value is the chance that it is the right one: 1 over their number.  It depends on no
 * order.
 *
 * Pure; called by records/evaluation_results.c.  Memory: the caller's. */
#ifndef LEASEHOLD_COORDINATOR_EVALUATION_MAJORITY_H
#define LEASEHOLD_COORDINATOR_EVALUATION_MAJORITY_H

#include <stdbool.h>
#include <stdint.h>

struct vote {
  uint64_t answer; /* 0: none */
  bool passed;
};

/* Sorts them.  0 where nobody is right. */
double majority_value(struct vote *votes, int count);

#endif

/* Measures how far the trainer's log-probabilities are from the samplers', in figures that cannot be mistaken for
 * agreement.
 *
 *   d = log p(sampler) - log p(trainer), of one trained token, which the sampler drew
 *
 * KL(sampler || trainer) = E[d] over what the sampler draws.  Two estimates of it, each a mean over the trained tokens:
 *   k1 = d                   unbiased; tokens above and below cancel, so it may be negative
 *   k3 = exp(-d) - 1 + d     unbiased too, never negative, of less variance while d is small
 * From J. Schulman, "Approximating KL Divergence" (2020): q is the sampler, p the trainer, r = p/q = exp(-d), and k3 is
 * (r - 1) - log r.
 *
 * Pure, any thread, no memory.  batch_build.c adds samples in the order of the message; the rows of a round's batches
 * are added in the order of their numbers (exactness.c), those of rounds by theirs (run_view.c).  So a figure depends
 * on which groups shared a batch in its last bits at most, and never on what came first.  Previous hop: the trainer's
 * answer (batch_answers.c). */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_MISMATCH_H
#define LEASEHOLD_COORDINATOR_DECIDE_MISMATCH_H

#include <stddef.h>
#include <stdint.h>

/* Zero: both sides agree bit for bit. */
struct mismatch {
  int64_t unequal;   /* tokens whose float32 bits differ */
  int64_t nonfinite; /* of these: d is a NaN or infinite.  They count in unequal, and in no sum */
  double max_abs;    /* of d; infinite as soon as one d is not finite */
  double abs_sum, k1_sum, k3_sum;
};

/* The next `count` tokens. */
void mismatch_add(struct mismatch *m, const float *samplers, const float *trainers, size_t count);
/* A sum's mean over all trained tokens, the equal ones too.  NaN where some d is not finite: then there is none. */
double mismatch_mean(double sum, int64_t nonfinite, int64_t tokens);

#endif

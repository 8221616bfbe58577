/* Is one checkpoint better than another?  A paired bootstrap over the problems that both were asked (Efron and
 * Tibshirani 1993, chapter 13).
 *
 *   differences d[i] = b's value of problem i - a's  --resamples times: n of them drawn with replacement--> their means, sorted
 *   interval: the 2.5 % and 97.5 % quantiles of the means (between two of them linear in their ranks)
 *   p: twice the smaller share of means on one side of 0, those within 1e-12 of 0 on both; (1 + count) / (1 +
 *     resamples), at most 1
 *
 * Draws are keyed by (seed, RNG_BOOTSTRAP, resample, draw): index = word * n >> 32, four draws of one Philox block.
 * The same request gives the same answer on every machine.  Pure; the work is resamples * n, which the caller
 * bounds. */
#ifndef LEASEHOLD_COORDINATOR_EVALUATION_BOOTSTRAP_H
#define LEASEHOLD_COORDINATOR_EVALUATION_BOOTSTRAP_H

#include <stdint.h>

struct bootstrap {
  double difference, low, high, p_value;
};

/* differences[n], n > 0; means[resamples] is scratch, resamples > 0. */
struct bootstrap bootstrap_paired(const double *differences, int64_t n, uint64_t seed, double *means,
                                  int64_t resamples);

#endif

/* Resamples differences. */
#include "services/coordinator/evaluation/bootstrap.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/philox.h"

static const double ZERO = 1e-12; /* sums of thirds and sixths cancel but for their rounding */

static double mean_of(const double *values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += values[i];
  return sum / (double)n;
}

static double resample(const double *differences, int64_t n, uint64_t seed, uint32_t number) {
  const struct rng_key key = {.seed = seed, .purpose = RNG_BOOTSTRAP, .round = number};
  uint32_t words[4];
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i % 4 == 0) rng_words(words, &key, (uint32_t)(i / 4));
    sum += differences[(uint64_t)words[i % 4] * (uint64_t)n >> 32];
  }
  return sum / (double)n;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t n, double share) {
  const double at = share * (double)(n - 1);
  const int64_t below = (int64_t)at;
  if (below + 1 >= n) return sorted[n - 1];
  return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

struct bootstrap bootstrap_paired(const double *differences, int64_t n, uint64_t seed, double *means,
                                  int64_t resamples) {
  int64_t not_above = 0, not_below = 0;
  assert(n > 0 && resamples > 0);
  for (int64_t r = 0; r < resamples; r++) {
    means[r] = resample(differences, n, seed, (uint32_t)r);
    not_above += means[r] <= ZERO;
    not_below += means[r] >= -ZERO;
  }
  qsort(means, (size_t)resamples, sizeof *means, by_value);
  const int64_t fewer = not_above < not_below ? not_above : not_below;
  const double p = 2 * (double)(1 + fewer) / (double)(1 + resamples);
  return (struct bootstrap){.difference = mean_of(differences, n),
                            .low = quantile(means, resamples, 0.025),
                            .high = quantile(means, resamples, 0.975),
                            .p_value = p < 1 ? p : 1};
}

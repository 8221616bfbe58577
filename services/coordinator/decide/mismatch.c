/* Adds up how far two log-probabilities of a token are apart: differing bits, absolute, k1 and k3. */
#include "services/coordinator/decide/mismatch.h"

#include <math.h>
#include <string.h>

void mismatch_add(struct mismatch *m, const float *samplers, const float *trainers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (memcmp(&samplers[i], &trainers[i], sizeof *samplers) == 0) continue;
    const double d = (double)samplers[i] - (double)trainers[i];
    m->unequal++;
    if (!isfinite(d)) {
      m->nonfinite++;
      m->max_abs = INFINITY;
      continue;
    }
    if (fabs(d) > m->max_abs) m->max_abs = fabs(d);
    m->abs_sum += fabs(d);
    m->k1_sum += d;
    m->k3_sum += expm1(-d) + d;
  }
}

double mismatch_mean(double sum, int64_t nonfinite, int64_t tokens) {
  if (nonfinite > 0) return NAN;
  return sum == 0 ? 0 : sum / (double)tokens;
}

/* Estimates pass@k of one problem. */
#include "services/coordinator/evaluation/pass_at_k.h"

#include <assert.h>

#include "common/base/limits.h"

_Static_assert(LIMIT_SAMPLES_PER_GROUP < 1 << (PASS_KS_MAX - 1), "the powers of two up to it, and it");

double pass_at_k(int64_t samples, int64_t passed, int64_t k) {
  assert(passed >= 0 && passed <= samples && k >= 1 && k <= samples);
  if (k == 1) return (double)passed / (double)samples;
  double none = 1; /* where fewer than k failed, one of the factors is 0 */
  for (int64_t i = samples - passed + 1; i <= samples; i++) none *= 1 - (double)k / (double)i;
  return 1 - none;
}

int pass_ks(int64_t samples, int64_t ks[PASS_KS_MAX]) {
  int n = 0;
  for (int64_t k = 1; k < samples; k *= 2) ks[n++] = k;
  ks[n++] = samples;
  return n;
}

bool pass_k_shown(int64_t samples, int64_t k) {
  return k >= 1 && (k == samples || (k < samples && (k & (k - 1)) == 0));
}

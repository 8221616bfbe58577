/* Judges samples and workers by what the trainer drew. */
#include "services/coordinator/checks/verdict.h"

enum sample_verdict verdict_of_sample(const struct checked_sample *s) {
  if (s->promised) return s->position >= 0 || s->unequal > 0 ? SAMPLE_REFUSED : SAMPLE_HOLDS;
  return s->nonfinite > 0 || !(s->mean_abs <= VERDICT_MISMATCH_MOST) ? SAMPLE_INEXACT : SAMPLE_HOLDS;
}

bool verdict_can_tell(const struct older_tokens *others) {
  return others->tokens >= VERDICT_CALM_TOKENS && others->lags > 0;
}

double verdict_distance(const struct older_tokens *others, int64_t lag) {
  const double mean = others->distance / (double)others->tokens, behind = (double)others->lags / (double)others->tokens;
  return (double)lag > behind ? mean * (double)lag / behind : mean;
}

bool verdict_is_calm(const struct older_tokens *others, int64_t lag) {
  return verdict_can_tell(others) && verdict_distance(others, lag) <= VERDICT_CALM_MOST;
}

enum worker_verdict verdict_of_worker(const struct checked_pool *p) {
  if (p->others_live == 0) return WORKER_UNDECIDED;
  if (p->others_held > 0 || p->others_quarantined == 0) return WORKER_QUARANTINED;
  return WORKER_UNDECIDED;
}

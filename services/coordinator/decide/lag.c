/* Bounds how old a token may be, and how far sampling runs ahead: see lag.h. */
#include "services/coordinator/decide/lag.h"

/* By how much a is more than b. */
static int64_t excess(int64_t a, int64_t b) { return a > b ? a - b : 0; }

int64_t lag_oldest(int64_t current, int64_t max_lag) { return excess(current, max_lag); }

bool lag_may_sample(int64_t loaded, int64_t current, int64_t max_lag) {
  return loaded >= lag_oldest(current, max_lag) && loaded <= current;
}

void lag_add(struct lag_sums *sums, int64_t lag, bool compared) {
  if (sums->tokens == 0 || lag < sums->min) sums->min = lag;
  if (lag > sums->max) sums->max = lag; /* 0 at first, and no lag is below */
  sums->tokens++;
  sums->sum += lag;
  sums->compared += compared;
}

void lag_merge(struct lag_sums *sums, const struct lag_sums *more) {
  if (more->tokens == 0) return;
  if (sums->tokens == 0 || more->min < sums->min) sums->min = more->min;
  sums->max += excess(more->max, sums->max);
  sums->tokens += more->tokens;
  sums->sum += more->sum;
  sums->compared += more->compared;
}

int32_t lag_exact_from(const bool *compared, size_t count) {
  while (count > 0 && compared[count - 1]) count--;
  return (int32_t)count;
}

static int64_t groups_of(int64_t samples_ahead, int64_t samples) {
  return samples_ahead < samples ? 1 : samples_ahead / samples;
}

int64_t lag_groups_dropped(int64_t samples_ahead, int64_t samples, int64_t complete) {
  return excess(complete, groups_of(samples_ahead, samples));
}

int64_t lag_groups_without_signal(int64_t groups_per_step) {
  enum { STEPS = 16, LEAST = 256 };
  return LEAST + excess(STEPS * groups_per_step, LEAST);
}

int64_t lag_groups_allowed(const struct stream_state *s) {
  int64_t most = groups_of(s->samples_ahead, s->samples);
  if (most > s->groups_needed) most = s->groups_needed;
  return excess(most, s->groups_ahead);
}

/* Bounds how old a token may be, and how far sampling runs ahead: see lag.h. */
#include "services/coordinator/decide/lag.h"

int64_t lag_oldest(int64_t current, int64_t max_lag) { return current > max_lag ? current - max_lag : 0; }

bool lag_may_sample(int64_t loaded, int64_t current, int64_t max_lag) {
  return loaded >= lag_oldest(current, max_lag) && loaded <= current;
}

void lag_add(struct lag_sums *sums, int64_t lag, bool compared) {
  if (sums->tokens == 0 || lag < sums->min) sums->min = lag;
  if (sums->tokens == 0 || lag > sums->max) sums->max = lag;
  sums->tokens++;
  sums->sum += lag;
  sums->compared += compared;
}

int64_t lag_groups_allowed(const struct stream_state *s) {
  int64_t most = s->samples_ahead / s->samples;
  if (most < 1) most = 1;
  if (most > s->groups_needed) most = s->groups_needed;
  return most > s->groups_ahead ? most - s->groups_ahead : 0;
}

/* Decides which groups wait for their passes, and how many passes a preprocessor is granted: see passes.h. */
#include "services/coordinator/decide/passes.h"

bool pass_is_late(const struct pass_facts *p, int64_t timeout_ms) {
  return p->granted_before && p->since_first_grant_ms >= timeout_ms;
}

static bool is_ready(const struct pass_facts *p, int64_t timeout_ms) {
  return p->state == PASS_DONE || p->state == PASS_REFUSED || pass_is_late(p, timeout_ms);
}

int passes_select(const struct pass_facts *passes, int n, int preprocessors, int64_t timeout_ms, bool idle,
                  bool *take) {
  int count = 0, spare = n;
  for (int i = 0; i < n; i++) {
    take[i] = preprocessors == 0 || is_ready(&passes[i], timeout_ms);
    count += take[i];
    if (passes[i].state == PASS_WAITING) spare = i;
  }
  if (count > 0 || spare == n || !idle) return count;
  take[spare] = true;
  return 1;
}

int passes_share(int waiting, int preprocessors, int asked, bool holds_reference) {
  if (waiting <= 0) return 0;
  if (!holds_reference) return 1;
  const int of = preprocessors > 0 ? preprocessors : 1;
  const int share = (waiting + of - 1) / of;
  return share < asked ? share : asked;
}

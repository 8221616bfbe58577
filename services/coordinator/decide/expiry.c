/* Compares deadlines with the time, and tells a late look from a standstill. */
#include "services/coordinator/decide/expiry.h"

bool expiry_worker_lost(int64_t seen_ms, int64_t ttl_ms, int64_t now_ms) { return now_ms - seen_ms > ttl_ms; }

int64_t expiry_lease_deadline(int64_t now_ms, int64_t ttl_ms) { return now_ms + ttl_ms; }

bool expiry_stands_still(int64_t progressed_ms, double group_s, int64_t ttl_ms, int64_t now_ms) {
  const double still_ms = (double)(now_ms - progressed_ms);
  return group_s > 0 && still_ms > (double)ttl_ms && still_ms > STANDSTILL_GROUPS * group_s * 1000;
}

bool expiry_passed(int64_t deadline_ms, int64_t now_ms) { return now_ms >= deadline_ms; }

int64_t expiry_sleep(int64_t earliest_ms, int64_t now_ms, int64_t nap_ms) {
  if (earliest_ms <= now_ms) return 0;
  if (earliest_ms - now_ms < nap_ms) return earliest_ms - now_ms;
  return nap_ms;
}

int64_t expiry_stall(int64_t last_ms, int64_t now_ms, int64_t nap_ms) {
  int64_t late_ms = now_ms - last_ms - nap_ms;
  return late_ms > 2 * nap_ms ? late_ms : 0;
}

int64_t expiry_uncounted(int64_t passed_ms, bool counting, int64_t nap_ms) {
  return counting ? expiry_stall(0, passed_ms, nap_ms) : passed_ms;
}

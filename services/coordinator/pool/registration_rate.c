/* Token buckets for registrations, in a table of fixed size. */
#include "services/coordinator/pool/registration_rate.h"

#include <stddef.h>

enum { MILLI = 1000, FORGOTTEN_MS = 3600 * 1000 };

static int64_t filled(const struct rate_bucket *b, int64_t burst, int64_t per_s, int64_t now_ms) {
  const int64_t passed_ms = now_ms - b->at_ms, most = burst * MILLI;
  if (passed_ms >= FORGOTTEN_MS) return most;
  const int64_t milli = b->milli + (passed_ms > 0 ? passed_ms * per_s : 0); /* a thousandth for each millisecond */
  return milli < most ? milli : most;
}

static struct rate_bucket *bucket_of(struct registration_rate *r, uint64_t key, int64_t burst, int64_t now_ms) {
  struct rate_bucket *set = r->buckets[key % RATE_SETS], *oldest = &set[0];
  for (int i = 0; i < RATE_WAYS; i++) {
    if (set[i].key == key) return &set[i];
    if (set[i].key == 0 && oldest->key != 0) oldest = &set[i];
    if (oldest->key != 0 && set[i].at_ms < oldest->at_ms) oldest = &set[i];
  }
  *oldest = (struct rate_bucket){.key = key, .at_ms = now_ms, .milli = burst * MILLI};
  return oldest;
}

int64_t registration_rate_take(struct registration_rate *r, uint64_t key, int64_t burst, int64_t per_s,
                               int64_t now_ms) {
  struct rate_bucket *b = bucket_of(r, key, burst, now_ms);
  b->milli = filled(b, burst, per_s, now_ms);
  b->at_ms = now_ms;
  if (b->milli < MILLI) return (MILLI - b->milli + per_s - 1) / per_s;
  b->milli -= MILLI;
  return 0;
}

/* Bounds how often workers may register, at once and per second, for each address and token, and for each name.
 *
 *   a new name            takes from the bucket of its address and token: RATE_BURST_S seconds' worth at once
 *   a name that is known  takes from its own: RATE_NAME_BURST_S seconds' worth of a RATE_NAME_SHARE-th of that rate.
 *                         So a server that comes back, or all of them after the coordinator was away, do not stand in
 *                         line behind somebody's flood of new names.
 *
 * A fixed table of buckets; where its corner is full, the bucket that was not asked for longest goes.  Pure: keys and
 * time come in, no lock. */
#ifndef LEASEHOLD_COORDINATOR_POOL_REGISTRATION_RATE_H
#define LEASEHOLD_COORDINATOR_POOL_REGISTRATION_RATE_H

#include <stdint.h>

enum { RATE_SETS = 512, RATE_WAYS = 8, RATE_BURST_S = 4, RATE_NAME_BURST_S = 16, RATE_NAME_SHARE = 32 };

struct rate_bucket {
  uint64_t key;  /* 0: free */
  int64_t at_ms; /* when it held `milli` */
  int64_t milli; /* thousandths of a registration that it holds */
};

struct registration_rate {
  struct rate_bucket buckets[RATE_SETS][RATE_WAYS];
};

/* Takes one of the key's bucket, which holds `burst` and is refilled by per_s a second.  0, or the milliseconds until
 * there is one again.  key: a hash, not 0; now_ms: monotonic. */
int64_t registration_rate_take(struct registration_rate *r, uint64_t key, int64_t burst, int64_t per_s, int64_t now_ms);

#endif

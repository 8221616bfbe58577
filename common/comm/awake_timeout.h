/* A time-out that counts only the time in which the waiter was running.
 *
 * At most AWAKE_TIMEOUT_STEP_MS are counted between two checks, so that ranks that stood still together (a suspended
 * machine, a paused container) do not take each other for dead when they go on.  Pure: time is passed in. */
#ifndef LEASEHOLD_COMM_AWAKE_TIMEOUT_H
#define LEASEHOLD_COMM_AWAKE_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

enum { AWAKE_TIMEOUT_STEP_MS = 1000 };

struct awake_timeout {
  int64_t left_us, seen_us;
};

static inline struct awake_timeout awake_timeout_start(int64_t ms, int64_t now_us) {
  return (struct awake_timeout){ms * 1000, now_us};
}

/* Counts the time since the last check; true once the time-out is over. */
static inline bool awake_timeout_expired(struct awake_timeout *p, int64_t now_us) {
  const int64_t passed_us = now_us - p->seen_us, most_us = (int64_t)AWAKE_TIMEOUT_STEP_MS * 1000;
  p->left_us -= passed_us < most_us ? passed_us : most_us;
  p->seen_us = now_us;
  return p->left_us <= 0;
}

#endif

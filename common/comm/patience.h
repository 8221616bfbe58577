/* A wait that ends after so many milliseconds of the waiter's own time: of what passes between two looks at most
 * PATIENCE_LOOK_MS count, so that ranks that stood still together (a suspended machine, a paused container) do not take
 * each other for dead when they go on.  Pure: time is passed in. */
#ifndef LEASEHOLD_COMM_PATIENCE_H
#define LEASEHOLD_COMM_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { PATIENCE_LOOK_MS = 1000 };

struct patience {
  int64_t left_us, seen_us;
};

static inline struct patience patience_of(int64_t ms, int64_t now_us) { return (struct patience){ms * 1000, now_us}; }

/* Looks once more: is it over? */
static inline bool patience_over(struct patience *p, int64_t now_us) {
  const int64_t passed_us = now_us - p->seen_us, most_us = (int64_t)PATIENCE_LOOK_MS * 1000;
  p->left_us -= passed_us < most_us ? passed_us : most_us;
  p->seen_us = now_us;
  return p->left_us <= 0;
}

#endif

/* How a loop that polls a carrier rests between polls: not at all while things move, then longer and longer. */
#ifndef LEASEHOLD_COMM_POLLING_H
#define LEASEHOLD_COMM_POLLING_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

enum {
  POLLING_EAGER_US = 2000,   /* until nothing has moved for so long, the next poll follows at once */
  POLLING_SOON_US = 1000000, /* until then after a short rest, later after a long one */
  POLLING_SHORT_REST_NS = 100000,
  POLLING_LONG_REST_NS = 1000000
};

/* still_us: the time since something last moved. */
static inline void polling_rest(int64_t still_us) {
  if (still_us < POLLING_EAGER_US)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = still_us < POLLING_SOON_US ? POLLING_SHORT_REST_NS : POLLING_LONG_REST_NS},
              NULL);
}

#endif

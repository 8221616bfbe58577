/* How a loop that polls a carrier rests: not at all while things move, then ever longer. */
#ifndef LEASEHOLD_COMM_POLLING_H
#define LEASEHOLD_COMM_POLLING_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

enum {
  POLLING_EAGER_US = 2000,   /* so long nothing has moved, and it is looked again at once; */
  POLLING_SOON_US = 1000000, /* and so long after a short rest: soon there will be something */
  POLLING_SHORT_REST_NS = 100000,
  POLLING_LONG_REST_NS = 1000000
};

/* still_us: since something last went ahead. */
static inline void polling_rest(int64_t still_us) {
  if (still_us < POLLING_EAGER_US)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = still_us < POLLING_SOON_US ? POLLING_SHORT_REST_NS : POLLING_LONG_REST_NS},
              NULL);
}

#endif

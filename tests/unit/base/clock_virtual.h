/* The machine's clocks, played by the test: this clock_gettime goes before libc's.  Include it in one program's
 * file. */
#ifndef LEASEHOLD_TESTS_CLOCK_VIRTUAL_H
#define LEASEHOLD_TESTS_CLOCK_VIRTUAL_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define WALL_AT_START_US INT64_C(1700000000000000)

static _Atomic int64_t virtual_us = 3600000000; /* since boot */
static _Atomic int64_t clock_set_us;            /* the sum of all steps of the wall clock */

int clock_gettime(clockid_t id, struct timespec *out) {
  const bool wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  const int64_t us = virtual_us + (wall ? WALL_AT_START_US + clock_set_us : 0);
  *out = (struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
  return 0;
}

#endif

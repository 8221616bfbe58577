/* The machine's clocks, which the test may put ahead: this clock_gettime goes before libc's and adds to what the kernel
 * says.  A caller that measures a stretch of time finds that it has passed, at once; deadlines of waits that have begun
 * are the kernel's and do not move.  Include it in one program's file. */
#ifndef LEASEHOLD_TESTS_CLOCK_AHEAD_H
#define LEASEHOLD_TESTS_CLOCK_AHEAD_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t clock_ahead_ns;

int clock_gettime(clockid_t id, struct timespec *out) {
  if (syscall(SYS_clock_gettime, id, out) != 0) return -1;
  const int64_t ns = out->tv_nsec + clock_ahead_ns;
  out->tv_sec += ns / 1000000000;
  out->tv_nsec = ns % 1000000000;
  return 0;
}

static void time_passes(int64_t ms) { clock_ahead_ns += ms * 1000000; }

#endif

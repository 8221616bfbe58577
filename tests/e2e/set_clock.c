/* Preloaded, it shows a process a machine's clock that somebody has set: CLOCK_REALTIME by CLOCK_SET_S seconds off,
 * back or ahead.  CLOCK_MONOTONIC and all waits stay as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *t) {
  const char *set = getenv("CLOCK_SET_S");
  const int rc = (int)syscall(SYS_clock_gettime, id, t);
  if (rc == 0 && id == CLOCK_REALTIME && set) t->tv_sec += atol(set);
  return rc;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec t;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &t) != 0) return -1;
  *out = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *out) {
  struct timespec t;
  if (clock_gettime(CLOCK_REALTIME, &t) != 0) return -1;
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

/* Reads the clocks and sleeps.  Decisions take the time as an argument; only main loops and logs call this. */
#include "common/base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/timex.h>

static struct timespec now_of(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t); /* cannot fail for these clocks with a valid pointer */
  return t;
}

int64_t clock_monotonic_us(void) {
  const struct timespec t = now_of(CLOCK_MONOTONIC);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_monotonic_ms(void) {
  const struct timespec t = now_of(CLOCK_MONOTONIC);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t real_us(void) {
  const struct timespec t = now_of(CLOCK_REALTIME);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_real_ms(void) { return real_us() / 1000; }

bool clock_is_kept(void) {
  struct timex asked = {0}; /* changes nothing */
  const int state = adjtimex(&asked);
  return state >= 0 && state != TIME_ERROR;
}

static const int64_t UNKNOWN = INT64_MIN;
static _Atomic int64_t wall_offset_us = UNKNOWN;

int64_t clock_wall_offset_us(void) {
  int64_t offset_us = atomic_load(&wall_offset_us);
  if (offset_us != UNKNOWN) return offset_us;
  const int64_t first_us = real_us() - clock_monotonic_us();
  return atomic_compare_exchange_strong(&wall_offset_us, &offset_us, first_us) ? first_us : offset_us;
}

int64_t clock_wall_us(void) { return clock_monotonic_us() + clock_wall_offset_us(); }
int64_t clock_wall_ms(void) { return clock_wall_us() / 1000; }

static int64_t machine_monotonic_us(void *context) {
  (void)context;
  return clock_monotonic_us();
}

static int64_t machine_wall_us(void *context) {
  (void)context;
  return clock_wall_us();
}

const struct clock clock_machine = {.monotonic_us = machine_monotonic_us, .wall_us = machine_wall_us};

struct timespec clock_deadline_in(int64_t ms) {
  struct timespec t = now_of(CLOCK_MONOTONIC);
  if (ms < 0) ms = 0;
  if (ms > INT64_MAX / 4000) ms = INT64_MAX / 4000;
  t.tv_sec += (time_t)(ms / 1000);
  t.tv_nsec += (long)(ms % 1000) * 1000000L;
  if (t.tv_nsec >= 1000000000L) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000L;
  }
  return t;
}

void clock_sleep_ms(int64_t ms) {
  if (ms <= 0) return;
  const struct timespec until = clock_deadline_in(ms);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
}

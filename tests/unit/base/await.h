/* Waiting for what another thread does: the condition is evaluated again and again until it holds, and the test fails
 * with a sentence when it does not hold in time.  How long a test takes is then the time of the work that it waits for,
 * and a busy machine fails nothing. */
#ifndef LEASEHOLD_TESTS_UNIT_BASE_AWAIT_H
#define LEASEHOLD_TESTS_UNIT_BASE_AWAIT_H

#include <stdio.h>

#include "common/base/clock.h"
#include "tests/unit/base/cm.h"

enum { AWAIT_MS = 60000, AWAIT_LOOK_MS = 1 };

__attribute__((format(printf, 4, 5))) static inline void await_again(int64_t until_ms, const char *file, int line,
                                                                     const char *format, ...) {
  char message[512];
  va_list args;
  if (clock_monotonic_ms() <= until_ms) {
    clock_sleep_ms(AWAIT_LOOK_MS);
    return;
  }
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  print_error("not within %d s: %s\n", AWAIT_MS / 1000, message);
  _fail(file, line);
}

/* AWAIT(thing_done(x), "%s is not done", x->name) continue;
 * What follows is the loop's body, behind every evaluation that has not held. */
#define AWAIT(condition, ...)                                                        \
  for (const int64_t await_until_ms = clock_monotonic_ms() + AWAIT_MS; !(condition); \
       await_again(await_until_ms, __FILE__, __LINE__, __VA_ARGS__))

#endif

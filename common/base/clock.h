/* Time, read only here.  Decisions take `now_ms` as an argument so that they can be simulated. */
#ifndef LEASEHOLD_BASE_CLOCK_H
#define LEASEHOLD_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in milliseconds / microseconds. */
int64_t clock_monotonic_ms(void);
int64_t clock_monotonic_us(void);
/* The wall clock when this process first asked, in milliseconds / microseconds since 1970, plus CLOCK_MONOTONIC since
 * then.  Use it for times that are stored, sent or subtracted: it runs evenly, so no duration jumps or turns negative
 * when somebody sets the machine's clock.  It follows such a step only when the process is started again. */
int64_t clock_wall_ms(void);
int64_t clock_wall_us(void);
/* Wall clock less CLOCK_MONOTONIC; constant. */
int64_t clock_wall_offset_us(void);
/* CLOCK_REALTIME with its steps, as a human's watch shows it: for logs. */
int64_t clock_real_ms(void);
/* Does the kernel count that clock as kept by a time service, as NTP's? */
bool clock_is_kept(void);
/* The CLOCK_MONOTONIC timespec `ms` from now, for pthread_cond_timedwait on conditions made by cond_init. */
struct timespec clock_deadline_in(int64_t ms);
/* Sleeps at least ms milliseconds, through interruptions. */
void clock_sleep_ms(int64_t ms);

/* A clock that is handed to a module which decides by time, so that a test can move it.  Any thread may ask. */
struct clock {
  int64_t (*monotonic_us)(void *context);
  int64_t (*wall_us)(void *context); /* like clock_wall_us, it goes evenly */
  void *context;
};
/* clock_monotonic_us and clock_wall_us. */
extern const struct clock clock_machine;

#endif

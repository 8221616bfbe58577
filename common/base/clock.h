/* Time, read only here.  Decisions take `now_ms` as an argument so that they can be simulated. */
#ifndef LEASEHOLD_BASE_CLOCK_H
#define LEASEHOLD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in milliseconds / microseconds. */
int64_t clock_monotonic_ms(void);
int64_t clock_monotonic_us(void);
/* CLOCK_REALTIME in milliseconds / microseconds since 1970. */
int64_t clock_wall_ms(void);
int64_t clock_wall_us(void);
/* The CLOCK_MONOTONIC timespec `ms` from now, for pthread_cond_timedwait on conditions made by cond_init. */
struct timespec clock_deadline_in(int64_t ms);
/* Sleeps at least ms milliseconds, through interruptions. */
void clock_sleep_ms(int64_t ms);

#endif

/* Estimates how far a worker's clock is off ours, so that its intervals can be shown in our time (intervals.c).  Pure.
 *
 * Every process's clock goes evenly from where the wall clock stood when the process was started
 * (common/base/clock.h).  So two of them differ by a constant: nothing on machines whose clocks are right, hours
 * where somebody set a clock in between. Heartbeats carry the sender's time.  None arrives before it was sent, so
 * the largest difference is nearest to the truth. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_CLOCK_SKEW_H
#define LEASEHOLD_COORDINATOR_DECIDE_CLOCK_SKEW_H

#include <stdint.h>

#define CLOCK_SKEW_UNKNOWN INT64_MIN

/* The estimate after one more message: sent_us by the sender's clock (0: not told), came_us by ours. */
int64_t clock_skew_learn(int64_t known_us, int64_t sent_us, int64_t came_us);
/* The correction of the sender's times; 0 when the clocks agree within the time that a message may take. */
int64_t clock_skew_us(int64_t known_us);

#endif

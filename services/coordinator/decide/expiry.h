/* Decides when things lapse, by times that are passed in (monotonic milliseconds).  Pure.
 *
 * Called on the writer's thread by core.c (parked polls, standstills), workers.c, leases.c and group_timeout.c.  No
 * clock is read here, so that tests can pass any time. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_EXPIRY_H
#define LEASEHOLD_COORDINATOR_DECIDE_EXPIRY_H

#include <stdbool.h>
#include <stdint.h>

/* Has a worker been silent for longer than its time to live? */
bool expiry_worker_lost(int64_t seen_ms, int64_t ttl_ms, int64_t now_ms);
/* A lease granted or renewed now lapses then. */
int64_t expiry_lease_deadline(int64_t now_ms, int64_t ttl_ms);
/* Heartbeats renew leases; but a worker that holds some and samples nothing for too long loses them: STANDSTILL_GROUPS
 * times what a group of the run takes (group_s, in seconds; 0: not known yet, and nobody does), and a time to live at
 * least.  Prompts are computed without a token to show for it: a group's time has that in it. */
enum { STANDSTILL_GROUPS = 8 };
bool expiry_stands_still(int64_t progressed_ms, double group_s, int64_t ttl_ms, int64_t now_ms);
bool expiry_passed(int64_t deadline_ms, int64_t now_ms);
/* How long may the writer sleep when the earliest deadline is this (INT64_MAX: none)?  Between 0 and nap_ms. */
int64_t expiry_sleep(int64_t earliest_ms, int64_t now_ms, int64_t nap_ms);

/* The writer looks at the time at least every nap_ms.  When it comes back much later (a slow disk, a stopped
 * process), no worker could be heard meanwhile: returns by how much to put deadlines off, or 0. */
int64_t expiry_stall(int64_t last_ms, int64_t now_ms, int64_t nap_ms);

/* Only time in which a server could have worked counts against a group.  How much of the time between two looks, about
 * nap_ms apart, does not? */
int64_t expiry_uncounted(int64_t passed_ms, bool counting, int64_t nap_ms);

#endif

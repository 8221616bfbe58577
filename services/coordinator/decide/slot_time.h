/* Generation idle time: how much of the slots' time fell into a run, and how much of that was spent on its samples.
 *
 *   run's window   |begin ......................... end|      (round 0 opened ... last version published)
 *   heartbeats  h0 ----- h1 -------- h2 -------- h3 ----- h4   each tells the slots' busy time since registration
 *
 * Between two heartbeats only the part that lies in the window counts.  A run that ended between them gets its share
 * at the next one, so its figures are complete one heartbeat after its end.  Pure; the writer's thread keeps the
 * state (rounds.h) and stores the outcome (route_workers.c). */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_SLOT_TIME_H
#define LEASEHOLD_COORDINATOR_DECIDE_SLOT_TIME_H

#include <stdint.h>

enum { SLOT_WINDOWS = 2 }; /* the newest run and the one before: more cannot end between two heartbeats unseen */

/* Monotonic milliseconds; end_ms INT64_MAX: still open; run 0: none. */
struct slot_window {
  int64_t run, begin_ms, end_ms;
};
/* The slot time that a heartbeat adds to a run. */
struct slot_account {
  int64_t run, busy_us, window_us;
};

/* A repeat for the newest run is ignored. */
void slot_windows_begin(struct slot_window windows[SLOT_WINDOWS], int64_t run, int64_t now_ms);
/* The first end counts. */
void slot_windows_end(struct slot_window windows[SLOT_WINDOWS], int64_t run, int64_t now_ms);

/* Called when a server with `slots` slots was busy for busy_us (summed over slots) between two heartbeats.  Fills out
 * (run 0: nothing) and returns what did not fit because clocks and heartbeats jitter, to be carried to the next
 * heartbeat: at most a tenth of a second of every slot, and only while a run is open. */
int64_t slot_time_share(const struct slot_window windows[SLOT_WINDOWS], int32_t slots, int64_t from_ms, int64_t to_ms,
                        int64_t busy_us, struct slot_account out[SLOT_WINDOWS]);

#endif

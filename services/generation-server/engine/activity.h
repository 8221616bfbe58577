/* The server's activity as intervals of one cause each: the generation side of bubble accounting.
 *
 *   engine (a step with a leased sample) --COMPUTING--+
 *   stager (a push or pull in hand)      --LOADING----+--> one cause at a time --> intervals --> heartbeat
 *   heartbeat (a run is active)          --ACTIVE-----+    compute | load | starved | idle, in this order
 *
 * Every moment has exactly one cause, so the sums by cause are the server's time: staging while samples are decoded is
 * compute, staging while none are is `load`.  Each flag has one setter, on any thread; the mutex is taken only when a
 * flag changes, and nothing allocates.
 *
 * Gaps below ACTIVITY_GAP_US are gathered behind the longer neighbour until they are worth showing, and when
 * ACTIVITY_KEPT intervals wait for the coordinator the shortest neighbours are merged: both move borders by a little,
 * and change no sum.  Reported in wall-clock times (common/base/clock.h). */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ACTIVITY_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ACTIVITY_H

#include <stdbool.h>

#include "common/wire/interval.h"

enum {
  ACTIVITY_KEPT = 256, /* intervals that wait to be reported */
  ACTIVITY_GAP_US = 2000
};
_Static_assert((int)ACTIVITY_KEPT <= (int)LIMIT_INTERVALS, "one heartbeat takes them all");

/* --- intervals, oldest first, without holes; pure --- */
struct interval_log {
  struct interval items[ACTIVITY_KEPT];
  size_t count;
  int64_t told_us; /* intervals that end by then were reported at least once, so their borders stay */
};
/* begin_us is where the last one ended. */
void interval_log_add(struct interval_log *log, enum interval_cause cause, int64_t begin_us, int64_t end_us);
/* Forgets everything before until_us. */
void interval_log_drop(struct interval_log *log, int64_t until_us);

/* --- the server's --- */
enum activity_flag { ACTIVITY_COMPUTING = 1, ACTIVITY_LOADING = 2, ACTIVITY_ACTIVE = 4 };

struct activity;
enum rc activity_create(struct activity **out, struct err *err);
void activity_free(struct activity *a); /* NULL is fine */
/* COMPUTING implies that a run is active.  NULL is ignored. */
void activity_set(struct activity *a, enum activity_flag flag, bool on);
/* The same at a given time (monotonic microseconds), for tests. */
void activity_set_at(struct activity *a, enum activity_flag flag, bool on, int64_t now_us);

struct activity_report {
  struct interval items[ACTIVITY_KEPT]; /* wall clock */
  size_t count;
  int64_t until_us; /* monotonic: to be given to activity_told */
  int64_t sent_us;  /* wall clock */
};
/* The intervals that the coordinator has not acknowledged, the current one up to now_us (monotonic). */
void activity_take(struct activity *a, struct activity_report *out, int64_t now_us);
/* The coordinator has acknowledged the intervals up to then. */
void activity_told(struct activity *a, int64_t until_us);
/* Exact, from the start to now_us. */
void activity_sums(struct activity *a, int64_t out_us[CAUSE_COUNT], int64_t now_us);

#endif

/* Records what the engine's thread did from when to when, by cause: without gaps, handed out piece by piece with the
 * answers of batches and steps (see common/wire/interval.h), and summed up for /metrics.
 *
 *   at_us --timeline_mark(cause, until)--> the stretch [at_us, until) had this cause; at_us = until
 *
 * Measured with CLOCK_MONOTONIC, so that no stretch runs backwards, and turned into wall clock when it is handed out.
 * When more than TIMELINE_MAX stretches came since then, neighbours are merged: what each cause took stays exact, only
 * the order within some milliseconds is lost.  Owned by the engine's thread, before it runs by trainer_create.  Time
 * is passed in.  Next hop: coordinator/rounds/intervals.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_TIMELINE_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_TIMELINE_H

#include "common/base/metrics.h"
#include "common/wire/interval.h"

enum { TIMELINE_MAX = LIMIT_INTERVALS / 2 }; /* the publisher adds its push, and a peer may add up two answers */

struct timeline {
  int64_t at_us;
  size_t count;
  struct interval items[TIMELINE_MAX];
  struct metric *seconds[CAUSE_COUNT]; /* leasehold_trainer_seconds_total{cause=...} */
};

/* Registers the metrics; the record begins now. */
void timeline_begin(struct timeline *t, int64_t now_us);
/* Returns the stretch's microseconds; none when until_us is not after what was marked before. */
int64_t timeline_mark(struct timeline *t, enum interval_cause cause, int64_t until_us);
/* Hands out what was recorded since the last time, in microseconds plus offset_us, as arena memory with room for
 * `extra` more.  When memory is refused *out is NULL and the record is kept for the next time. */
void timeline_take(struct timeline *t, struct interval **out, size_t *count, size_t extra, int64_t offset_us,
                   struct arena *arena);

#endif

/* Records what the preprocessor's thread did from when to when, for its heartbeats: logprob while passes are computed,
 * load while weights are pulled, starved while a run is active and there is nothing to do, else idle.
 *
 *   work thread --turn(cause)--> timeline --tell--> heartbeat --told--> forgotten; without an answer told again, with later ones
 *
 * The mutex guards everything: the work thread turns, the registration's thread tells.  Time is passed in. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_INTERVALS_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_INTERVALS_H

#include <pthread.h>

#include "services/trainer-server/engine/timeline.h"

struct pass_intervals {
  pthread_mutex_t mutex;
  struct timeline timeline; /* not told yet */
  enum interval_cause now;  /* CAUSE_LOGPROB, CAUSE_LOAD, or CAUSE_IDLE: it waits */
  bool active;              /* a run is */
  struct interval told[LIMIT_INTERVALS]; /* in heartbeats without an answer; CLOCK_MONOTONIC */
  size_t told_count;
};

void pass_intervals_init(struct pass_intervals *p, int64_t now_us);
/* From now on the thread does this; CAUSE_IDLE: it waits. */
void pass_intervals_turn(struct pass_intervals *p, enum interval_cause cause, int64_t now_us);
void pass_intervals_set_active(struct pass_intervals *p, bool active, int64_t now_us);
/* Everything that no answered heartbeat has told, in microseconds plus offset_us, as arena memory. */
void pass_intervals_tell(struct pass_intervals *p, struct interval **out, size_t *count, int64_t now_us,
                         int64_t offset_us, struct arena *arena);
/* The heartbeat was answered. */
void pass_intervals_told(struct pass_intervals *p);

#endif

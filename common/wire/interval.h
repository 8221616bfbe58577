/* Intervals of a worker's time, each with its cause: the raw material of bubble accounting.  Trainers send them with
 * the answers to batches and steps, generation-servers with heartbeats.
 *
 * Times are wall-clock microseconds of the sender's machine, begin <= end.  Intervals of one sender and lane do not
 * overlap, except `push`, `load` and a `checkpoint` in flight, which run beside the computation. */
#ifndef LEASEHOLD_WIRE_INTERVAL_H
#define LEASEHOLD_WIRE_INTERVAL_H

#include "common/base/arena.h"
#include "common/json/json.h"

enum interval_cause {
  CAUSE_FILL,       /* trainer: the round is open, nothing of it has come yet */
  CAUSE_STARVED,    /* trainer: between two batches of a round; server: a run is active, no sample to decode */
  CAUSE_VERIFYING,  /* coordinator: groups decoded, verified, sealed */
  CAUSE_LOGPROB,    /* trainer: own log-probabilities (forward) */
  CAUSE_COMPUTE,    /* trainer: gradients (backward); server: decoding */
  CAUSE_STEP,       /* trainer: optimizer, bf16 weights, digest */
  CAUSE_CHECKPOINT, /* trainer: making the version durable */
  CAUSE_PUSH,       /* trainer: weights to the servers, and the announcement */
  CAUSE_LOAD,       /* server: staging or loading weights; trainer: restoring, opening a run */
  CAUSE_IDLE        /* no run */
};
enum { CAUSE_COUNT = CAUSE_IDLE + 1, LIMIT_INTERVALS = 1024 }; /* intervals in one message */

struct interval {
  enum interval_cause cause;
  int64_t begin_us, end_us;
};

/* [["compute", begin_us, end_us], ...] as the value of the key that was just written. */
void intervals_write(struct json_writer *w, const struct interval *items, size_t count);
/* RC_INVALID for an unknown cause, begin after end, times that are negative or not exact in JavaScript, or more than
 * LIMIT_INTERVALS; the field is "intervals[i]". value NULL (it did not come) is none. Memory in the arena; *out is NULL
 * when there are none. */
enum rc intervals_read(struct interval **out, size_t *count, const struct json *value, struct arena *arena,
                       struct err *err);
/* Memory in the arena; never NULL when RC_OK. */
enum rc intervals_copy(struct interval **out, const struct interval *from, size_t count, struct arena *arena,
                       struct err *err);
const char *interval_cause_name(enum interval_cause c); /* "fill" */
/* -1 when there is none. */
int interval_cause_parse(const char *name);

#endif

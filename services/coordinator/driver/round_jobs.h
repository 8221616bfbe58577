/* The order in which a round's batches and inner steps go to the trainer, and the job in hand.
 *
 *   b0 b1 s0 b2 s1 b3 ...    b: batches, by number; s0: the inner step over the groups of b0 and b1
 *
 * Batches of step k come before inner step k, and those of step k+1 behind it.  Sums within a step commute, steps do
 * not: so train.c sends in this order, after a restart or to another incarnation of the trainer too, and replay.c
 * repeats it.
 *
 * round_job_next reads, on the driver's thread.  A struct trainer_job belongs to one thread at a time: the driver's
 * until it is handed to batch_answers.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_ROUND_JOBS_H
#define LEASEHOLD_COORDINATOR_DRIVER_ROUND_JOBS_H

#include "services/coordinator/driver/batch.h"
#include "services/coordinator/driver/inner_step.h"

/* A place in the order. */
struct round_job {
  int64_t step; /* inner steps before it */
  bool inner;   /* the inner step itself, else a batch: */
  int64_t number;
};
/* In front of every job. */
static inline struct round_job round_job_none(void) { return (struct round_job){.step = -1}; }

/* The round's first job behind `after`, of those that are not done when undone. */
enum rc round_job_next(struct readers *readers, int64_t run, int64_t round, const struct round_job *after, bool undone,
                       struct round_job *out, bool *found, struct err *err);

/* *planned: groups are planned for a round that the step under way will open (rounds/batches.h); *out: their batch. */
enum rc round_planned_ahead(struct readers *readers, int64_t run, int64_t round, bool *planned, struct round_job *out,
                            struct err *err);

/* One of the two. */
struct trainer_job {
  struct batch *batch;
  struct inner_step *inner;
};

struct round_place {
  int64_t round;
  int64_t version; /* that the round was sampled at */
  bool recorded;   /* it is over, and repeated as it was recorded */
};

/* Makes the message for this trainer and submits it; ask_first: it may have been submitted before a restart
 * (batch.h). */
enum rc trainer_job_send(struct trainer_job *out, struct readers *readers, struct run_context *context,
                         const struct trainer_target *trainer, const struct round_place *place,
                         const struct round_job *job, bool ask_first, struct http_client *http, struct err *err);
void trainer_job_free(struct trainer_job *job); /* empty afterwards */

#endif

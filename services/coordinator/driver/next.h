/* Decides what the driver does next, as far as that needs no trainer: which kind of work, and which job of a round goes
 * to the trainer.
 *
 *   a look (look.h) --next_work--> start | train | step
 *   train: stored jobs that were not sent, in the trainer's order --> else a new batch of what is sealed, once it is worth one
 *
 * Called by driver.c and train.c on the driver's thread, and by the simulation, which sends to a trainer of its own.
 * Knows no connection and waits for nothing but the writer. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_NEXT_H
#define LEASEHOLD_COORDINATOR_DRIVER_NEXT_H

#include "services/coordinator/driver/look.h"
#include "services/coordinator/driver/round_jobs.h"
#include "services/coordinator/writer/core.h"

enum next_work {
  NEXT_NOTHING,    /* until something changes */
  NEXT_NO_TRAINER, /* there would be something, but nobody holds the trainer's place */
  NEXT_START,      /* open the run at the trainer, and attach it */
  NEXT_TRAIN,      /* jobs of the round are to be sent, or waited for */
  NEXT_STEP        /* take a round's step, or ask how long it took */
};

/* config NULL: the run was not opened at the trainer that holds the place.  *round: that is to be stepped. */
enum next_work next_work(const struct active_run *a, bool trainer, const struct run_config *config, int64_t *round);

/* The round whose jobs must all be done again when a trainer that holds so old a version takes the run up; -1: none. */
int64_t next_again(const struct active_run *a, int64_t held_version);
/* The round whose step the trainer has taken already, so that none of its jobs is to be done again; -1: none. */
int64_t next_taken(const struct active_run *a, int64_t held_version);

struct next_job {
  bool found;
  bool stored; /* it is in the database, and may have been sent before a restart */
  struct round_job job;
  struct command *plan; /* of a batch that is not: next_job_plan takes it over */
  int groups_wanted; /* when nothing was found: how many more sealed groups are worth another look; INT_MAX: an answer
                      * is */
};

/* The job behind `newest`, the last one that was sent.  at_trainer: batches there whose answers have not come.
 * wall_ms: the core's. */
enum rc next_job_find(struct next_job *out, struct readers *readers, struct run_context *x, const struct active_run *a,
                      const struct round_job *newest, int at_trainer, int64_t batch_tokens, int64_t wall_ms,
                      struct err *err);
/* Stores the found batch: it may be sent from then on.  RC_CONFLICT: the writer has planned one, or a group is not
 * sealed any more; what is found now is another job. */
enum rc next_job_plan(struct core *c, struct next_job *job, struct err *err);
/* When no job is pending: the step begins if all is trained. */
enum rc next_step_begin(struct core *c, const struct active_run *a, const struct run_config *config, struct err *err);

#endif

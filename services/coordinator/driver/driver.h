/* The driver: the thread that talks to the trainer.  It does what the writer must not wait for, and hands the writer
 * every outcome as a command.
 *
 *   look at the database (a snapshot) --> start: fetch the model's files, load datasets, open the run at the trainer
 *                                     --> train: submit whole groups in order under a token budget, compare log-probabilities
 *                                     --> step: one optimizer step, then the new version
 *
 * Started and stopped by main.c.  Besides the run's context it keeps nothing that the database does not hold, and every
 * step can be taken again after a restart, because batches and steps are idempotent by id.  Trouble that passes is
 * waited out, any other pauses the run with a sentence (trouble.h).  Previous hop of a rollout: rounds/group_seal.c.
 * Next: train.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_DRIVER_H
#define LEASEHOLD_COORDINATOR_DRIVER_DRIVER_H

#include "services/coordinator/writer/core.h"

struct driver;

struct driver_options {
  int64_t trainer_lost_ms; /* how long a run that is to stop waits for its step's trainer; 0: two minutes */
  const char *replay;      /* a run to be replayed instead (record.h); borrowed.  NULL or "": none */
};

enum rc driver_start(struct driver **out, struct core *core, const struct driver_options *options, struct err *err);
/* Ends the thread; before core_stop, whose last commits may still kick the driver. */
void driver_stop(struct driver *d);
/* Is the replay over, with *rc and *err?  Any thread; false without one. */
bool driver_replay_over(struct driver *d, enum rc *rc, struct err *err);
/* After core_stop. NULL is fine. */
void driver_destroy(struct driver *d);

#endif

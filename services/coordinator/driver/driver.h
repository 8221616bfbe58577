/* The driver: one I/O thread that does what the writer must not wait for, and hands it the outcome as commands.
 *
 *   look at the database (a snapshot) --> start: fetch the model's files, load datasets, open the run at the trainer
 *                                     --> train: submit-batch (whole groups, in order, under a token budget), wait, compare log-probabilities bit for bit, submit-step, wait
 *
 * It keeps nothing that the database does not hold, but the run's context: every step can be taken again after a
 * restart, because batches and steps are idempotent by id. Trouble that passes is waited out, any other pauses the run
 * with a sentence (driver/trouble.c).  Previous hop of a rollout: group_seal.c.  Next:
 * trainer-server/route_submit_batch.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_DRIVER_H
#define LEASEHOLD_COORDINATOR_DRIVER_DRIVER_H

#include "services/coordinator/writer/core.h"

struct driver;

struct driver_options {
  const char *token;
  int64_t trainer_lost_ms; /* how long a run that is to stop waits for its step's trainer; 0: two minutes */
};

enum rc driver_start(struct driver **out, struct core *core, const struct driver_options *options, struct err *err);
/* Ends the thread; before core_stop, whose last commits may still kick the driver. */
void driver_stop(struct driver *d);
/* After core_stop. NULL is fine. */
void driver_destroy(struct driver *d);

#endif

/* Opens a run at the trainer, or takes it up again after a restart of this process or of the trainer.
 *
 *   model files, datasets --> context --> POST /v1/runs at the trainer --> does it hold what is recorded?
 *                                     --> the writer gets the context --> replay, if the trainer is behind
 *
 * Driver's thread.  A repeat is harmless.  Afterwards the writer has the run's context, so that samples can be leased
 * and results taken, and the trainer is verified to hold the recorded version.  Previous step of a run: run_check.c.
 * Next: rounds/round.c opens round 0. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_START_H
#define LEASEHOLD_COORDINATOR_DRIVER_START_H

#include "services/coordinator/driver/driver_state.h"

enum rc start_run(struct driver *d, const struct active_run *a, struct err *err);
/* Only its first step: afterwards d->context is the run's, made from the model's files and the datasets. */
enum rc start_context(struct driver *d, const struct active_run *a, struct err *err);

#endif

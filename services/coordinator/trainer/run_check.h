/* Checks whether a posted run can work.  A fault that would stop it at its opening or later is refused at once: a start
 * that does not exist, any bad line of its datasets, a configuration that the trainer cannot carry out.
 *
 *   POST /v1/runs --> run_config.c (the configuration alone) --> here (files, database, trainer) --> queued --> driver/start.c
 *                        here, longer than --check-ms --> checking --driver/late_check.c--> here again --> queued
 *
 * Called by route_runs.c and late_check.c on threads that may block: it reads whole datasets and asks the trainer.
 * When there is no trainer, or it does not answer, only faults that show without model and trainer are found.  The
 * others show when the run is opened, and so does anything that changes in between.  Writes nothing. */
#ifndef LEASEHOLD_COORDINATOR_TRAINER_RUN_CHECK_H
#define LEASEHOLD_COORDINATOR_TRAINER_RUN_CHECK_H

#include <stdatomic.h>

#include "services/coordinator/run/dataset.h"
#include "services/coordinator/run/run_config.h"
#include "services/coordinator/writer/core.h"

/* RC_FULL while as many runs wait as are allowed; reads on the caller's connection. */
enum rc run_queue_check(struct store *s, struct err *err);
/* How a check is ended early; all may be left out. */
struct run_check_bounds {
  const struct dataset_watch *watch; /* of the datasets' lines */
  atomic_bool *stopping;             /* cuts calls to the trainer short */
};
/* RC_INVALID, with the field, and for a dataset its file and line; RC_TIMEOUT when the watch has ended it;
 * RC_NO_MEMORY when it could not be found out, RC_UNAVAILABLE when a step under way may take the checkpoint to start
 * from. */
enum rc run_check(struct core *c, const struct run_config *config, const struct run_check_bounds *bounds,
                  struct err *err);
/* Puts the run's newest checkpoint into `start` in place of the newest that is known (kept_versions_find): in flight a
 * step's checkpoint is written while the next step is computed, and the trainer always reports one later than it has
 * it. */
enum rc run_start_latest(struct core *c, struct run_config *config, struct err *err);
/* RC_FULL while as many runs wait as are allowed.  To be called before anything costly. */
enum rc run_room_check(struct core *c, struct err *err);

#endif

/* Checks whether a posted run can work.  A fault that would stop it at its opening or later is refused at once: a start that
 * does not exist, any bad line of its datasets, a configuration that the trainer cannot carry out.
 *
 *   POST /v1/runs --> run_config.c (the configuration alone) --> here (files, database, trainer) --> queued --> driver/start.c
 *
 * Called by route_runs.c on a thread that may block: it reads whole datasets and asks the trainer.  When no
 * trainer is there or it does not answer, only what needs neither model nor trainer is checked.  The rest shows when the run
 * is opened, and so does whatever changes in between.  Writes nothing. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_RUN_CHECK_H
#define LEASEHOLD_COORDINATOR_DRIVER_RUN_CHECK_H

#include "services/coordinator/writer/core.h"
#include "services/coordinator/run/run_config.h"

/* RC_FULL while as many runs wait as may. */
enum rc run_queue_check(struct store *s, struct err *err);
/* RC_INVALID, with the field, and for a dataset its file and line; RC_FULL as above, before anything
 * costly; RC_NO_MEMORY when it could not be found out. */
enum rc run_check(struct core *c, const struct run_config *config, struct err *err);

#endif

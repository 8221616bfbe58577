/* Is a posted run one that can work?  What would end it at its opening, or in mid-run, is refused to the one who posts it:
 * where it starts, every line of its datasets, and what the trainer cannot carry out.
 *
 *   POST /v1/runs --> run_config.c (the configuration alone) --> here (files, database, trainer) --> queued --> driver/start.c
 *
 * Called by route_runs.c on a thread that may block: it reads whole datasets and asks the trainer.  Without a trainer, or
 * with one that does not answer, what needs neither model nor trainer is checked, and the rest shows when the run is
 * opened, as does what changes in between.  Writes nothing. */
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

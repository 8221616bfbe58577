/* Decides whether a run that cannot go on just now waits or is paused.
 *
 *   passes by itself    no trainer, one that is silent, full or not yet registered with us, a full disk:
 *                       the run stays as it is and waits, for as long as it takes; `waiting_for` says for what
 *   no server samples, or no judge answers (standstill.h): the same
 *   may be a restart of the trainer that was seen too late:   verified once a round, and tried again
 *   anything else       other weights, garbage, a configuration that this trainer refuses, a replay that ends elsewhere,
 *                       memory that stays refused: the run is paused with the reason until somebody resumes or stops it
 *
 * Driver's thread, called by driver.c after a step has failed.  Only a run that was asked to stop is ended here: what
 * was accepted is in the database, and another trainer, another state directory or a mended file can take it up from
 * there.  A run that was asked to stop does not wait for a trainer that is lost, nor for room on its disk. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_TROUBLE_H
#define LEASEHOLD_COORDINATOR_DRIVER_TROUBLE_H

#include "services/coordinator/driver/driver_state.h"

/* A step on the run failed with rc, not RC_OK; it was begun at begun_ms (monotonic), and the trouble is as old as that.
 * Returns after how many milliseconds to try it again, or 0: the run is paused, or has stopped. */
int64_t trouble_meet(struct driver *d, const struct active_run *a, int64_t begun_ms, enum rc rc, const struct err *err);
/* A step succeeded, or there was nothing to do: then somebody else may be missing, and the run waits for them. */
void trouble_over(struct driver *d, const struct active_run *a);

#endif

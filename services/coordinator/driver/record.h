/* Replays a whole recorded run at a fresh trainer: `coordinator --replay r2`.
 *
 *   r2 starts from r1, version 600 --> r1: versions 0 .. 600 --> r2: versions 0 .. the last one, each compared with the record
 *
 * No sample is drawn, so no generation-server is needed: what was trained on, in which order and from which versions,
 * is in the ledger, also for an `inflight` run.  Runs that this one starts from are replayed first, as far as it needs
 * them.  Nothing is written to the runs, but workers register as always, so give it a copy of the database.
 *
 * Driver's thread, instead of all its other work.  The first digest that differs ends it, with a sentence. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_RECORD_H
#define LEASEHOLD_COORDINATOR_DRIVER_RECORD_H

#include "services/coordinator/driver/driver_state.h"

/* Waits for a trainer, for as long as it takes or until d->stopping.  RC_OK: the run's last version has the recorded
 * digest. */
enum rc record_replay(struct driver *d, const char *run, struct err *err);

#endif

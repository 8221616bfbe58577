/* Recovery is replay: a trainer that came back with an older version is fed the recorded rounds again and must reach
 * the recorded digests.
 *
 *   versions   v (held) --round of v--> v+1 --round of v+1--> ... --> the recorded current one
 *
 * Each round is repeated as it was recorded: its batches and inner steps as they were planned, its groups, its
 * denominator.  Nothing is written to the round but incidents and events.  Servers go on sampling meanwhile, because
 * the current version stands.  Driver's thread, called by start.c: a round is fed and awaited here, since the trainer
 * can do nothing else then.  A digest other than the recorded one pauses the run, even where the kernels of the trainer
 * are not batch-invariant and nothing is at fault, because the samples of the round in progress were drawn at the
 * recorded version. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_REPLAY_H
#define LEASEHOLD_COORDINATOR_DRIVER_REPLAY_H

#include "services/coordinator/driver/driver_state.h"

/* Submits the recorded rounds from version `from` on, one after the other, until the trainer holds the run's current
 * version. */
enum rc replay_run(struct driver *d, const struct active_run *a, int64_t from, struct err *err);

#endif

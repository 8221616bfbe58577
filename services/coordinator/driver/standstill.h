/* Finds out why a run stands still although no work of the driver's fails: no server samples for it, or no judge
 * answers.
 *
 *   samples wait, none is leased    --> no generation-server is registered, none has the run's weights, or those
 *                                       that have them are in quarantine, refuse its leases, or do not take them
 *   all are in, rewards are missing --> what the reward server answered last
 *
 * What lasts becomes what the run waits for (trouble.h): it ends by itself once a server comes or the judge is mended.
 * Driver's thread; a snapshot's reading, nothing is written or kept. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_STANDSTILL_H
#define LEASEHOLD_COORDINATOR_DRIVER_STANDSTILL_H

#include "services/coordinator/driver/look.h"

/* why: a sentence, or "" where something goes on or the trainer has something to do. */
enum rc standstill_look(struct readers *readers, const struct active_run *a, char why[ERR_MESSAGE_MAX],
                        struct err *err);

#endif

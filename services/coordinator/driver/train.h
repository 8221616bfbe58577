/* A round in training: whole groups go to the trainer as soon as they are trainable (pipelined) or once all are
 * (sync), a few batches ahead of what it computes; batch_answers.c takes the answers.
 *
 *   groups sealed (FIFO) --select under the token budget--> batch, stored --submitted--> at the trainer --> batch_answers.c
 *                                 ^                                                                          |
 *                                 +------------------- a kick for every seal and every answer ---------------+
 *
 * Driver's thread.  train_round is a pass, not a wait: it sends what can be sent and returns; kicks bring it back.  A
 * batch is stored before it is sent, so that a restart sends the same one; if this process may have submitted a batch
 * before it was restarted, the trainer is asked for it first.
 *
 * In flight the first batch of the next round goes to the trainer behind the step that opens that round
 * (train_ahead_of_version), so that the trainer does not stand still while the version is announced.
 *
 * Previous hop of a rollout: rounds/group_seal.c.  Next: batch_build.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_TRAIN_H
#define LEASEHOLD_COORDINATOR_DRIVER_TRAIN_H

#include "services/coordinator/driver/driver_state.h"

enum rc train_round(struct driver *d, const struct active_run *a, struct err *err);
/* Called when the newest round's step has been submitted. A failure does no harm: the batch is then sent when its round
 * is open. */
void train_ahead_of_version(struct driver *d, const struct active_run *a);

#endif

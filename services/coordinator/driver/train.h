/* A round in training: whole groups go to the trainer as soon as they are trainable (pipelined) or once all are
 * (sync), a few batches ahead of what it computes; batch_answers.c takes the answers.
 *
 *   groups sealed (FIFO) --select under the token budget--> batch, stored --submitted--> at the trainer --> batch_answers.c
 *                                 ^                                                                          |
 *                                 +------------------- a kick for every seal and every answer ---------------+
 *
 * Driver's thread.  train_round is a pass, not a wait: it sends what can be sent and returns; kicks bring it back.  A
 * batch is stored before it is sent, so that a restart sends the same one; a batch that an earlier life may have
 * submitted is asked for first.
 *
 * In flight the first batch of the next round goes to the trainer behind the step that opens that round
 * (train_ahead_of_version), so that the trainer does not stand still while the version is announced.
 *
 * Previous hop of a rollout: rounds/group_seal.c.  Next: batch_build.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_TRAIN_H
#define LEASEHOLD_COORDINATOR_DRIVER_TRAIN_H

#include "services/coordinator/driver/driver_state.h"

enum rc train_round(struct driver *d, const struct active_run *a, struct err *err);
/* The step over the newest round has been submitted.  A failure is no trouble: the batch is sent when its round is
 * open. */
void train_ahead_of_version(struct driver *d, const struct active_run *a);

#endif

/* The answers of batches: a thread that waits for the batches which are at the trainer, and for the inner steps between
 * them, so that the driver can send the next ones meanwhile.
 *
 *   driver --job--> FIFO --batch_await, inner_step_await--> command: figures of the round --kick--> driver
 *     ^                          |                                       (when it was the last)
 *     +---- a kick: the trainer has room for another batch
 *
 * A job is the driver's until batch_answers_add and this thread's from then on.  Answers are awaited in the order in
 * which the jobs were sent.  The first failure ends the waiting: the jobs behind it are dropped (the database still has
 * them as not done), and the driver asks for the error.  Every wait has a deadline; batch_answers_reset cuts the call
 * in hand short.  Previous hop of a rollout: the trainer's answer (trainer-server/engine/batch.c).  Next: the step
 * (driver/step.c). */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_ANSWERS_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_ANSWERS_H

#include "services/coordinator/driver/round_jobs.h"
#include "services/coordinator/writer/core.h"

struct batch_answers;
enum rc batch_answers_start(struct batch_answers **out, struct core *core,
                            void (*kick)(void *context), void *context, struct err *err);
void batch_answers_stop(struct batch_answers *w); /* NULL is fine */
/* Takes over the job, also when it fails. */
enum rc batch_answers_add(struct batch_answers *w, struct trainer_job *job, struct err *err);
/* Batches and inner steps whose answers are not stored yet; of these, the batches that the trainer has not answered. */
int batch_answers_pending(struct batch_answers *w);
int batch_answers_at_trainer(struct batch_answers *w);
/* RC_OK, or what went wrong since the last reset. */
enum rc batch_answers_failure(struct batch_answers *w, struct err *err);
/* Drops what is pending and forgets the failure; returns once nothing is in hand. */
void batch_answers_reset(struct batch_answers *w);

#endif

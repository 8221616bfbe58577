/* The step: exactly the named units -> AdamW -> bf16 -> digest -> checkpoint -> version.  The engine's thread.
 * Previous hop of a rollout: batch.c.  Next hop of what was learnt: publish/publisher.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_STEP_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_STEP_H

#include "services/trainer-server/engine/engine.h"

/* Sums -> masters -> weights of every rank, on every rank; denominator 0: the sums are forgotten, and the step is
 * skipped. */
enum rc step_take(struct engine *e, int64_t version, double denominator, struct step_result *result, struct err *err);
/* Digest -> durable; then the version is current.  After RC_OK the job has ended (a replayed step) or is the
 * publisher's. */
enum rc step_job(struct engine *e, struct job *job, struct err *err);

#endif

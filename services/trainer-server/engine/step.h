/* Takes a step: exactly the named units -> AdamW -> bf16 -> digest -> checkpoint, or a note that one is owed ->
 * version.  An inner step ends with the digest: the next batches of its round are computed under these weights.  The
 * engine's thread.  Previous hop of a rollout: batch.c.  Next hop of the version: publish/publisher.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_STEP_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_STEP_H

#include "services/trainer-server/engine/engine.h"

/* What is to be done about a run whose training has diverged; with %s, the run. */
#define STEP_DIVERGED                                                                                    \
  "stop this run and start one from an earlier version, \"start\": {\"run\": \"%s\", \"version\": n of " \
  "`checkpoints`}, with a smaller training.lr"

/* RC_CONFLICT unless so many inner steps of the round have been taken. */
enum rc step_check_order(const struct engine *e, int32_t after_steps, struct err *err);
/* ORDER_STEP on every rank: sums -> masters -> weights of every rank; denominator 0: the sums are forgotten, and the
 * step is skipped.  The round's first inner step leaves the version's weights in the frozen behaviour policy. */
enum rc step_take(struct engine *e, const struct order *order, struct step_result *result, struct err *err);
/* Makes the checkpoint that an earlier step owes durable, digests this version and makes it durable; then it is
 * current.  After RC_OK the job has ended (an inner or a replayed step) or is the publisher's. */
enum rc step_job(struct engine *e, struct job *job, struct err *err);

#endif

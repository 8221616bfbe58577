/* Computes batches unit by unit: the trainer's own log-probabilities, and gradients that are added to the sums in any
 * order.  The engine's thread.  Previous hop of a rollout: api/route_submit_batch.c.  Next: gradient_unit.c, then
 * step.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_BATCH_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_BATCH_H

#include "services/trainer-server/engine/engine.h"
#include "services/trainer-server/ranks/unit_report.h"

/* Computes this rank's units of a batch, and adds those with adds[g] to the sums; stops at the first that fails. */
struct batch_work {
  const struct submit_batch *in;
  const uint8_t *adds;         /* [group_count] 0: its gradient is in the sums already */
  size_t first;                /* units of earlier batches since the last step: see unit_rank */
  struct unit_report *reports; /* [group_count] zeroed by the caller; this rank's are filled */
};
enum rc batch_units(struct engine *e, const struct batch_work *work, struct arena *arena, struct err *err);
enum rc batch_job(struct engine *e, struct job *job, struct err *err);

#endif

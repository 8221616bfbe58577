/* Takes a round's own step: names to the trainer the groups that no inner step has taken, and their denominator, waits
 * for the version, publishes it if the trainer has not, and stores how long the step took.
 *
 * Driver's thread; waits for the whole step, with a deadline for every poll, except in flight: there the publication
 * wakes the driver, which first sends the next step's groups and then asks for the times. A step that was taken before
 * a restart is not taken again.  Previous hop: batch_answers.c.  Next: trainer-server/api/route_submit_step.c; the
 * version comes back by POST /v1/versions (api/route_versions.c) and by the step's own status, whichever is first. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_STEP_H
#define LEASEHOLD_COORDINATOR_DRIVER_STEP_H

#include "services/coordinator/driver/driver_state.h"

/* Steps a round or, if its step is published already, asks how long it took; then the next round opens, or the run
 * ends. *over: there is more to do at once; false: the step is at the trainer, and its publication wakes the driver. */
enum rc step_round(struct driver *d, const struct active_run *a, int64_t round, bool *over, struct err *err);

/* The message of a round's step for this trainer; strings live in the arena.  Also for a replay. */
enum rc step_message(struct core *c, const struct run_context *x, const struct trainer_target *trainer, int64_t round,
                     struct submit_step *m, struct arena *arena, struct err *err);
/* Publishes the version with the step's figures, if the trainer has not announced it yet, and stores how long the step
 * took. status NULL: the times were lost with the trainer. */
enum rc step_store(struct core *c, const struct active_run *a, int64_t trainer, int64_t round,
                   const struct step_status *status, struct err *err);

#endif

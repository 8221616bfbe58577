/* Decides which options make a trainer fit into the available memory, from the cheapest to the dearest.  Pure.
 *
 *   --push-changes false           servers are sent whole versions
 *   --lean true                    transposes are made again for every backward pass, versions lie on disk
 *   --recompute-activations true   a third more computing
 *   --optimizer-state mapped       masters and moments are read from disk and written there in every step
 *   --chunk-tokens half, quarter   runs may ask for no larger chunk, and no sample may be longer than one
 *
 * None of them moves a bit of a run's weights.  What the operator has given up already stays given up.  Used for the
 * advice behind a refusal, and by --fit.  Called by memory.c and preprocess at start. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_FIT_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_FIT_H

#include "common/base/memory_plan.h"
#include "common/model/network/model.h"
#include "services/trainer-server/engine/options.h"

/* A service's memory plan under these options; pure. */
typedef void (*memory_planner)(struct memory_plan *out, const struct model *m, const struct trainer_options *options);
/* The cheapest options with which plan_of's plan fits into the room, into *out; else the smallest that there are.  The
 * advice says what they change.  chunks: may they be smaller?  Several ranks must agree on them beforehand. */
void fit_choose(struct trainer_options *out, struct memory_advice *advice, const struct model *m,
                const struct trainer_options *asked, bool chunks, const struct memory_room *room,
                memory_planner plan_of);

#endif

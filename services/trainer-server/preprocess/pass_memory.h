/* A preprocessor's memory plan: the weights that passes are computed with and their file while it is pulled, what a
 * forward pass needs once a lane.  No optimizer, no gradients, no activations.  Pure, except that it asks how much
 * there is. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_MEMORY_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_MEMORY_H

#include "common/base/memory_plan.h"
#include "common/model/network/model.h"
#include "services/trainer-server/engine/options.h"

void pass_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options);
/* At start: logs the plan, and refuses it with RC_NO_MEMORY when it does not fit. */
enum rc pass_memory_check(const struct model *m, const struct trainer_options *options, struct err *err);

#endif

/* What the trainer needs, before it takes it, held against what there is; the README of common/model states the same as a
 * formula.
 *
 * Everything is allocated at start but three things: the published versions, which come with the first step; the frozen
 * reference of a run with a KL term, checked when such a run is opened; and the bodies of requests, which have limits of
 * their own.  How many versions are in memory, however many servers pull them: board/weights_blob.h. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_MEMORY_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_MEMORY_H

#include "common/base/memory_plan.h"
#include "common/model/learning/backward.h"
#include "services/trainer-server/engine/options.h"

/* Everything that a trainer allocates for this model under these options; pure. */
void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options);
/* What is planned for at the largest chunk, and made for a run's. */
struct learner_options memory_learner_options(const struct trainer_options *o, int chunk_tokens);
/* At start, on all ranks: logs the plan, and refuses it with RC_NO_MEMORY when it does not fit, on a device beside what
 * the other ranks plan there. */
enum rc memory_check(const struct model *m, const struct trainer_options *options, struct ranks *ranks,
                     struct err *err);
/* The same for the frozen reference of a run with a KL term, which start does not plan for. */
enum rc memory_check_reference(const struct model *m, const struct trainer_options *options, struct err *err);
/* As far as it can be told beforehand, from any thread: only the engine's thread asks a device what it has left.  held: a
 * reference is there now, and will have made room. */
enum rc memory_foresee_reference(const struct model *m, const struct trainer_options *options, bool held,
                                 struct err *err);

#endif

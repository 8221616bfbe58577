/* The trainer's memory plan: how much it needs, compared with how much there is before anything is allocated.  The
 * README of common/model states the same as a formula.
 *
 * Everything is allocated at start but three things: the published versions, which come with the first step; what some
 * runs need beside that, checked when such a run is opened; and the bodies of requests, which have limits of
 * their own.  How many versions are in memory, however many servers pull them: board/weights_blob.h. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_MEMORY_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_MEMORY_H

#include "common/model/learning/backward.h"
#include "services/trainer-server/engine/fit.h"

/* Everything that a trainer allocates for this model under these options; pure. */
void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options);
/* The same with options->going_on, which a start from a checkpoint needs at once. */
void trainer_memory_plan_going_on(struct memory_plan *out, const struct model *m,
                                  const struct trainer_options *options);
/* How many units are computed side by side, into options->lanes: one a thread where units are so small that threads
 * would spend their time handing parts of operations to each other, as far as memory lasts by the plan; otherwise one,
 * and the threads share each of its operations.  A device computes one at a time. */
void memory_choose_lanes(struct trainer_options *options, const struct model *m, memory_planner plan_of);
/* --fit: the cheapest options with which the plan fits, by fit.h, into options. */
void memory_fit(struct trainer_options *options, const struct model *m, bool chunks, memory_planner plan_of);
/* Adds to a refusal what would make the plan fit, and returns RC_NO_MEMORY. */
enum rc memory_refuse(const struct model *m, const struct trainer_options *options, bool chunks,
                      const struct memory_room *room, memory_planner plan_of, struct err *err);
/* The learner's options: the plan uses them with the largest chunk, a run with its own. */
struct learner_options memory_learner_options(const struct trainer_options *o, int chunk_tokens);
/* At start, on all ranks: logs the plan, and refuses it with RC_NO_MEMORY when it does not fit, on a device beside what
 * the other ranks plan there. */
enum rc memory_check(const struct model *m, const struct trainer_options *options, struct ranks *ranks,
                     struct err *err);
/* What there is now, on the host and on the model's device; bound: --memory-max. */
void memory_room_now(struct memory_room *out, const struct model *m, size_t bound);
/* The same for frozen weights; RC_OK for none.  shown: the plan of those before, which are gone; then of these. */
enum rc memory_check_frozen(const struct model *m, const struct trainer_options *options,
                            const struct frozen_weights *needed, struct memory_plan *shown, struct err *err);
/* As far as it is known beforehand, from any thread: only the engine's thread asks a device what it has left. held: how
 * many there are now, which will have made room. */
enum rc memory_foresee_frozen(const struct model *m, const struct trainer_options *options,
                              const struct frozen_weights *needed, int held, struct err *err);

#endif

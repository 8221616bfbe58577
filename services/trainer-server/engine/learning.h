/* The parts of training a run that are the same on every rank: the learner for its chunks, the frozen reference of its KL
 * term, the optimizer at its start.  The engine's thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_LEARNING_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_LEARNING_H

#include "services/trainer-server/engine/engine.h"

/* The memory of a unit's gradient as scratch, [parameters] fp32 numbers; the gradient that was there is gone. */
float *learning_scratch(struct learning *l);
enum rc learning_set_chunk(struct engine *e, int chunk_tokens, struct err *err);
/* The rest of opening a training run, on every rank: learner and reference, which may be refused; then, when no rank
 * refused, the optimizer. */
enum rc learning_prepare(struct engine *e, struct err *err);
void learning_begin(struct engine *e, const struct optimizer_config *o);
/* Room for a reference that its caller fills. */
enum rc learning_reference_make(struct engine *e, struct err *err);
/* Another run begins: forgets what was accumulated and the rounds before. */
void learning_forget(struct engine *e);

#endif

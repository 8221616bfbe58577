/* The parts of training a run that are the same on every rank: the learner for its chunks, the weights that it keeps
 * frozen, the optimizer at its start.  The engine's thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_LEARNING_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_LEARNING_H

#include "services/trainer-server/engine/engine.h"

/* RC_UNSUPPORTED where --lean, --optimizer-state mapped or --optimizer-moments 8bit are asked for, and something else
 * than one process's CPU computes. */
enum rc learning_check_memory(const struct engine *e, struct err *err);
/* At start and at the end: learners, and room for their gradients; the optimizer is there. */
enum rc learning_make_lanes(struct engine *e, struct err *err);
void learning_free_lanes(struct engine *e);
/* The memory of a unit's gradient as scratch, [parameters] fp32 numbers; the gradient that was there is gone.  NULL in
 * a lean trainer, which is alone and needs none. */
float *learning_scratch(struct learning *l);
enum rc learning_set_chunk(struct engine *e, int chunk_tokens, struct err *err);
/* The rest of opening a training run, on every rank: learner and frozen weights, which may be refused; then, when no
 * rank refused, the optimizer. */
enum rc learning_prepare(struct engine *e, struct err *err);
void learning_begin(struct engine *e, const struct optimizer_config *o);
/* Room for the weights that the run keeps frozen: the reference is the caller's to fill, the behaviour policy is filled
 * before each round's first inner step. */
enum rc learning_frozen_make(struct engine *e, struct err *err);
/* What others see of the run that is opened or restored: board_run_begin.  version_0: the digest of its version 0. */
void learning_show_run(struct engine *e, const struct digest *run_digest, const struct digest *version_0);
/* The current weights sampled this round. */
void learning_freeze_behaviour(struct learning *l);
/* The current weights become the reference. */
void learning_freeze_reference(struct learning *l);
/* Another run begins: forgets what was accumulated and the rounds before. */
void learning_forget(struct engine *e);

#endif

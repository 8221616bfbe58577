/* Makes the learner, the frozen weights and the optimizer ready for a run, on every rank. */
#include "services/trainer-server/engine/learning.h"

#include <stdlib.h>

#include "services/trainer-server/engine/memory.h"
#include "services/trainer-server/engine/run_config.h"

enum rc learning_check_memory(const struct engine *e, struct err *err) {
  const struct trainer_options *o = &e->options;
  const bool alone = e->ops->host_memory && ranks_alone(&e->ranks);
  if (o->optimizer_mapped && !e->ops->host_memory)
    return err_set(err, RC_UNSUPPORTED, "optimizer-state", "--optimizer-state mapped: only where the CPU computes");
  if (o->lean && !alone)
    return err_set(err, RC_UNSUPPORTED, "lean", "--lean: only where the CPU computes, in one process");
  if (o->moments8 && !alone)
    return err_set(err, RC_UNSUPPORTED, "optimizer-moments",
                   "--optimizer-moments 8bit: only where the CPU computes, in one process");
  return RC_OK;
}

float *learning_scratch(struct learning *l) {
  l->lanes[0].clear = false;
  return l->lanes[0].gradient;
}

enum rc learning_set_chunk(struct engine *e, int chunk_tokens, struct err *err) {
  struct learning *l = &e->learning;
  if (chunk_tokens > e->options.chunk_tokens) chunk_tokens = (int)e->options.chunk_tokens; /* memory is planned for */
  const struct learner_options options = memory_learner_options(&e->options, chunk_tokens);
  const int lanes = e->options.lanes;
  enum rc rc = RC_OK;
  if (l->learner_chunk == chunk_tokens && l->lanes[lanes - 1].learner) return RC_OK;
  for (int i = 0; i < lanes; i++) { /* first: start-up has planned memory for one a lane */
    learner_free(l->lanes[i].learner);
    l->lanes[i].learner = NULL;
  }
  l->learner_chunk = chunk_tokens;
  for (int i = 0; rc == RC_OK && i < lanes; i++) rc = learner_create(&l->lanes[i].learner, e->model, &options, err);
  return rc;
}

enum rc learning_make_lanes(struct engine *e, struct err *err) {
  struct learning *l = &e->learning;
  const size_t bytes = e->model->params.elements * sizeof *l->lanes->gradient;
  l->lanes = calloc((size_t)e->options.lanes, sizeof *l->lanes);
  if (!l->lanes)
    return err_set(err, RC_NO_MEMORY, NULL, "the lanes of %d units at once were refused memory", e->options.lanes);
  if (e->options.lean) {
    const enum rc rc = gradient_parts_create(&l->parts, e->model, trainer_scratch_dir(&e->options), err);
    if (rc != RC_OK) return rc;
  }
  l->lanes[0].gradient = optimizer_gradient(l->optimizer);
  for (int i = 1; i < e->options.lanes; i++) {
    l->lanes[i].gradient = e->ops->alloc(e->ops, bytes);
    l->lanes[i].clear = true;
    if (!l->lanes[i].gradient)
      return err_set(err, RC_NO_MEMORY, NULL, "the gradient of a unit needs %zu bytes, which were refused", bytes);
  }
  return learning_set_chunk(e, (int)e->options.chunk_tokens, err); /* the largest that a run may ask for */
}

void learning_free_lanes(struct engine *e) {
  struct learning *l = &e->learning;
  for (int i = 0; l->lanes && i < e->options.lanes; i++) {
    learner_free(l->lanes[i].learner);
    if (i > 0 && l->lanes[i].gradient) e->ops->release(e->ops, l->lanes[i].gradient);
  }
  free(l->lanes);
  gradient_parts_free(l->parts);
}

enum rc learning_frozen_make(struct engine *e, struct err *err) {
  const struct frozen_weights needed = run_config_frozen(&e->run.training);
  struct learning *l = &e->learning;
  enum rc rc = memory_check_frozen(e->model, &e->options, &needed, &l->frozen, err);
  if (rc == RC_OK && needed.reference) rc = weights_create(&l->reference, e->model, false, err);
  if (rc == RC_OK && needed.behaviour) rc = weights_create(&l->behaviour, e->model, false, err);
  return rc;
}

void learning_show_run(struct engine *e, const struct digest *run_digest, const struct digest *version_0) {
  const struct learning *l = &e->learning;
  const struct board_run run = {.run_digest = *run_digest,
                                .chunk_tokens = e->run.training.chunk_tokens,
                                .takes_behaviour = run_config_takes_behaviour(&e->run.training),
                                .has_reference = run_config_takes_reference(&e->run.training),
                                .reference_digest = *version_0,
                                .frozen_copies = (l->reference != NULL) + (l->behaviour != NULL)};
  board_run_begin(e->board, &run);
}

void learning_freeze_behaviour(struct learning *l) { weights_copy(l->behaviour, l->weights); }

void learning_freeze_reference(struct learning *l) { weights_copy(l->reference, l->weights); }

/* Those of the run before give their memory back first.  The reference is the weights that the run starts from. */
static enum rc frozen_renew(struct engine *e, struct err *err) {
  struct learning *l = &e->learning;
  weights_free(l->reference);
  weights_free(l->behaviour);
  l->reference = l->behaviour = NULL;
  const enum rc rc = learning_frozen_make(e, err);
  if (rc == RC_OK && l->reference) weights_copy(l->reference, l->weights);
  return rc;
}

enum rc learning_prepare(struct engine *e, struct err *err) {
  enum rc rc = learning_set_chunk(e, e->run.training.chunk_tokens, err);
  if (rc == RC_OK) rc = frozen_renew(e, err);
  return rc == RC_OK ? RC_OK : ranks_look_at_device(&e->ranks, rc, err);
}

/* A run depends on the weights it starts from, and on nothing older. */
void learning_begin(struct engine *e, const struct optimizer_config *o) {
  struct learning *l = &e->learning;
  float *scratch = learning_scratch(l);
  optimizer_reset(l->optimizer, o);
  if (e->options.lean) {
    optimizer_from_weights(l->optimizer, l->weights);
    return;
  }
  weights_to_masters(l->weights, scratch);
  optimizer_set_masters(l->optimizer, scratch);
}

void learning_forget(struct engine *e) {
  struct next_step *next = &e->next_step;
  next->pending = false;
  next->tokens = 0;
  accumulated_clear(next->accumulated);
  e->round = (struct round_so_far){0};
  e->run.history.count = 0;
  optimizer_discard(e->learning.optimizer);
}

/* Makes the learner, the frozen reference and the optimizer ready for a run, on every rank. */
#include "services/trainer-server/engine/learning.h"

#include "services/trainer-server/engine/memory.h"

float *learning_scratch(struct learning *l) {
  l->clear = false;
  return l->gradient;
}

enum rc learning_set_chunk(struct engine *e, int chunk_tokens, struct err *err) {
  struct learning *l = &e->learning;
  if (l->learner && l->learner_chunk == chunk_tokens) return RC_OK;
  learner_free(l->learner); /* first: start-up has planned memory for one */
  l->learner = NULL;
  l->learner_chunk = chunk_tokens;
  const struct learner_options options = memory_learner_options(&e->options, chunk_tokens);
  return learner_create(&l->learner, e->model, &options, err);
}

enum rc learning_reference_make(struct engine *e, struct err *err) {
  const enum rc rc = memory_check_reference(e->model, &e->options, err);
  return rc == RC_OK ? weights_create(&e->learning.reference, e->model, false, err) : rc;
}

/* The frozen reference of the KL term: the weights that the run starts from. */
static enum rc reference_freeze(struct engine *e, struct err *err) {
  struct learning *l = &e->learning;
  weights_free(l->reference);
  l->reference = NULL;
  if (e->run.unit.loss.kl_coefficient == 0) return RC_OK;
  const enum rc rc = learning_reference_make(e, err);
  if (rc != RC_OK) return rc;
  float *scratch = learning_scratch(l);
  weights_to_masters(l->weights, scratch);
  weights_from_masters(l->reference, scratch);
  return RC_OK;
}

enum rc learning_prepare(struct engine *e, struct err *err) {
  enum rc rc = learning_set_chunk(e, e->run.training.chunk_tokens, err);
  if (rc == RC_OK) rc = reference_freeze(e, err);
  return rc == RC_OK ? RC_OK : ranks_look_at_device(&e->ranks, rc, err);
}

/* A run depends on the weights it starts from, and on nothing older. */
void learning_begin(struct engine *e, const struct optimizer_config *o) {
  struct learning *l = &e->learning;
  const struct shard s = optimizer_shard(l->optimizer);
  float *scratch = learning_scratch(l);
  optimizer_reset(l->optimizer, o);
  weights_to_masters(l->weights, scratch);
  e->ops->copy(e->ops, optimizer_masters(l->optimizer), scratch + s.begin, shard_count(s) * sizeof *scratch);
}

void learning_forget(struct engine *e) {
  struct next_step *next = &e->next_step;
  next->pending = false;
  next->loss = 0;
  next->tokens = 0;
  accumulated_clear(next->accumulated);
  e->run.history_count = 0;
  optimizer_discard(e->learning.optimizer);
}

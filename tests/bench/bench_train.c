/* A training step as the trainer-server takes it: one gradient unit in one chunk, its gradient into the sums, AdamW,
 * the new weights in the kernels' memory.  Digest, checkpoint and publishing are not the kernels' and stay out.
 *
 * The samples begin differently and all their tokens but the first are scored, so that there is nothing to share or
 * to leave out; the loss is cross-entropy, which a peer has as well. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/model/learning/backward.h"
#include "common/model/learning/loss.h"
#include "common/model/learning/optimizer.h"
#include "tests/bench/bench.h"

struct trained {
  struct model *model;
  struct weights *weights;
  struct learner *learner;
  struct optimizer *optimizer;
  float *grads;
  int count, length;
  struct train_sample *samples; /* [count] */
  int32_t *tokens;              /* [count, length] */
  uint8_t *scored;              /* [length] */
};

static enum rc make_samples(struct trained *t, struct err *err) {
  const size_t count = (size_t)t->count, length = (size_t)t->length;
  uint64_t state = 1;
  t->samples = calloc(count, sizeof *t->samples);
  t->tokens = calloc(count * length, sizeof *t->tokens);
  t->scored = calloc(length, 1);
  if (!t->samples || !t->tokens || !t->scored) return err_set(err, RC_NO_MEMORY, NULL, "samples were refused memory");
  memset(t->scored + 1, 1, length - 1);
  for (int s = 0; s < t->count; s++) {
    int32_t *tokens = t->tokens + (size_t)s * length;
    tokens[0] = s;
    for (int i = 1; i < t->length; i++)
      tokens[i] = (int32_t)bench_random(&state, (uint32_t)t->model->config.vocabulary);
    t->samples[s] = (struct train_sample){.tokens = tokens, .length = t->length, .scored = t->scored};
  }
  return RC_OK;
}

enum rc trained_create(struct trained **out, const struct ops *ops, const struct model_config *config, int samples,
                       int length, struct err *err) {
  static const struct optimizer_config adamw = {.lr = 1e-5,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .eps = 1e-8,
                                                .weight_decay = 0.01,
                                                .clip_norm = 1,
                                                .grad_scale_log2 = 32};
  struct trained *t = *out = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "a trainer's record was refused memory");
  if (samples < 1 || samples > config->vocabulary || length < 2)
    return err_set(err, RC_INVALID, "samples", "expected samples of 2 tokens or more, got %d of %d", samples, length);
  t->count = samples;
  t->length = length;
  enum rc rc = model_create(&t->model, config, ops, 0, err);
  if (rc == RC_OK) rc = weights_create(&t->weights, t->model, true, err);
  const struct learner_options learner = {.chunk_tokens = samples * length};
  if (rc == RC_OK) rc = learner_create(&t->learner, t->model, &learner, err);
  if (rc == RC_OK) rc = optimizer_create(&t->optimizer, t->model, &adamw, err);
  if (rc == RC_OK) rc = make_samples(t, err);
  if (rc != RC_OK) return rc;
  t->grads = ops->alloc(ops, t->model->params.elements * sizeof *t->grads);
  if (!t->grads) return err_set(err, RC_NO_MEMORY, NULL, "gradients were refused memory");
  bench_masters(t->model, optimizer_masters(t->optimizer));
  weights_from_masters(t->weights, optimizer_masters(t->optimizer));
  return RC_OK;
}

void trained_free(struct trained *t) {
  if (!t) return;
  free(t->samples);
  free(t->tokens);
  free(t->scored);
  if (t->grads) t->model->ops->release(t->model->ops, t->grads);
  optimizer_free(t->optimizer);
  learner_free(t->learner);
  weights_free(t->weights);
  model_free(t->model);
  free(t);
}

/* The learner's callback; chunks hold whole samples. */
static void loss_of_samples(void *context, int first, int count, const float *logprob, float *dlogprob) {
  static const struct loss_config cross_entropy = {.kind = LOSS_CROSS_ENTROPY};
  const struct trained *t = context;
  const int each = t->length - 1;
  struct loss_stats stats = {0};
  (void)first;
  for (int at = 0; at < count; at += each)
    loss_sequence(&cross_entropy, each, logprob + at, NULL, NULL, NULL, 0, dlogprob + at, &stats);
}

enum rc trained_step(struct trained *t, struct reading *out, struct err *err) {
  const double each = t->length - 1.0, rows = (double)t->count * t->length;
  const double keys = t->count * t->length * (t->length + 1.0) / 2;
  struct step_result step;
  const int64_t begun_us = clock_monotonic_us();
  memset(t->grads, 0, t->model->params.elements * sizeof *t->grads);
  const enum rc rc =
      learner_gradients(t->learner, t->weights, t->samples, t->count, 1, loss_of_samples, t, t->grads, NULL, err);
  if (rc != RC_OK) return rc;
  if (!optimizer_add_unit(t->optimizer, t->grads)) return err_set(err, RC_INVALID, NULL, "the unit poisoned the step");
  optimizer_step(t->optimizer, t->count * each, &step);
  weights_from_masters(t->weights, optimizer_masters(t->optimizer));
  /* The backward's two products for each of the forward's. */
  *out = (struct reading){.seconds = (double)(clock_monotonic_us() - begun_us) * 1e-6,
                          .operations = 3 * bench_forward_operations(&t->model->config, rows, keys, t->count * each)};
  return RC_OK;
}

/* Steps AdamW over int64 gradient sums.
 *
 *   optimizer_add_unit   acc += round(grads * 2^scale)        any order, same sums; a value that is not finite or too large poisons the step
 *   optimizer_step       g = acc * 2^-scale / denominator -> global norm -> clip -> AdamW per tensor -> acc = 0
 *
 * Several ranks take the second in three parts, with exchanges in between (optimizer.h).
 *
 * A poisoned step changes nothing but empties the accumulators: masters, moments and the step count stay.  At most
 * UNITS_MAX units fit between two steps, so that int64 sums of values up to 2^50 cannot overflow; one more poisons
 * the step. beta^t is kept by repeated multiplication in double, so that a restored step count gives the same bits as
 * having stepped there. Owned by the engine's thread. */
#include "common/model/learning/optimizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/layout.h"
#include "common/model/network/weights_internal.h"

enum { UNITS_MAX = 8191 }; /* 8191 * 2^50 < 2^63 */

struct optimizer {
  const struct model *model; /* borrowed */
  struct optimizer_config config;
  void *memory;
  struct shard shard;
  float *masters, *moment1, *moment2; /* [shard_count(shard)] */
  float *gradient;                    /* [params.elements] */
  int64_t *accumulator;               /* [params.elements] */
  int64_t step;
  double beta1_power, beta2_power; /* beta^step */
  int units;
  bool poisoned;
};

static size_t place(struct optimizer *o, char *base, const struct model *m) {
  struct layout l = {base, 0};
  const size_t n = m->params.elements, kept = shard_count(o->shard);
  o->masters = layout_take(&l, kept, sizeof(float));
  o->moment1 = layout_take(&l, kept, sizeof(float));
  o->moment2 = layout_take(&l, kept, sizeof(float));
  o->gradient = layout_take(&l, n, sizeof(float));
  o->accumulator = layout_take(&l, n, sizeof(int64_t));
  return l.used;
}

size_t optimizer_bytes(const struct model *m, struct shard shard) {
  struct optimizer measured = {.shard = shard};
  return place(&measured, NULL, m);
}

enum rc optimizer_config_check(const struct optimizer_config *c, struct err *err) {
  if (!(c->lr >= 0) || c->lr > 1e3) return err_set(err, RC_INVALID, "lr", "expected 0 to 1000, got %g", c->lr);
  if (!(c->beta1 >= 0 && c->beta1 < 1))
    return err_set(err, RC_INVALID, "beta1", "expected at least 0 and below 1, got %g", c->beta1);
  if (!(c->beta2 >= 0 && c->beta2 < 1))
    return err_set(err, RC_INVALID, "beta2", "expected at least 0 and below 1, got %g", c->beta2);
  if (!(c->eps > 0)) return err_set(err, RC_INVALID, "eps", "expected a positive number, got %g", c->eps);
  if (!(c->weight_decay >= 0))
    return err_set(err, RC_INVALID, "weight_decay", "expected 0 or more, got %g", c->weight_decay);
  if (!(c->clip_norm >= 0))
    return err_set(err, RC_INVALID, "clip_norm", "expected 0 (off) or more, got %g", c->clip_norm);
  if (c->warmup_steps < 0)
    return err_set(err, RC_INVALID, "warmup_steps", "expected 0 or more, got %d", c->warmup_steps);
  if (!(c->lr_min_ratio >= 0 && c->lr_min_ratio <= 1))
    return err_set(err, RC_INVALID, "lr_min_ratio", "expected 0 to 1, got %g", c->lr_min_ratio);
  if (c->grad_scale_log2 < 0 || c->grad_scale_log2 > 48)
    return err_set(err, RC_INVALID, "grad_scale_log2", "expected 0 to 48, got %d", c->grad_scale_log2);
  return RC_OK;
}

enum rc optimizer_create(struct optimizer **out, const struct model *m, const struct optimizer_config *config,
                         struct err *err) {
  return optimizer_create_shard(out, m, shard_of(m->params.elements, 0, 1), config, err);
}

enum rc optimizer_create_shard(struct optimizer **out, const struct model *m, struct shard shard,
                               const struct optimizer_config *config, struct err *err) {
  *out = NULL;
  const enum rc rc = optimizer_config_check(config, err);
  if (rc != RC_OK) return rc;
  struct optimizer *o = calloc(1, sizeof *o);
  void *memory = o ? m->ops->alloc(m->ops, optimizer_bytes(m, shard)) : NULL;
  if (!memory) {
    free(o);
    return err_set(err, RC_NO_MEMORY, NULL, "the optimizer of %zu parameters needs %zu bytes, which were refused",
                   m->params.parameters, optimizer_bytes(m, shard));
  }
  o->model = m;
  o->shard = shard;
  o->memory = memory;
  place(o, memory, m);
  optimizer_reset(o, config);
  *out = o;
  return RC_OK;
}

void optimizer_free(struct optimizer *o) {
  if (!o) return;
  o->model->ops->release(o->model->ops, o->memory);
  free(o);
}

void optimizer_configure(struct optimizer *o, const struct optimizer_config *config) {
  assert(optimizer_config_check(config, NULL) == RC_OK);
  o->config = *config;
  optimizer_discard(o);
}

void optimizer_reset(struct optimizer *o, const struct optimizer_config *config) {
  optimizer_configure(o, config);
  const struct ops *ops = o->model->ops;
  const size_t bytes = shard_count(o->shard) * sizeof *o->moment1;
  ops->clear(ops, o->moment1, bytes);
  ops->clear(ops, o->moment2, bytes);
  optimizer_set_step_count(o, 0);
}

struct shard optimizer_shard(const struct optimizer *o) {
  return o->shard;
}
float *optimizer_masters(struct optimizer *o) { return o->masters; }
float *optimizer_moment1(struct optimizer *o) { return o->moment1; }
float *optimizer_moment2(struct optimizer *o) { return o->moment2; }
float *optimizer_gradient(struct optimizer *o) { return o->gradient; }
int64_t *optimizer_sums(struct optimizer *o) { return o->accumulator; }
bool optimizer_poisoned(const struct optimizer *o) { return o->poisoned; }
void optimizer_poison(struct optimizer *o) { o->poisoned = true; }
int64_t optimizer_step_count(const struct optimizer *o) { return o->step; }

void optimizer_set_step_count(struct optimizer *o, int64_t step) {
  assert(step >= 0);
  o->step = step;
  o->beta1_power = o->beta2_power = 1;
  for (int64_t i = 0; i < step; i++) {
    o->beta1_power *= o->config.beta1;
    o->beta2_power *= o->config.beta2;
  }
}

static bool count_unit(struct optimizer *o, bool good) {
  o->units += good;
  if (!good) o->poisoned = true;
  return good;
}

bool optimizer_add_unit(struct optimizer *o, const float *grads) {
  const struct ops *ops = o->model->ops;
  const size_t n = o->model->params.elements;
  return count_unit(o,
                    o->units < UNITS_MAX && ops->accumulate(ops, o->accumulator, grads, n, o->config.grad_scale_log2));
}

bool optimizer_take_unit(struct optimizer *o, float *grads) {
  const struct ops *ops = o->model->ops;
  const size_t n = o->model->params.elements;
  if (o->units < UNITS_MAX)
    return count_unit(o, ops->accumulate_and_clear(ops, o->accumulator, grads, n, o->config.grad_scale_log2));
  ops->clear(ops, grads, n * sizeof *grads);
  return count_unit(o, false);
}

void optimizer_discard(struct optimizer *o) {
  const struct ops *ops = o->model->ops;
  ops->clear(ops, o->accumulator, o->model->params.elements * sizeof *o->accumulator);
  o->units = 0;
  o->poisoned = false;
}

/* AdamW on the shard's part of every parameter. */
static void apply(struct optimizer *o, double lr, float grad_scale) {
  const struct ops *ops = o->model->ops;
  const struct optimizer_config *c = &o->config;
  struct adamw step = {.lr = (float)lr,
                       .beta1 = (float)c->beta1,
                       .beta2 = (float)c->beta2,
                       .eps = (float)c->eps,
                       .bias1 = (float)(1 - o->beta1_power),
                       .bias2 = (float)(1 - o->beta2_power),
                       .grad_scale = grad_scale};
  for (int i = 0; i < o->model->params.count; i++) {
    const struct param *p = &o->model->params.items[i];
    const size_t begin = p->offset > o->shard.begin ? p->offset : o->shard.begin;
    const size_t end = p->offset + p->count < o->shard.end ? p->offset + p->count : o->shard.end;
    if (begin >= end) continue;
    const size_t at = begin - o->shard.begin;
    step.weight_decay = param_is_vector(p) ? 0 : (float)c->weight_decay;
    ops->adamw(ops, o->masters + at, o->moment1 + at, o->moment2 + at, o->gradient + begin, &step, end - begin);
  }
}

/* The gradient stands, and this is the sum of its squares. */
static void finish(struct optimizer *o, double squares, struct step_result *result) {
  *result = (struct step_result){.lr = schedule_lr(&o->config, o->step + 1), .grad_norm = __builtin_sqrt(squares)};
  double coefficient = 1;
  if (o->config.clip_norm > 0) coefficient = o->config.clip_norm / (result->grad_norm + 1e-6);
  if (coefficient > 1) coefficient = 1;
  o->step++;
  o->beta1_power *= o->config.beta1;
  o->beta2_power *= o->config.beta2;
  apply(o, result->lr, (float)coefficient);
  result->step = o->step;
  o->units = 0; /* the accumulators are empty since the gradient was taken from them */
}

void optimizer_step(struct optimizer *o, double denominator, struct step_result *result) {
  const struct ops *ops = o->model->ops;
  const size_t n = o->model->params.elements;
  assert(denominator > 0);
  if (o->poisoned) {
    *result = (struct step_result){.lr = schedule_lr(&o->config, o->step + 1), .step = o->step, .skipped = true};
    optimizer_discard(o);
    return;
  }
  assert(shard_count(o->shard) == n);
  ops->grad_from_accumulator(ops, o->gradient, o->accumulator, n, o->config.grad_scale_log2, denominator);
  finish(o, ops->sum_of_squares(ops, o->gradient, n), result);
}

void optimizer_shard_gradient(struct optimizer *o, double denominator, double *squares) {
  const struct ops *ops = o->model->ops;
  const size_t n = o->model->params.elements;
  const struct shard s = o->shard;
  assert(denominator > 0 && !o->poisoned);
  ops->grad_from_accumulator(ops, o->gradient + s.begin, o->accumulator + s.begin, shard_count(s),
                             o->config.grad_scale_log2, denominator);
  for (size_t at = s.begin; at < s.end; at += SHARD_BLOCK) {
    const size_t count = s.end - at < SHARD_BLOCK ? s.end - at : SHARD_BLOCK;
    squares[at / SHARD_BLOCK] = ops->sum_of_squares(ops, o->gradient + at, count);
  }
  ops->clear(ops, o->accumulator, s.begin * sizeof *o->accumulator);
  ops->clear(ops, o->accumulator + s.end, (n - s.end) * sizeof *o->accumulator);
}

/* The blocks in order from +0: as sum_of_squares adds them. */
void optimizer_shard_step(struct optimizer *o, const double *squares, struct step_result *result) {
  double sum = 0;
  for (size_t b = 0; b < shard_blocks(o->model->params.elements); b++) sum = sum + squares[b];
  finish(o, sum, result);
}

void optimizer_shard_operands(const struct optimizer *o, void *operands) {
  const struct ops *ops = o->model->ops;
  ops->to_operand(ops, (char *)operands + o->shard.begin * ops->operand_bytes, o->masters, shard_count(o->shard));
}

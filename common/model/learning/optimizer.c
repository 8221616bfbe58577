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
 * having stepped there. Owned by the engine's thread.
 *
 * Previous hop of a rollout: backward.c, by way of trainer-server/engine/batch.c.  Next:
 * trainer-server/engine/step.c. */
#include "common/model/learning/optimizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/learning/scratch_file.h"
#include "common/model/network/array_layout.h"
#include "common/model/network/weights_internal.h"

enum { UNITS_MAX = 8191 }; /* 8191 * 2^50 < 2^63 */
/* Elements of mapped arrays that are worked on before they may leave memory; and of a gradient in parts at a time.
 * Whole blocks of the norm. */
enum { WINDOW = 1 << 20 };

struct optimizer {
  const struct model *model; /* borrowed */
  struct optimizer_config config;
  void *memory;
  struct scratch_file scratch; /* of masters and moments, where they are mapped */
  struct shard shard;
  float *masters, *moment1, *moment2; /* [shard_count(shard)] */
  struct moments8 moments8;           /* in the place of the last two */
  float *gradient;                    /* [params.elements]; in parts [WINDOW] */
  int64_t *accumulator;               /* [params.elements] */
  int64_t step;
  double beta1_power, beta2_power; /* beta^step */
  int units;
  bool poisoned, in_parts, in_8_bits;
};

/* What lasts from step to step. */
static size_t place_state(struct optimizer *o, char *base, const struct model *m) {
  struct array_layout l = {base, 0};
  const size_t kept = shard_count(o->shard), blocks = moment_blocks(&m->params);
  o->masters = array_layout_take(&l, kept, sizeof(float));
  if (o->in_8_bits) {
    o->moments8.m = array_layout_take(&l, kept, 1);
    o->moments8.v = array_layout_take(&l, kept, 1);
    o->moments8.m_max = array_layout_take(&l, blocks, sizeof(float));
    o->moments8.v_max = array_layout_take(&l, blocks, sizeof(float));
    return l.used;
  }
  o->moment1 = array_layout_take(&l, kept, sizeof(float));
  o->moment2 = array_layout_take(&l, kept, sizeof(float));
  return l.used;
}

/* What a step is made of. */
static size_t place_sums(struct optimizer *o, char *base, const struct model *m) {
  struct array_layout l = {base, 0};
  const size_t n = m->params.elements;
  o->gradient = array_layout_take(&l, o->in_parts && n > WINDOW ? WINDOW : n, sizeof(float));
  o->accumulator = array_layout_take(&l, n, sizeof(int64_t));
  return l.used;
}

size_t optimizer_mapped_bytes(const struct model *m, const struct optimizer_place *place) {
  struct optimizer measured = {.shard = place->shard, .in_8_bits = place->moments8};
  return place_state(&measured, NULL, m);
}

size_t optimizer_bytes(const struct model *m, const struct optimizer_place *place) {
  struct optimizer measured = {.shard = place->shard, .in_parts = place->in_parts};
  return (place->scratch_dir ? 0 : optimizer_mapped_bytes(m, place)) + place_sums(&measured, NULL, m);
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
  return optimizer_create_at(out, m, &(struct optimizer_place){.shard = shard}, config, err);
}

static enum rc take_memory(struct optimizer *o, const struct optimizer_place *place, struct err *err) {
  const struct model *m = o->model;
  const size_t state = optimizer_mapped_bytes(m, place), bytes = optimizer_bytes(m, place);
  enum rc rc = place->scratch_dir ? scratch_file_make(&o->scratch, place->scratch_dir, state, err) : RC_OK;
  if (rc != RC_OK) return rc;
  o->memory = m->ops->alloc(m->ops, bytes);
  if (!o->memory)
    return err_set(err, RC_NO_MEMORY, NULL, "the optimizer of %zu parameters needs %zu bytes, which were refused",
                   m->params.parameters, bytes);
  place_state(o, place->scratch_dir ? o->scratch.memory : o->memory, m);
  place_sums(o, place->scratch_dir ? o->memory : (char *)o->memory + state, m);
  return RC_OK;
}

enum rc optimizer_create_at(struct optimizer **out, const struct model *m, const struct optimizer_place *place,
                            const struct optimizer_config *config, struct err *err) {
  *out = NULL;
  assert(m->ops->host_memory || (!place->scratch_dir && !place->in_parts));
  assert(!(place->in_parts || place->moments8) || shard_count(place->shard) == m->params.elements);
  assert(!place->moments8 || m->ops->adamw8);
  enum rc rc = optimizer_config_check(config, err);
  if (rc != RC_OK) return rc;
  struct optimizer *o = calloc(1, sizeof *o);
  if (!o) return err_set(err, RC_NO_MEMORY, NULL, "the optimizer's record of %zu bytes was refused", sizeof *o);
  o->model = m;
  o->shard = place->shard;
  o->in_parts = place->in_parts;
  o->in_8_bits = place->moments8;
  rc = take_memory(o, place, err);
  if (rc != RC_OK) {
    optimizer_free(o);
    return rc;
  }
  optimizer_reset(o, config);
  *out = o;
  return RC_OK;
}

void optimizer_free(struct optimizer *o) {
  if (!o) return;
  if (o->memory) o->model->ops->release(o->model->ops, o->memory);
  if (o->scratch.memory) scratch_file_free(&o->scratch);
  free(o);
}

void optimizer_done_with(const struct optimizer *o, const void *values, size_t bytes) {
  if (o->scratch.memory) scratch_file_done(&o->scratch, values, bytes);
}

/* How many of `left` elements are worked on before they may leave memory. */
static size_t window(const struct optimizer *o, size_t left) {
  return o->scratch.memory && left > WINDOW ? WINDOW : left;
}

void optimizer_configure(struct optimizer *o, const struct optimizer_config *config) {
  assert(optimizer_config_check(config, NULL) == RC_OK);
  o->config = *config;
  optimizer_discard(o);
}

/* An array of what may be mapped. */
static void clear(const struct optimizer *o, void *array, size_t bytes) {
  const struct ops *ops = o->model->ops;
  for (size_t at = 0, n; at < bytes; at += n) {
    n = window(o, bytes - at);
    ops->clear(ops, (char *)array + at, n);
    optimizer_done_with(o, (char *)array + at, n);
  }
}

void optimizer_reset(struct optimizer *o, const struct optimizer_config *config) {
  optimizer_configure(o, config);
  const size_t kept = shard_count(o->shard), blocks = moment_blocks(&o->model->params);
  const struct moments8 *e = &o->moments8;
  if (o->in_8_bits) {
    clear(o, e->m, kept);
    clear(o, e->v, kept);
    clear(o, e->m_max, blocks * sizeof *e->m_max);
    clear(o, e->v_max, blocks * sizeof *e->v_max);
  } else {
    clear(o, o->moment1, kept * sizeof *o->moment1);
    clear(o, o->moment2, kept * sizeof *o->moment2);
  }
  optimizer_set_step_count(o, 0);
}

void optimizer_set_masters(struct optimizer *o, const float *masters) {
  const struct ops *ops = o->model->ops;
  for (size_t at = 0, n, count = shard_count(o->shard); at < count; at += n) {
    n = window(o, count - at);
    ops->copy(ops, o->masters + at, masters + o->shard.begin + at, n * sizeof *masters);
    optimizer_done_with(o, o->masters + at, n * sizeof *o->masters);
  }
}

void optimizer_from_weights(struct optimizer *o, const struct weights *w) {
  const struct model *m = o->model;
  const struct ops *ops = m->ops;
  assert(shard_count(o->shard) == m->params.elements);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const char *operands = weights_stage(w, i);
    for (size_t at = 0, n; at < p->count; at += n) {
      n = window(o, p->count - at);
      ops->from_operand(ops, o->masters + p->offset + at, operands + at * ops->operand_bytes, n);
      optimizer_done_with(o, o->masters + p->offset + at, n * sizeof *o->masters);
    }
  }
}

void optimizer_to_weights(const struct optimizer *o, struct weights *w) {
  const struct model *m = o->model;
  const struct ops *ops = m->ops;
  assert(shard_count(o->shard) == m->params.elements);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    for (size_t at = 0, n; at < p->count; at += n) {
      n = window(o, p->count - at);
      ops->to_operand(ops, (char *)w->staging + at * ops->operand_bytes, o->masters + p->offset + at, n);
      optimizer_done_with(o, o->masters + p->offset + at, n * sizeof *o->masters);
    }
    weights_fill(w, i, w->staging);
  }
}

struct shard optimizer_shard(const struct optimizer *o) {
  return o->shard;
}
float *optimizer_masters(struct optimizer *o) { return o->masters; }
float *optimizer_moment1(struct optimizer *o) { return o->moment1; }
float *optimizer_moment2(struct optimizer *o) { return o->moment2; }
struct moments8 optimizer_moments8(const struct optimizer *o) { return o->moments8; }
float *optimizer_gradient(struct optimizer *o) { return o->in_parts ? NULL : o->gradient; }
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

bool optimizer_add_part(struct optimizer *o, size_t at, const float *values, size_t count) {
  const struct ops *ops = o->model->ops;
  return o->units < UNITS_MAX &&
         ops->accumulate(ops, o->accumulator + at, values, count, o->config.grad_scale_log2);
}

bool optimizer_end_parts(struct optimizer *o, bool good) { return count_unit(o, good && o->units < UNITS_MAX); }

static void clear_sums(struct optimizer *o) {
  const struct ops *ops = o->model->ops;
  ops->clear(ops, o->accumulator, o->model->params.elements * sizeof *o->accumulator);
}

void optimizer_discard(struct optimizer *o) {
  clear_sums(o);
  o->units = 0;
  o->poisoned = false;
}

/* In parts the gradient of a window stands where the first half of its sums was. */
static float *parts_at(const struct optimizer *o, size_t from) {
  return (float *)(void *)(o->accumulator + from / WINDOW * WINDOW) + from % WINDOW;
}

static const float *gradient_at(const struct optimizer *o, size_t from) {
  return o->in_parts ? parts_at(o, from) : o->gradient + from;
}

/* How many of `left` elements from element `from` on are worked on at once.  Windows hold whole blocks of moments in 8
 * bits. */
static size_t step_window(const struct optimizer *o, size_t from, size_t left) {
  const size_t in_window = WINDOW - from % WINDOW;
  return o->in_parts || o->scratch.memory ? left < in_window ? left : in_window : left;
}

/* One window of parameter i. */
static void step_part(struct optimizer *o, const struct adamw *step, int i, size_t from, size_t n) {
  const struct ops *ops = o->model->ops;
  const size_t at = from - o->shard.begin;
  if (!o->in_8_bits) {
    ops->adamw(ops, o->masters + at, o->moment1 + at, o->moment2 + at, gradient_at(o, from), step, n);
    optimizer_done_with(o, o->moment1 + at, n * sizeof *o->moment1);
    optimizer_done_with(o, o->moment2 + at, n * sizeof *o->moment2);
  } else {
    const size_t block = from / MOMENT_BLOCK + (size_t)i;
    const struct moments8 *e = &o->moments8,
                          here = {e->m + at, e->v + at, e->m_max + block, e->v_max + block};
    ops->adamw8(ops, o->masters + at, &here, gradient_at(o, from), step, MOMENT_BLOCK - from % MOMENT_BLOCK, n);
    optimizer_done_with(o, here.m, n);
    optimizer_done_with(o, here.v, n);
  }
  optimizer_done_with(o, o->masters + at, n * sizeof *o->masters);
}

/* AdamW on the shard's part of every parameter. */
static void apply(struct optimizer *o, double lr, float grad_scale) {
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
    step.weight_decay = param_is_vector(p) ? 0 : (float)c->weight_decay;
    for (size_t from = begin, n; from < end; from += n) {
      n = step_window(o, from, end - from);
      step_part(o, &step, i, from, n);
    }
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
  if (o->in_parts) clear_sums(o);
  result->step = o->step;
  o->units = 0; /* the accumulators are empty since the gradient was taken from them */
}

/* Window by window the gradient takes the place of its sums; returns the sum of its squares, which are added block
 * after block as sum_of_squares adds them. */
static double parts_from_sums(struct optimizer *o, double denominator) {
  const struct ops *ops = o->model->ops;
  const size_t n = o->model->params.elements;
  double sum = 0;
  for (size_t at = 0; at < n; at += WINDOW) {
    const size_t count = n - at < WINDOW ? n - at : WINDOW;
    ops->grad_from_accumulator(ops, o->gradient, o->accumulator + at, count, o->config.grad_scale_log2, denominator);
    for (size_t i = 0; i < count; i += SHARD_BLOCK)
      sum = sum + ops->sum_of_squares(ops, o->gradient + i, count - i < SHARD_BLOCK ? count - i : SHARD_BLOCK);
    ops->copy(ops, parts_at(o, at), o->gradient, count * sizeof *o->gradient);
  }
  return sum;
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
  if (o->in_parts) {
    finish(o, parts_from_sums(o, denominator), result);
    return;
  }
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
  for (size_t at = 0, n, count = shard_count(o->shard); at < count; at += n) {
    n = window(o, count - at);
    ops->to_operand(ops, (char *)operands + (o->shard.begin + at) * ops->operand_bytes, o->masters + at, n);
    optimizer_done_with(o, o->masters + at, n * sizeof *o->masters);
  }
}

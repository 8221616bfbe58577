/* Single operations: a GEMM over packed weights, the gradient of such weights, and the draw of a token for each of a
 * few rows. */
#include <assert.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

/* Random numbers between -width and width; NULL when refused. */
static float *random_floats(const struct ops *ops, size_t count, float width) {
  float *x = ops->alloc(ops, count * sizeof *x);
  uint64_t state = count;
  for (size_t i = 0; x && i < count; i++) x[i] = ((float)bench_random(&state, 1 << 24) * 0x1p-23f - 1) * width;
  return x;
}

void *bench_operands(const struct ops *ops, size_t count) {
  float *x = random_floats(ops, count, 1);
  void *operands = x ? ops->alloc(ops, count * ops->operand_bytes) : NULL;
  if (operands) ops->to_operand(ops, operands, x, count);
  ops->release(ops, x);
  return operands;
}

struct gemm {
  const struct ops *ops;
  float *y;
  void *x;
  struct matrix W;
  int M;
};

static void gemm_call(void *context) {
  const struct gemm *g = context;
  g->ops->gemm(g->ops, g->y, g->x, &g->W, g->M, false);
}

enum rc bench_gemm(const struct ops *ops, int M, int N, int K, struct reading *out, struct err *err) {
  const size_t m = (size_t)M, n = (size_t)N, k = (size_t)K;
  void *w = bench_operands(ops, n * k);
  struct gemm g = {.ops = ops,
                   .y = ops->alloc(ops, m * n * sizeof *g.y),
                   .x = bench_operands(ops, m * k),
                   .W = {.data = ops->alloc(ops, ops->matrix_bytes(ops, N, K)), .N = N, .K = K},
                   .M = M};
  enum rc rc = RC_OK;
  if (w && g.y && g.x && g.W.data) {
    ops->matrix_pack(ops, &g.W, w);
    *out = (struct reading){.seconds = bench_repeat(gemm_call, &g), .operations = 2.0 * M * N * K};
  } else {
    rc = err_set(err, RC_NO_MEMORY, NULL, "matrices of %d x %d x %d were refused memory", M, N, K);
  }
  ops->release(ops, w);
  ops->release(ops, g.y);
  ops->release(ops, g.x);
  ops->release(ops, g.W.data);
  return rc;
}

struct gradient {
  const struct ops *ops;
  float *dW;
  void *dy, *x;
  int T, N, K;
};

static void gradient_call(void *context) {
  const struct gradient *g = context;
  g->ops->gemm_weight_backward(g->ops, g->dW, g->dy, g->x, NULL, NULL, g->T, g->N, g->K);
}

enum rc bench_gradient(const struct ops *ops, int T, int N, int K, struct reading *out, struct err *err) {
  const size_t t = (size_t)T, n = (size_t)N, k = (size_t)K;
  struct gradient g = {.ops = ops,
                       .dW = ops->alloc(ops, n * k * sizeof *g.dW),
                       .dy = bench_operands(ops, t * n),
                       .x = bench_operands(ops, t * k),
                       .T = T,
                       .N = N,
                       .K = K};
  enum rc rc = RC_OK;
  if (g.dW && g.dy && g.x)
    *out = (struct reading){.seconds = bench_repeat(gradient_call, &g), .operations = 2.0 * T * N * K};
  else
    rc = err_set(err, RC_NO_MEMORY, NULL, "matrices of %d x %d x %d were refused memory", T, N, K);
  ops->release(ops, g.dW);
  ops->release(ops, g.dy);
  ops->release(ops, g.x);
  return rc;
}

void bench_draw(struct sampler *s, const float *logits, int count, uint64_t *random, int32_t *tokens) {
  static const struct sampling_params plain = {.temperature = 1, .top_p = 1};
  struct draw draws[64] = {0};
  const struct sampling_params *params[64] = {NULL};
  assert(count <= 64);
  for (int i = 0; i < count; i++) {
    params[i] = &plain;
    draws[i] = (struct draw){.row = i, .u = ((float)bench_random(random, 1 << 23) + 0.5f) * 0x1p-23f};
  }
  sampler_draw(s, logits, params, draws, count);
  for (int i = 0; tokens && i < count; i++) tokens[i] = draws[i].token;
}

struct drawing {
  struct sampler *sampler;
  const float *logits; /* [BENCH_SAMPLE_ROWS, V] */
  uint64_t state;
};

static void draw_call(void *context) {
  struct drawing *d = context;
  bench_draw(d->sampler, d->logits, BENCH_SAMPLE_ROWS, &d->state, NULL);
}

enum rc bench_sample(const struct ops *ops, int vocabulary, struct reading *out, struct err *err) {
  const size_t entries = BENCH_SAMPLE_ROWS * (size_t)vocabulary;
  float *logits = random_floats(ops, entries, 10);
  struct drawing d = {.sampler = sampler_create(ops, vocabulary), .logits = logits};
  enum rc rc = RC_OK;
  if (logits && d.sampler)
    *out = (struct reading){.seconds = bench_repeat(draw_call, &d), .bytes = (double)(sizeof *logits * entries)};
  else
    rc = err_set(err, RC_NO_MEMORY, NULL, "%zu logits were refused memory", entries);
  ops->release(ops, logits);
  sampler_free(d.sampler);
  return rc;
}

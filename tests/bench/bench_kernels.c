/* Single operations: a GEMM over packed weights, and the draw of a token. */
#include <stdlib.h>

#include "common/model/sampler.h"
#include "tests/bench/bench.h"

/* Random numbers between -width and width; NULL when refused. */
static float *random_floats(const struct ops *ops, size_t count, float width) {
  float *x = ops->alloc(ops, count * sizeof *x);
  uint64_t state = count;
  for (size_t i = 0; x && i < count; i++) x[i] = ((float)bench_random(&state, 1 << 24) * 0x1p-23f - 1) * width;
  return x;
}

static void *random_operands(const struct ops *ops, size_t count) {
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
  void *w = random_operands(ops, n * k);
  struct gemm g = {.ops = ops,
                   .y = ops->alloc(ops, m * n * sizeof *g.y),
                   .x = random_operands(ops, m * k),
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

struct draw {
  struct sampler *sampler;
  const float *logits;
  uint64_t state;
  int32_t token;
  float logprob;
};

static void draw_call(void *context) {
  static const struct sampling_params plain = {.temperature = 1, .top_p = 1};
  struct draw *d = context;
  const float u = ((float)bench_random(&d->state, 1 << 23) + 0.5f) * 0x1p-23f;
  sampler_choose(d->sampler, d->logits, &plain, u, &d->token, &d->logprob);
}

enum rc bench_sample(const struct ops *ops, int vocabulary, struct reading *out, struct err *err) {
  float *logits = random_floats(ops, (size_t)vocabulary, 10);
  struct draw d = {.sampler = sampler_create(ops, vocabulary), .logits = logits};
  enum rc rc = RC_OK;
  if (logits && d.sampler)
    *out = (struct reading){.seconds = bench_repeat(draw_call, &d), .bytes = sizeof *logits * (double)vocabulary};
  else
    rc = err_set(err, RC_NO_MEMORY, NULL, "a row of %d logits was refused memory", vocabulary);
  ops->release(ops, logits);
  sampler_free(d.sampler);
  return rc;
}

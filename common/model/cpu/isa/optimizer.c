/* The order-independent gradient accumulator, the global norm and AdamW: element by element. */
#include "common/model/cpu/isa/vec.h"

#define ACCUMULATE_MAX 0x1p50
#define ROUND_MAGIC    0x1.8p52 /* adding it rounds to the nearest integer, which then stands in the low bits */

void ISA_NAME(accumulate)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct accumulate_args *c = args;
  const uint64_t magic = 0x4338000000000000u;
  const double scale = c->scale;
  uint64_t bad = 0;
  (void)scratch;
  for (size_t i = begin; i < end; i++) {
    double x = (double)c->g[i] * scale, shifted = x + ROUND_MAGIC;
    uint64_t bits, sum;
    memcpy(&bits, &shifted, sizeof bits);
    uint64_t ok = fabs(x) <= ACCUMULATE_MAX ? ~(uint64_t)0 : 0;
    memcpy(&sum, c->acc + i, sizeof sum);
    sum += (bits - magic) & ok;
    bad |= ~ok;
    memcpy(c->acc + i, &sum, sizeof sum);
  }
  if (bad) __atomic_store_n(c->bad, true, __ATOMIC_RELAXED);
}

void ISA_NAME(grad_from_accumulator)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct grad_args *c = args;
  (void)scratch;
  for (size_t i = begin; i < end; i++) c->g[i] = (float)(((double)c->acc[i] * c->scale) / c->denominator);
}

static double block_squares(const float *g, size_t n) {
  double lane[16] = {0};
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; l++) {
      double x = (double)g[i + (size_t)l];
      lane[l] = lane[l] + x * x;
    }
  for (int l = 0; i < n; i++, l++) {
    double x = (double)g[i];
    lane[l] = lane[l] + x * x;
  }
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; l++) lane[l] = lane[l] + lane[l + width];
  return lane[0];
}

void ISA_NAME(sum_of_squares)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct squares_args *c = args;
  (void)scratch;
  for (size_t b = begin; b < end; b++) {
    size_t at = (c->first + b) * CPU_SQUARES_BLOCK, left = c->n - at;
    c->sums[b] = block_squares(c->g + at, left < CPU_SQUARES_BLOCK ? left : CPU_SQUARES_BLOCK);
  }
}

INLINE v4 vsqrt(v4 x) { return (v4)_mm_sqrt_ps((__m128)x); }

struct factors {
  float scale, decay, beta1, beta2, rest1, rest2, root, eps, rate;
};

INLINE void adamw4(const struct factors *f, float *master_at, float *m_at, float *v_at, const float *g_at,
                   const size_t bytes) {
  v4 g = {0}, master = {0}, m = {0}, v = {0};
  memcpy(&g, g_at, bytes);
  memcpy(&master, master_at, bytes);
  memcpy(&m, m_at, bytes);
  memcpy(&v, v_at, bytes);
  g = g * f->scale;
  master = master - master * f->decay;
  m = m * f->beta1 + g * f->rest1;
  v = v * f->beta2 + (g * g) * f->rest2;
  master = master - f->rate * (m / (vsqrt(v) / f->root + f->eps));
  memcpy(master_at, &master, bytes);
  memcpy(m_at, &m, bytes);
  memcpy(v_at, &v, bytes);
}

void ISA_NAME(adamw)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct adamw_args *c = args;
  const struct adamw *a = c->step;
  const struct factors f = {.scale = a->grad_scale,
                            .decay = a->lr * a->weight_decay,
                            .beta1 = a->beta1,
                            .beta2 = a->beta2,
                            .rest1 = 1.0f - a->beta1,
                            .rest2 = 1.0f - a->beta2,
                            .root = sqrtf(a->bias2),
                            .eps = a->eps,
                            .rate = a->lr / a->bias1};
  size_t i = begin;
  (void)scratch;
  for (; i + 4 <= end; i += 4) adamw4(&f, c->master + i, c->m + i, c->v + i, c->g + i, 16);
  if (i < end) adamw4(&f, c->master + i, c->m + i, c->v + i, c->g + i, (end - i) * sizeof(float));
}

/* Accumulates gradients independently of their order, computes the global norm and does AdamW, element by element; with
 * moments in 8 bits block by block. */
#include <float.h>

#include "common/model/cpu/isa/vec.h"

#define ACCUMULATE_MAX   0x1p50
#define ROUND_MAGIC      0x1.8p52 /* adding it rounds to the nearest integer, which then stands in the low bits */
#define ROUND_MAGIC_BITS 0x4338000000000000u

typedef double vd __attribute__((vector_size(VL * 4))); /* VL / 2 lanes */
typedef int64_t vl __attribute__((vector_size(VL * 4)));
typedef uint64_t vul __attribute__((vector_size(VL * 4)));
typedef float vhalf __attribute__((vector_size(VL * 2)));
enum { DOUBLES = VL / 2 };

/* VL / 2 elements; returns a mask of those refused. */
INLINE vl accumulate_lanes(int64_t *acc, const float *g, double scale) {
  vhalf narrow;
  vul sum;
  memcpy(&narrow, g, sizeof narrow);
  memcpy(&sum, acc, sizeof sum);
  const vd x = __builtin_convertvector(narrow, vd) * scale;
  const vd magnitude = (vd)((vl)x & INT64_MAX);
  const vl good = magnitude <= ACCUMULATE_MAX;
  sum += ((vul)(x + ROUND_MAGIC) - ROUND_MAGIC_BITS) & (vul)good;
  memcpy(acc, &sum, sizeof sum);
  return ~good;
}

void ISA_NAME(accumulate)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct accumulate_args *c = args;
  vl bad = {0};
  size_t i = begin;
  (void)scratch;
  for (; i + DOUBLES <= end; i += DOUBLES) {
    bad |= accumulate_lanes(c->acc + i, c->g + i, c->scale);
    if (c->clear) memset(c->clear + i, 0, DOUBLES * sizeof(float));
  }
  if (i < end) {
    int64_t acc[DOUBLES] = {0};
    float g[DOUBLES] = {0};
    memcpy(acc, c->acc + i, (end - i) * sizeof *acc);
    memcpy(g, c->g + i, (end - i) * sizeof *g);
    bad |= accumulate_lanes(acc, g, c->scale);
    memcpy(c->acc + i, acc, (end - i) * sizeof *acc);
    if (c->clear) memset(c->clear + i, 0, (end - i) * sizeof(float));
  }
  for (int l = 0; l < DOUBLES; l++)
    if (bad[l]) __atomic_store_n(c->bad, true, __ATOMIC_RELAXED);
}

/* To the nearest double.  Without instructions for it: both halves exactly, as the low bits of 2^84 and of 2^52, so
 * that their sum is the only rounding. */
INLINE vd to_double(vul x) {
#if defined(__AVX512DQ__)
  return __builtin_convertvector((vl)x, vd);
#else
  const vd high = (vd)((x >> 32) ^ 0x4530000080000000u) - (0x1p84 + 0x1p63);
  const vd low = (vd)((x & 0xffffffffu) | 0x4330000000000000u) - 0x1p52;
  return high + low;
#endif
}

INLINE void grad_lanes(const struct grad_args *c, float *g, const int64_t *acc) {
  vul sum;
  memcpy(&sum, acc, sizeof sum);
  const vhalf narrow = __builtin_convertvector(to_double(sum) * c->scale / c->denominator, vhalf);
  memcpy(g, &narrow, sizeof narrow);
}

void ISA_NAME(grad_from_accumulator)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct grad_args *c = args;
  size_t i = begin;
  (void)scratch;
  for (; i + DOUBLES <= end; i += DOUBLES) {
    grad_lanes(c, c->g + i, c->acc + i);
    memset(c->acc + i, 0, DOUBLES * sizeof *c->acc);
  }
  if (i < end) {
    int64_t acc[DOUBLES] = {0};
    float g[DOUBLES];
    memcpy(acc, c->acc + i, (end - i) * sizeof *acc);
    grad_lanes(c, g, acc);
    memcpy(c->g + i, g, (end - i) * sizeof *g);
    memset(c->acc + i, 0, (end - i) * sizeof *c->acc);
  }
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

struct factors {
  float scale, decay, beta1, beta2, rest1, rest2, root, eps, rate;
};

/* The first n of VL elements. */
INLINE void adamw_lanes(const struct factors *f, float *master_at, float *m_at, float *v_at, const float *g_at,
                        const int n) {
  const size_t bytes = (size_t)n * sizeof(float);
  vf g = {0}, master = {0}, m = {0}, v = {0};
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

INLINE struct factors factors_of(const struct adamw *a) {
  return (struct factors){.scale = a->grad_scale,
                          .decay = a->lr * a->weight_decay,
                          .beta1 = a->beta1,
                          .beta2 = a->beta2,
                          .rest1 = 1.0f - a->beta1,
                          .rest2 = 1.0f - a->beta2,
                          .root = sqrtf(a->bias2),
                          .eps = a->eps,
                          .rate = a->lr / a->bias1};
}

void ISA_NAME(adamw)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct adamw_args *c = args;
  const struct factors f = factors_of(c->step);
  size_t i = begin;
  (void)scratch;
  for (; i + VL <= end; i += VL) adamw_lanes(&f, c->master + i, c->m + i, c->v + i, c->g + i, VL);
  if (i < end) adamw_lanes(&f, c->master + i, c->m + i, c->v + i, c->g + i, (int)(end - i));
}

/* --- moments in 8 bits ---
 *
 * A decade of values x, from 10^(d - 7) on, has n codes from n - 1 on, evenly over it: the code of x is x * factor +
 * offset, rounded down, at most `high`. */
struct decade {
  float from, factor, offset, high;
};
#define DECADE(n, power) \
  { (float)power, (float)((n) / (9 * power)), (float)((n) - 1 - (n) / 9.0), (float)(2 * (n) - 2) }
enum { M_DECADES = 6, V_DECADES = 7, M_HIGHEST = 127, V_HIGHEST = 255 };
static const struct decade m_decades[M_DECADES] = {DECADE(2, 1e-6),  DECADE(4, 1e-5),  DECADE(8, 1e-4),
                                                   DECADE(16, 1e-3), DECADE(32, 1e-2), DECADE(64, 1e-1)};
static const struct decade v_decades[V_DECADES] = {DECADE(2, 1e-7),  DECADE(4, 1e-6),  DECADE(8, 1e-5),
                                                   DECADE(16, 1e-4), DECADE(32, 1e-3), DECADE(64, 1e-2),
                                                   DECADE(128, 1e-1)};

INLINE vf vmagnitude(vf x) { return (vf)((vi)x & INT32_MAX); }

/* Of a block; what is not a number does not count, what is infinite counts as the largest number. */
INLINE float block_largest(const float *x) {
  float lane[VL], largest = 0;
  vf most = {0};
  for (int i = 0; i < MOMENT_BLOCK; i += VL) most = vmax(vmagnitude(vload(x + i)), most);
  vstore(lane, most);
  for (int l = 0; l < VL; l++) largest = lane[l] > largest ? lane[l] : largest;
  return largest > FLT_MAX ? FLT_MAX : largest;
}

/* Of magnitudes as shares of the block's largest one. */
INLINE vi codes_of(vf share, const struct decade *decades, int count, int highest) {
  vf factor = {0}, offset = {0}, high = {0};
  for (int d = 0; d < count; d++) {
    const vi in = share >= vset(decades[d].from);
    factor = vselect(in, vset(decades[d].factor), factor);
    offset = vselect(in, vset(decades[d].offset), offset);
    high = vselect(in, vset(decades[d].high), high);
  }
  vf code = share * factor + offset;
  code = vselect(code > high, high, code);
  code = vselect(share < vset(1.0f), code, vset((float)highest));
  return __builtin_convertvector(code, vi);
}

/* A block of both moments, zero beyond its elements. */
INLINE void encode_block(const struct adamw8_args *c, size_t at, size_t block, size_t n, const float *m,
                         const float *v) {
  const float m_max = block_largest(m), v_max = block_largest(v);
  const vf m_unit = vset(m_max > 0 ? m_max : 1), v_unit = vset(v_max > 0 ? v_max : 1);
  int32_t codes[MOMENT_BLOCK], squares[MOMENT_BLOCK];
  for (int i = 0; i < MOMENT_BLOCK; i += VL) {
    const vf x = vload(m + i), y = vload(v + i);
    const vi code = codes_of(vmagnitude(x) / m_unit, m_decades, M_DECADES, M_HIGHEST);
    vi square = codes_of(y / v_unit, v_decades, V_DECADES, V_HIGHEST);
    const vi sign = (x < 0) & (code > 0) & 128;
    square = square | ((square == 0) & (y > 0) & 1); /* never 0: the next step divides by its root */
    const vi signed_code = code | sign;
    memcpy(codes + i, &signed_code, sizeof signed_code);
    memcpy(squares + i, &square, sizeof square);
  }
  for (size_t i = 0; i < n; i++) c->moments.m[at + i] = (uint8_t)codes[i];
  for (size_t i = 0; i < n; i++) c->moments.v[at + i] = (uint8_t)squares[i];
  c->moments.m_max[block] = m_max;
  c->moments.v_max[block] = v_max;
}

void ISA_NAME(adamw8)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct adamw8_args *c = args;
  const struct factors f = factors_of(c->step);
  (void)scratch;
  for (size_t b = begin; b < end; b++) {
    const size_t at = b == 0 ? 0 : c->first + (b - 1) * MOMENT_BLOCK;
    const size_t most = b == 0 ? c->first : MOMENT_BLOCK, n = c->n - at < most ? c->n - at : most;
    const float m_max = c->moments.m_max[b], v_max = c->moments.v_max[b];
    float m[MOMENT_BLOCK] = {0}, v[MOMENT_BLOCK] = {0};
    for (size_t i = 0; i < n; i++) m[i] = c->values->m[c->moments.m[at + i]] * m_max;
    for (size_t i = 0; i < n; i++) v[i] = c->values->v[c->moments.v[at + i]] * v_max;
    size_t i = 0;
    for (; i + VL <= n; i += VL) adamw_lanes(&f, c->master + at + i, m + i, v + i, c->g + at + i, VL);
    if (i < n) adamw_lanes(&f, c->master + at + i, m + i, v + i, c->g + at + i, (int)(n - i));
    encode_block(c, at, b, n, m, v);
  }
}

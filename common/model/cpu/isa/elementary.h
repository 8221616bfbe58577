/* exp, log, tanh and the 16-lane SUM of NUMERICS.md in fp32: only + - * / and integer operations, so that every level
 * gives the same bits.
 */
#ifndef LEASEHOLD_MODEL_CPU_ISA_ELEMENTARY_H
#define LEASEHOLD_MODEL_CPU_ISA_ELEMENTARY_H

#include "common/model/cpu/isa/vec.h"

#define EXP_LOW      (-87.33f) /* below: exactly 0 */
#define EXP_HIGH     88.72f    /* above: as this */
#define EXP_LOG2E    1.44269504f
#define EXP_MAGIC    12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
#define EXP_LN2_HIGH 0.693359375f
#define EXP_LN2_LOW  (-2.12194440e-4f)

/* Polynomial part: e^r for the remainder of c after n ln 2. */
INLINE vf exp_remainder(vf c, vf n) {
  vf r = (c - n * EXP_LN2_HIGH) - n * EXP_LN2_LOW;
  vf p = vset(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  return p + 1.0f;
}

INLINE vf vexp(vf x) {
#if defined(__AVX512F__)
  /* As below.  Above EXP_LOW the result is normal, so scaling by 2^n is adding to the exponent field; arguments below
   * it are masked away; a NaN passes through every step. */
  vf c = (vf)_mm512_min_ps((__m512)vset(EXP_HIGH), (__m512)x); /* the second when one is NaN */
  vf t = c * EXP_LOG2E + EXP_MAGIC;
  vf n = t - EXP_MAGIC;
  __mmask16 high = _mm512_cmp_ps_mask((__m512)x, (__m512)vset(EXP_LOW), _CMP_NLT_UQ);
  return (vf)_mm512_maskz_scalef_ps(high, (__m512)exp_remainder(c, n), (__m512)n);
#else
  vi low = x < EXP_LOW;
  vf c = vselect(x > EXP_HIGH, vset(EXP_HIGH), x);
  c = vselect(low, (vf){0}, c);
  vf t = c * EXP_LOG2E + EXP_MAGIC;
  vf n = t - EXP_MAGIC;
  vf y = (vf)((vu)exp_remainder(c, n) + ((vu)t << 23));
  y = vselect(low, (vf){0}, y);
  return vselect(x != x, x, y);
#endif
}

INLINE float exp_one(float x) { return vexp(vset(x))[0]; }

INLINE vf vlog(vf x) {
  const vu u = (vu)x;
  vf m = (vf)((u & 0x007fffffu) | 0x3f000000u); /* [0.5, 1) */
  const vi small = m < 0.707106781f;
  const vf n = __builtin_convertvector((vi)(u >> 23) - 126 + small, vf); /* small is -1 where it holds */
  m = vselect(small, m + m, m);
  const vf f = m - 1.0f, z = f * f;
  vf p = vset(7.0376836292e-2f);
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = (p * f) * z;
  p = p + n * EXP_LN2_LOW;
  p = p - 0.5f * z;
  vf y = (f + p) + n * EXP_LN2_HIGH;
  y = vselect((vi)(u >> 31) != 0, vset(NAN), y);
  y = vselect((u & 0x7f800000u) == 0, vset(-HUGE_VALF), y); /* zero, and what counts as zero */
  return vselect((x != x) | (vi)(u == 0x7f800000u), x, y);
}

INLINE float log_one(float x) { return vlog(vset(x))[0]; }

INLINE vf vtanh(vf x) {
  const vf size = (vf)((vu)x & 0x7fffffffu), z = x * x;
  vf p = vset(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  p = (p * z) * x + x;
  const vf far = 1.0f - 2.0f / (vexp(size + size) + 1.0f);
  return vselect(size < 0.625f, p, vselect(x < 0.0f, -far, far));
}

/* x brought softly below cap in size. */
INLINE vf soft_capped(vf x, float cap) { return vtanh(x / cap) * cap; }

#define GELU_SCALE 1.59576912f /* 2 sqrt(2 / pi) */
#define GELU_CUBE  0.044715f

/* s with gelu(x) = x s. */
INLINE vf gelu_share(vf x) { return 1.0f / (1.0f + vexp(-(GELU_SCALE * (x + GELU_CUBE * ((x * x) * x))))); }

/* SUM of a[i] * b[i]. */
INLINE float sum_products(const float *a, const float *b, int n) {
  struct f16 lanes = {{{0}}};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int p = 0; p < PARTS; p++) lanes.v[p] = lanes.v[p] + vload(a + i + p * VL) * vload(b + i + p * VL);
  if (i < n) {
    float ta[16] = {0}, tb[16] = {0};
    memcpy(ta, a + i, (size_t)(n - i) * sizeof *a);
    memcpy(tb, b + i, (size_t)(n - i) * sizeof *b);
    for (int p = 0; p < PARTS; p++) lanes.v[p] = lanes.v[p] + vload(ta + p * VL) * vload(tb + p * VL);
  }
  return tree16(lanes);
}

#endif

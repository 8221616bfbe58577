/* exp, log and the 16-lane SUM of NUMERICS.md in fp32: only + - * / and integer operations, so that every level gives
 * the same bits. Row functions work on buffers whose length is rounded up to 16: the tail is computed and ignored.
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

INLINE vf vexp(vf x) {
  vi low = x < EXP_LOW;
  vf c = vselect(x > EXP_HIGH, vset(EXP_HIGH), x);
  c = vselect(low, (vf){0}, c);
  vf t = c * EXP_LOG2E + EXP_MAGIC;
  vf n = t - EXP_MAGIC;
  vf r = (c - n * EXP_LN2_HIGH) - n * EXP_LN2_LOW;
  vf p = vset(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  vf y = (vf)((vu)p + ((vu)t << 23));
  y = vselect(low, (vf){0}, y);
  return vselect(x != x, x, y);
}

INLINE float exp_one(float x) { return vexp(vset(x))[0]; }

INLINE float log_one(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  if (x != x || u == 0x7f800000u) return x;
  if ((u & 0x7f800000u) == 0) return -HUGE_VALF; /* zero, and what counts as zero */
  if (u >> 31) return NAN;
  int e = (int)(u >> 23) - 126;
  u = (u & 0x007fffffu) | 0x3f000000u; /* [0.5, 1) */
  float f;
  memcpy(&f, &u, sizeof f);
  if (f < 0.707106781f) {
    e = e - 1;
    f = f + f;
  }
  f = f - 1.0f;
  float z = f * f, n = (float)e;
  float p = 7.0376836292e-2f;
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
  return (f + p) + n * EXP_LN2_HIGH;
}

/* y and x may be the same buffer; both hold n rounded up to 16. */
INLINE void exp_buffer(float *y, const float *x, int n) {
  for (int i = 0; i < n; i += VL) vstore(y + i, vexp(vload(x + i)));
}

INLINE float sum_buffer(const float *x, int n) /* zero padded to a multiple of 16 */
{
  struct f16 lanes = {{{0}}};
  for (int i = 0; i < n; i += 16)
    for (int p = 0; p < PARTS; p++) lanes.v[p] = lanes.v[p] + vload(x + i + p * VL);
  return tree16(lanes);
}

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

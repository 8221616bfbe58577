/* Parts that the kernels share: bf16, the elementary functions and the sums of NUMERICS.md.  The files are compiled
 * without contraction (-fmad=false) and with -ftz=true, so that an expression gives the CPU's bits. */
#ifndef LEASEHOLD_MODEL_CUDA_DEVICE_H
#define LEASEHOLD_MODEL_CUDA_DEVICE_H

#include <math.h>
#include <string.h>

#include "common/model/cuda/ptx.h"

typedef uint16_t bf16;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

DEVICE uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
DEVICE float float_of_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

DEVICE float widen(bf16 x) { return float_of_bits((uint32_t)x << 16); }

/* operand(x) of NUMERICS.md. */
DEVICE bf16 operand(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16)(u >> 16 | 0x40u);
  return (bf16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* exp of NUMERICS.md. */
DEVICE float exact_exp(float x) {
  const float c = x > 88.72f ? 88.72f : x;
  const float t = c * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
  const float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  const float y = float_of_bits(bits_of(p) + (bits_of(t) << 23));
  return x != x ? x : x < -87.33f ? 0.0f : y;
}

/* log of NUMERICS.md. */
DEVICE float exact_log(float x) {
  const uint32_t u = bits_of(x);
  if (x != x || u == 0x7f800000u) return x;
  if ((u & 0x7f800000u) == 0) return -HUGE_VALF;
  if (u >> 31) return float_of_bits(0x7fc00000u);
  float m = float_of_bits((u & 0x007fffffu) | 0x3f000000u);
  int e = (int)(u >> 23) - 126;
  if (m < 0.707106781f) {
    m = m + m;
    e--;
  }
  const float f = m - 1.0f, z = f * f, n = (float)e;
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
  p = p + n * -2.12194440e-4f;
  p = p - 0.5f * z;
  return (f + p) + n * 0.693359375f;
}

DEVICE float exact_sigmoid(float x) { return 1.0f / (1.0f + exact_exp(-x)); }

/* The tree of SUM over lanes 0..15 of each half warp; the result is that of its lane 0. */
template <typename number>
DEVICE number tree_of_lanes(number lane) {
  for (int width = 8; width >= 1; width /= 2) lane = lane + __shfl_down_sync(ALL_LANES, lane, width, 16);
  return lane;
}

/* SUM of n terms in shared memory, by one whole warp; all lanes get it. */
DEVICE float sum_of_terms(const float *terms, int n) {
  const int l = (int)threadIdx.x % WARP;
  float lane = 0.0f;
  if (l < 16)
    for (int i = l; i < n; i += 16) lane = lane + terms[i];
  return __shfl_sync(ALL_LANES, tree_of_lanes(lane), 0);
}

/* row[t], or t when there is no such list. */
DEVICE size_t row_of(const int32_t *row, size_t t) { return row ? (size_t)row[t] : t; }

/* This thread's number in the grid, and the grid's threads, for loops over elements. */
DEVICE size_t grid_thread(void) { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE size_t grid_threads(void) { return (size_t)gridDim.x * blockDim.x; }

/* Elements 8c .. 8c + 7 of a row of `count` into shared memory (16 bytes there), later (cp_async_commit) or at once;
 * zeros beyond the row, and for a row that is not there. */
DEVICE void fill_chunk(void *shared, const bf16 *row, int c, int count, bool there) {
  const int first = c * 8;
  there = there && first < count;
  const bf16 *from = there ? row + first : row;
  if (!there || (first + 8 <= count && (uintptr_t)from % 16 == 0)) {
    cp_async_16(shared, there ? from : (const bf16 *)((uintptr_t)row & ~(uintptr_t)15), there);
    return;
  }
  bf16 *to = (bf16 *)shared;
  for (int k = 0; k < 8; k++) to[k] = first + k < count ? from[k] : (bf16)0;
}

#endif

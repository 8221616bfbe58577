/* The inner ("micro") kernel of the products over tokens and of attention's gradients: one block of 32 along the dot,
 * as an even and an odd chain of fused multiply-adds (NUMERICS.md, DOT), for some rows of `a` (broadcast) against
 * 16-lane tiles of `w`.
 *
 *   dst[r][n] = dst[r][n] + (even + odd)        even: over s < steps of a_even[r * ROW_A + s * step_a] * w_even[s * step_w + n]; odd likewise
 *
 * Everything is already float; rows and lanes are blocked so that the accumulators of one chain fill the registers.
 * Even and odd chains are computed one after the other: they share no values, so half the registers suffice.
 */
#ifndef LEASEHOLD_MODEL_CPU_ISA_MICRO_KERNEL_H
#define LEASEHOLD_MODEL_CPU_ISA_MICRO_KERNEL_H

#include "common/model/cpu/isa/vec.h"

#if defined(__AVX512F__)
enum { MICRO_ROWS = 12 };
#else
enum { MICRO_ROWS = 6 };
#endif

struct block {
  float *dst;
  size_t ldd;
  const float *a_even, *a_odd;
  size_t step_a;
  const float *w_even, *w_odd;
  size_t step_w;
  int steps;       /* pairs, at most 16; fewer when the rest is zero padding */
  int rows, lanes; /* lanes: a multiple of 16 */
  bool first;      /* dst is taken as +0 */
};

INLINE void chain(vf acc[MICRO_ROWS][2], const float *a, size_t row_a, size_t step_a, const float *w, size_t step_w,
                  int steps, const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = (vf){0};
  }
  for (int s = 0; s < steps; s++) {
    vf wv[2];
    UNROLL
    for (int v = 0; v < NV; v++) wv[v] = vload(w + v * VL);
    UNROLL
    for (int r = 0; r < R; r++) {
      vf x = vset(a[(size_t)r * row_a]);
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = vfma(x, wv[v], acc[r][v]);
    }
    a += step_a;
    w += step_w;
  }
  if (steps < 16) { /* the zero padding of the block: adds +0 */
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = acc[r][v] + 0.0f;
    }
  }
}

INLINE void micro(const struct block *b, size_t row_a, int row, int lane, const int R, const int NV) {
  vf even[MICRO_ROWS][2], odd[MICRO_ROWS][2];
  size_t at = (size_t)row * row_a;
  chain(even, b->a_even + at, row_a, b->step_a, b->w_even + lane, b->step_w, b->steps, R, NV);
  chain(odd, b->a_odd + at, row_a, b->step_a, b->w_odd + lane, b->step_w, b->steps, R, NV);
  float *dst = b->dst + (size_t)row * b->ldd + lane;
  if (b->first) {
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int v = 0; v < NV; v++) vstore(dst + (size_t)r * b->ldd + v * VL, (even[r][v] + odd[r][v]) + 0.0f);
    }
    return;
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *d = dst + (size_t)r * b->ldd + v * VL;
      vstore(d, vload(d) + (even[r][v] + odd[r][v]));
    }
  }
}

INLINE void micro_rows(const struct block *b, size_t row_a, int lane, const int NV) {
  int r = 0;
  for (; r + MICRO_ROWS <= b->rows; r += MICRO_ROWS) micro(b, row_a, r, lane, MICRO_ROWS, NV);
  if (MICRO_ROWS > 8 && r + 8 <= b->rows) {
    micro(b, row_a, r, lane, MICRO_ROWS > 8 ? 8 : 1, NV);
    r += 8;
  }
  if (r + 4 <= b->rows) {
    micro(b, row_a, r, lane, 4, NV);
    r += 4;
  }
  if (r + 2 <= b->rows) {
    micro(b, row_a, r, lane, 2, NV);
    r += 2;
  }
  if (r < b->rows) micro(b, row_a, r, lane, 1, NV);
}

/* row_a is a constant at every call, so that the rows' addresses are displacements. */
INLINE void block_add(const struct block *b, const size_t row_a) {
  int lane = 0;
  for (; lane + 2 * VL <= b->lanes; lane += 2 * VL) micro_rows(b, row_a, lane, 2);
  if (lane < b->lanes) micro_rows(b, row_a, lane, 1);
}

#endif

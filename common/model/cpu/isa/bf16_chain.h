/* Chains of fused multiply-adds by twos: VDPBF16PS (AVX512_BF16).
 *
 * The instruction takes words of two bf16 and does, in every lane, acc = fma(high, high', acc), then acc = fma(low,
 * low', acc), each rounded to nearest, subnormals flushed: two links of a chain of NUMERICS.md's DOT, bit for bit, in
 * the time of one.  So a chain is laid out in words ("links") of two of its elements, the earlier in the high half:
 * of a block of 32 along the dot the even chain is elements 0, 2 | 4, 6 | .. 28, 30 in eight links, and the odd chain
 * 1, 3 | 5, 7 | .. 29, 31 in eight more.
 *
 * "In the time of one" holds for AMD's cores.  Intel documents this behaviour, and it was measured on Zen 4;
 * links_trial.c tries it, and the time that it takes, before this instruction set is used. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_BF16_CHAIN_H
#define LEASEHOLD_MODEL_CPU_ISA_BF16_CHAIN_H

#include "common/model/cpu/isa/vec.h"

#if defined(__AVX512BF16__)

enum {
  LINK_STEPS = 8, /* links of a full chain */
  LINK_ROWS = 4   /* rows of the micro kernel: their sums and both chains, times two vectors, fill the registers */
};

typedef uint16_t h16 __attribute__((vector_size(32)));
typedef uint16_t h32 __attribute__((vector_size(64)));

INLINE vf link_add(vf acc, vu a, vu w) {
  return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)(__m512i)a, (__m512bh)(__m512i)w);
}

INLINE vu link_load(const uint32_t *p) {
  vu v;
  memcpy(&v, p, sizeof v);
  return v;
}

INLINE void link_store(uint32_t *p, vu v) { memcpy(p, &v, sizeof v); }

INLINE vu link_set(uint32_t x) { return (vu)_mm512_set1_epi32((int)x); }

/* From words (element 4j | 4j + 1 << 16) and (4j + 2 | 4j + 3 << 16): the links of the even and of the odd chain. */
INLINE vu link_even(vu first, vu second) { return (first << 16) | (second & 0xffffu); }
INLINE vu link_odd(vu first, vu second) { return (first & 0xffff0000u) | (second >> 16); }

/* From 16 operands of one row along the lanes and 16 of the row that follows it in the chain. */
INLINE vu link_rows(h16 first, h16 second) {
  return (__builtin_convertvector(first, vu) << 16) | __builtin_convertvector(second, vu);
}

/* Rounds to operands, NaNs included.  Subnormals are flushed, as arithmetic has already flushed them in its results. */
INLINE h16 round16(vf x) { return (h16)_mm512_cvtneps_pbh((__m512)x); }

INLINE vf widen16(h16 x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

INLINE void store_h16(uint16_t *p, h16 x) { memcpy(p, &x, sizeof x); }

/* n <= 16 operands; the rest are zero and are not read. */
INLINE h16 load_h16(const uint16_t *p, int n) {
  if (n >= 16) {
    h16 v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  return (h16)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p);
}

INLINE h32 join_h16(h16 low, h16 high) {
  return (h32)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

/* 32 operands along the dot: eight links of the even chain, then eight of the odd one. */
INLINE vu link_order(h32 x) {
  return (vu)__builtin_shuffle(x, (h32){2, 0, 6, 4, 10, 8, 14, 12, 18, 16, 22, 20, 26, 24, 30, 28,
                                        3, 1, 7, 5, 11, 9, 15, 13, 19, 17, 23, 21, 27, 25, 31, 29});
}

/* A row's next n <= 32 operands along the dot. */
INLINE vu link_block(const uint16_t *p, int n) {
  h32 v;
  if (n >= 32)
    memcpy(&v, p, sizeof v);
  else
    v = (h32)_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1u), p);
  return link_order(v);
}

/* Links of either chain among n <= 32 elements along the dot. */
INLINE int link_steps(int n) { return (n + 3) / 4; }

/* Words [w][16 rows] from 16 rows of 8 words and back: row r and row r + 8 share a vector. */
INLINE void transpose8(vu z[8]) {
  vu a[8], b[8];
  UNROLL
  for (int i = 0; i < 8; i += 2) {
    a[i] = (vu)_mm512_unpacklo_epi32((__m512i)z[i], (__m512i)z[i + 1]);
    a[i + 1] = (vu)_mm512_unpackhi_epi32((__m512i)z[i], (__m512i)z[i + 1]);
  }
  UNROLL
  for (int i = 0; i < 8; i += 4) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = (vu)_mm512_unpacklo_epi64((__m512i)a[i + j], (__m512i)a[i + j + 2]);
      b[i + 2 * j + 1] = (vu)_mm512_unpackhi_epi64((__m512i)a[i + j], (__m512i)a[i + j + 2]);
    }
  }
  UNROLL
  for (int i = 0; i < 4; i++) {
    z[i] = __builtin_shuffle(b[i], b[i + 4], (vu){0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27});
    z[i + 4] = __builtin_shuffle(b[i], b[i + 4], (vu){4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
  }
}

/* Sixteen rows of E operands, along the lanes: out[link * stride + row].  The links of a block of 32 along E start at
 * link e / 2: link_steps of the even chain, then as many of the odd one. */
INLINE void link_columns(uint32_t *out, size_t stride, const uint16_t *const row[16], int E) {
  for (int e = 0; e < E; e += 16) {
    vu z[8];
    const int from = e / 32 * 32, steps = link_steps(E - from < 32 ? E - from : 32), first = (e - from) / 4;
    for (int r = 0; r < 8; r++) z[r] = (vu)join_h16(load_h16(row[r] + e, E - e), load_h16(row[r + 8] + e, E - e));
    transpose8(z);
    uint32_t *to = out + (size_t)(from / 2 + first) * stride;
    for (int i = 0; i < 4 && first + i < steps; i++, to += stride) {
      link_store(to, link_even(z[2 * i], z[2 * i + 1]));
      link_store(to + (size_t)steps * stride, link_odd(z[2 * i], z[2 * i + 1]));
    }
  }
}

/* One chain of `steps` links for R rows (a[r * row_a + s * step_a], broadcast) against NV vectors (w[s * step_w +
 * v * next_w]), from +0.  Steps that are missing to LINK_STEPS are zero padding. */
INLINE void link_chain(vf acc[LINK_ROWS][2], const uint32_t *a, size_t row_a, size_t step_a, const uint32_t *w,
                       size_t step_w, size_t next_w, int steps, const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = (vf){0};
  }
  for (int s = 0; s < steps; s++) {
    vu wv[2];
    UNROLL
    for (int v = 0; v < NV; v++) wv[v] = link_load(w + (size_t)s * step_w + (size_t)v * next_w);
    UNROLL
    for (int r = 0; r < R; r++) {
      vu x = link_set(a[(size_t)r * row_a + (size_t)s * step_a]);
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = link_add(acc[r][v], x, wv[v]);
    }
  }
  if (steps < LINK_STEPS) {
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = acc[r][v] + 0.0f;
    }
  }
}

/* Both chains of a whole block, side by side, from +0: R rows (x[r * stride], the even links before the odd ones)
 * against NV tiles, which are read line by line as they lie.  The loop stays one: unrolled, its loads would be put in
 * another order, in which memory delivers a fifth less. */
INLINE void link_chains(vf even[LINK_ROWS][2], vf odd[LINK_ROWS][2], const uint32_t *x, size_t stride,
                        const uint32_t *w, size_t next_w, const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) even[r][v] = odd[r][v] = (vf){0};
  }
#pragma GCC unroll 1
  for (int s = 0; s < LINK_STEPS; s++, x++, w += 32) {
    vu we[2], wo[2];
    UNROLL
    for (int v = 0; v < NV; v++) {
      we[v] = link_load(w + (size_t)v * next_w);
      wo[v] = link_load(w + (size_t)v * next_w + 16);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
      const vu xe = link_set(x[(size_t)r * stride]), xo = link_set(x[(size_t)r * stride + LINK_STEPS]);
      UNROLL
      for (int v = 0; v < NV; v++) {
        even[r][v] = link_add(even[r][v], xe, we[v]);
        odd[r][v] = link_add(odd[r][v], xo, wo[v]);
      }
    }
  }
}

/* acc += even + odd. */
INLINE void link_sum(vf acc[LINK_ROWS][2], vf even[LINK_ROWS][2], vf odd[LINK_ROWS][2], const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = acc[r][v] + (even[r][v] + odd[r][v]);
  }
}

/* One block of 32 along the dot, the links of its odd chain after those of its even one: acc += even + odd. */
INLINE void link_dot(vf acc[LINK_ROWS][2], const uint32_t *a, size_t row_a, size_t step_a, const uint32_t *w,
                     size_t step_w, int even_steps, int odd_steps, const int R, const int NV) {
  vf even[LINK_ROWS][2], odd[LINK_ROWS][2];
  link_chain(even, a, row_a, step_a, w, step_w, VL, even_steps, R, NV);
  a += (size_t)even_steps * step_a;
  w += (size_t)even_steps * step_w;
  link_chain(odd, a, row_a, step_a, w, step_w, VL, odd_steps, R, NV);
  link_sum(acc, even, odd, R, NV);
}

/* lanes <= 16 floats from p on. */
INLINE vf load_lanes(const float *p, int lanes) {
  return lanes >= VL ? vload(p) : (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1u), p);
}
INLINE void store_lanes(float *p, vf x, int lanes) {
  if (lanes >= VL)
    vstore(p, x);
  else
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1u), (__m512)x);
}

#endif
#endif

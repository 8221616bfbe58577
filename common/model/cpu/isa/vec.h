/* The vectors of one x86-64 level, as GNU vectors of its natural width: VL lanes of float.  Kernels are written for 16
 * lanes ("a tile"), which are PARTS vectors.  Only the fused multiply-add needs code of its own per level; v2 has no
 * such instruction.  There a product of two bf16, which a float holds exactly, is added like any number (vlink), and
 * what that cannot do is made of doubles (vfma).
 *
 * Operands come as bf16 or float (`f32`), always addressed by element index; loads widen.  A pair of bf16 is one
 * 32-bit word: the even element is its low half.
 */
#ifndef LEASEHOLD_MODEL_CPU_ISA_VEC_H
#define LEASEHOLD_MODEL_CPU_ISA_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/model/cpu/kernels.h"

#define ISA_CONCAT2(a, b) a##_##b
#define ISA_CONCAT(a, b)  ISA_CONCAT2(a, b)
#define ISA_NAME(name)    ISA_CONCAT(name, CPU_ISA)

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#if defined(__AVX512F__)
enum { VL = 16 };
#elif defined(__AVX2__)
enum { VL = 8 };
#else
enum { VL = 4 };
#endif
enum { PARTS = 16 / VL };

typedef float vf __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
struct f16 {
  vf v[PARTS];
};

INLINE vf vload(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}

INLINE void vstore(float *p, vf v) { memcpy(p, &v, sizeof v); }

INLINE vf vset(float x) { return x - (vf){0}; /* x - 0 is x, -0 and NaN included */ }

#if !defined(__AVX2__)
/* Of the lower two lanes.  The product is exact; so is `rest`, what the sum lacks (Knuth's TwoSum).  Where something is
 * lacking the sum becomes the odd one of its two neighbours, which float then rounds as it would have rounded the whole
 * (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
INLINE __m128 fma_of_doubles(__m128 a, __m128 b, __m128 c) {
  const __m128d product = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), addend = _mm_cvtps_pd(c);
  const __m128d sum = _mm_add_pd(product, addend), from_addend = _mm_sub_pd(sum, product);
  const __m128d rest = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, from_addend)), _mm_sub_pd(addend, from_addend));
  const __m128d zero = _mm_setzero_pd();
  const __m128i one = _mm_set1_epi64x(1), bits = _mm_castpd_si128(sum);
  /* no NaN is lacking anything */
  const __m128i lacks = _mm_castpd_si128(_mm_or_pd(_mm_cmplt_pd(rest, zero), _mm_cmpgt_pd(rest, zero)));
  const __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one); /* all bits, or none */
  /* away from zero where both have the same sign: + 1, else - 1 */
  const __m128i differ = _mm_srai_epi32(_mm_shuffle_epi32(_mm_xor_si128(bits, _mm_castpd_si128(rest)), 0xf5), 31);
  const __m128i step = _mm_or_si128(differ, one);
  const __m128i odd = _mm_add_epi64(bits, _mm_and_si128(step, _mm_and_si128(lacks, even)));
  return _mm_cvtpd_ps(_mm_castsi128_pd(odd));
}
#endif

INLINE vf vfma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return (vf)_mm_movelh_ps(fma_of_doubles((__m128)a, (__m128)b, (__m128)c),
                           fma_of_doubles(_mm_movehl_ps((__m128)a, (__m128)a), _mm_movehl_ps((__m128)b, (__m128)b),
                                          _mm_movehl_ps((__m128)c, (__m128)c)));
#endif
}

/* A link of a chain: fma(a, b, c).  split: by a product and a sum, which is the same where a and b are bf16 and neither
 * over- nor underflows. */
INLINE vf vlink(vf a, vf b, vf c, const bool split) { return split ? a * b + c : vfma(a, b, c); }

/* Whether links of bf16 are split at this level: see MAKE_LINKS. */
#if defined(__AVX2__)
enum { SPLIT_LINKS = false };
#else
enum { SPLIT_LINKS = true };
#endif

/* Has anything over- or underflowed since this was last asked?  The CPU keeps that in mind.  even, odd: arrays that
 * hold all that was computed; what is computed next reads memory, so it comes behind this too. */
#define LINKS_FAILED(even, odd)                                               \
  __extension__({                                                             \
    uint32_t csr_;                                                            \
    __asm__ volatile("stmxcsr %0" : "=m"(csr_), "+m"(even), "+m"(odd));       \
    const bool failed_ = csr_ & (_MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW); \
    csr_ &= ~(uint32_t)_MM_EXCEPT_MASK;                                       \
    if (failed_) __asm__ volatile("ldmxcsr %0" : : "m"(csr_) : "memory");     \
    failed_;                                                                  \
  })

/* make(split) makes the chains' sums even and odd: split where links of bf16 are, and again where that failed. */
#define MAKE_LINKS(make, even, odd, f32)       \
  do {                                         \
    const bool split_ = SPLIT_LINKS && !(f32); \
    if (split_) {                              \
      make(true);                              \
    }                                          \
    if (!split_ || LINKS_FAILED(even, odd)) {  \
      make(false);                             \
    }                                          \
  } while (0)

/* mask: all bits of a lane or none, as comparisons give. */
INLINE vf vselect(vi mask, vf yes, vf no) {
#if defined(__AVX512F__)
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
#elif defined(__AVX2__)
  return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
  return (vf)_mm_blendv_ps((__m128)no, (__m128)yes, (__m128)mask);
#endif
}

INLINE vf vmax(vf a, vf b) { return vselect(a > b, a, b); }

/* Lanes 0, 2, 4.. of the 2 * VL floats in a, b; and lanes 1, 3, 5.. */
INLINE vf vevens(vf a, vf b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  return __builtin_shufflevector(a, b, 0, 2, 4, 6);
#endif
}

INLINE vf vodds(vf a, vf b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  return __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

/* Vector `part` of the even (odd) elements of the 32 operands from index `at`. */
INLINE vf load_even(const void *base, size_t at, int part, bool f32) {
  if (f32) {
    const float *p = (const float *)base + at + 2 * VL * part;
    return vevens(vload(p), vload(p + VL));
  }
  vu w;
  memcpy(&w, (const uint16_t *)base + at + 2 * VL * part, sizeof w);
  return (vf)(w << 16);
}

INLINE vf load_odd(const void *base, size_t at, int part, bool f32) {
  if (f32) {
    const float *p = (const float *)base + at + 2 * VL * part;
    return vodds(vload(p), vload(p + VL));
  }
  vu w;
  memcpy(&w, (const uint16_t *)base + at + 2 * VL * part, sizeof w);
  return (vf)(w & 0xffff0000u);
}

/* 32 operands into 16 even and 16 odd floats. */
INLINE void split32(float *even, float *odd, const void *base, size_t at, bool f32) {
  UNROLL
  for (int p = 0; p < PARTS; p++) {
    vstore(even + p * VL, load_even(base, at, p, f32));
    vstore(odd + p * VL, load_odd(base, at, p, f32));
  }
}

/* The last n < 32 operands of a row, zero padded. */
INLINE void split_tail(float *even, float *odd, const void *base, size_t at, int n, bool f32) {
#if defined(__AVX512F__)
  if (!f32) {
    const vu w = (vu)_mm512_maskz_loadu_epi16((1u << n) - 1u, (const uint16_t *)base + at);
    vstore(even, (vf)(w << 16));
    vstore(odd, (vf)(w & 0xffff0000u));
    return;
  }
#endif
  for (int i = 0; i < 16; i++) even[i] = odd[i] = 0.0f;
  for (int i = 0; i < n; i++) {
    float x;
    if (f32) {
      x = ((const float *)base)[at + (size_t)i];
    } else {
      uint32_t u = (uint32_t)((const uint16_t *)base)[at + (size_t)i] << 16;
      memcpy(&x, &u, sizeof x);
    }
    if (i % 2 == 0)
      even[i / 2] = x;
    else
      odd[i / 2] = x;
  }
}

INLINE void widen_row(float *restrict out, const void *base, size_t at, int n, bool f32) {
  if (f32) {
    memcpy(out, (const float *)base + at, (size_t)n * sizeof *out);
    return;
  }
  const uint16_t *restrict in = (const uint16_t *)base + at;
  for (int i = 0; i < n; i++) {
    uint32_t u = (uint32_t)in[i] << 16;
    memcpy(out + i, &u, sizeof u);
  }
}

INLINE uint32_t bf16_bits(uint32_t u) /* rounded, in the high half */
{
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  uint32_t quiet = (u | 0x00400000u) & 0xffff0000u;
  return (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

/* Rounds n floats to operands from index `at` on. */
INLINE void round_row(void *base, size_t at, const float *restrict in, int n, bool f32) {
  if (f32) {
    memcpy((float *)base + at, in, (size_t)n * sizeof *in);
    return;
  }
  uint16_t *restrict out = (uint16_t *)base + at;
  for (int i = 0; i < n; i++) {
    uint32_t u;
    memcpy(&u, in + i, sizeof u);
    out[i] = (uint16_t)(bf16_bits(u) >> 16);
  }
}

/* The operand's bits in the high half; the low half is anything. */
INLINE vu round_bits(vf x) {
  vu u = (vu)x, rounded = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x00400000u;
#if defined(__AVX512F__)
  __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  return (vu)_mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)quiet);
#else
  return (vu)vselect(x != x, (vf)quiet, (vf)rounded);
#endif
}

/* The operand's value as a float. */
INLINE vf vround(vf x, bool f32) { return f32 ? x : (vf)(round_bits(x) & 0xffff0000u); }

typedef uint16_t vh __attribute__((vector_size(VL * 2)));

/* Stores VL numbers as operands from index `at` on.  Only for results of arithmetic, which are never subnormal, so that
 * an instruction that flushes subnormals may be used. */
INLINE void store_operands(void *base, size_t at, vf x, bool f32) {
  if (f32) {
    vstore((float *)base + at, x);
    return;
  }
#if defined(__AVX512BF16__)
  vh h = (vh)_mm512_cvtneps_pbh((__m512)x);
#elif defined(__AVX512F__)
  vh h = __builtin_convertvector(round_bits(x) >> 16, vh);
#elif defined(__AVX2__)
  __m256i high = (__m256i)(round_bits(x) >> 16);
  vh h = (vh)_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
#else
  __m128i high = (__m128i)(round_bits(x) >> 16);
  vh h = __extension__(vh) _mm_cvtsi128_si64(_mm_packus_epi32(high, high));
#endif
  memcpy((uint16_t *)base + at, &h, sizeof h);
}

/* The first n of VL. */
INLINE void store_some_operands(void *base, size_t at, vf x, int n, bool f32) {
  if (n >= VL) {
    store_operands(base, at, x, f32);
    return;
  }
  uint32_t out[VL];
  store_operands(out, 0, x, f32);
  memcpy((char *)base + at * (f32 ? 4 : 2), out, (size_t)n * (f32 ? 4 : 2));
}

INLINE vf load_operands(const void *base, size_t at, bool f32) {
  if (f32) return vload((const float *)base + at);
  vh h;
  memcpy(&h, (const uint16_t *)base + at, sizeof h);
#if defined(__AVX512F__) /* gcc 12 would convert halves, and join them */
  return (vf)((vu)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#else
  return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

INLINE vf load_some_operands(const void *base, size_t at, int n, bool f32) {
  if (n >= VL) return load_operands(base, at, f32);
#if defined(__AVX512F__) /* a load from what was just stored in parts would wait */
  if (f32) return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), (const float *)base + at);
  return (
      vf)((vu)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), (const uint16_t *)base + at))
          << 16);
#else
  uint32_t in[VL] = {0};
  memcpy(in, (const char *)base + at * (f32 ? 4 : 2), (size_t)n * (f32 ? 4 : 2));
  return load_operands(in, 0, f32);
#endif
}

/* The first n of VL; the rest are 0 and are not read. */
INLINE vf load_some(const float *p, int n) {
  if (n >= VL) return vload(p);
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
  vf v = {0};
  memcpy(&v, p, (size_t)n * sizeof *p);
  return v;
#endif
}

/* The first n of VL. */
INLINE void store_some(float *p, vf v, int n) {
  if (n >= VL)
    vstore(p, v);
  else
    memcpy(p, &v, (size_t)n * sizeof *p);
}

/* Exchanges the off-diagonal quarters of squares of 2 * step; v: vectors, as many as there are lanes. */
#define TRANSPOSE_STEP(v, lanes, step)                              \
  do {                                                              \
    __typeof__((v)[0]) low_, high_;                                 \
    for (unsigned l_ = 0; l_ < (lanes); l_++) {                     \
      low_[l_] = l_ & (step) ? (lanes) + l_ - (step) : l_;          \
      high_[l_] = l_ & (step) ? (lanes) + l_ : l_ + (step);         \
    }                                                               \
    UNROLL                                                          \
    for (int i_ = 0; i_ < (lanes); i_++) {                          \
      if (i_ & (step)) continue;                                    \
      const __typeof__((v)[0]) a_ = (v)[i_], b_ = (v)[i_ + (step)]; \
      (v)[i_] = __builtin_shuffle(a_, b_, low_);                    \
      (v)[i_ + (step)] = __builtin_shuffle(a_, b_, high_);          \
    }                                                               \
  } while (0)

/* VL rows of VL words become columns.  (% VL: where a step is left out it is compiled all the same.) */
INLINE void transpose(vu v[VL]) {
  if (VL > 8) TRANSPOSE_STEP(v, VL, 8 % VL);
  if (VL > 4) TRANSPOSE_STEP(v, VL, 4 % VL);
  TRANSPOSE_STEP(v, VL, 2);
  TRANSPOSE_STEP(v, VL, 1);
}

INLINE vf vsqrt(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#else
  return (vf)_mm_sqrt_ps((__m128)x);
#endif
}

INLINE struct f16 load16(const float *p) {
  struct f16 r;
  UNROLL
  for (int i = 0; i < PARTS; i++) r.v[i] = vload(p + i * VL);
  return r;
}

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

/* The tree of NUMERICS.md: l += l+8, l += l+4, l += l+2, l += l+1. */
INLINE float tree16(struct f16 x) {
#if defined(__AVX512F__)
  v8 a = __builtin_shufflevector(x.v[0], x.v[0], 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(x.v[0], x.v[0], 8, 9, 10, 11, 12, 13, 14, 15);
  v4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#elif defined(__AVX2__)
  v8 a = x.v[0] + x.v[1];
  v4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
  v4 b = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
#endif
  return (b[0] + b[2]) + (b[1] + b[3]);
}

INLINE float max16(struct f16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x.v[0]);
#else
  float t[16], m;
  for (int i = 0; i < PARTS; i++) vstore(t + i * VL, x.v[i]);
  m = t[0];
  for (int i = 1; i < 16; i++) m = t[i] > m ? t[i] : m;
  return m;
#endif
}

#endif

/* Folds sixteen rows of sixteen numbers to one number for each row: its sum, by the tree of NUMERICS.md, or its
 * maximum. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_ATTENTION_FOLD_H
#define LEASEHOLD_MODEL_CPU_ISA_ATTENTION_FOLD_H

#include "common/model/cpu/isa/vec.h"

#if defined(__AVX512F__)

INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }

/* All rows at once: every step of the tree leaves half as many vectors, with as many rows more in each. */
INLINE struct f16 fold(float x[16][16], const bool sum) {
#define BOTH(a, b) (sum ? (a) + (b) : larger(a, b))
#define SHUFFLE    __builtin_shufflevector
  vf a[8], b[4];
  UNROLL
  for (int i = 0; i < 8; i++) {
    const vf u = vload(x[i]), w = vload(x[i + 8]);
    a[i] = BOTH(SHUFFLE(u, w, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                SHUFFLE(u, w, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  }
  UNROLL
  for (int i = 0; i < 4; i++)
    b[i] = BOTH(SHUFFLE(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                SHUFFLE(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  UNROLL
  for (int i = 0; i < 2; i++)
    a[i] = BOTH(SHUFFLE(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                SHUFFLE(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  b[0] = BOTH(SHUFFLE(a[0], a[1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30),
              SHUFFLE(a[0], a[1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31));
  return (struct f16){{SHUFFLE(b[0], b[0], 0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15)}};
#undef SHUFFLE
#undef BOTH
}

#else

INLINE struct f16 fold(float x[16][16], const bool sum) {
  float one[16];
  for (int r = 0; r < 16; r++) one[r] = sum ? tree16(load16(x[r])) : max16(load16(x[r]));
  return load16(one);
}

#endif
#endif

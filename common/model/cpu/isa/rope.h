/* The rotation of a head that fits one vector (E = VL), forward and backward:
 *
 *   y = x * cosines + (x with its halves exchanged) * sines        forward: sines are -s below E/2 and s above; backward: s, -s
 *
 * This is NUMERICS.md's a * c - b * s and b * c + a * s to the bit, because a - b is a + (-b). */
#ifndef LEASEHOLD_MODEL_CPU_ISA_ROPE_H
#define LEASEHOLD_MODEL_CPU_ISA_ROPE_H

#include "common/model/cpu/isa/vec.h"

INLINE vf exchange_halves(vf x) {
  vi order;
  for (int i = 0; i < VL; i++) order[i] = (i + VL / 2) % VL;
  return __builtin_shuffle(x, order);
}

/* rope: [E/2][2] cos, sin of a position. */
INLINE void rotation(vf *cosines, vf *sines, const float *rope, bool backward) {
  vi even, odd, sign;
  for (int i = 0; i < VL; i++) {
    even[i] = 2 * i % VL;
    odd[i] = 2 * i % VL + 1;
    sign[i] = (i < VL / 2) != backward ? INT32_MIN : 0;
  }
  const vf table = vload(rope);
  *cosines = __builtin_shuffle(table, even);
  *sines = (vf)((vi)__builtin_shuffle(table, odd) ^ sign);
}

#endif

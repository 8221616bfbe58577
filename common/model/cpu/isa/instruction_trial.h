/* Numbers with which an instruction is tried before kernels rely on it: difficult operands (zeros, subnormals, the
 * largest, infinities, NaNs), or operands with an exponent near `around`. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_INSTRUCTION_TRIAL_H
#define LEASEHOLD_MODEL_CPU_ISA_INSTRUCTION_TRIAL_H

#include <stdint.h>

/* Nearest, flush to zero, subnormals are zero, no traps: as pool_enter's threads. */
enum { TRIAL_MXCSR = 0x9fc0 };

static inline uint32_t trial_operand(uint32_t *state, uint32_t around) {
  static const uint16_t special[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x8080, 0x7f7f,
                                     0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x3f80, 0xbf80};
  *state = *state * 1664525u + 1013904223u;
  const uint32_t r = *state >> 8;
  if (r % 16 == 0) return special[r / 16 % (sizeof special / sizeof special[0])];
  return (r & 0x807fu) | (around + (r >> 16) % 8) << 7;
}

#endif

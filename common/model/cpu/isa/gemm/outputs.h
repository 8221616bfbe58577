/* Prefetching of outputs. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_GEMM_OUTPUTS_H
#define LEASEHOLD_MODEL_CPU_ISA_GEMM_OUTPUTS_H

#include "common/model/cpu/isa/vec.h"

/* Asks for 32 outputs of each of `rows` rows, N apart.  With many rows no near cache holds them, and storing would
 * wait.  (Inline: gcc leaves out calls of a function that only prefetches.) */
INLINE void ask_outputs(const float *y, int N, int rows) {
  for (int r = 0; r < rows; r++, y += N) {
    _mm_prefetch((const char *)y, _MM_HINT_T0);
    _mm_prefetch((const char *)(y + 16), _MM_HINT_T0);
  }
}

#endif

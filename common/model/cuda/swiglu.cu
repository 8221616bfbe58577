/* Computes SwiGLU, forward and backward; NUMERICS.md to the bit. */
#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

static __global__ void swiglu_kernel(bf16 *h, const float *gate, const float *up, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) h[i] = operand((gate[i] * exact_sigmoid(gate[i])) * up[i]);
}

void cuda_swiglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n) {
  cuda_launch(cuda_of(o), "SwiGLU", swiglu_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, (bf16 *)h, gate, up,
              n);
}

static __global__ void swiglu_backward_kernel(bf16 *dgate, bf16 *dup, const float *dh, const float *gate,
                                              const float *up, const int32_t *row, int F) {
  const size_t to = (size_t)blockIdx.x * (size_t)F, from = row_of(row, blockIdx.x) * (size_t)F;
  for (size_t f = threadIdx.x; f < (size_t)F; f += blockDim.x) {
    const float d = dh[to + f], x = gate[from + f], s = exact_sigmoid(x);
    dup[to + f] = operand(d * (x * s));
    dgate[to + f] = operand((d * up[from + f]) * (s * (1.0f + x * (1.0f - s))));
  }
}

void cuda_swiglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                          const float *up, const int32_t *row, int T, int F) {
  cuda_launch(cuda_of(o), "SwiGLU's gradient", swiglu_backward_kernel, (unsigned)T, CUDA_THREADS, 0, (bf16 *)dgate,
              (bf16 *)dup, dh, gate, up, row, F);
}

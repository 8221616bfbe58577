/* Computes SwiGLU and GeGLU, forward and backward, and what is done to a residual element by element; NUMERICS.md to
 * the bit. */
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

/* s with gelu(x) = x s. */
DEVICE float gelu_share(float x) { return exact_sigmoid(1.59576912f * (x + 0.044715f * ((x * x) * x))); }

static __global__ void geglu_kernel(bf16 *h, const float *gate, const float *up, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) h[i] = operand((gate[i] * gelu_share(gate[i])) * up[i]);
}

void cuda_geglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n) {
  cuda_launch(cuda_of(o), "GeGLU", geglu_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, (bf16 *)h, gate, up, n);
}

static __global__ void geglu_backward_kernel(bf16 *dgate, bf16 *dup, const float *dh, const float *gate,
                                             const float *up, const int32_t *row, int F) {
  const size_t to = (size_t)blockIdx.x * (size_t)F, from = row_of(row, blockIdx.x) * (size_t)F;
  for (size_t f = threadIdx.x; f < (size_t)F; f += blockDim.x) {
    const float d = dh[to + f], x = gate[from + f], s = gelu_share(x);
    const float slope = 1.59576912f * (1.0f + (3.0f * 0.044715f) * (x * x));
    dup[to + f] = operand(d * (x * s));
    dgate[to + f] = operand((d * up[from + f]) * (s + ((x * s) * (1.0f - s)) * slope));
  }
}

void cuda_geglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                         const float *up, const int32_t *row, int T, int F) {
  cuda_launch(cuda_of(o), "GeGLU's gradient", geglu_backward_kernel, (unsigned)T, CUDA_THREADS, 0, (bf16 *)dgate,
              (bf16 *)dup, dh, gate, up, row, F);
}

static __global__ void scale_kernel(float *x, float factor, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) x[i] = x[i] * factor;
}

void cuda_scale(const struct ops *o, float *x, float factor, size_t n) {
  cuda_launch(cuda_of(o), "scaling", scale_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, x, factor, n);
}

static __global__ void add_operand_kernel(float *x, const bf16 *y, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) x[i] = x[i] + widen(y[i]);
}

void cuda_add_operand(const struct ops *o, float *x, const void *y, size_t n) {
  cuda_launch(cuda_of(o), "adding to the residual", add_operand_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0,
              x, (const bf16 *)y, n);
}

/* Computes the order-independent gradient sums, the global norm and AdamW; NUMERICS.md to the bit. */
#include <assert.h>

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum { SQUARES_BLOCK = 1 << 16, SQUARES_THREADS = 128 };

static __global__ void accumulate_kernel(int64_t *acc, const float *g, float *clear, size_t n, double scale, int *bad) {
  const double most = 1125899906842624.0; /* 2^50 */
  for (size_t i = grid_thread(); i < n; i += grid_threads()) {
    const double x = (double)g[i] * scale;
    if (fabs(x) <= most)
      acc[i] += (int64_t)rint(x);
    else
      *bad = 1; /* every writer writes 1, so the race is harmless */
    if (clear) clear[i] = 0.0f;
  }
}

static bool accumulate(const struct ops *o, int64_t *acc, const float *g, float *clear, size_t n, int scale_log2) {
  struct cuda_ops *c = cuda_of(o);
  int bad = 1;
  cuda_clear(o, c->scratch, sizeof bad);
  cuda_launch(c, "adding a gradient", accumulate_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, acc, g, clear,
              n, ldexp(1.0, scale_log2), (int *)c->scratch);
  cuda_download(o, &bad, c->scratch, sizeof bad);
  return bad == 0;
}

bool cuda_accumulate(const struct ops *o, int64_t *acc, const float *g, size_t n, int scale_log2) {
  return accumulate(o, acc, g, NULL, n, scale_log2);
}

bool cuda_accumulate_and_clear(const struct ops *o, int64_t *acc, float *g, size_t n, int scale_log2) {
  return accumulate(o, acc, g, g, n, scale_log2);
}

static __global__ void grad_from_accumulator_kernel(float *g, int64_t *acc, size_t n, double scale,
                                                    double denominator) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) {
    g[i] = (float)(((double)acc[i] * scale) / denominator);
    acc[i] = 0;
  }
}

void cuda_grad_from_accumulator(const struct ops *o, float *g, int64_t *acc, size_t n, int scale_log2,
                                double denominator) {
  cuda_launch(cuda_of(o), "a step's gradient", grad_from_accumulator_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS,
              0, g, acc, n, ldexp(1.0, -scale_log2), denominator);
}

/* sums[b]: SUM over block b of SQUARES_BLOCK elements, by half a warp. */
static __global__ void squares_kernel(double *sums, const float *g, size_t n) {
  const size_t block = grid_thread() / 16, first = block * SQUARES_BLOCK;
  const size_t end = first + SQUARES_BLOCK < n ? first + SQUARES_BLOCK : n;
  double lane = 0.0;
  for (size_t i = first + threadIdx.x % 16; i < end; i += 16) lane = lane + (double)g[i] * (double)g[i];
  lane = tree_of_lanes(lane);
  if (threadIdx.x % 16 == 0 && first < n) sums[block] = lane;
}

static __global__ void add_squares_kernel(double *total, const double *sums, size_t blocks) {
  double sum = 0.0;
  for (size_t b = 0; b < blocks; b++) sum = sum + sums[b];
  *total = sum;
}

double cuda_sum_of_squares(const struct ops *o, const float *g, size_t n) {
  struct cuda_ops *c = cuda_of(o);
  const size_t blocks = (n + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
  double *total = (double *)c->scratch, *sums = total + 1, result = 0;
  assert((blocks + 1) * sizeof *sums <= CUDA_SCRATCH_BYTES);
  cuda_launch(c, "the gradient's norm", squares_kernel,
              (unsigned)((blocks * 16 + SQUARES_THREADS - 1) / SQUARES_THREADS), SQUARES_THREADS, 0, sums, g, n);
  cuda_launch(c, "the gradient's norm", add_squares_kernel, 1, 1, 0, total, sums, blocks);
  cuda_download(o, &result, total, sizeof result);
  return result;
}

/* The scalars of a step, each rounded once. */
struct adamw_scalars {
  float decay, rate, root, beta1, r1, beta2, r2, eps, grad_scale;
};

static __global__ void adamw_kernel(float *master, float *m, float *v, const float *g, struct adamw_scalars s,
                                    size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) {
    const float x = g[i] * s.grad_scale, decayed = master[i] - master[i] * s.decay;
    m[i] = m[i] * s.beta1 + x * s.r1;
    v[i] = v[i] * s.beta2 + (x * x) * s.r2;
    master[i] = decayed - s.rate * (m[i] / (sqrtf(v[i]) / s.root + s.eps));
  }
}

void cuda_adamw(const struct ops *o, float *master, float *m, float *v, const float *g, const struct adamw *step,
                size_t n) {
  struct adamw_scalars s;
  s.decay = step->lr * step->weight_decay;
  s.rate = step->lr / step->bias1;
  s.root = sqrtf(step->bias2);
  s.beta1 = step->beta1;
  s.r1 = 1.0f - step->beta1;
  s.beta2 = step->beta2;
  s.r2 = 1.0f - step->beta2;
  s.eps = step->eps;
  s.grad_scale = step->grad_scale;
  cuda_launch(cuda_of(o), "the optimizer's step", adamw_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, master,
              m, v, g, s, n);
}

/* In the place of gemm_vendor.cu: what cuBLASLt's kernels are to EXACTNESS_FASTEST, an order of sums that depends on
 * the number of rows, so that sampler and trainer differ by roundings over the emulated device too.
 *
 * A sum is cut into as many parts as few rows leave idle, as a library does that splits along the depth; the parts are
 * added at the end.  As with the library, some shapes have no kernel and are gemm.cu's. */
#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum { FEW_ROWS = 8, SOME_ROWS = 64, GRID_BLOCKS = 8 };

static int parts_for(int rows) { return rows <= FEW_ROWS ? 8 : rows <= SOME_ROWS ? 3 : 1; }

/* Rows that are no multiple of 16 bytes. */
static bool has_kernel(int row_operands) { return row_operands % 8 == 0; }

enum rc vendor_open(struct cuda_ops *, struct err *) { return RC_OK; } /* it keeps nothing */
void vendor_close(struct vendor *) {}

/* out[r][c] (+)= sum over i < depth of a[r * a_row + i * a_step] b[c * b_row + i * b_step]. */
struct product {
  float *out;
  const bf16 *a, *b;
  int rows, columns, depth, parts;
  size_t a_row, a_step, b_row, b_step;
  bool accumulate;
};

static __global__ void product_kernel(product p) {
  for (size_t at = grid_thread(); at < (size_t)p.rows * (size_t)p.columns; at += grid_threads()) {
    const bf16 *a = p.a + at / (size_t)p.columns * p.a_row, *b = p.b + at % (size_t)p.columns * p.b_row;
    float sum = 0;
    for (int part = 0; part < p.parts; part++) {
      float partial = 0;
      for (int i = part; i < p.depth; i += p.parts)
        partial += widen(a[(size_t)i * p.a_step]) * widen(b[(size_t)i * p.b_step]);
      sum += partial;
    }
    p.out[at] = p.accumulate ? p.out[at] + sum : sum;
  }
}

static void multiply(struct cuda_ops *c, const product &p) {
  cuda_launch(c, "the emulated vendor's product", product_kernel, GRID_BLOCKS, CUDA_THREADS, 0, p);
}

bool vendor_gemm(struct cuda_ops *c, float *y, const void *x, const struct matrix *W, int T, bool accumulate) {
  const size_t K = (size_t)W->K;
  if (!has_kernel(W->K)) return false;
  multiply(c, {y, (const bf16 *)x, (const bf16 *)W->data, T, W->N, W->K, parts_for(T), K, 1, K, 1, accumulate});
  return true;
}

bool vendor_gemm_weight_backward(struct cuda_ops *c, float *dW, const void *dy, const void *x, int T, int N, int K) {
  if (!has_kernel(N) || !has_kernel(K)) return false;
  multiply(c, {dW, (const bf16 *)dy, (const bf16 *)x, N, K, T, parts_for(T), 1, (size_t)N, 1, (size_t)K, true});
  return true;
}

/* Computes RMS norms of a row, and of a head with its rotation, and biases, forward and backward.  NUMERICS.md to the
 * bit except for dw and db, whose sums over rows run in LANES lanes and a fixed tree, whatever T is. */
#include <assert.h>

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum {
  ROW_THREADS = 128,
  HEAD_WARPS = 4,  /* of a block, a head each */
  SEGMENTS = 64,   /* of the rows that a column is summed over */
  SEGMENT_ROWS = 8 /* rows that a segment takes at once; SEGMENTS * SEGMENT_ROWS are the lanes */
};

DEVICE float rstd_of(float sum, int n, float eps) { return 1.0f / sqrtf(sum / (float)n + eps); }

/* What a norm multiplies by. */
DEVICE float factor_of(const bf16 *w, size_t at, bool plus_one) {
  return plus_one ? 1.0f + widen(w[at]) : widen(w[at]);
}

/* --- rows --- */

/* SUM over the block's terms [n] in shared memory, which are complete after the barrier; all threads get it. */
DEVICE float block_sum(const float *terms, int n) {
  __shared__ float result;
  __syncthreads();
  if (threadIdx.x < WARP) {
    const float sum = sum_of_terms(terms, n);
    if (threadIdx.x == 0) result = sum;
  }
  __syncthreads();
  return result;
}

static __global__ void rmsnorm_kernel(bf16 *y, float *rstds, const float *x, const bf16 *w, bool plus_one,
                                      float eps, int D) {
  float *terms = (float *)shared_memory(); /* [D] */
  const size_t at = (size_t)blockIdx.x * (size_t)D;
  for (int d = (int)threadIdx.x; d < D; d += ROW_THREADS) terms[d] = x[at + (size_t)d] * x[at + (size_t)d];
  const float rstd = rstd_of(block_sum(terms, D), D, eps);
  for (int d = (int)threadIdx.x; d < D; d += ROW_THREADS)
    y[at + (size_t)d] = operand((x[at + (size_t)d] * rstd) * factor_of(w, (size_t)d, plus_one));
  if (rstds && threadIdx.x == 0) rstds[blockIdx.x] = rstd;
}

void cuda_rmsnorm(const struct ops *o, void *y, float *rstd, const float *x, const void *w, bool plus_one, float eps,
                  int T, int D) {
  cuda_launch(cuda_of(o), "RMS norm", rmsnorm_kernel, (unsigned)T, ROW_THREADS, (size_t)D * sizeof(float), (bf16 *)y,
              rstd, x, (const bf16 *)w, plus_one, eps, D);
}

static __global__ void rmsnorm_backward_kernel(float *dx, const float *dy, const float *x, const bf16 *w,
                                               bool plus_one, const float *rstds, const int32_t *row, int D) {
  float *terms = (float *)shared_memory(); /* [D] */
  const size_t saved = row_of(row, blockIdx.x), at = (size_t)blockIdx.x * (size_t)D, from = saved * (size_t)D;
  const float rstd = rstds[saved];
  for (int d = (int)threadIdx.x; d < D; d += ROW_THREADS)
    terms[d] = (dy[at + (size_t)d] * factor_of(w, (size_t)d, plus_one)) * x[from + (size_t)d];
  const float share = (((block_sum(terms, D) * rstd) * rstd) / (float)D) * rstd;
  for (int d = (int)threadIdx.x; d < D; d += ROW_THREADS) {
    const float g = dy[at + (size_t)d] * factor_of(w, (size_t)d, plus_one);
    dx[at + (size_t)d] = dx[at + (size_t)d] + (g * rstd - x[from + (size_t)d] * share);
  }
}

/* --- sums over rows, of columns --- */

/* Row r's term in column d of a norm's dw. */
struct row_terms {
  const float *dy, *x, *rstd;
  const int32_t *row;
  int D;
  DEVICE_MEMBER float at(size_t r, int d) const {
    const size_t saved = row_of(row, r);
    return (dy[r * (size_t)D + (size_t)d] * x[saved * (size_t)D + (size_t)d]) * rstd[saved];
  }
};

/* Gradients of a rotated head before the rotation, at pair (e, e + E/2). */
DEVICE void unrotate(float *da, float *db, const float *dy, const float *angle, int e, int E) {
  const float d1 = dy[e], d2 = dy[e + E / 2], c = angle[2 * e], s = angle[2 * e + 1];
  *da = d1 * c + d2 * s;
  *db = d2 * c - d1 * s;
}

/* The same of a head's norm: rows are (t, h). */
struct head_terms {
  const float *dy, *x, *rstd, *rope;
  const int32_t *position, *row;
  int H, E;
  DEVICE_MEMBER float at(size_t r, int d) const {
    const size_t t = r / (size_t)H, saved = row_of(row, t) * (size_t)H + r % (size_t)H;
    float da, db;
    unrotate(&da, &db, dy + r * (size_t)E, rope + (size_t)position[t] * (size_t)E, d % (E / 2), E);
    return ((d < E / 2 ? da : db) * x[saved * (size_t)E + (size_t)d]) * rstd[saved];
  }
};

/* partial [SEGMENTS,columns]; a block: WARP columns x SEGMENT_ROWS rows of one segment. */
template <typename terms>
static __global__ void column_partials_kernel(float *partial, terms of, size_t rows, int columns) {
  __shared__ float lanes[SEGMENT_ROWS][WARP];
  const int x = (int)threadIdx.x, y = (int)threadIdx.y, column = (int)blockIdx.x * WARP + x;
  float lane = 0.0f;
  for (size_t r = blockIdx.y * SEGMENT_ROWS + threadIdx.y; r < rows && column < columns; r += SEGMENTS * SEGMENT_ROWS)
    lane = lane + of.at(r, column);
  lanes[y][x] = lane;
  for (int width = SEGMENT_ROWS / 2; width >= 1; width /= 2) {
    __syncthreads();
    if (y < width) lanes[y][x] = lanes[y][x] + lanes[y + width][x];
  }
  if (y == 0 && column < columns) partial[(size_t)blockIdx.y * (size_t)columns + (size_t)column] = lanes[0][x];
}

static __global__ void add_partials_kernel(float *dw, const float *partial, int columns) {
  const size_t column = grid_thread();
  if (column >= (size_t)columns) return;
  float sum = 0.0f;
  for (int s = 0; s < SEGMENTS; s++) sum = sum + partial[(size_t)s * (size_t)columns + column];
  dw[column] = dw[column] + sum;
}

template <typename terms>
static void add_columns(struct cuda_ops *c, float *dw, const terms &of, size_t rows, int columns) {
  float *partial = (float *)c->scratch;
  assert((size_t)columns * SEGMENTS * sizeof *partial <= CUDA_SCRATCH_BYTES);
  cuda_launch(c, "a vector's gradient", column_partials_kernel<terms>,
              dim3((unsigned)((columns + WARP - 1) / WARP), SEGMENTS), dim3(WARP, SEGMENT_ROWS), 0, partial, of, rows,
              columns);
  cuda_launch(c, "a vector's gradient", add_partials_kernel, (unsigned)((columns + CUDA_THREADS - 1) / CUDA_THREADS),
              CUDA_THREADS, 0, dw, partial, columns);
}

void cuda_rmsnorm_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x, const void *w,
                           bool plus_one, const float *rstd, const int32_t *row, int T, int D) {
  const struct row_terms terms = {dy, x, rstd, row, D};
  cuda_launch(cuda_of(o), "RMS norm's gradient", rmsnorm_backward_kernel, (unsigned)T, ROW_THREADS,
              (size_t)D * sizeof(float), dx, dy, x, (const bf16 *)w, plus_one, rstd, row, D);
  add_columns(cuda_of(o), dw, terms, (size_t)T, D);
}

/* --- biases --- */

static __global__ void add_bias_kernel(float *y, const bf16 *b, size_t n, int N) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) y[i] = y[i] + widen(b[i % (size_t)N]);
}

void cuda_add_bias(const struct ops *o, float *y, const void *b, int T, int N) {
  const size_t n = (size_t)T * (size_t)N;
  cuda_launch(cuda_of(o), "adding a bias", add_bias_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, y,
              (const bf16 *)b, n, N);
}

struct bias_terms {
  const bf16 *dy;
  int N;
  DEVICE_MEMBER float at(size_t r, int n) const { return widen(dy[r * (size_t)N + (size_t)n]); }
};

void cuda_add_bias_backward(const struct ops *o, float *db, const void *dy, int T, int N) {
  const struct bias_terms terms = {(const bf16 *)dy, N};
  add_columns(cuda_of(o), db, terms, (size_t)T, N);
}

/* --- heads --- */

/* The warp's head, as t * H + h; a block has HEAD_WARPS of them. */
DEVICE size_t warp_head(void) { return (size_t)blockIdx.x * HEAD_WARPS + threadIdx.x / WARP; }

static __global__ void head_norm_rope_kernel(bf16 *out, float *rstds, const float *x, const bf16 *w, bool plus_one,
                                             float eps, const float *rope, const int32_t *position, size_t heads, int H,
                                             int E) {
  __shared__ float terms[HEAD_WARPS][CUDA_HEAD_DIM_MAX];
  float *term = terms[threadIdx.x / WARP];
  const size_t head = warp_head();
  const int l = (int)threadIdx.x % WARP;
  if (head >= heads) return;
  const float *from = x + head * (size_t)E, *angle = rope + (size_t)position[head / (size_t)H] * (size_t)E;
  float rstd = 1.0f;
  if (w) {
    for (int e = l; e < E; e += WARP) term[e] = from[e] * from[e];
    __syncwarp();
    rstd = rstd_of(sum_of_terms(term, E), E, eps);
  }
  for (int e = l; e < E / 2; e += WARP) {
    const float a = w ? (from[e] * rstd) * factor_of(w, (size_t)e, plus_one) : from[e];
    const float b = w ? (from[e + E / 2] * rstd) * factor_of(w, (size_t)(e + E / 2), plus_one) : from[e + E / 2];
    const float c = angle[2 * e], s = angle[2 * e + 1];
    out[head * (size_t)E + (size_t)e] = operand(a * c - b * s);
    out[head * (size_t)E + (size_t)(e + E / 2)] = operand(b * c + a * s);
  }
  if (w && rstds && l == 0) rstds[head] = rstd;
}

void cuda_head_norm_rope(const struct ops *o, void *out, float *rstd, const float *x, const void *w, bool plus_one,
                         float eps, const float *rope, const int32_t *position, int T, int H, int E) {
  const size_t heads = (size_t)T * (size_t)H;
  assert(E % 2 == 0 && E <= CUDA_HEAD_DIM_MAX);
  cuda_launch(cuda_of(o), "the heads' norm and rotation", head_norm_rope_kernel,
              (unsigned)((heads + HEAD_WARPS - 1) / HEAD_WARPS), HEAD_WARPS * WARP, 0, (bf16 *)out, rstd, x,
              (const bf16 *)w, plus_one, eps, rope, position, heads, H, E);
}

static __global__ void head_norm_rope_backward_kernel(float *dx, const float *dy, const float *x, const bf16 *w,
                                                      bool plus_one, const float *rstds, const float *rope,
                                                      const int32_t *position, const int32_t *row, size_t heads, int H,
                                                      int E) {
  __shared__ float terms[HEAD_WARPS][CUDA_HEAD_DIM_MAX];
  float *term = terms[threadIdx.x / WARP];
  const size_t head = warp_head();
  const int l = (int)threadIdx.x % WARP;
  if (head >= heads) return;
  const size_t t = head / (size_t)H, saved = row_of(row, t) * (size_t)H + head % (size_t)H;
  const float *d = dy + head * (size_t)E, *angle = rope + (size_t)position[t] * (size_t)E;
  const float *from = x + saved * (size_t)E;
  float *to = dx + head * (size_t)E, rstd = 0.0f, share = 0.0f;
  if (w) {
    rstd = rstds[saved];
    for (int e = l; e < E / 2; e += WARP) {
      float da, db;
      unrotate(&da, &db, d, angle, e, E);
      term[e] = (da * factor_of(w, (size_t)e, plus_one)) * from[e];
      term[e + E / 2] = (db * factor_of(w, (size_t)(e + E / 2), plus_one)) * from[e + E / 2];
    }
    __syncwarp();
    share = (((sum_of_terms(term, E) * rstd) * rstd) / (float)E) * rstd;
  }
  for (int e = l; e < E / 2; e += WARP) {
    float da, db;
    unrotate(&da, &db, d, angle, e, E);
    to[e] = w ? (da * factor_of(w, (size_t)e, plus_one)) * rstd - from[e] * share : da;
    to[e + E / 2] = w ? (db * factor_of(w, (size_t)(e + E / 2), plus_one)) * rstd - from[e + E / 2] * share : db;
  }
}

void cuda_head_norm_rope_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x,
                                  const void *w, bool plus_one, const float *rstd, const float *rope,
                                  const int32_t *position, const int32_t *row, int T, int H, int E) {
  const size_t heads = (size_t)T * (size_t)H;
  const struct head_terms terms = {dy, x, rstd, rope, position, row, H, E};
  assert(E % 2 == 0 && E <= CUDA_HEAD_DIM_MAX);
  cuda_launch(cuda_of(o), "the heads' gradient", head_norm_rope_backward_kernel,
              (unsigned)((heads + HEAD_WARPS - 1) / HEAD_WARPS), HEAD_WARPS * WARP, 0, dx, dy, x, (const bf16 *)w,
              plus_one, rstd, rope, position, row, heads, H, E);
  if (w && dw) add_columns(cuda_of(o), dw, terms, heads, E);
}

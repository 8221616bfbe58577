/* Multiplies matrices on the tensor cores, in an order that does not depend on the other rows.
 *
 * gemm: y[t][n] = W[n] . x[t].  W's rows are the mma's 16 rows, tokens its 8 columns.  An output is one chain of
 * mma.m16n8k16 along K from zero, in blocks of 32 of K: lane i of a quad takes elements 8i .. 8i + 7 of the block, four
 * for the first product and four for the second, so that every lane reads 16 bytes at once and all tile shapes have the
 * same chain.  The hardware makes an output's bits independent of its place in a tile; check.sh tests this for every
 * number of rows.  No split along K.
 *
 * gemm_weight_backward: dW[n][k] += dy[.][n] . x[.][k] along the rows of the call, one chain from zero, then one
 * addition. `place` has no meaning here: rows stand one behind another.
 *
 * Tiles go through shared memory in stages that are filled while others are used.  Letters as in ops.h; a chunk is 8
 * operands, 16 bytes. */
#include <assert.h>

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum {
  CHUNK_BYTES = 16,
  STEP = 64, /* of K at once: 8 chunks of a row */
  STEP_CHUNKS = STEP / 8,
  ROW_BYTES = STEP_CHUNKS * CHUNK_BYTES
};

/* A block's tile: WARPS_N x WARPS_T warps, each with N16 times 16 of N and T8 times 8 tokens; STAGES tiles on the
 * way. */
template <int warps_n, int warps_t, int n16, int t8, int stages>
struct tile {
  static const int WARPS_N = warps_n, WARPS_T = warps_t, N16 = n16, T8 = t8, STAGES = stages;
  static const int N = warps_n * n16 * 16, T = warps_t * t8 * 8, THREADS = warps_n * warps_t * WARP;
  static const int STAGE_BYTES = (N + T) * ROW_BYTES;
};
typedef tile<1, 2, 1, 1, 8> tile_few;  /* 16 of N x 16 tokens */
typedef tile<2, 2, 1, 4, 4> tile_some; /* 32 x 64 */
typedef tile<2, 4, 4, 4, 3> tile_many; /* 128 x 128 */

/* Where chunk c of a tile's row lies: rows r and r + 1 in different halves of the banks. */
DEVICE unsigned char *chunk_at(unsigned char *tile_rows, int r, int c) {
  return tile_rows + r * ROW_BYTES + (c ^ (r & 1) << 2) * CHUNK_BYTES;
}

/* `rows` rows from row `first` of a [count,K] array, elements k0 .. k0 + STEP - 1. */
template <int rows, int threads>
DEVICE void fill_rows(unsigned char *tile_rows, const bf16 *array, int first, int count, int K, int k0) {
  for (int i = (int)threadIdx.x; i < rows * STEP_CHUNKS; i += threads) {
    const int r = i / STEP_CHUNKS, c = i % STEP_CHUNKS;
    const bool there = first + r < count;
    fill_chunk(chunk_at(tile_rows, r, c), array + (size_t)(there ? first + r : 0) * (size_t)K, k0 / 8 + c, K, there);
  }
}

template <class shape>
DEVICE void fill_stage(unsigned char *shared, int step, const bf16 *W, const bf16 *x, int n0, int t0, int N, int T,
                       int K) {
  unsigned char *stage = shared + step % shape::STAGES * shape::STAGE_BYTES;
  if (step * STEP < K) {
    fill_rows<shape::N, shape::THREADS>(stage, W, n0, N, K, step * STEP);
    fill_rows<shape::T, shape::THREADS>(stage + shape::N * ROW_BYTES, x, t0, T, K, step * STEP);
  }
  cp_async_commit(); /* an empty group when nothing is left, so that the number of groups tells which stages are
                      * there */
}

/* The products of one stage; n, t: the warp's first row of each tile. */
template <class shape>
DEVICE void multiply_stage(float sum[shape::N16][shape::T8][4], unsigned char *stage, int n, int t) {
  const int g = (int)threadIdx.x % WARP / 4, i = (int)threadIdx.x % 4;
  for (int c = i; c < STEP_CHUNKS; c += 4) {
    uint4 low[shape::N16], high[shape::N16], tokens[shape::T8];
#pragma unroll
    for (int a = 0; a < shape::N16; a++) {
      low[a] = *(const uint4 *)chunk_at(stage, n + a * 16 + g, c);
      high[a] = *(const uint4 *)chunk_at(stage, n + a * 16 + g + 8, c);
    }
#pragma unroll
    for (int b = 0; b < shape::T8; b++)
      tokens[b] = *(const uint4 *)chunk_at(stage + shape::N * ROW_BYTES, t + b * 8 + g, c);
#pragma unroll
    for (int a = 0; a < shape::N16; a++)
#pragma unroll
      for (int b = 0; b < shape::T8; b++) {
        const uint32_t a0[4] = {low[a].x, high[a].x, low[a].y, high[a].y}, b0[2] = {tokens[b].x, tokens[b].y};
        const uint32_t a1[4] = {low[a].z, high[a].z, low[a].w, high[a].w}, b1[2] = {tokens[b].z, tokens[b].w};
        mma_16816(sum[a][b], a0, b0);
        mma_16816(sum[a][b], a1, b1);
      }
  }
}

/* grid: tiles of tokens along x when tokens_first, else tiles of N. */
template <class shape>
static __global__ void gemm_kernel(float *y, const bf16 *x, const bf16 *W, int T, int N, int K, bool accumulate,
                                   bool tokens_first) {
  unsigned char *shared = shared_memory();
  const int n0 = (int)(tokens_first ? blockIdx.y : blockIdx.x) * shape::N;
  const int t0 = (int)(tokens_first ? blockIdx.x : blockIdx.y) * shape::T;
  const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4, i = (int)threadIdx.x % 4;
  const int n = warp % shape::WARPS_N * shape::N16 * 16, t = warp / shape::WARPS_N * shape::T8 * 8;
  const int steps = (K + STEP - 1) / STEP;
  float sum[shape::N16][shape::T8][4] = {};
  for (int s = 0; s < shape::STAGES - 1; s++) fill_stage<shape>(shared, s, W, x, n0, t0, N, T, K);
  for (int s = 0; s < steps; s++) {
    cp_async_wait<shape::STAGES - 2>();
    __syncthreads(); /* stage s is there for all, and stage s - 1 is free */
    fill_stage<shape>(shared, s + shape::STAGES - 1, W, x, n0, t0, N, T, K);
    multiply_stage<shape>(sum, shared + s % shape::STAGES * shape::STAGE_BYTES, n, t);
  }
  cp_async_wait<0>();
#pragma unroll
  for (int a = 0; a < shape::N16; a++)
#pragma unroll
    for (int b = 0; b < shape::T8; b++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = n0 + n + a * 16 + g + e / 2 * 8, token = t0 + t + b * 8 + 2 * i + e % 2;
        if (row >= N || token >= T) continue;
        float *at = y + (size_t)token * (size_t)N + (size_t)row;
        *at = accumulate ? *at + sum[a][b][e] : sum[a][b][e];
      }
}

template <class shape>
static void run_gemm(struct cuda_ops *c, float *y, const void *x, const struct matrix *W, int T, bool accumulate) {
  const unsigned n_tiles = (unsigned)((W->N + shape::N - 1) / shape::N),
                 t_tiles = (unsigned)((T + shape::T - 1) / shape::T);
  const bool tokens_first = t_tiles <= n_tiles; /* neighbouring blocks read the smaller operand from the cache */
  cuda_launch(c, "multiplying matrices", gemm_kernel<shape>,
              tokens_first ? dim3(t_tiles, n_tiles) : dim3(n_tiles, t_tiles), shape::THREADS,
              (size_t)shape::STAGES * shape::STAGE_BYTES, y, (const bf16 *)x, (const bf16 *)W->data, T, W->N, W->K,
              accumulate, tokens_first);
}

void cuda_gemm(const struct ops *o, float *y, const void *x, const struct matrix *W, int T, bool accumulate) {
  struct cuda_ops *c = cuda_of(o);
  if (T <= 0) return;
  if (c->exactness == EXACTNESS_FASTEST && vendor_gemm(c, y, x, W, T, accumulate)) return;
  if (T <= tile_few::T)
    run_gemm<tile_few>(c, y, x, W, T, accumulate);
  else if (T <= tile_some::T)
    run_gemm<tile_some>(c, y, x, W, T, accumulate);
  else
    run_gemm<tile_many>(c, y, x, W, T, accumulate);
}

/* --- the weights' gradient --- */

enum {
  SIDE = 128, /* of a block's square of dW */
  SIDE_CHUNKS = SIDE / 8,
  SIDE_BYTES = SIDE_CHUNKS * CHUNK_BYTES,
  ROWS = 32, /* of the call at once */
  SIDE_STAGES = 3,
  SIDE_STAGE_BYTES = 2 * ROWS * SIDE_BYTES,
  SIDE_THREADS = 256, /* 2 x 4 warps: each 64 of N x 32 of K */
  SIDE_N16 = 4,
  SIDE_K8 = 4
};

/* As the rows of 8 x 8 matrices are read: eight rows' equal chunks in different banks. */
DEVICE unsigned char *side_chunk_at(unsigned char *rows, int r, int c) {
  return rows + r * SIDE_BYTES + (c ^ (r & 7)) * CHUNK_BYTES;
}

/* Rows first .. first + ROWS - 1 of the call, columns from column0 on of a [.,width] array. */
DEVICE void fill_side(unsigned char *rows, const bf16 *array, const int32_t *row, int first, int T, int column0,
                      int width) {
  for (int i = (int)threadIdx.x; i < ROWS * SIDE_CHUNKS; i += SIDE_THREADS) {
    const int r = i / SIDE_CHUNKS, c = i % SIDE_CHUNKS;
    const bool there = first + r < T;
    const size_t source = there ? row_of(row, (size_t)(first + r)) : 0;
    fill_chunk(side_chunk_at(rows, r, c), array + source * (size_t)width, column0 / 8 + c, width, there);
  }
}

static __global__ void weight_backward_kernel(float *dW, const bf16 *dy, const bf16 *x, const int32_t *row, int T,
                                              int N, int K) {
  unsigned char *shared = shared_memory();
  const int n0 = (int)blockIdx.x * SIDE, k0 = (int)blockIdx.y * SIDE;
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, i = lane % 4;
  const int n = warp % 2 * SIDE_N16 * 16, k = warp / 2 * SIDE_K8 * 8, steps = (T + ROWS - 1) / ROWS;
  float sum[SIDE_N16][SIDE_K8][4] = {};
  for (int s = 0; s < steps + SIDE_STAGES - 1; s++) {
    if (s >= SIDE_STAGES - 1) {
      cp_async_wait<SIDE_STAGES - 2>();
      __syncthreads();
    }
    if (s < steps) {
      unsigned char *stage = shared + s % SIDE_STAGES * SIDE_STAGE_BYTES;
      fill_side(stage, dy, NULL, s * ROWS, T, n0, N);
      fill_side(stage + ROWS * SIDE_BYTES, x, row, s * ROWS, T, k0, K);
    }
    cp_async_commit();
    if (s < SIDE_STAGES - 1) continue;
    unsigned char *left = shared + (s - SIDE_STAGES + 1) % SIDE_STAGES * SIDE_STAGE_BYTES,
                  *right = left + ROWS * SIDE_BYTES;
#pragma unroll
    for (int r = 0; r < ROWS; r += 16) {
      uint32_t a[SIDE_N16][4], b[SIDE_K8 / 2][4];
#pragma unroll
      for (int m = 0; m < SIDE_N16; m++)
        ldmatrix_x4_trans(a[m], side_chunk_at(left, r + lane % 8 + lane / 16 * 8, (n + m * 16) / 8 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < SIDE_K8 / 2; m++)
        ldmatrix_x4_trans(b[m], side_chunk_at(right, r + lane % 16, (k + m * 16) / 8 + lane / 16));
#pragma unroll
      for (int m = 0; m < SIDE_N16; m++)
#pragma unroll
        for (int q = 0; q < SIDE_K8; q++) mma_16816(sum[m][q], a[m], b[q / 2] + q % 2 * 2);
    }
  }
#pragma unroll
  for (int m = 0; m < SIDE_N16; m++)
#pragma unroll
    for (int q = 0; q < SIDE_K8; q++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at_n = n0 + n + m * 16 + g + e / 2 * 8, at_k = k0 + k + q * 8 + 2 * i + e % 2;
        if (at_n >= N || at_k >= K) continue;
        float *at = dW + (size_t)at_n * (size_t)K + (size_t)at_k;
        *at = *at + sum[m][q][e];
      }
}

void cuda_gemm_weight_backward(const struct ops *o, float *dW, const void *dy, const void *x, const int32_t *row,
                               const int32_t *place, int T, int N, int K) {
  struct cuda_ops *c = cuda_of(o);
  (void)place;
  if (T <= 0) return;
  if (c->exactness == EXACTNESS_FASTEST && !row && vendor_gemm_weight_backward(c, dW, dy, x, T, N, K)) return;
  cuda_launch(c, "the weights' gradient", weight_backward_kernel,
              dim3((unsigned)((N + SIDE - 1) / SIDE), (unsigned)((K + SIDE - 1) / SIDE)), SIDE_THREADS,
              (size_t)SIDE_STAGES * SIDE_STAGE_BYTES, dW, (const bf16 *)dy, (const bf16 *)x, row, T, N, K);
}

/* Parts that attention and its backward share: tiles of keys, values, queries or gradients in shared memory,
 * [rows][dim] bf16, dim a multiple of 32 (E padded with zeros), read in two ways:
 *
 *   row_chunk     lane i of a quad reads chunk 4b + i of row g: 8 of the 32 elements of block b, as gemm.cu does, for
 *                 products along dim
 *   ldmatrix      8 x 8 transposed, for products along the rows
 *
 * A chunk is 8 operands, 16 bytes. */
#ifndef LEASEHOLD_MODEL_CUDA_ATTENTION_TILES_H
#define LEASEHOLD_MODEL_CUDA_ATTENTION_TILES_H

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum { CHUNK_BYTES = 16 };

/* Where chunk c of row r lies: eight rows' equal chunks apart in the banks, as far as dim has chunks for it. */
template <int dim>
DEVICE unsigned char *tile_chunk(unsigned char *tile, int r, int c) {
  const int mask = dim / 8 < 8 ? dim / 8 - 1 : 7;
  return tile + (size_t)r * dim * sizeof(bf16) + (c ^ (r & mask)) * CHUNK_BYTES;
}

DEVICE int lane_row(void) { return (int)threadIdx.x % WARP / 4; } /* g */
DEVICE int lane_column(void) { return (int)threadIdx.x % 4; }     /* i */

/* The a-fragments of 16 rows from `row` on, of 32 elements of dim: two products. */
template <int dim>
DEVICE void rows_of_a(uint32_t first[4], uint32_t second[4], unsigned char *tile, int row, int block) {
  const int c = block * 4 + lane_column();
  const uint4 low = *(const uint4 *)tile_chunk<dim>(tile, row + lane_row(), c);
  const uint4 high = *(const uint4 *)tile_chunk<dim>(tile, row + lane_row() + 8, c);
  first[0] = low.x, first[1] = high.x, first[2] = low.y, first[3] = high.y;
  second[0] = low.z, second[1] = high.z, second[2] = low.w, second[3] = high.w;
}

/* sums[n8][4] += (16 rows of a tile from a_row on) . (n8 * 8 rows of another from 0 on), along dim. */
template <int dim, int n8>
DEVICE void multiply_rows(float (*sums)[4], unsigned char *a_tile, int a_row, unsigned char *b_tile) {
#pragma unroll
  for (int block = 0; block < dim / 32; block++) {
    uint32_t first[4], second[4];
    rows_of_a<dim>(first, second, a_tile, a_row, block);
#pragma unroll
    for (int n = 0; n < n8; n++) {
      const uint4 b = *(const uint4 *)tile_chunk<dim>(b_tile, n * 8 + lane_row(), block * 4 + lane_column());
      const uint32_t b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
      mma_16816(sums[n], first, b0);
      mma_16816(sums[n], second, b1);
    }
  }
}

/* sums[dim/8][4] += p (16 x n8 * 8, as the sums of multiply_rows lie, rounded) . tile (n8 * 8 rows x dim), along the
 * rows. */
template <int dim, int n8>
DEVICE void multiply_columns(float (*sums)[4], float (*p)[4], unsigned char *tile) {
  const int lane = (int)threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < n8 / 2; k++) {
    const uint32_t a[4] = {bf16_pair(p[2 * k][0], p[2 * k][1]), bf16_pair(p[2 * k][2], p[2 * k][3]),
                           bf16_pair(p[2 * k + 1][0], p[2 * k + 1][1]), bf16_pair(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < dim / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, tile_chunk<dim>(tile, k * 16 + lane % 16, n + lane / 16));
      mma_16816(sums[n], a, b);
      mma_16816(sums[n + 1], a, b + 2);
    }
  }
}

/* The sum of a row's values over its quad of lanes, and the largest. */
DEVICE float quad_sum(float x) {
  x = x + __shfl_xor_sync(ALL_LANES, x, 1);
  return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
DEVICE float quad_max(float x) {
  float other = __shfl_xor_sync(ALL_LANES, x, 1);
  x = x > other ? x : other;
  other = __shfl_xor_sync(ALL_LANES, x, 2);
  return x > other ? x : other;
}

/* Calls f with the least padded head dimension; false when E is above all. */
template <typename function>
static bool with_head_dim(int E, const function &f) {
  if (E <= 32)
    f.template run<32>();
  else if (E <= 64)
    f.template run<64>();
  else if (E <= CUDA_HEAD_DIM_MAX)
    f.template run<CUDA_HEAD_DIM_MAX>();
  else
    return false;
  return true;
}

#endif

/* Moves and converts matrices (row-major bf16 here), rows, embeddings, keys and values.  Letters as in ops.h. */
#include <assert.h>

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

/* --- operands --- */

static __global__ void to_operand_kernel(bf16 *out, const float *in, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) out[i] = operand(in[i]);
}

static __global__ void from_operand_kernel(float *out, const bf16 *in, size_t n) {
  for (size_t i = grid_thread(); i < n; i += grid_threads()) out[i] = widen(in[i]);
}

void cuda_to_operand(const struct ops *o, void *out, const float *in, size_t n) {
  cuda_launch(cuda_of(o), "rounding", to_operand_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, (bf16 *)out, in,
              n);
}

void cuda_from_operand(const struct ops *o, float *out, const void *in, size_t n) {
  cuda_launch(cuda_of(o), "widening", from_operand_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0, out,
              (const bf16 *)in, n);
}

/* The largest bits of |x|, which order as the numbers do; NaNs come last.  An integer maximum has no order. */
static __global__ void largest_kernel(uint32_t *largest, const bf16 *x, size_t n) {
  uint32_t most = 0;
  for (size_t i = grid_thread(); i < n; i += grid_threads()) {
    const uint32_t bits = (uint32_t)(x[i] & 0x7fff) << 16;
    most = bits > most ? bits : most;
  }
  for (int width = WARP / 2; width >= 1; width /= 2) {
    const uint32_t other = __shfl_down_sync(ALL_LANES, most, width);
    most = other > most ? other : most;
  }
  if (threadIdx.x % WARP == 0) atomicMax(largest, most);
}

float cuda_largest(const struct ops *o, const void *operands, size_t n) {
  struct cuda_ops *c = cuda_of(o);
  float largest = 0;
  cuda_clear(o, c->scratch, sizeof largest);
  cuda_launch(c, "finding the largest weight", largest_kernel, cuda_blocks(n, CUDA_THREADS), CUDA_THREADS, 0,
              (uint32_t *)c->scratch, (const bf16 *)operands, n);
  cuda_download(o, &largest, c->scratch, sizeof largest);
  return largest == largest ? largest : HUGE_VALF;
}

/* --- matrices --- */

size_t cuda_matrix_bytes(const struct ops *o, int N, int K) { return (size_t)N * (size_t)K * o->operand_bytes; }

void cuda_matrix_pack(const struct ops *o, struct matrix *W, const void *w) {
  cuda_copy(o, W->data, w, cuda_matrix_bytes(o, W->N, W->K));
}

enum { TILE = 32, TILE_ROWS = 8 };

/* out [cols,rows] = in [rows,cols]^T by tiles through shared memory; a block: TILE x TILE_ROWS threads. */
static __global__ void transpose_kernel(bf16 *out, const bf16 *in, int rows, int cols) {
  __shared__ bf16 tile[TILE][TILE + 2];
  const int row0 = (int)blockIdx.y * TILE, col0 = (int)blockIdx.x * TILE, x = (int)threadIdx.x;
  for (int y = (int)threadIdx.y; y < TILE; y += TILE_ROWS)
    if (row0 + y < rows && col0 + x < cols) tile[y][x] = in[(size_t)(row0 + y) * (size_t)cols + (size_t)(col0 + x)];
  __syncthreads();
  for (int y = (int)threadIdx.y; y < TILE; y += TILE_ROWS)
    if (col0 + y < cols && row0 + x < rows) out[(size_t)(col0 + y) * (size_t)rows + (size_t)(row0 + x)] = tile[x][y];
}

void cuda_matrix_pack_transposed(const struct ops *o, struct matrix *W, const void *w, int rows, int cols) {
  assert(W->N == cols && W->K == rows);
  const dim3 grid((unsigned)((cols + TILE - 1) / TILE), (unsigned)((rows + TILE - 1) / TILE));
  cuda_launch(cuda_of(o), "transposing a matrix", transpose_kernel, grid, dim3(TILE, TILE_ROWS), 0, (bf16 *)W->data,
              (const bf16 *)w, rows, cols);
}

void cuda_matrix_unpack_rows(const struct ops *o, void *w, const struct matrix *W, int first, int count) {
  assert(first >= 0 && count >= 0 && first + count <= W->N);
  const size_t row_bytes = (size_t)W->K * o->operand_bytes;
  cuda_copy(o, w, (const char *)W->data + (size_t)first * row_bytes, (size_t)count * row_bytes);
}

/* --- rows --- */

template <typename word>
static __global__ void move_rows_kernel(word *out, const word *in, const int32_t *from, size_t words) {
  const int32_t source = from[blockIdx.x];
  for (size_t w = threadIdx.x; w < words; w += blockDim.x)
    out[(size_t)blockIdx.x * words + w] = source < 0 ? (word)0 : in[(size_t)source * words + w];
}

/* Within one array a thread has one column, and takes the rows in an order in which it reads each row before
 * overwriting it; several at once, so that reading does not wait for writing. */
template <typename word>
static __global__ void move_rows_within_kernel(word *array, const int32_t *from, int count, size_t words) {
  enum { AT_ONCE = 8 };
  bool up = false;
  for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) up |= from[i] < i;
  up = __syncthreads_or(up) != 0;
  const size_t column = grid_thread();
  if (column >= words) return;
  for (int done = 0; done < count; done += AT_ONCE) {
    word kept[AT_ONCE];
    for (int k = 0; k < AT_ONCE && done + k < count; k++) {
      const int32_t source = from[up ? count - 1 - done - k : done + k];
      kept[k] = source < 0 ? (word)0 : array[(size_t)source * words + column];
    }
    for (int k = 0; k < AT_ONCE && done + k < count; k++)
      array[(size_t)(up ? count - 1 - done - k : done + k) * words + column] = kept[k];
  }
}

template <typename word>
static void move_rows(struct cuda_ops *c, void *out, const void *in, const int32_t *from, int count, size_t bytes) {
  enum { COLUMNS = 64 };
  const size_t words = bytes / sizeof(word);
  if (out == in)
    cuda_launch(c, "moving rows", move_rows_within_kernel<word>, (unsigned)((words + COLUMNS - 1) / COLUMNS), COLUMNS,
                0, (word *)out, from, count, words);
  else
    cuda_launch(c, "moving rows", move_rows_kernel<word>, (unsigned)count, CUDA_THREADS, 0, (word *)out,
                (const word *)in, from, words);
}

void cuda_move_rows(const struct ops *o, void *out, const void *in, const int32_t *from, int count, size_t bytes) {
  assert(bytes % sizeof(uint16_t) == 0);
  if (bytes % sizeof(uint32_t) == 0)
    move_rows<uint32_t>(cuda_of(o), out, in, from, count, bytes);
  else
    move_rows<uint16_t>(cuda_of(o), out, in, from, count, bytes);
}

/* --- embedding --- */

static __global__ void embed_kernel(float *x, const bf16 *table, const int32_t *token, int K) {
  const size_t from = (size_t)token[blockIdx.x] * (size_t)K, to = (size_t)blockIdx.x * (size_t)K;
  for (int k = (int)threadIdx.x; k < K; k += (int)blockDim.x) x[to + (size_t)k] = widen(table[from + (size_t)k]);
}

void cuda_embed(const struct ops *o, float *x, const struct matrix *table, const int32_t *token, int T) {
  cuda_launch(cuda_of(o), "embedding", embed_kernel, (unsigned)T, CUDA_THREADS, 0, x, (const bf16 *)table->data, token,
              table->K);
}

/* A block per row of the call; the first row of a token adds all rows of that token, in order, for CUDA_THREADS columns
 * at a time. */
static __global__ void embed_backward_kernel(float *dtable, const float *dx, const int32_t *token, int T, int D) {
  __shared__ int32_t seen[CUDA_THREADS];
  const int t = (int)blockIdx.x, x = (int)threadIdx.x;
  const int32_t mine = token[t];
  bool before = false;
  for (int i = x; i < t; i += CUDA_THREADS) before |= token[i] == mine;
  if (__syncthreads_or(before)) return;
  for (int column = x; column < D + x; column += CUDA_THREADS) {
    float *at = dtable + (size_t)mine * (size_t)D + column;
    float sum = column < D ? *at : 0.0f;
    for (int first = t; first < T; first += CUDA_THREADS) {
      __syncthreads();
      seen[x] = first + x < T && token[first + x] == mine;
      __syncthreads();
      for (int i = 0; i < CUDA_THREADS; i++)
        if (seen[i] && column < D) sum = sum + dx[(size_t)(first + i) * (size_t)D + (size_t)column];
    }
    if (column < D) *at = sum;
  }
}

void cuda_embed_backward(const struct ops *o, float *dtable, const float *dx, const int32_t *token, int T, int V,
                         int D) {
  (void)V;
  cuda_launch(cuda_of(o), "the embedding's gradient", embed_backward_kernel, (unsigned)T, CUDA_THREADS, 0, dtable, dx,
              token, T, D);
}

/* --- keys and values --- */

struct kv_shape {
  int G, E, page_tokens, key_pitch, value_pitch; /* pitches: elements of a position */
};

static __global__ void kv_write_kernel(bf16 *keys, bf16 *values, struct kv_shape s, const int32_t *sequence,
                                       const int32_t *position, const int32_t *pages, int pages_per_sequence,
                                       const bf16 *k, const bf16 *v, const int32_t *row) {
  const size_t t = blockIdx.x, from = row_of(row, t) * (size_t)(s.G * s.E);
  const int at = position[t], offset = at % s.page_tokens;
  const size_t page = (size_t)pages[(size_t)sequence[t] * (size_t)pages_per_sequence + (size_t)(at / s.page_tokens)];
  for (int i = (int)threadIdx.x; i < s.G * s.E; i += (int)blockDim.x) {
    const size_t place = (page * (size_t)s.G + (size_t)(i / s.E)) * (size_t)s.page_tokens + (size_t)offset;
    keys[place * (size_t)s.key_pitch + (size_t)(i % s.E)] = k[from + (size_t)i];
    values[place * (size_t)s.value_pitch + (size_t)(i % s.E)] = v[from + (size_t)i];
  }
}

void cuda_kv_write(const struct ops *o, const struct kv_layer *kv, const struct rows *rows, const void *k,
                   const void *v, const int32_t *row) {
  const struct kv_shape s = {kv->G, kv->E, kv->page_tokens, (kv->E + 31) / 32 * 32, (kv->E + 15) / 16 * 16};
  cuda_launch(cuda_of(o), "writing keys and values", kv_write_kernel, (unsigned)rows->T, CUDA_THREADS, 0,
              (bf16 *)kv->keys, (bf16 *)kv->values, s, rows->sequence, rows->position, rows->pages,
              rows->pages_per_sequence, (const bf16 *)k, (const bf16 *)v, row);
}

/* Computes attention's gradients over a packed batch, without atomics: one warp sums each output, in a fixed order.
 *
 *   dots_kernel       D_i = SUM over e of dout_i out_i, of every query and head
 *   queries_kernel    dq: a tile of 64 rows of one head goes through the keys that its queries see
 *   keys_kernel       dk, dv: a tile of 64 rows of one kv head goes through its query heads, and through the queries that see it
 *
 * Rows are those of the packed batch; a row sees the rows of its own sequence up to itself: with first[t] the row where
 * t's sequence begins, or its window, query t sees keys first[t] .. t.  p_ij = exp(q_i k_j scale - lse_i), ds_ij = p_ij
 * (dout_i v_j - D_i) scale; both are rounded where they enter a product.  Letters as in ops.h. */
#include <assert.h>

#include "common/model/cuda/attention_tiles.h"

enum {
  WARPS = 4,
  ROWS = 16, /* of a warp */
  TILE = WARPS * ROWS,
  THREADS = WARPS * WARP,
  BLOCK = 32, /* rows of the other side at once */
  BLOCK8 = BLOCK / 8,
  DOT_HEADS = 4 /* of a block of dots_kernel */
};

struct backward_call {
  const bf16 *dout, *out, *q, *k, *v;
  const float *lse, *dots; /* dots: as dout, [queries,H] */
  const int32_t *start, *row, *query, *query_row;
  int T, sequences, H, G, E;
  int window; /* 0: none */
  float scale;
};

/* Where row t begins: the last start that is not above t. */
DEVICE int first_of(const struct backward_call *c, int t) {
  int low = 0, high = c->sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (c->start[middle] <= t)
      low = middle;
    else
      high = middle - 1;
  }
  return c->start[low];
}
/* The first row that query t sees. */
DEVICE int first_seen(const struct backward_call *c, int t) {
  const int first = first_of(c, t);
  return c->window > 0 && t - first >= c->window ? t - c->window + 1 : first;
}
/* And where t's sequence ends. */
DEVICE int end_of(const struct backward_call *c, int t) {
  int low = 0, high = c->sequences - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (c->start[middle + 1] > t)
      high = middle;
    else
      low = middle + 1;
  }
  return c->start[low + 1];
}

DEVICE int query_of(const struct backward_call *c, int t) { return c->query ? c->query[t] : t; }

static __global__ void dots_kernel(float *dots, struct backward_call c) {
  __shared__ float terms[DOT_HEADS][CUDA_HEAD_DIM_MAX];
  const size_t at = (size_t)blockIdx.x * DOT_HEADS + threadIdx.x / WARP;
  const int t = (int)(at / (size_t)c.H), query = t < c.T ? query_of(&c, t) : -1;
  if (query < 0) return;
  const size_t h = at % (size_t)c.H, E = (size_t)c.E, to = (size_t)query * (size_t)c.H + h;
  const size_t from = row_of(c.query_row, (size_t)query) * (size_t)c.H + h;
  float *term = terms[threadIdx.x / WARP];
  for (size_t e = threadIdx.x % WARP; e < E; e += WARP)
    term[e] = widen(c.dout[to * E + e]) * widen(c.out[from * E + e]);
  __syncwarp();
  const float dot = sum_of_terms(term, c.E);
  if (threadIdx.x % WARP == 0) dots[to] = dot;
}

/* `rows` rows of a tile: row r is array row `row_at(r)` (below 0: zeros), `heads` heads of E each, head h. */
template <int dim, typename rows_at>
DEVICE void fill_tile(unsigned char *tile, const bf16 *array, int rows, int heads, int h, int E,
                      const rows_at &row_at) {
  for (int i = (int)threadIdx.x; i < rows * (dim / 8); i += THREADS) {
    const int r = i / (dim / 8), chunk = i % (dim / 8), row = row_at(r);
    fill_chunk(tile_chunk<dim>(tile, r, chunk),
               array + ((size_t)(row < 0 ? 0 : row) * (size_t)heads + (size_t)h) * (size_t)E, chunk, E, row >= 0);
  }
}

/* The array rows of packed row t; -1: there is none. */
struct row_of_key {
  const struct backward_call *c;
  int first;
  DEVICE_MEMBER int operator()(int r) const { return first + r < c->T ? (int)row_of(c->row, (size_t)(first + r)) : -1; }
};
struct row_of_query { /* of dout, dq */
  const struct backward_call *c;
  int first;
  DEVICE_MEMBER int operator()(int r) const { return first + r < c->T ? query_of(c, first + r) : -1; }
};
struct saved_row_of_query { /* of q, out, lse */
  const struct backward_call *c;
  int first;
  DEVICE_MEMBER int operator()(int r) const {
    const int query = first + r < c->T ? query_of(c, first + r) : -1;
    return query < 0 ? -1 : (int)row_of(c->query_row, (size_t)query);
  }
};

template <int dim>
static __global__ void queries_kernel(float *dq, struct backward_call c) {
  unsigned char *q = shared_memory(), *dout = q + TILE * dim * sizeof(bf16), *k = dout + TILE * dim * sizeof(bf16),
                *v = k + BLOCK * dim * sizeof(bf16);
  const int t0 = (int)blockIdx.x * TILE, h = (int)blockIdx.y, g = h / (c.H / c.G), warp = (int)threadIdx.x / WARP;
  const int last = (t0 + TILE < c.T ? t0 + TILE : c.T) - 1;
  int t[2], first[2], query[2];
  float lse[2], dot[2], sum[dim / 8][4] = {};
  bool any = false;
  for (int r = 0; r < 2; r++) {
    t[r] = t0 + warp * ROWS + lane_row() + r * 8;
    query[r] = t[r] < c.T ? query_of(&c, t[r]) : -1;
    first[r] = query[r] >= 0 ? first_seen(&c, t[r]) : t[r] + 1;
    lse[r] = query[r] >= 0 ? c.lse[row_of(c.query_row, (size_t)query[r]) * (size_t)c.H + (size_t)h] : 0.0f;
    dot[r] = query[r] >= 0 ? c.dots[(size_t)query[r] * (size_t)c.H + (size_t)h] : 0.0f;
    any |= query[r] >= 0;
  }
  if (!__syncthreads_or(any)) return;
  const struct saved_row_of_query saved = {&c, t0};
  const struct row_of_query queries = {&c, t0};
  fill_tile<dim>(q, c.q, TILE, c.H, h, c.E, saved);
  fill_tile<dim>(dout, c.dout, TILE, c.H, h, c.E, queries);
  for (int j0 = first_seen(&c, t0) / BLOCK * BLOCK; j0 <= last; j0 += BLOCK) {
    const struct row_of_key keys = {&c, j0};
    __syncthreads();
    fill_tile<dim>(k, c.k, BLOCK, c.G, g, c.E, keys);
    fill_tile<dim>(v, c.v, BLOCK, c.G, g, c.E, keys);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    float s[BLOCK8][4] = {}, ds[BLOCK8][4] = {};
    multiply_rows<dim, BLOCK8>(s, q, warp * ROWS, k);
    multiply_rows<dim, BLOCK8>(ds, dout, warp * ROWS, v);
#pragma unroll
    for (int n = 0; n < BLOCK8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = e / 2, j = j0 + n * 8 + 2 * lane_column() + e % 2;
        const float p = j >= first[r] && j <= t[r] ? exact_exp(s[n][e] * c.scale - lse[r]) : 0.0f;
        ds[n][e] = (p * (ds[n][e] - dot[r])) * c.scale;
      }
    multiply_columns<dim, BLOCK8>(sum, ds, k);
  }
#pragma unroll
  for (int n = 0; n < dim / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at = n * 8 + 2 * lane_column() + e % 2;
      if (query[e / 2] < 0 || at >= c.E) continue;
      dq[((size_t)query[e / 2] * (size_t)c.H + (size_t)h) * (size_t)c.E + (size_t)at] = sum[n][e];
    }
}

/* A block of queries' numbers besides its tiles. */
struct query_numbers {
  float lse[BLOCK], dot[BLOCK];
  int first[BLOCK]; /* above any row: no query */
};

DEVICE void fill_numbers(struct query_numbers *numbers, const struct backward_call *c, int i0, int h) {
  const int r = (int)threadIdx.x, t = i0 + r;
  if (r >= BLOCK) return;
  const int query = t < c->T ? query_of(c, t) : -1;
  numbers->first[r] = query >= 0 ? first_seen(c, t) : c->T;
  numbers->lse[r] = query >= 0 ? c->lse[row_of(c->query_row, (size_t)query) * (size_t)c->H + (size_t)h] : 0.0f;
  numbers->dot[r] = query >= 0 ? c->dots[(size_t)query * (size_t)c->H + (size_t)h] : 0.0f;
}

template <int dim>
static __global__ void keys_kernel(float *dk, float *dv, struct backward_call c) {
  __shared__ struct query_numbers numbers;
  unsigned char *k = shared_memory(), *v = k + TILE * dim * sizeof(bf16), *q = v + TILE * dim * sizeof(bf16),
                *dout = q + BLOCK * dim * sizeof(bf16);
  const int j0 = (int)blockIdx.x * TILE, g = (int)blockIdx.y, R = c.H / c.G, warp = (int)threadIdx.x / WARP;
  const int last = (j0 + TILE < c.T ? j0 + TILE : c.T) - 1, sequence_end = end_of(&c, last);
  const int end = c.window > 0 && sequence_end - last > c.window ? last + c.window : sequence_end;
  const struct row_of_key keys = {&c, j0};
  float sum_k[dim / 8][4] = {}, sum_v[dim / 8][4] = {};
  fill_tile<dim>(k, c.k, TILE, c.G, g, c.E, keys);
  fill_tile<dim>(v, c.v, TILE, c.G, g, c.E, keys);
  for (int h = g * R; h < (g + 1) * R; h++)
    for (int i0 = j0; i0 < end; i0 += BLOCK) {
      const struct saved_row_of_query saved = {&c, i0};
      const struct row_of_query queries = {&c, i0};
      __syncthreads();
      fill_tile<dim>(q, c.q, BLOCK, c.H, h, c.E, saved);
      fill_tile<dim>(dout, c.dout, BLOCK, c.H, h, c.E, queries);
      fill_numbers(&numbers, &c, i0, h);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      float p[BLOCK8][4] = {}, ds[BLOCK8][4] = {};
      multiply_rows<dim, BLOCK8>(p, k, warp * ROWS, q);
      multiply_rows<dim, BLOCK8>(ds, v, warp * ROWS, dout);
#pragma unroll
      for (int n = 0; n < BLOCK8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int j = j0 + warp * ROWS + lane_row() + e / 2 * 8, i = n * 8 + 2 * lane_column() + e % 2;
          const bool seen = j >= numbers.first[i] && j <= i0 + i;
          p[n][e] = seen ? exact_exp(p[n][e] * c.scale - numbers.lse[i]) : 0.0f;
          ds[n][e] = (p[n][e] * (ds[n][e] - numbers.dot[i])) * c.scale;
        }
      multiply_columns<dim, BLOCK8>(sum_v, p, dout);
      multiply_columns<dim, BLOCK8>(sum_k, ds, q);
    }
#pragma unroll
  for (int n = 0; n < dim / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int j = j0 + warp * ROWS + lane_row() + e / 2 * 8, at = n * 8 + 2 * lane_column() + e % 2;
      if (j >= c.T || at >= c.E) continue;
      const size_t to = ((size_t)j * (size_t)c.G + (size_t)g) * (size_t)c.E + (size_t)at;
      dk[to] = sum_k[n][e];
      dv[to] = sum_v[n][e];
    }
}

struct backward_run {
  struct cuda_ops *c;
  float *dq, *dk, *dv;
  struct backward_call call;

  template <int dim>
  void run() const {
    const unsigned tiles = (unsigned)((call.T + TILE - 1) / TILE);
    const size_t shared = 2 * (TILE + BLOCK) * dim * sizeof(bf16);
    cuda_launch(c, "attention's gradient of queries", queries_kernel<dim>, dim3(tiles, (unsigned)call.H), THREADS,
                shared, dq, call);
    cuda_launch(c, "attention's gradient of keys", keys_kernel<dim>, dim3(tiles, (unsigned)call.G), THREADS, shared, dk,
                dv, call);
  }
};

void cuda_attention_backward(const struct ops *o, float *dq, float *dk, float *dv, const void *dout, const void *out,
                             const float *lse, const void *q, const void *k, const void *v, const struct packed *batch,
                             int H, int G, int E, float scale) {
  struct backward_run r;
  const size_t heads = (size_t)batch->T * (size_t)H;
  r.c = cuda_of(o);
  r.dq = dq;
  r.dk = dk;
  r.dv = dv;
  float *dots = (float *)r.c->scratch;
  assert(heads * sizeof *dots <= CUDA_SCRATCH_BYTES && batch->sequences >= 1);
  r.call.dout = (const bf16 *)dout;
  r.call.out = (const bf16 *)out;
  r.call.q = (const bf16 *)q;
  r.call.k = (const bf16 *)k;
  r.call.v = (const bf16 *)v;
  r.call.lse = lse;
  r.call.dots = dots;
  r.call.start = batch->start;
  r.call.row = batch->row;
  r.call.query = batch->query;
  r.call.query_row = batch->query_row;
  r.call.T = batch->T;
  r.call.sequences = batch->sequences;
  r.call.H = H;
  r.call.G = G;
  r.call.E = E;
  r.call.window = batch->window;
  r.call.scale = scale;
  cuda_launch(r.c, "attention's gradient", dots_kernel, (unsigned)((heads + DOT_HEADS - 1) / DOT_HEADS),
              DOT_HEADS * WARP, 0, dots, r.call);
  if (!with_head_dim(E, r)) cuda_fail(r.c, RC_UNSUPPORTED, "attending backwards", "this head dimension has no kernel");
}

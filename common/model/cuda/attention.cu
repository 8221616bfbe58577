/* Computes attention over paged keys and values, for prefill, decoding and training alike.
 *
 * A row of the call and one of its H heads are an item; items of one kv head (H/G of them a row) share the keys.  Both
 * kernels do the same arithmetic for an item:
 *
 *   keys in spans of SPAN positions from 0; within a span, in blocks of KEYS: s = q . k * scale, online softmax, o += p
 *   v (p rounded) from nothing; then the spans' (max, sum, o) joined one after another
 *
 * attend_spans_kernel gives every span of every item a warp of its own, for few rows and long sequences, and
 * join_spans_kernel joins them; attend_kernel goes through the spans itself with four warps that share the keys, for
 * many rows.  Both give the same bits: blocks beyond an item's position do not change its state.  Letters as in ops.h;
 * items per kv head R = H/G. */
#include <assert.h>

#include "common/model/cuda/attention_tiles.h"

enum {
  KEYS = 32, /* of a block */
  KEYS8 = KEYS / 8,
  SPAN = 256,
  ITEMS = 16, /* of a warp */
  WARPS_MANY = 4,
  ROWS_FEW = 256 /* of a call; above, a span's own warp is not worth its partial results */
};

struct attention_call {
  const bf16 *q;
  const bf16 *keys, *values;
  const int32_t *sequence, *position, *pages;
  int pages_per_sequence, page_tokens, key_pitch, value_pitch;
  int T, H, G, E;
  int window; /* 0: none */
  float scale;
};

/* The first position that a row at `position` attends to. */
DEVICE int first_seen(const struct attention_call *c, int position) {
  return c->window > 0 && position >= c->window ? position - c->window + 1 : 0;
}

/* One item's state over some keys, as a quad of lanes has it: for its rows g and g + 8. */
template <int dim>
struct state {
  float max[2], sum[2], out[dim / 8][4];
};

template <int dim>
DEVICE void state_clear(struct state<dim> *s) {
  for (int r = 0; r < 2; r++) {
    s->max[r] = -HUGE_VALF;
    s->sum[r] = 0.0f;
  }
#pragma unroll
  for (int n = 0; n < dim / 8; n++)
    for (int e = 0; e < 4; e++) s->out[n][e] = 0.0f;
}

/* exp(x - max); 0 for a masked score. */
DEVICE float weight_of(float x, float max) { return x == -HUGE_VALF ? 0.0f : exact_exp(x - max); }

/* The joint state of all, then part.  A part without any key changes nothing. */
template <int dim>
DEVICE void state_join(struct state<dim> *all, const struct state<dim> *part) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float max = part->max[r] > all->max[r] ? part->max[r] : all->max[r];
    const float keep = weight_of(all->max[r], max), take = weight_of(part->max[r], max);
    all->sum[r] = all->sum[r] * keep + part->sum[r] * take;
    all->max[r] = max;
#pragma unroll
    for (int n = 0; n < dim / 8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) all->out[n][e] = all->out[n][e] * keep + part->out[n][e] * take;
  }
}

/* A block of keys; the row attends to positions from[r] .. limit[r]. */
template <int dim>
DEVICE void state_add(struct state<dim> *s, unsigned char *q, int q_row, unsigned char *keys, unsigned char *values,
                      int first, const int from[2], const int limit[2], float scale) {
  float p[KEYS8][4] = {};
  multiply_rows<dim, KEYS8>(p, q, q_row, keys);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float max = -HUGE_VALF, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < KEYS8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        const int j = first + n * 8 + 2 * lane_column() + e % 2;
        p[n][e] = j >= from[r] && j <= limit[r] ? p[n][e] * scale : -HUGE_VALF;
        max = p[n][e] > max ? p[n][e] : max;
      }
    max = quad_max(max);
    max = s->max[r] > max ? s->max[r] : max;
    const float keep = weight_of(s->max[r], max);
#pragma unroll
    for (int n = 0; n < KEYS8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        p[n][e] = weight_of(p[n][e], max);
        sum = sum + p[n][e];
      }
    s->sum[r] = s->sum[r] * keep + quad_sum(sum);
#pragma unroll
    for (int n = 0; n < dim / 8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) s->out[n][e] = s->out[n][e] * keep;
    s->max[r] = max;
  }
  multiply_columns<dim, KEYS8>(s->out, p, values);
}

/* Keys and values of positions first .. first + KEYS - 1 of a sequence, zeros from `end` on. */
template <int dim>
DEVICE void fill_keys(const struct attention_call *c, unsigned char *keys, unsigned char *values, int sequence, int g,
                      int first, int end, int threads) {
  const int32_t *pages = c->pages + (size_t)sequence * (size_t)c->pages_per_sequence;
  for (int i = (int)threadIdx.x; i < KEYS * (dim / 8); i += threads) {
    const int r = i / (dim / 8), chunk = i % (dim / 8), at = first + r;
    const bool there = at < end;
    const size_t page = there ? (size_t)pages[at / c->page_tokens] : 0;
    const size_t place =
        (page * (size_t)c->G + (size_t)g) * (size_t)c->page_tokens + (size_t)(there ? at % c->page_tokens : 0);
    fill_chunk(tile_chunk<dim>(keys, r, chunk), c->keys + place * (size_t)c->key_pitch, chunk, c->key_pitch, there);
    fill_chunk(tile_chunk<dim>(values, r, chunk), c->values + place * (size_t)c->value_pitch, chunk, c->value_pitch,
               there);
  }
}

/* Items first .. first + count - 1 of kv head g (item = row * R + head within g) into the rows of a tile. */
template <int dim>
DEVICE void fill_items(const struct attention_call *c, unsigned char *tile, int g, size_t first, int count, int rows,
                       int threads) {
  const int R = c->H / c->G;
  for (int i = (int)threadIdx.x; i < rows * (dim / 8); i += threads) {
    const int r = i / (dim / 8), chunk = i % (dim / 8);
    const size_t item = first + (size_t)(r < count ? r : 0);
    const size_t head = item / (size_t)R * (size_t)c->H + (size_t)(g * R) + item % (size_t)R;
    fill_chunk(tile_chunk<dim>(tile, r, chunk), c->q + head * (size_t)c->E, chunk, c->E, r < count);
  }
}

/* --- a warp for every span --- */

enum { PARTIAL_EXTRA = 2 /* max and sum, before an item's dim values of out */ };

/* grid: (row * tiles of R items, g, span); partial [T*H][spans][PARTIAL_EXTRA + dim]. */
template <int dim>
static __global__ void attend_spans_kernel(float *partial, struct attention_call c, int spans) {
  unsigned char *q = shared_memory(), *keys = q + ITEMS * dim * sizeof(bf16),
                *values = keys + KEYS * dim * sizeof(bf16);
  const int R = c.H / c.G, tiles = (R + ITEMS - 1) / ITEMS, g = (int)blockIdx.y, span = (int)blockIdx.z;
  const int t = (int)blockIdx.x / tiles, head0 = (int)blockIdx.x % tiles * ITEMS, end = c.position[t] + 1;
  const int count = R - head0 < ITEMS ? R - head0 : ITEMS, limit[2] = {c.position[t], c.position[t]};
  const int seen = first_seen(&c, c.position[t]), from[2] = {seen, seen};
  if (span * SPAN >= end || (span + 1) * SPAN <= seen) return;
  struct state<dim> s;
  state_clear(&s);
  fill_items<dim>(&c, q, g, (size_t)t * (size_t)R + (size_t)head0, count, ITEMS, WARP);
  const int start = seen / KEYS * KEYS > span * SPAN ? seen / KEYS * KEYS : span * SPAN;
  for (int first = start; first < end && first < (span + 1) * SPAN; first += KEYS) {
    __syncwarp();
    fill_keys<dim>(&c, keys, values, c.sequence[t], g, first, end, WARP);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    state_add<dim>(&s, q, 0, keys, values, first, from, limit, c.scale);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int item = lane_row() + r * 8;
    if (item >= count) continue;
    float *to = partial + (((size_t)t * (size_t)c.H + (size_t)(g * R + head0 + item)) * (size_t)spans + (size_t)span) *
                              (PARTIAL_EXTRA + dim);
    if (lane_column() == 0) {
      to[0] = s.max[r];
      to[1] = s.sum[r];
    }
#pragma unroll
    for (int n = 0; n < dim / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) to[PARTIAL_EXTRA + n * 8 + 2 * lane_column() + e] = s.out[n][2 * r + e];
  }
}

/* A block per item, a thread per element. */
template <int dim>
static __global__ void join_spans_kernel(bf16 *out, float *lse, const float *partial, struct attention_call c,
                                         int spans) {
  const size_t item = blockIdx.x;
  const int position = c.position[item / (size_t)c.H], first = first_seen(&c, position) / SPAN, E = c.E;
  const int last = position / SPAN, e = (int)threadIdx.x;
  const float *from = partial + (item * (size_t)spans + (size_t)first) * (PARTIAL_EXTRA + dim);
  float max = -HUGE_VALF, sum = 0.0f, o = 0.0f;
  for (int s = first; s <= last; s++, from += PARTIAL_EXTRA + dim) {
    const float both = from[0] > max ? from[0] : max;
    const float keep = weight_of(max, both), take = weight_of(from[0], both);
    sum = sum * keep + from[1] * take;
    o = o * keep + from[PARTIAL_EXTRA + e] * take;
    max = both;
  }
  if (e < E) out[item * (size_t)E + (size_t)e] = operand(o / sum);
  if (lse && e == 0) lse[item] = max + exact_log(sum);
}

/* --- many rows --- */

/* grid: (tiles of WARPS_MANY * ITEMS items, g).  Rows of one sequence stand together; each such run of the tile's rows
 * goes through the sequence's keys by itself. */
template <int dim>
static __global__ void attend_kernel(bf16 *out, float *lse, struct attention_call c) {
  enum { TILE = WARPS_MANY * ITEMS, THREADS = WARPS_MANY * WARP };
  const size_t tile_bytes = KEYS * dim * sizeof(bf16);
  unsigned char *q = shared_memory(), *stages = q + TILE * dim * sizeof(bf16);
  const int R = c.H / c.G, g = (int)blockIdx.y, warp = (int)threadIdx.x / WARP;
  const size_t items = (size_t)c.T * (size_t)R, item0 = (size_t)blockIdx.x * TILE;
  const int count = items - item0 < TILE ? (int)(items - item0) : TILE;
  const int row0 = (int)(item0 / (size_t)R), row_end = (int)((item0 + (size_t)count - 1) / (size_t)R) + 1;
  struct state<dim> all;
  state_clear(&all);
  fill_items<dim>(&c, q, g, item0, count, TILE, THREADS);
  for (int row = row0; row < row_end;) {
    const int sequence = c.sequence[row];
    int run_end = row, start = INT32_MAX, end = 0, from[2], limit[2];
    for (; run_end < row_end && c.sequence[run_end] == sequence; run_end++) {
      const int position = c.position[run_end], seen = first_seen(&c, position) / KEYS * KEYS;
      end = position >= end ? position + 1 : end;
      start = seen < start ? seen : start;
    }
    for (int r = 0; r < 2; r++) {
      const int item = warp * ITEMS + lane_row() + r * 8, mine = (int)((item0 + (size_t)item) / (size_t)R);
      limit[r] = item < count && mine >= row && mine < run_end ? c.position[mine] : -1;
      from[r] = first_seen(&c, limit[r]);
    }
    struct state<dim> span;
    state_clear(&span);
    unsigned char *stage = stages + (size_t)(start / KEYS % 2) * 2 * tile_bytes;
    fill_keys<dim>(&c, stage, stage + tile_bytes, sequence, g, start, end, THREADS);
    cp_async_commit();
    for (int first = start; first < end; first += KEYS) {
      unsigned char *keys = stages + (size_t)(first / KEYS % 2) * 2 * tile_bytes;
      if (first + KEYS < end)
        fill_keys<dim>(&c, stages + (size_t)((first / KEYS + 1) % 2) * 2 * tile_bytes,
                       stages + (size_t)((first / KEYS + 1) % 2) * 2 * tile_bytes + tile_bytes, sequence, g,
                       first + KEYS, end, THREADS);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      state_add<dim>(&span, q, warp * ITEMS, keys, keys + tile_bytes, first, from, limit, c.scale);
      if (first % SPAN + KEYS == SPAN || first + KEYS >= end) {
        state_join<dim>(&all, &span);
        state_clear(&span);
      }
      __syncthreads();
    }
    row = run_end;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int at = warp * ITEMS + lane_row() + r * 8;
    if (at >= count) continue;
    const size_t item = item0 + (size_t)at;
    const size_t head = item / (size_t)R * (size_t)c.H + (size_t)(g * R) + item % (size_t)R;
    if (lse && lane_column() == 0) lse[head] = all.max[r] + exact_log(all.sum[r]);
#pragma unroll
    for (int n = 0; n < dim / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int at_e = n * 8 + 2 * lane_column() + e;
        if (at_e < c.E) out[head * (size_t)c.E + (size_t)at_e] = operand(all.out[n][2 * r + e] / all.sum[r]);
      }
  }
}

/* --- the operation --- */

struct attention_run {
  struct cuda_ops *c;
  bf16 *out;
  float *lse;
  struct attention_call call;
  int spans;

  template <int dim>
  void run() const {
    const size_t row_bytes = dim * sizeof(bf16);
    const int T = call.T, H = call.H, G = call.G, R = H / G;
    const size_t partial_bytes = (size_t)T * (size_t)H * (size_t)spans * (PARTIAL_EXTRA + dim) * sizeof(float);
    if (T <= ROWS_FEW && partial_bytes <= CUDA_SCRATCH_BYTES) {
      float *partial = (float *)c->scratch;
      const dim3 grid((unsigned)(T * ((R + ITEMS - 1) / ITEMS)), (unsigned)G, (unsigned)spans);
      cuda_launch(c, "attention", attend_spans_kernel<dim>, grid, WARP, (ITEMS + 2 * KEYS) * row_bytes, partial, call,
                  spans);
      cuda_launch(c, "joining attention's spans", join_spans_kernel<dim>, (unsigned)(T * H), dim, 0, out, lse, partial,
                  call, spans);
      return;
    }
    const size_t tile = WARPS_MANY * ITEMS, items = (size_t)T * (size_t)R;
    cuda_launch(c, "attention", attend_kernel<dim>, dim3((unsigned)((items + tile - 1) / tile), (unsigned)G),
                WARPS_MANY * WARP, (tile + 4 * KEYS) * row_bytes, out, lse, call);
  }
};

void cuda_attention(const struct ops *o, void *out, float *lse, const void *q, const struct kv_layer *kv,
                    const struct rows *rows, int H, float scale) {
  struct attention_run r;
  assert(H % kv->G == 0 && kv->page_tokens % 16 == 0 && rows->longest >= 1);
  r.c = cuda_of(o);
  r.out = (bf16 *)out;
  r.lse = lse;
  r.call.q = (const bf16 *)q;
  r.call.keys = (const bf16 *)kv->keys;
  r.call.values = (const bf16 *)kv->values;
  r.call.sequence = rows->sequence;
  r.call.position = rows->position;
  r.call.pages = rows->pages;
  r.call.pages_per_sequence = rows->pages_per_sequence;
  r.call.page_tokens = kv->page_tokens;
  r.call.key_pitch = (kv->E + 31) / 32 * 32;
  r.call.value_pitch = (kv->E + 15) / 16 * 16;
  r.call.T = rows->T;
  r.call.H = H;
  r.call.G = kv->G;
  r.call.E = kv->E;
  r.call.window = rows->window;
  r.call.scale = scale;
  r.spans = (rows->longest + SPAN - 1) / SPAN;
  if (!with_head_dim(kv->E, r)) cuda_fail(r.c, RC_UNSUPPORTED, "attending", "this head dimension has no kernel");
}

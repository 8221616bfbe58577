/* Computes attention's gradients for packed samples (NUMERICS.md, "Attention backward").
 *
 * A work item is one sample and one kv head: it alone writes that head's dk and dv, and the dq of its query heads.
 * Keys go in blocks of 32 (outer loop), queries in blocks of 32 from the diagonal on (inner loop), both aligned at
 * the sample's start:
 *
 *   S, dP [32 queries, 32 keys] -> P, dS rounded to operands -> dq += dS K (along keys), dv += P^T dO, dk += dS^T Q
 *   (along queries)
 *
 * so that dk and dv sum over query blocks, and dq over key blocks, in ascending order.  Blocks are widened to float in
 * scratch, in columns of 32 elements: from these the micro kernel takes both a row's elements (S, dP) and a column's
 * lanes (dq, dv, dk), and from P and dS either rows or columns.  Only keys and values, which many query blocks use, are
 * transposed for S and dP.
 */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/elementary.h"
#include "common/model/cpu/isa/micro_kernel.h"

enum { B = 32, EMAX = CPU_HEAD_DIM_MAX };

/* 32 rows [E32 / 32][32][32], zero padded. */
struct columns {
  float at[EMAX / 32][B][32];
};

struct backward_scratch {
  struct columns k, v, q, dout;
  float k_t[EMAX * B], v_t[EMAX * B]; /* [E32][32] */
  float dq[B * EMAX], dk[B * EMAX], dv[B * EMAX];
  float s[B * B], dp[B * B]; /* [query][key] */
  float p[B * B], ds[B * B]; /* operands, [query][key] */
  float D[B], lse[B];
  bool active[B]; /* the query has a gradient */
};

struct item {
  const struct attention_backward_args *c;
  struct backward_scratch *s;
  size_t start; /* first row of the sample */
  int length, g, h, E16, E32;
  bool f32;
};

/* Where row `i` of the sample has its query's gradients, -1: nowhere; and where its q, out and lse are. */
static int64_t query_of(const struct item *it, int i) {
  const struct packed *b = it->c->batch;
  const size_t t = it->start + (size_t)i;
  return b->query ? b->query[t] : (int64_t)t;
}
static int64_t query_row_of(const struct item *it, int i) {
  const int64_t query = query_of(it, i);
  return query >= 0 ? (int64_t)row_of(it->c->batch->query_row, (size_t)query) : -1;
}
static int64_t key_row_of(const struct item *it, int i) {
  return (int64_t)row_of(it->c->batch->row, it->start + (size_t)i);
}

/* Rows [first, first + count) of head `head` of [., heads, E]; those that are nowhere are zero. */
static void load_side(const struct item *it, struct columns *side, const void *x, int heads, int head, int first,
                      int count, int64_t (*where)(const struct item *, int)) {
  const int E = it->c->E;
  for (int i = 0; i < B; i++) {
    const int64_t at = i < count ? where(it, first + i) : -1;
    const size_t from = at < 0 ? 0 : ((size_t)at * (size_t)heads + (size_t)head) * (size_t)E;
    for (int e = 0; e < it->E32; e += VL) {
      const int left = at >= 0 && E > e ? E - e : 0;
      vstore(side->at[e / 32][i] + e % 32, load_some_operands(x, from + (size_t)e, left, it->f32));
    }
  }
}

static void transpose_side(const struct item *it, float *out, const struct columns *side) {
  for (int e = 0; e < it->E16; e += VL) {
    for (int i = 0; i < B; i += VL) {
      vu square[VL];
      UNROLL
      for (int l = 0; l < VL; l++) square[l] = (vu)vload(side->at[e / 32][i + l] + e % 32);
      transpose(square);
      UNROLL
      for (int l = 0; l < VL; l++) vstore(out + (e + l) * B + i, (vf)square[l]);
    }
  }
}

/* SUM(dout * out) of row i of the query block, whose out begins at element `out`. */
INLINE float output_gradient(const struct item *it, int i, size_t out) {
  const struct attention_backward_args *c = it->c;
  struct f16 lanes = {{{0}}};
  for (int e = 0; e < c->E; e += 16) {
    UNROLL
    for (int p = 0; p < PARTS; p++) {
      const int at = e + p * VL, left = c->E > at ? c->E - at : 0;
      lanes.v[p] = lanes.v[p] + vload(it->s->dout.at[e / 32][i] + at % 32) *
                                    load_some_operands(c->out, out + (size_t)at, left, it->f32);
    }
  }
  return tree16(lanes);
}

/* D and lse of a query block, whose dout is loaded. */
static void load_rows(const struct item *it, int first, int count) {
  const struct attention_backward_args *c = it->c;
  struct backward_scratch *s = it->s;
  for (int i = 0; i < count; i++) {
    const int64_t at = query_row_of(it, first + i);
    s->active[i] = at >= 0;
    if (at < 0) continue;
    const size_t row = (size_t)at * (size_t)c->H + (size_t)it->h;
    s->D[i] = output_gradient(it, i, row * (size_t)c->E);
    s->lse[i] = c->lse[row];
  }
}

/* Both orders in which a's elements may lie; each is compiled once. */
static __attribute__((noinline)) void block_of_rows(const struct block *b) { block_add(b, B, W_FLOATS); }
__attribute__((noinline)) void ISA_NAME(attention_columns)(const struct block *b) { block_add(b, 1, W_FLOATS); }

/* out [rows][32] = DOT over E of a's rows and w's, which are transposed. */
static void scores(const struct item *it, float *out, const struct columns *a, const float *w, int rows) {
  const int E = it->c->E;
  for (int e = 0; e < E; e += 32) {
    const struct block b = {.dst = out,
                            .ldd = B,
                            .a = a->at[e / 32][0],
                            .odd_a = 1,
                            .step_a = 2,
                            .w = w + e * B,
                            .odd_w = B,
                            .step_w = 2 * B,
                            .tile_w = 16,
                            .steps = E - e < 32 ? (E - e + 1) / 2 : 16,
                            .rows = rows,
                            .lanes = B,
                            .first = e == 0,
                            .f32 = it->f32};
    block_of_rows(&b);
  }
}

/* P and dS of the block pair at qb, kb as operands; `diagonal` masks keys after the query, the window those before it;
 * keys at and beyond `keys` do not exist.  Of an odd number of queries the last one's pair is zero. */
static void soften_block(const struct item *it, int qb, int queries, int kb, int keys) {
  struct backward_scratch *s = it->s;
  const struct score_scale scale = attention_scale_back(it->c);
  vi lane;
  for (int l = 0; l < VL; l++) lane[l] = l;
  for (int i = 0; i < round_up(queries, 2); i++) {
    float *p = s->p + i * B, *ds = s->ds + i * B;
    const int unseen = attention_first(it->c->batch->window, qb + i) - kb;
    const int valid = i >= queries || !s->active[i] ? 0 : qb == kb && i + 1 < keys ? i + 1 : keys;
    for (int j = 0; j < keys; j += VL) {
      vf pv = {0}, dv = {0};
      if (valid > j) {
        const vi seen = (lane < valid - j) & (lane >= unseen - j);
        const vf dot = vload(s->s + i * B + j), e = vexp(attention_score(dot, scale) - s->lse[i]);
        const vf dscore = attention_score_backward(e * (vload(s->dp + i * B + j) - s->D[i]), dot, scale);
        pv = vselect(seen, vround(e, it->f32), pv);
        dv = vselect(seen, vround(dscore, it->f32), dv);
      }
      vstore(p + j, pv);
      vstore(ds + j, dv);
    }
  }
}

/* dst [rows][E] += a's block of 32 along the dot against w's rows.  a lies [along the dot][32 rows], or by rows. */
static void products(const struct item *it, float *dst, const float *a, bool by_rows, const struct columns *w, int rows,
                     int along, bool first) {
  for (int e = 0; e < it->E16; e += 32) {
    const struct block b = {.dst = dst + e,
                            .ldd = (size_t)it->E16,
                            .a = a,
                            .odd_a = by_rows ? 1 : B,
                            .step_a = by_rows ? 2 : 2 * B,
                            .w = w->at[e / 32][0],
                            .odd_w = 32,
                            .step_w = 2 * 32,
                            .tile_w = 16,
                            .steps = (along + 1) / 2,
                            .rows = rows,
                            .lanes = it->E16 - e < 32 ? it->E16 - e : 32,
                            .first = first,
                            .f32 = it->f32};
    if (by_rows)
      block_of_rows(&b);
    else
      ISA_NAME(attention_columns)(&b);
  }
}

static void query_gradient(const struct item *it, int qb, int queries, int keys, bool first) {
  const struct attention_backward_args *c = it->c;
  float *sum = it->s->dq, *dq[B];
  const size_t bytes = (size_t)c->E * sizeof *sum;
  for (int i = 0; i < queries; i++) {
    const int64_t at = query_of(it, qb + i);
    dq[i] = at >= 0 ? c->dq + ((size_t)at * (size_t)c->H + (size_t)it->h) * (size_t)c->E : NULL;
    if (!first && dq[i]) memcpy(sum + i * it->E16, dq[i], bytes);
  }
  products(it, sum, it->s->ds, true, &it->s->k, queries, keys, first);
  for (int i = 0; i < queries; i++)
    if (dq[i]) memcpy(dq[i], sum + i * it->E16, bytes);
}

/* One head's dk and dv of the key block at kb, over the query blocks from it on. */
static void head_block(const struct item *it, int kb, int keys) {
  const struct attention_backward_args *c = it->c;
  struct backward_scratch *s = it->s;
  const int window = c->batch->window, end = attention_queries_end(window, kb, keys, it->length);
  for (int qb = kb; qb < end; qb += B) {
    int queries = it->length - qb < B ? it->length - qb : B;
    load_side(it, &s->q, c->q, c->H, it->h, qb, queries, query_row_of);
    load_side(it, &s->dout, c->dout, c->H, it->h, qb, queries, query_of);
    load_rows(it, qb, queries);
    scores(it, s->s, &s->q, s->k_t, queries);
    scores(it, s->dp, &s->dout, s->v_t, queries);
    soften_block(it, qb, queries, kb, keys);
    products(it, s->dv, s->p, false, &s->dout, keys, queries, qb == kb);
    products(it, s->dk, s->ds, false, &s->q, keys, queries, qb == kb);
    query_gradient(it, qb, queries, keys, kb == attention_first(window, qb) / B * B);
  }
}

static void add_head(const struct item *it, float *out, const float *sum, int kb, int keys, bool first) {
  const struct attention_backward_args *c = it->c;
  for (int j = 0; j < keys; j++) {
    float *restrict o = out + ((it->start + (size_t)(kb + j)) * (size_t)c->G + (size_t)it->g) * (size_t)c->E;
    const float *restrict a = sum + j * it->E16;
    if (first)
      memcpy(o, a, (size_t)c->E * sizeof *o);
    else
      for (int e = 0; e < c->E; e++) o[e] = o[e] + a[e];
  }
}

void ISA_NAME(attention_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct attention_backward_args *c = args;
  int group = c->H / c->G;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) {
    ISA_NAME(attention_backward_bf16)(c, begin, end, scratch);
    return;
  }
#endif
  for (size_t i = begin; i < end; i++) {
    const int32_t *start = c->batch->start + i / (size_t)c->G;
    struct item it = {.c = c,
                      .s = scratch,
                      .start = (size_t)start[0],
                      .length = start[1] - start[0],
                      .g = (int)(i % (size_t)c->G),
                      .E16 = round_up(c->E, 16),
                      .E32 = round_up(c->E, 32),
                      .f32 = c->format == FORMAT_F32};
    for (int kb = 0; kb < it.length; kb += B) {
      int keys = it.length - kb < B ? it.length - kb : B;
      load_side(&it, &it.s->k, c->k, c->G, it.g, kb, keys, key_row_of);
      load_side(&it, &it.s->v, c->v, c->G, it.g, kb, keys, key_row_of);
      transpose_side(&it, it.s->k_t, &it.s->k);
      transpose_side(&it, it.s->v_t, &it.s->v);
      for (int j = 0; j < group; j++) {
        it.h = it.g * group + j;
        head_block(&it, kb, keys);
        add_head(&it, c->dk, it.s->dk, kb, keys, j == 0);
        add_head(&it, c->dv, it.s->dv, kb, keys, j == 0);
      }
    }
  }
}

_Static_assert(sizeof(struct backward_scratch) <= CPU_SCRATCH_BYTES, "attention backward's scratch");

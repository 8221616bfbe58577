/* Computes attention's gradients of bf16 operands by links (bf16_chain.h): attention_backward.c's sums, bit for bit, in
 * the same order of blocks.  Only links of zeros are left out: keys after a query, queries before a key, and queries
 * without a gradient, which keep their places (NUMERICS.md, DOT) because every chain lists its rows.
 *
 *   S, dP [queries][32 keys]          rows of q and dout broadcast, keys and values along the lanes
 *   dq [queries][E]                   dS broadcast by pairs of keys, keys' E along the lanes
 *   dv, dk [32 keys][E]               P and dS broadcast by pairs of queries, dout's and q's E along the lanes */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AVX512BF16__)

enum { B = 32, EMAX = CPU_HEAD_DIM_MAX, PAIRS = 2 * LINK_STEPS };

/* Rows of E words or floats lie `wide` apart, those of E / 2 words `narrow`: not a multiple of the cache's way. */
enum { WIDE_MAX = EMAX + 16, NARROW_MAX = EMAX / 2 + 16 };

struct keys {
  uint32_t columns[EMAX / 2][B];   /* keys along the lanes */
  uint32_t rows[PAIRS * WIDE_MAX]; /* pairs of keys: even chain, then odd; E along the lanes */
};

struct queries {
  uint32_t words[B * NARROW_MAX];  /* row by row */
  uint32_t rows[PAIRS * WIDE_MAX]; /* pairs of queries, chain by chain */
};

struct scratch {
  struct keys k, v;
  struct queries q, dout;
  float s[B][B], dp[B][B];                        /* [query][key] */
  uint16_t p[B][B], ds[B][B];                     /* operands */
  uint32_t ds_words[B][PAIRS];                    /* row by row, pairs of keys */
  uint32_t p_pairs[PAIRS][B], ds_pairs[PAIRS][B]; /* pairs of queries, chain by chain */
  float dk[B * WIDE_MAX], dv[B * WIDE_MAX];
  float D[B], lse[B];
  uint16_t zeros[EMAX];
};

struct item {
  const struct attention_backward_args *c;
  struct scratch *s;
  size_t start;        /* first row of the sample */
  size_t wide, narrow; /* strides in scratch */
  int length, g, h;
};

/* The queries of a block that have a gradient, and the pairs that each chain over them takes. */
struct block_queries {
  int count;
  int at[B];                       /* place in the block */
  size_t row[B], query[B];         /* of q, out, lse; of dout, dq */
  int even_steps, odd_steps;       /* pairs of the two chains */
  int first[PAIRS], second[PAIRS]; /* of each pair, as numbers of this list; second -1: zeros */
};

static void pair_up(struct block_queries *b, int parity, int *steps, int from) {
  int pending = -1;
  *steps = 0;
  for (int i = 0; i < b->count; i++) {
    if (b->at[i] % 2 != parity) continue;
    if (pending < 0) {
      pending = i;
      b->first[from + *steps] = i;
      b->second[from + *steps] = -1;
      continue;
    }
    b->second[from + (*steps)++] = i;
    pending = -1;
  }
  *steps += pending >= 0;
}

static void list_queries(const struct item *it, struct block_queries *b, int qb) {
  const struct packed *batch = it->c->batch;
  const int end = it->length - qb < B ? it->length - qb : B;
  b->count = 0;
  for (int i = 0; i < end; i++) {
    const size_t t = it->start + (size_t)(qb + i);
    if (batch->query && batch->query[t] < 0) continue;
    b->at[b->count] = i;
    b->query[b->count] = row_of(batch->query, t);
    b->row[b->count] = row_of(batch->query_row, b->query[b->count]);
    b->count++;
  }
  pair_up(b, 0, &b->even_steps, 0);
  pair_up(b, 1, &b->odd_steps, b->even_steps);
}

static const uint16_t *operands_of(const void *x, size_t row, int heads, int head, int E) {
  return (const uint16_t *)x + (row * (size_t)heads + (size_t)head) * (size_t)E;
}

static void pair_rows(uint32_t *out, const uint16_t *first, const uint16_t *second, int E) {
  for (int e = 0; e < E; e += 16)
    link_store(out + e, link_rows(load_h16(first + e, E - e), load_h16(second + e, E - e)));
}

static void load_keys(const struct item *it, struct keys *k, const void *x, int kb, int keys, bool pairs) {
  const struct attention_backward_args *c = it->c;
  const uint16_t *row[B];
  for (int j = 0; j < B; j++)
    row[j] = j < keys ? operands_of(x, row_of(c->batch->row, it->start + (size_t)(kb + j)), c->G, it->g, c->E)
                      : it->s->zeros;
  for (int j = 0; j < keys; j += 16) link_columns(k->columns[0] + j, B, row + j, c->E);
  if (!pairs) return;
  for (int i = 0; i < LINK_STEPS && 4 * i < keys; i++) {
    pair_rows(k->rows + (size_t)i * it->wide, row[4 * i], row[4 * i + 2], c->E);
    pair_rows(k->rows + (size_t)(LINK_STEPS + i) * it->wide, row[4 * i + 1], row[4 * i + 3], c->E);
  }
}

static void load_queries(const struct item *it, const struct block_queries *b) {
  const struct attention_backward_args *c = it->c;
  struct scratch *s = it->s;
  const uint16_t *q[B], *dout[B];
  const int E = c->E;
  for (int i = 0; i < b->count; i++) {
    q[i] = operands_of(c->q, b->row[i], c->H, it->h, E);
    dout[i] = operands_of(c->dout, b->query[i], c->H, it->h, E);
    for (int e = 0; e < E; e += 32) {
      link_store(s->q.words + (size_t)i * it->narrow + e / 2, link_block(q[i] + e, E - e));
      link_store(s->dout.words + (size_t)i * it->narrow + e / 2, link_block(dout[i] + e, E - e));
    }
    const uint16_t *out = operands_of(c->out, b->row[i], c->H, it->h, E);
    vf lanes = {0};
    for (int e = 0; e < E; e += 16)
      lanes = lanes + widen16(load_h16(dout[i] + e, E - e)) * widen16(load_h16(out + e, E - e));
    s->D[i] = tree16((struct f16){{lanes}});
    s->lse[i] = c->lse[b->row[i] * (size_t)c->H + (size_t)it->h];
  }
  for (int i = 0; i < b->even_steps + b->odd_steps; i++) {
    const int second = b->second[i];
    pair_rows(s->q.rows + (size_t)i * it->wide, q[b->first[i]], second >= 0 ? q[second] : s->zeros, E);
    pair_rows(s->dout.rows + (size_t)i * it->wide, dout[b->first[i]], second >= 0 ? dout[second] : s->zeros, E);
  }
}

/* out [rows][32] = DOT over E of the queries' words and the keys' columns. */
INLINE void scores_of(const struct item *it, float (*out)[B], const struct queries *a, const struct keys *w, int i,
                      const int R, const int NV) {
  const int E = it->c->E;
  const uint32_t *words = a->words + (size_t)i * it->narrow;
  vf dot[LINK_ROWS][2] = {{{0}}};
  for (int e = 0; e < E; e += 32) {
    vf even[LINK_ROWS][2], odd[LINK_ROWS][2];
    const int steps = link_steps(E - e < 32 ? E - e : 32);
    link_chain(even, words + e / 2, it->narrow, 1, w->columns[e / 2], B, VL, steps, R, NV);
    link_chain(odd, words + e / 2 + LINK_STEPS, it->narrow, 1, w->columns[e / 2 + steps], B, VL, steps, R, NV);
    link_sum(dot, even, odd, R, NV);
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) vstore(out[i + r] + v * VL, dot[r][v]);
  }
}

/* Keys that query i of the list may see. */
INLINE int keys_of(const struct block_queries *b, int i, int keys, bool diagonal) {
  return diagonal && b->at[i] + 1 < keys ? b->at[i] + 1 : keys;
}

static void scores(const struct item *it, const struct block_queries *b, int keys, bool diagonal) {
  struct scratch *s = it->s;
  for (int i = 0; i < b->count; i += LINK_ROWS) {
    const int last = i + LINK_ROWS < b->count ? i + LINK_ROWS - 1 : b->count - 1;
    if (keys_of(b, last, keys, diagonal) > 16) { /* rows beyond the last are computed and not used */
      scores_of(it, s->s, &s->q, &s->k, i, LINK_ROWS, 2);
      scores_of(it, s->dp, &s->dout, &s->v, i, LINK_ROWS, 2);
    } else {
      scores_of(it, s->s, &s->q, &s->k, i, LINK_ROWS, 1);
      scores_of(it, s->dp, &s->dout, &s->v, i, LINK_ROWS, 1);
    }
  }
}

/* P and dS of a block pair as operands, and their pairs.  ahead: how far the queries' block begins after the keys'. */
static void soften(struct scratch *s, const struct block_queries *b, int keys, bool diagonal, int ahead, int window,
                   struct score_scale scale) {
  const vi number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int i = 0; i < b->count; i++) {
    const int valid = keys_of(b, i, keys, diagonal), unseen = window > 0 ? ahead + b->at[i] - window + 1 : 0;
    h16 p[2] = {{0}}, ds[2] = {{0}};
    UNROLL
    for (int j = 0; j < 2; j++) {
      if (j * VL >= valid) break;
      const vi seen = (number < valid - j * VL) & (number >= unseen - j * VL);
      const vf dot = vload(s->s[i] + j * VL), x = vexp(attention_score(dot, scale) - s->lse[i]);
      const vf y = attention_score_backward(x * (vload(s->dp[i] + j * VL) - s->D[i]), dot, scale);
      p[j] = round16(vselect(seen, x, (vf){0}));
      ds[j] = round16(vselect(seen, y, (vf){0}));
    }
    for (int j = 0; j < 2; j++) {
      store_h16(s->p[i] + j * VL, p[j]);
      store_h16(s->ds[i] + j * VL, ds[j]);
    }
    link_store(s->ds_words[i], link_order(join_h16(ds[0], ds[1])));
  }
  for (int i = 0; i < b->even_steps + b->odd_steps; i++) {
    const int first = b->first[i], second = b->second[i];
    pair_rows(s->p_pairs[i], s->p[first], second >= 0 ? s->p[second] : s->zeros, B);
    pair_rows(s->ds_pairs[i], s->ds[first], second >= 0 ? s->ds[second] : s->zeros, B);
  }
}

INLINE void load_sums(vf acc[LINK_ROWS][2], float *const row[LINK_ROWS], int e, int E, bool first, const int R,
                      const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = first ? (vf){0} : load_lanes(row[r] + e + v * VL, E - e - v * VL);
  }
}
INLINE void store_sums(vf acc[LINK_ROWS][2], float *const row[LINK_ROWS], int e, int E, const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) store_lanes(row[r] + e + v * VL, acc[r][v], E - e - v * VL);
  }
}

/* acc += even + odd over pairs whose chains lie apart. */
INLINE void add_chains(vf acc[LINK_ROWS][2], const uint32_t *a_even, const uint32_t *a_odd, size_t row_a, size_t step_a,
                       const uint32_t *w_even, const uint32_t *w_odd, size_t step_w, int even_steps, int odd_steps,
                       const int R, const int NV) {
  vf even[LINK_ROWS][2], odd[LINK_ROWS][2];
  link_chain(even, a_even, row_a, step_a, w_even, step_w, VL, even_steps, R, NV);
  link_chain(odd, a_odd, row_a, step_a, w_odd, step_w, VL, odd_steps, R, NV);
  link_sum(acc, even, odd, R, NV);
}

INLINE void query_rows(const struct item *it, const struct block_queries *b, int i, int keys, bool first, const int R,
                       const int NV, int e) {
  struct scratch *s = it->s;
  const int E = it->c->E, steps = link_steps(keys);
  float *row[LINK_ROWS];
  vf acc[LINK_ROWS][2];
  for (int r = 0; r < R; r++) row[r] = it->c->dq + (b->query[i + r] * (size_t)it->c->H + (size_t)it->h) * (size_t)E;
  load_sums(acc, row, e, E, first, R, NV);
  add_chains(acc, s->ds_words[i], s->ds_words[i] + LINK_STEPS, PAIRS, 1, s->k.rows + e,
             s->k.rows + LINK_STEPS * it->wide + e, it->wide, steps, steps, R, NV);
  store_sums(acc, row, e, E, R, NV);
}

static void query_gradient(const struct item *it, const struct block_queries *b, int keys, bool diagonal, bool first) {
  const int E = it->c->E;
  for (int i = 0; i < b->count; i += LINK_ROWS) {
    const int rows = b->count - i < LINK_ROWS ? b->count - i : LINK_ROWS;
    const int seen = keys_of(b, i + rows - 1, keys, diagonal);
    for (int e = 0; e < E; e += 32) {
      if (rows == LINK_ROWS && E - e > 16)
        query_rows(it, b, i, seen, first, LINK_ROWS, 2, e);
      else if (rows == LINK_ROWS)
        query_rows(it, b, i, seen, first, LINK_ROWS, 1, e);
      else
        for (int r = 0; r < rows; r++) {
          query_rows(it, b, i + r, seen, first, 1, 1, e);
          if (E - e > 16) query_rows(it, b, i + r, seen, first, 1, 1, e + 16);
        }
    }
  }
}

/* Rows j .. j + 3 of sum [32 keys][E] += pairs of queries from `even` and `odd` on. */
INLINE void key_rows(const struct item *it, const struct block_queries *b, float *sum, uint32_t (*a)[B],
                     const uint32_t *w, int j, int even, int odd, bool first, const int NV, int e) {
  const int E = it->c->E;
  const size_t odd_at = (size_t)(b->even_steps + odd);
  float *row[LINK_ROWS];
  vf acc[LINK_ROWS][2];
  for (int r = 0; r < LINK_ROWS; r++) row[r] = sum + (size_t)(j + r) * it->wide;
  load_sums(acc, row, e, E, first, LINK_ROWS, NV);
  add_chains(acc, a[even] + j, a[odd_at] + j, 1, B, w + (size_t)even * it->wide + e, w + odd_at * it->wide + e,
             it->wide, b->even_steps - even, b->odd_steps - odd, LINK_ROWS, NV);
  store_sums(acc, row, e, round_up(E, 16), LINK_ROWS, NV);
}

/* The first pair of a chain with a query at or after place j. */
static int first_pair(const struct block_queries *b, int from, int steps, int j) {
  int i = 0;
  while (i < steps) {
    const int last = b->second[from + i] >= 0 ? b->second[from + i] : b->first[from + i];
    if (b->at[last] >= j) break;
    i++;
  }
  return i;
}

static void key_gradients(const struct item *it, const struct block_queries *b, int keys, bool diagonal) {
  struct scratch *s = it->s;
  const int E = it->c->E;
  for (int j = 0; j < keys; j += LINK_ROWS) {
    const int even = diagonal ? first_pair(b, 0, b->even_steps, j) : 0;
    const int odd = diagonal ? first_pair(b, b->even_steps, b->odd_steps, j) : 0;
    for (int e = 0; e < E; e += 32) {
      if (E - e > 16) {
        key_rows(it, b, s->dv, s->p_pairs, s->dout.rows, j, even, odd, diagonal, 2, e);
        key_rows(it, b, s->dk, s->ds_pairs, s->q.rows, j, even, odd, diagonal, 2, e);
      } else {
        key_rows(it, b, s->dv, s->p_pairs, s->dout.rows, j, even, odd, diagonal, 1, e);
        key_rows(it, b, s->dk, s->ds_pairs, s->q.rows, j, even, odd, diagonal, 1, e);
      }
    }
  }
}

/* One head's dk and dv of the key block at kb, over the query blocks from it on. */
static void head_block(const struct item *it, int kb, int keys) {
  const int window = it->c->batch->window, end = attention_queries_end(window, kb, keys, it->length);
  for (int qb = kb; qb < end; qb += B) {
    struct block_queries b;
    const bool diagonal = qb == kb;
    list_queries(it, &b, qb);
    load_queries(it, &b);
    scores(it, &b, keys, diagonal);
    soften(it->s, &b, keys, diagonal, qb - kb, window, attention_scale_back(it->c));
    key_gradients(it, &b, keys, diagonal);
    query_gradient(it, &b, keys, diagonal, kb == attention_first(window, qb) / B * B);
  }
}

static void add_head(const struct item *it, float *out, const float *sum, int kb, int keys, bool first) {
  const struct attention_backward_args *c = it->c;
  for (int j = 0; j < keys; j++) {
    float *o = out + ((it->start + (size_t)(kb + j)) * (size_t)c->G + (size_t)it->g) * (size_t)c->E;
    for (int e = 0; e < c->E; e += 16) {
      const vf a = vload(sum + (size_t)j * it->wide + e);
      store_lanes(o + e, first ? a : load_lanes(o + e, c->E - e) + a, c->E - e);
    }
  }
}

void ISA_NAME(attention_backward_bf16)(const struct attention_backward_args *c, size_t begin, size_t end,
                                       void *scratch) {
  const int group = c->H / c->G;
  struct scratch *s = scratch;
  memset(s->zeros, 0, sizeof s->zeros);
  for (size_t i = begin; i < end; i++) {
    const int32_t *start = c->batch->start + i / (size_t)c->G;
    struct item it = {.c = c,
                      .s = s,
                      .start = (size_t)start[0],
                      .wide = (size_t)round_up(c->E, 16) + 16,
                      .narrow = (size_t)round_up(c->E, 32) / 2 + 16,
                      .length = start[1] - start[0],
                      .g = (int)(i % (size_t)c->G)};
    for (int kb = 0; kb < it.length; kb += B) {
      const int keys = it.length - kb < B ? it.length - kb : B;
      load_keys(&it, &s->k, c->k, kb, keys, true);
      load_keys(&it, &s->v, c->v, kb, keys, false);
      for (int j = 0; j < group; j++) {
        it.h = it.g * group + j;
        head_block(&it, kb, keys);
        add_head(&it, c->dk, s->dk, kb, keys, j == 0);
        add_head(&it, c->dv, s->dv, kb, keys, j == 0);
      }
    }
  }
}

_Static_assert(sizeof(struct scratch) <= CPU_SCRATCH_BYTES, "attention backward's scratch");

#endif

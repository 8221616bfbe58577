/* Computes attention's gradients of bf16 operands by AMX tiles (amx_tile_product.h): attention_backward.c's sums, bit
 * for bit, in the same order of blocks (NUMERICS.md, "Attention backward").
 *
 * Each of the five products of a block pair has 32 x 32 outputs, or several times that, depending on E:
 *
 *   S, dP [queries][keys]    rows of q and dout; columns of keys and values
 *   dq [queries][E]          rows of dS; keys in pairs
 *   dv, dk [keys][E]         rows of P and dS, transposed; dout and q in pairs of queries
 *
 * "Columns" are tiles with E in pairs along the rows, for S and dP.  Queries without a gradient keep their places, as
 * rows of zeros.
 *
 * amx_tiles.h says where these kernels have run. */
#include "common/model/cpu/isa/amx_tile_product.h"
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AMX_BF16__) || defined(TILES_EMULATED)

cpu_kernel TILES_BESIDE(attention_backward); /* of fp32 */

enum {
  SQUARE = 32,                            /* queries or keys of a block */
  DEPTHS = CPU_HEAD_DIM_MAX / TILE_DEPTH, /* of 32 along E */
  WIDTHS = CPU_HEAD_DIM_MAX / 16          /* of 16 across E */
};

/* 32 rows of E operands as tiles of each kind; kinds that are not needed are left out. */
typedef uint32_t tile_words[TILE_WORDS];
struct row_tiles {
  tile_words rows[2][DEPTHS]; /* [half][along E]: 16 rows of 32 operands */
};
struct column_tiles {
  tile_words columns[2][DEPTHS]; /* [half][along E]: pairs along E, 16 of the 32 rows */
};
struct pair_tiles {
  tile_words pairs[WIDTHS]; /* [across E]: pairs of the 32 rows, 16 of E */
};

/* Sums [32][E], tile by tile: [across E, 32][quarter]. */
typedef float sum_tiles[DEPTHS][4][TILE_WORDS];

struct backward_tiles {
  struct column_tiles k_columns, v_columns;
  struct row_tiles q_rows, dout_rows;
  struct pair_tiles k_pairs, q_pairs, dout_pairs;
  float s[SQUARE][SQUARE], dp[SQUARE][SQUARE];    /* [query][key] */
  uint16_t p[SQUARE][SQUARE], ds[SQUARE][SQUARE]; /* operands */
  tile_words p_transposed[2], ds_transposed[2];   /* [half of the keys] */
  sum_tiles dq, dk, dv;
  float D[SQUARE], lse[SQUARE];
  bool active[SQUARE]; /* the query has a gradient */
  uint16_t zeros[CPU_HEAD_DIM_MAX];
};

/* One sample and one kv head. */
struct backward_item {
  const struct attention_backward_args *c;
  struct backward_tiles *s;
  size_t start; /* first row of the sample */
  int length, g, h, depths;
};

static void tile_rows(struct row_tiles *out, const uint16_t *const row[SQUARE], int E) {
  for (int i = 0; i < SQUARE; i++)
    for (int e = 0, d = 0; e < E; e += TILE_DEPTH, d++)
      tile_row(out->rows[i / TILE_ROWS][d] + i % TILE_ROWS * (TILE_DEPTH / 2), row[i] + e, E - e);
}

static void tile_columns(struct column_tiles *out, const uint16_t *const row[SQUARE], int E) {
  for (int half = 0; half < 2; half++)
    for (int e = 0, d = 0; e < E; e += TILE_DEPTH, d++) {
      uint32_t rows[TILE_ROWS][TILE_DEPTH / 2];
      for (int i = 0; i < TILE_ROWS; i++) tile_row(rows[i], row[half * TILE_ROWS + i] + e, E - e);
      transpose16(out->columns[half][d], rows[0]);
    }
}

static void tile_pairs(struct pair_tiles *out, const uint16_t *const row[SQUARE], int E, int depths) {
  for (int e = 0; e < depths * TILE_DEPTH; e += 16)
    for (int i = 0; i < TILE_ROWS; i++) {
      words16 words = {0};
      if (e < E) interleave(&words, row[2 * i] + e, row[2 * i + 1] + e, E - e);
      memcpy(out->pairs[e / 16] + 16 * i, &words, sizeof words);
    }
}

/* [keys][pairs of queries] from operands [query][key]. */
static void tile_transposed(tile_words out[2], uint16_t (*x)[SQUARE]) {
  for (int half = 0; half < 2; half++) {
    words16 pairs[TILE_ROWS];
    for (int i = 0; i < TILE_ROWS; i++) interleave(&pairs[i], x[2 * i] + 16 * half, x[2 * i + 1] + 16 * half, 16);
    transpose16(out[half], pairs);
  }
}

static const uint16_t *operands_at(const void *x, size_t row, int heads, int head, int E) {
  return (const uint16_t *)x + (row * (size_t)heads + (size_t)head) * (size_t)E;
}

static void load_key_block(const struct backward_item *it, int kb, int keys) {
  const struct attention_backward_args *c = it->c;
  struct backward_tiles *s = it->s;
  const uint16_t *k[SQUARE], *v[SQUARE];
  for (int j = 0; j < SQUARE; j++) {
    k[j] = v[j] = s->zeros;
    if (j >= keys) continue;
    const size_t row = row_of(c->batch->row, it->start + (size_t)(kb + j));
    k[j] = operands_at(c->k, row, c->G, it->g, c->E);
    v[j] = operands_at(c->v, row, c->G, it->g, c->E);
  }
  tile_columns(&s->k_columns, k, c->E);
  tile_columns(&s->v_columns, v, c->E);
  tile_pairs(&s->k_pairs, k, c->E, it->depths);
}

/* Where row i of the sample has its dout and dq; -1: nowhere. */
static int64_t gradient_row(const struct backward_item *it, int i) {
  const size_t t = it->start + (size_t)i;
  return it->c->batch->query ? it->c->batch->query[t] : (int64_t)t;
}

/* SUM of a * b over a row. */
static float sum_of_products(const uint16_t *a, const uint16_t *b, int E) {
  struct f16 lanes = {{{0}}};
  for (int e = 0; e < E; e += VL) {
    const size_t at = (size_t)e;
    vf *lane = &lanes.v[e / VL % PARTS];
    *lane = *lane + load_some_operands(a, at, E - e, false) * load_some_operands(b, at, E - e, false);
  }
  return tree16(lanes);
}

static void load_query_block(const struct backward_item *it, int qb, int queries) {
  const struct attention_backward_args *c = it->c;
  struct backward_tiles *s = it->s;
  const uint16_t *q[SQUARE], *dout[SQUARE];
  const int E = c->E;
  for (int i = 0; i < SQUARE; i++) {
    const int64_t at = i < queries ? gradient_row(it, qb + i) : -1;
    s->active[i] = at >= 0;
    q[i] = dout[i] = s->zeros;
    if (at < 0) continue;
    const size_t row = row_of(c->batch->query_row, (size_t)at);
    q[i] = operands_at(c->q, row, c->H, it->h, E);
    dout[i] = operands_at(c->dout, (size_t)at, c->H, it->h, E);
    s->D[i] = sum_of_products(dout[i], operands_at(c->out, row, c->H, it->h, E), E);
    s->lse[i] = c->lse[row * (size_t)c->H + (size_t)it->h];
  }
  tile_rows(&s->q_rows, q, E);
  tile_rows(&s->dout_rows, dout, E);
  tile_pairs(&s->q_pairs, q, E, it->depths);
  tile_pairs(&s->dout_pairs, dout, E, it->depths);
}

/* out [query][key] = DOT over E. */
static void square_of(const struct backward_item *it, float (*out)[SQUARE], const struct row_tiles *a,
                      const struct column_tiles *b) {
  product_begin(NULL, true, true);
  product_add(a->rows[0][0], a->rows[1][0], b->columns[0][0], b->columns[1][0], it->depths, true, false);
  product_end(out[0], sizeof out[0], true);
}

/* sums [32][E] += the 32 along the dot of a's rows, in two halves, and of pairs. */
static void add_product(const struct backward_item *it, sum_tiles sums, const uint32_t *a0, const uint32_t *a1,
                        const struct pair_tiles *b, bool first) {
  for (int d = 0; d < it->depths; d++) {
    product_begin(sums[d][0], first, true);
    product_add(a0, a1, b->pairs[2 * d], b->pairs[2 * d + 1], 1, true, false);
    product_end(sums[d][0], 0, true);
  }
}

/* P and dS of the squares at qb, kb as operands, and transposed; the diagonal masks keys after the query, the window
 * those before it; keys at and beyond `keys` do not exist. */
static void soften_square(const struct backward_item *it, int qb, int kb, int keys) {
  struct backward_tiles *s = it->s;
  const struct score_scale scale = attention_scale_back(it->c);
  vi lane;
  for (int l = 0; l < VL; l++) lane[l] = l;
  for (int i = 0; i < SQUARE; i++) {
    const int valid = !s->active[i] ? 0 : qb == kb && i + 1 < keys ? i + 1 : keys;
    const int unseen = attention_first(it->c->batch->window, qb + i) - kb;
    for (int j = 0; j < SQUARE; j += VL) {
      const vi seen = (lane < valid - j) & (lane >= unseen - j);
      const vf dot = vload(s->s[i] + j), p = vexp(attention_score(dot, scale) - s->lse[i]);
      const vf ds = attention_score_backward(p * (vload(s->dp[i] + j) - s->D[i]), dot, scale);
      store_operands(s->p[i], (size_t)j, vselect(seen, p, (vf){0}), false);
      store_operands(s->ds[i], (size_t)j, vselect(seen, ds, (vf){0}), false);
    }
  }
  tile_transposed(s->p_transposed, s->p);
  tile_transposed(s->ds_transposed, s->ds);
}

/* Element e of row i; up to the next multiple of 16 they lie side by side. */
INLINE float *sums_at(sum_tiles sums, int i, int e) {
  return sums[e / 32][i / TILE_ROWS * 2 + e / 16 % 2] + i % TILE_ROWS * 16 + e % 16;
}

/* dq comes from memory and goes back with every block of keys. */
static void query_square(const struct backward_item *it, int qb, int queries, bool first) {
  const struct attention_backward_args *c = it->c;
  struct backward_tiles *s = it->s;
  const int E = c->E;
  float *dq[SQUARE];
  for (int i = 0; i < queries; i++) {
    const int64_t at = gradient_row(it, qb + i);
    dq[i] = at >= 0 ? c->dq + ((size_t)at * (size_t)c->H + (size_t)it->h) * (size_t)E : NULL;
    for (int e = 0; e < E && !first && dq[i]; e += VL) vstore(sums_at(s->dq, i, e), load_some(dq[i] + e, E - e));
  }
  const uint32_t *ds = (const uint32_t *)(const void *)s->ds;
  add_product(it, s->dq, ds, ds + TILE_WORDS, &s->k_pairs, first);
  for (int i = 0; i < queries; i++)
    for (int e = 0; e < E && dq[i]; e += VL) store_some(dq[i] + e, vload(sums_at(s->dq, i, e)), E - e);
}

/* One head's dk and dv of the key block at kb, over the query blocks from it on. */
static void key_square(const struct backward_item *it, int kb, int keys) {
  struct backward_tiles *s = it->s;
  const int window = it->c->batch->window, end = attention_queries_end(window, kb, keys, it->length);
  for (int qb = kb; qb < end; qb += SQUARE) {
    const int queries = it->length - qb < SQUARE ? it->length - qb : SQUARE;
    load_query_block(it, qb, queries);
    square_of(it, s->s, &s->q_rows, &s->k_columns);
    square_of(it, s->dp, &s->dout_rows, &s->v_columns);
    soften_square(it, qb, kb, keys);
    add_product(it, s->dv, s->p_transposed[0], s->p_transposed[1], &s->dout_pairs, qb == kb);
    add_product(it, s->dk, s->ds_transposed[0], s->ds_transposed[1], &s->q_pairs, qb == kb);
    query_square(it, qb, queries, kb == attention_first(window, qb) / SQUARE * SQUARE);
  }
}

static void add_head_sums(const struct backward_item *it, float *out, sum_tiles sums, int kb, int keys, bool first) {
  const struct attention_backward_args *c = it->c;
  for (int j = 0; j < keys; j++) {
    float *o = out + ((it->start + (size_t)(kb + j)) * (size_t)c->G + (size_t)it->g) * (size_t)c->E;
    for (int e = 0; e < c->E; e += VL) {
      const vf sum = vload(sums_at(sums, j, e));
      store_some(o + e, first ? sum : load_some(o + e, c->E - e) + sum, c->E - e);
    }
  }
}

void ISA_NAME(attention_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct attention_backward_args *c = args;
  struct backward_tiles *s = scratch;
  const int group = c->H / c->G;
  if (c->format == FORMAT_F32) {
    TILES_BESIDE(attention_backward)(args, begin, end, scratch);
    return;
  }
  memset(s->zeros, 0, sizeof s->zeros);
  product_configure(TILE_ROWS, TILE_ROWS);
  for (size_t i = begin; i < end; i++) {
    const int32_t *start = c->batch->start + i / (size_t)c->G;
    struct backward_item it = {.c = c,
                               .s = s,
                               .start = (size_t)start[0],
                               .length = start[1] - start[0],
                               .g = (int)(i % (size_t)c->G),
                               .depths = round_up(c->E, TILE_DEPTH) / TILE_DEPTH};
    for (int kb = 0; kb < it.length; kb += SQUARE) {
      const int keys = it.length - kb < SQUARE ? it.length - kb : SQUARE;
      load_key_block(&it, kb, keys);
      for (int j = 0; j < group; j++) {
        it.h = it.g * group + j;
        key_square(&it, kb, keys);
        add_head_sums(&it, c->dk, s->dk, kb, keys, j == 0);
        add_head_sums(&it, c->dv, s->dv, kb, keys, j == 0);
      }
    }
  }
  tiles_release();
}

_Static_assert(sizeof(struct backward_tiles) <= CPU_SCRATCH_BYTES, "attention backward's scratch");

#endif

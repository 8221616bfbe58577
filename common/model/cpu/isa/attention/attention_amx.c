/* Computes attention over bf16 operands by AMX tiles (amx_tiles.h): the same sums as attention.c's, bit for bit
 * (NUMERICS.md, "Attention").
 *
 * Up to 16 queries, (row, head) pairs of one sequence and one kv head, are the rows of a tile: in a prefill
 * neighbouring rows, in a decode step the heads of a row.  Keys and values lie in tiles in the pool (ops.h, struct
 * kv_layer) and are multiplied from there.  Per block of 32 keys:
 *
 *   scores [queries][32] = q . keys  ->  p [queries][32], rounded  ->  o [queries][E] = o * correction + p . values
 *
 * The products are DOT's blocks.  The work between them goes row by row, except for the maxima and sums, which come out
 * of one folding tree for all queries.  A decode step reads the pool once, from memory: while few queries work on a
 * block, the next one is fetched.
 *
 * amx_tiles.h says where these kernels have run. */
#include "common/model/cpu/isa/amx_tile_layout.h"
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/attention/fold.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AMX_BF16__) || defined(TILES_EMULATED)

cpu_kernel TILES_BESIDE(attention); /* of fp32 */

enum { QUERIES_MAX = TILE_ROWS, KEYS = 32, KEY_TILE = 16 /* keys of a tile */, E16_MAX = CPU_HEAD_DIM_MAX };

struct attention_scratch {
  uint32_t q[CPU_HEAD_DIM_MAX / TILE_DEPTH][TILE_WORDS];
  float s[QUERIES_MAX][KEYS]; /* scores */
  uint16_t p[QUERIES_MAX][KEYS];
  float fold[16][16];                     /* rows that are folded to one number per query */
  float o[QUERIES_MAX * E16_MAX];         /* [query][E16] */
  float product[QUERIES_MAX * E16_MAX];   /* p . values, likewise */
  uint32_t values[KEYS / 2 * E16_MAX];    /* [pairs of keys][E16] of a block that does not lie in one piece */
  float max[16], correction[16], sum[16]; /* by query */
  struct {
    int t, h, first, position; /* attends to first .. position */
  } query[QUERIES_MAX];
  int queries;
};

/* The tiles of one block; absent: the second 16 keys are after all queries. */
struct block_tiles {
  const uint32_t *keys[2], *values[2];
  bool both;
};

static struct block_tiles find_block(const struct attention_args *c, int sequence, int g, int block, int last) {
  struct block_tiles b = {.both = block + KEY_TILE <= last};
  for (int j = 0; j <= b.both; j++) {
    size_t keys, values;
    attention_locate(c, sequence, g, block + KEY_TILE * j, &keys, &values);
    b.keys[j] = (const uint32_t *)c->kv->keys + keys / 2;
    b.values[j] = (const uint32_t *)c->kv->values + values / 2;
  }
  return b;
}

INLINE void ask_lines(const uint32_t *words, size_t count) {
  for (size_t i = 0; i < count; i += TILE_BYTES / sizeof *words) _mm_prefetch((const char *)(words + i), _MM_HINT_T1);
}

INLINE void ask_block(const struct block_tiles *b, int E) {
  for (int j = 0; j <= b->both; j++) {
    ask_lines(b->keys[j], (size_t)(round_up(E, TILE_DEPTH) / 2 * KEY_TILE));
    ask_lines(b->values[j], (size_t)(round_up(E, 16) * KEY_TILE / 2));
  }
}

static void load_queries(const struct attention_args *c, struct attention_scratch *s) {
  const int E = c->kv->E;
  for (int r = 0; r < s->queries; r++) {
    const size_t row = (size_t)s->query[r].t * (size_t)c->H + (size_t)s->query[r].h;
    const uint16_t *q = (const uint16_t *)c->q + row * (size_t)E;
    for (int e = 0; e < E; e += TILE_DEPTH) tile_row(s->q[e / TILE_DEPTH] + r * (TILE_DEPTH / 2), q + e, E - e);
    s->max[r] = attention_lowest(c->rows->window);
    s->sum[r] = 0.0f;
  }
  memset(s->o, 0, (size_t)s->queries * (size_t)round_up(E, 16) * sizeof *s->o);
}

static void score_block(struct attention_scratch *s, const struct block_tiles *b, int E) {
  tile_zero(0);
  tile_zero(1);
  for (int i = 0; i * TILE_DEPTH < E; i++) {
    tile_load(4, s->q[i], TILE_BYTES);
    tile_load(6, b->keys[0] + i * TILE_WORDS, TILE_BYTES);
    tile_dot(0, 4, 6);
    if (!b->both) continue;
    tile_load(7, b->keys[1] + i * TILE_WORDS, TILE_BYTES);
    tile_dot(1, 4, 7);
  }
  tile_store(0, s->s[0], sizeof s->s[0]);
  tile_store(1, s->s[0] + KEY_TILE, sizeof s->s[0]);
}

/* Scaled, and -infinity where the query does not see. */
INLINE struct f16 scaled_scores(const float *score, struct score_scale scale, int unseen, int valid) {
  struct f16 x = load16(score);
  UNROLL
  for (int i = 0; i < PARTS; i++) x.v[i] = attention_score(x.v[i], scale);
  return attention_seen(x, unseen, valid);
}

/* From the scores of keys block .. block + 31 to p, the running maxima and sums.  A query without keys here gets p = 0
 * and the correction exp(0) = 1 (attention_lowest). */
static void soften_block(struct attention_scratch *s, int block, struct score_scale scale) {
  for (int r = 0; r < s->queries; r++) {
    const int valid = s->query[r].position - block + 1, unseen = s->query[r].first - block;
    const struct f16 low = scaled_scores(s->s[r], scale, unseen, valid),
                     high = scaled_scores(s->s[r] + KEY_TILE, scale, unseen - KEY_TILE, valid - KEY_TILE);
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      vstore(s->s[r] + i * VL, low.v[i]);
      vstore(s->s[r] + KEY_TILE + i * VL, high.v[i]);
      vstore(s->fold[r] + i * VL, vmax(low.v[i], high.v[i]));
    }
  }
  const struct f16 tops = fold(s->fold, false);
  UNROLL
  for (int i = 0; i < PARTS; i++) {
    const vf before = vload(s->max + i * VL), after = vmax(before, tops.v[i]);
    vstore(s->max + i * VL, after);
    vstore(s->correction + i * VL, vexp(before - after));
  }
  for (int r = 0; r < s->queries; r++) {
    const float max = s->max[r];
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      const vf low = vexp(vload(s->s[r] + i * VL) - max), high = vexp(vload(s->s[r] + KEY_TILE + i * VL) - max);
      vstore(s->fold[r] + i * VL, low + high);
      store_operands(s->p[r], (size_t)(i * VL), low, false);
      store_operands(s->p[r], (size_t)(KEY_TILE + i * VL), high, false);
    }
  }
  const struct f16 trees = fold(s->fold, true);
  UNROLL
  for (int i = 0; i < PARTS; i++) {
    const vf sum = vload(s->sum + i * VL);
    vstore(s->sum + i * VL, sum * vload(s->correction + i * VL) + trees.v[i]);
  }
}

/* The block's values as rows of E16 words, pairs of keys: from the pool where these 16 rows lie in one piece; else
 * copied, zeros for keys that are absent. */
static const uint32_t *value_rows(struct attention_scratch *s, const struct block_tiles *b, int E16) {
  const size_t words = (size_t)E16 * KEY_TILE / 2;
  if (b->both && b->values[1] == b->values[0] + words) return b->values[0];
  memcpy(s->values, b->values[0], words * sizeof *s->values);
  if (b->both)
    memcpy(s->values + words, b->values[1], words * sizeof *s->values);
  else
    memset(s->values + words, 0, words * sizeof *s->values);
  return s->values;
}

static void add_values(struct attention_scratch *s, const struct block_tiles *b, int block, int E16) {
  const uint32_t *values = value_rows(s, b, E16);
  const size_t stride = (size_t)E16 * sizeof *values;
  tile_load(4, s->p, sizeof s->p[0]);
  for (int e = 0; e < E16; e += 32) {
    const bool both = E16 - e > 16;
    tile_zero(0);
    tile_load(6, values + e, stride);
    tile_dot(0, 4, 6);
    tile_store(0, s->product + e, stride);
    if (!both) continue;
    tile_zero(1);
    tile_load(7, values + e + 16, stride);
    tile_dot(1, 4, 7);
    tile_store(1, s->product + e + 16, stride);
  }
  for (int r = 0; r < s->queries; r++) {
    if (s->query[r].position < block || s->query[r].first >= block + KEYS) continue;
    float *o = s->o + r * E16;
    const float *product = s->product + r * E16, correction = s->correction[r];
    for (int e = 0; e < E16; e += VL) vstore(o + e, vload(o + e) * correction + vload(product + e));
  }
}

static void store_out(const struct attention_args *c, const struct attention_scratch *s) {
  const int E = c->kv->E, E16 = round_up(E, 16);
  float lse[16];
  for (int i = 0; i < 16; i += VL) vstore(lse + i, vload(s->max + i) + vlog(vload(s->sum + i)));
  for (int r = 0; r < s->queries; r++) {
    const size_t row = (size_t)s->query[r].t * (size_t)c->H + (size_t)s->query[r].h;
    for (int e = 0; e < E; e += VL)
      store_some_operands(c->out, row * (size_t)E + (size_t)e, vload(s->o + r * E16 + e) / s->sum[r], E - e, false);
    if (c->lse) c->lse[row] = lse[r];
  }
}

/* All queries in scratch, from first key to last. */
static void attend_queries(const struct attention_args *c, struct attention_scratch *s, int sequence, int g) {
  const int E = c->kv->E, n = s->queries;
  int first = INT32_MAX, last = 0;
  for (int r = 0; r < n; r++) {
    first = s->query[r].first < first ? s->query[r].first : first;
    last = s->query[r].position > last ? s->query[r].position : last;
  }
  first = first / KEYS * KEYS;
  load_queries(c, s);
  configure_tiles((const int[TILES]){[0] = n, [1] = n, [4] = n, [6] = TILE_ROWS, [7] = TILE_ROWS});
  struct block_tiles now, next = find_block(c, sequence, g, first, last);
  for (int block = first; block <= last; block += KEYS) {
    now = next;
    if (block + KEYS <= last) {
      next = find_block(c, sequence, g, block + KEYS, last);
      if (n < QUERIES_MAX) ask_block(&next, E);
    }
    score_block(s, &now, E);
    soften_block(s, block, attention_scale(c));
    add_values(s, &now, block, round_up(E, 16));
  }
  store_out(c, s);
}

void ISA_NAME(attention)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct attention_args *c = args;
  struct attention_scratch *s = scratch;
  const int group = c->H / c->kv->G;
  if (c->format == FORMAT_F32) {
    TILES_BESIDE(attention)(args, begin, end, scratch);
    return;
  }
  for (int t0 = (int)begin, t1; t0 < (int)end; t0 = t1) {
    t1 = attention_run_end(c, t0, (int)end);
    const int total = (t1 - t0) * group;
    for (int i = 0; i < total * c->kv->G; i += s->queries) {
      const int g = i / total, first = i % total, left = total - first;
      s->queries = left < QUERIES_MAX ? left : QUERIES_MAX;
      for (int r = 0; r < s->queries; r++) {
        const int t = t0 + (first + r) / group;
        s->query[r].t = t;
        s->query[r].h = g * group + (first + r) % group;
        s->query[r].first = attention_first(c->rows->window, c->rows->position[t]);
        s->query[r].position = c->rows->position[t];
      }
      attend_queries(c, s, c->rows->sequence[t0], g);
    }
  }
  tiles_release();
}

_Static_assert(sizeof(struct attention_scratch) <= CPU_SCRATCH_BYTES, "attention's scratch");

#endif

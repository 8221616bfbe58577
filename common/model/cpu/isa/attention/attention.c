/* Computes attention of rows over the paged KV pool, with an online softmax over key blocks of 32 (NUMERICS.md,
 * "Attention").
 *
 * Sequences with many rows in the call go another way (attention_many.c).  Of the others up to QUERIES (row, head)
 * pairs of one sequence and one kv head go together, so that a key is loaded once for all of them: in a decode step the
 * heads of a kv group.  Scores are vectorized over the 16 keys of a tile, values over E.  A query's bits depend only on
 * its own row, its position and the sequence's keys and values.
 *
 * A decode step reads the pool once, from memory, in pieces that lie anywhere: while a sequence's few queries go
 * through a block, the one that comes next is fetched, a line with each link.
 */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/elementary.h"

enum {
  QUERIES = 4,
  LANES_MAX = 16,
  BLOCK = 32,
  MANY = 16 /* queries of a sequence: they fill the lanes of attention_many.c and attention_bf16.c */
};

struct query {
  int t, h, first, position; /* attends to first .. position */
};

/* State of up to QUERIES queries over the key blocks. */
struct state {
  struct query query[QUERIES];
  float q[QUERIES][CPU_HEAD_DIM_MAX]; /* each 32-block: 16 even, 16 odd */
  float acc[QUERIES][CPU_HEAD_DIM_MAX];
  float p[QUERIES][BLOCK]; /* scores, then p as an operand: the block's 16 even keys, then its 16 odd keys */
  float max[LANES_MAX], correction[LANES_MAX], sum[QUERIES]; /* one vector's lanes; the first QUERIES are used */
  bool active[QUERIES];                                      /* the block has a key for this query */
};

/* A tile of keys and its values that are fetched meanwhile; NULL: none. */
struct ahead {
  const char *keys, *values;
};

/* One chain over up to 16 pairs of a tile of keys.  ahead: a line for each pair; NULL: none. */
INLINE void score_chain(vf acc[QUERIES][PARTS], const struct state *s, int at, const void *keys, size_t tile, int pairs,
                        bool is_odd, const char *ahead, const int R, const bool f32, const bool split) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int p = 0; p < PARTS; p++) acc[r][p] = (vf){0};
  }
  for (int i = 0; i < pairs; i++, tile += 32) {
    vf k[PARTS];
    if (ahead) _mm_prefetch(ahead + (size_t)i * 64, _MM_HINT_T0);
    UNROLL
    for (int p = 0; p < PARTS; p++) k[p] = is_odd ? load_odd(keys, tile, p, f32) : load_even(keys, tile, p, f32);
    UNROLL
    for (int r = 0; r < R; r++) {
      vf q = vset(s->q[r][at + i]);
      UNROLL
      for (int p = 0; p < PARTS; p++) acc[r][p] = vlink(q, k[p], acc[r][p], split);
    }
  }
  if (pairs < 16) { /* the block's zero padding */
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int p = 0; p < PARTS; p++) acc[r][p] = acc[r][p] + 0.0f;
    }
  }
}

/* s->p[r][half * 16 ..]: the scores of the 16 keys of a tile. */
INLINE void score_tile(struct state *s, const void *keys, size_t tile, int half, int E, struct score_scale scale,
                       const struct ahead *ahead, const int R, const bool f32) {
  vf even[QUERIES][PARTS], odd[QUERIES][PARTS], dot[QUERIES][PARTS];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int p = 0; p < PARTS; p++) dot[r][p] = (vf){0};
  }
  for (int e = 0; e < E; e += 32, tile += 512) {
    int pairs = E - e < 32 ? (E - e + 1) / 2 : 16;
    const size_t lines = (size_t)e * 32; /* 16 keys, or 16 positions of values, along so much of E */
#define SCORE_CHAINS(split)                                                                             \
  score_chain(even, s, e, keys, tile, pairs, false, ahead ? ahead->keys + lines : NULL, R, f32, split); \
  score_chain(odd, s, e + 16, keys, tile, pairs, true, ahead ? ahead->values + lines : NULL, R, f32, split)
    MAKE_LINKS(SCORE_CHAINS, even, odd, f32);
#undef SCORE_CHAINS
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int p = 0; p < PARTS; p++) dot[r][p] = dot[r][p] + (even[r][p] + odd[r][p]);
    }
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int p = 0; p < PARTS; p++) vstore(s->p[r] + half * 16 + p * VL, attention_score(dot[r][p], scale));
  }
}

/* From the scores of keys block..block+31 to p, and the running maxima and sums.  Stage by stage for all queries, and
 * without branches on data: a query alone would wait for every result, and for mispredictions.  In the first block the
 * maximum was -infinity, which makes the correction exactly 0; a query without keys here gets p = 0, the same maximum
 * and the correction exp(0) = 1 (attention_lowest). */
INLINE void soften(struct state *s, int block, const int R, const bool f32) {
  struct f16 low[QUERIES], high[QUERIES], sum;
  float tops[LANES_MAX] = {0};
  UNROLL
  for (int r = 0; r < R; r++) {
    struct f16 top;
    const int valid = s->query[r].position - block + 1, unseen = s->query[r].first - block;
    s->active[r] = valid > 0 && unseen < BLOCK;
    low[r] = attention_seen(load16(s->p[r]), unseen, valid);
    high[r] = attention_seen(load16(s->p[r] + 16), unseen - 16, valid - 16);
    UNROLL
    for (int i = 0; i < PARTS; i++) top.v[i] = vmax(low[r].v[i], high[r].v[i]);
    tops[r] = max16(top);
  }
  const vf before = vload(s->max), after = vmax(before, vload(tops));
  vstore(s->max, after);
  vstore(s->correction, vexp(before - after));
  UNROLL
  for (int r = 0; r < R; r++) {
    vf rounded[2 * PARTS];
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      const vf a = vexp(low[r].v[i] - s->max[r]), b = vexp(high[r].v[i] - s->max[r]);
      sum.v[i] = a + b;
      rounded[i] = vround(a, f32);
      rounded[PARTS + i] = vround(b, f32);
    }
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      vstore(s->p[r] + i * VL, vevens(rounded[2 * i], rounded[2 * i + 1]));
      vstore(s->p[r] + 16 + i * VL, vodds(rounded[2 * i], rounded[2 * i + 1]));
    }
    s->sum[r] = s->sum[r] * s->correction[r] + tree16(sum);
  }
}

/* One chain over the block's 16 key pairs for 16 values from e on; pairs 8..15 lie in the second tile, when there is
 * one. */
INLINE void value_chain(vf acc[QUERIES][PARTS], const struct state *s, const void *values, const size_t at[2],
                        size_t stride, int tiles, bool is_odd, const int R, const bool f32, const bool split) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int p = 0; p < PARTS; p++) acc[r][p] = (vf){0};
  }
  for (int j = 0; j < tiles; j++) {
    size_t v_at = at[j];
    for (int i = 0; i < 8; i++, v_at += stride) {
      vf v[PARTS];
      UNROLL
      for (int p = 0; p < PARTS; p++) v[p] = is_odd ? load_odd(values, v_at, p, f32) : load_even(values, v_at, p, f32);
      UNROLL
      for (int r = 0; r < R; r++) {
        vf x = vset(s->p[r][(is_odd ? 16 : 0) + j * 8 + i]);
        UNROLL
        for (int p = 0; p < PARTS; p++) acc[r][p] = vlink(x, v[p], acc[r][p], split);
      }
    }
  }
  if (tiles < 2) {
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int p = 0; p < PARTS; p++) acc[r][p] = acc[r][p] + 0.0f;
    }
  }
}

INLINE void add_values(struct state *s, const void *values, const size_t at[2], int tiles, int E, const int R,
                       const bool f32) {
  vf even[QUERIES][PARTS], odd[QUERIES][PARTS];
  size_t stride = (size_t)round_up(E, 16) * 2;
  for (int e = 0; e < E; e += 16) {
    size_t here[2] = {at[0] + (size_t)e * 2, tiles == 2 ? at[1] + (size_t)e * 2 : 0};
#define VALUE_CHAINS(split)                                                \
  value_chain(even, s, values, here, stride, tiles, false, R, f32, split); \
  value_chain(odd, s, values, here, stride, tiles, true, R, f32, split)
    MAKE_LINKS(VALUE_CHAINS, even, odd, f32);
#undef VALUE_CHAINS
    UNROLL
    for (int r = 0; r < R; r++) {
      if (!s->active[r]) continue;
      UNROLL
      for (int p = 0; p < PARTS; p++) {
        float *acc = s->acc[r] + e + p * VL;
        vstore(acc, vload(acc) * s->correction[r] + (even[r][p] + odd[r][p]));
      }
    }
  }
}

/* A sequence's kv head, and the keys that its rows attend to. */
struct visit {
  int sequence, g, first, last;
};

INLINE struct visit visit_of(const struct attention_args *c, int t0, int t1, int g) {
  return (struct visit){.sequence = c->rows->sequence[t0],
                        .g = g,
                        .first = attention_first(c->rows->window, c->rows->position[t0]),
                        .last = c->rows->position[t1 - 1]};
}

/* What comes after a block: the visit's next one, or the first one of the visit that follows.  Of bf16. */
INLINE void ahead_find(struct ahead out[2], const struct attention_args *c, const struct visit *now,
                       const struct visit *then, int block) {
  const bool ends = block + BLOCK > now->last;
  const struct visit *v = ends ? then : now;
  const int from = ends ? then->first / BLOCK * BLOCK : block + BLOCK;
  for (int j = 0; j < 2; j++) {
    size_t keys, values;
    attention_locate(c, v->sequence, v->g, from + 16 * j <= v->last ? from + 16 * j : from, &keys, &values);
    out[j] = (struct ahead){(const char *)c->kv->keys + 2 * keys, (const char *)c->kv->values + 2 * values};
  }
}

/* R queries of a visit, from first key to last.  then: the one that follows, fetched meanwhile; NULL: nothing is. */
INLINE void attend(const struct attention_args *c, struct state *s, const struct visit *now, const struct visit *then,
                   const int R, const bool f32) {
  int E = c->kv->E, first = INT32_MAX, last = 0;
  for (int r = 0; r < R; r++) {
    const struct query *q = &s->query[r];
    size_t at = ((size_t)q->t * (size_t)c->H + (size_t)q->h) * (size_t)E;
    for (int e = 0; e < E; e += 32) {
      if (e + 32 <= E)
        split32(s->q[r] + e, s->q[r] + e + 16, c->q, at + (size_t)e, f32);
      else
        split_tail(s->q[r] + e, s->q[r] + e + 16, c->q, at + (size_t)e, E - e, f32);
    }
    memset(s->acc[r], 0, (size_t)round_up(E, 16) * sizeof(float));
    s->max[r] = attention_lowest(c->rows->window);
    s->sum[r] = 0.0f;
    if (q->position > last) last = q->position;
    if (q->first < first) first = q->first;
  }
  for (int block = first / BLOCK * BLOCK; block <= last; block += BLOCK) {
    size_t keys[2] = {0, 0}, values[2] = {0, 0};
    struct ahead ahead[2];
    int tiles = block + 16 <= last ? 2 : 1;
    if (then) ahead_find(ahead, c, now, then, block);
    for (int j = 0; j < tiles; j++) {
      attention_locate(c, now->sequence, now->g, block + 16 * j, &keys[j], &values[j]);
      score_tile(s, c->kv->keys, keys[j], j, E, attention_scale(c), then ? &ahead[j] : NULL, R, f32);
    }
    soften(s, block, R, f32);
    add_values(s, c->kv->values, values, tiles, E, R, f32);
  }
  for (int r = 0; r < R; r++) {
    const struct query *q = &s->query[r];
    size_t row = (size_t)q->t * (size_t)c->H + (size_t)q->h;
    for (int e = 0; e < E; e += VL)
      store_some_operands(c->out, row * (size_t)E + (size_t)e, vload(s->acc[r] + e) / s->sum[r], E - e, f32);
    if (c->lse) c->lse[row] = s->max[r] + log_one(s->sum[r]);
  }
}

static void attend_bf16(const struct attention_args *c, struct state *s, int count, const struct visit *now,
                        const struct visit *then) {
  if (count == 4)
    attend(c, s, now, then, 4, false);
  else if (count == 2)
    attend(c, s, now, then, 2, false);
  else
    attend(c, s, now, then, 1, false);
}

/* The rows [t0, t1) of one sequence and the heads of kv head g, few: row after row, and in each its heads. */
static void attend_few(const struct attention_args *c, struct state *s, int t0, int t1, int g,
                       const struct visit *then) {
  const struct visit now = visit_of(c, t0, t1, g);
  int group = c->H / c->kv->G, total = (t1 - t0) * group;
  for (int first = 0; first < total;) {
    int left = total - first, count = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (c->format == FORMAT_F32) count = 1; /* for fixtures: whatever it takes */
    for (int r = 0; r < count; r++) {
      int t = t0 + (first + r) / group;
      s->query[r] = (struct query){.t = t,
                                   .h = g * group + (first + r) % group,
                                   .first = attention_first(c->rows->window, c->rows->position[t]),
                                   .position = c->rows->position[t]};
    }
    first += count;
    if (c->format == FORMAT_F32)
      attend(c, s, &now, NULL, 1, true);
    else
      attend_bf16(c, s, count, &now, first < total ? &now : then);
  }
}

#if defined(__AVX512BF16__)
/* Runs of many queries go by lanes; the rows between them go one by one. */
static void attend_by_runs(const struct attention_args *c, int begin, int end, void *scratch) {
  const int group = c->H / c->kv->G;
  int few = begin; /* rows [few, t0) are not done yet */
  for (int t0 = begin, t1; t0 < end; t0 = t1) {
    t1 = attention_run_end(c, t0, end);
    if ((t1 - t0) * group < MANY) continue;
    ISA_NAME(attend_rows_bf16)(c, scratch, few, t0);
    for (int g = 0; g < c->kv->G; g++) ISA_NAME(attend_bf16)(c, scratch, t0, t1, g);
    few = t1;
  }
  ISA_NAME(attend_rows_bf16)(c, scratch, few, end);
}
#endif

void ISA_NAME(attention)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct attention_args *c = args;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) {
    attend_by_runs(c, (int)begin, (int)end, scratch);
    return;
  }
#endif
  for (int t0 = (int)begin, t1; t0 < (int)end; t0 = t1) {
    t1 = attention_run_end(c, t0, (int)end);
    const struct visit next =
        t1 < (int)end ? visit_of(c, t1, attention_run_end(c, t1, (int)end), 0) : visit_of(c, t0, t1, 0);
    for (int g = 0; g < c->kv->G; g++) {
      const struct visit then = g + 1 < c->kv->G ? visit_of(c, t0, t1, g + 1) : next;
      if ((t1 - t0) * (c->H / c->kv->G) < MANY)
        attend_few(c, scratch, t0, t1, g, &then);
      else
        ISA_NAME(attend_many)(c, scratch, t0, t1, g);
    }
  }
}

_Static_assert(sizeof(struct state) <= CPU_SCRATCH_BYTES, "attention's scratch");

/* Computes attention of many rows of one sequence by the micro kernel: QUERIES (row, head) pairs of one kv head go
 * together, so that a block's keys and values are widened once for all of them.  The same sums as attention.c's, bit
 * for bit (NUMERICS.md, "Attention"): the softmax over a block's keys runs down 32 vectors of queries, so that neither
 * maximum nor tree crosses lanes.
 *
 *   q [QUERIES][E] -> transposed; per block of 32 keys: scores [key][QUERIES] = K q^T -> p, rounded, likewise
 *   -> o [QUERIES][E] = o * correction + p^T V */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/elementary.h"
#include "common/model/cpu/isa/micro_kernel.h"

enum { QUERIES = 32, BLOCK = 32, EMAX = CPU_HEAD_DIM_MAX };

struct many_state {
  float q[EMAX][QUERIES];
  float k[EMAX / 2][2][BLOCK]; /* [pair along E][even, odd][key] */
  float v[BLOCK * EMAX];       /* [pair of keys][even, odd][E16] */
  float p[BLOCK][QUERIES];     /* scores, then p as an operand */
  float o[QUERIES * EMAX];     /* [query][E16] */
  float max[QUERIES], correction[QUERIES], sum[QUERIES];
  int32_t first[QUERIES], position[QUERIES]; /* a query attends to first .. position */
  size_t at[QUERIES];                        /* where its q, out and lse are, in rows of [T, H] */
};

/* Queries number `from`.. (row-major over rows and the group's heads) of the rows from t0 on; those beyond `count`
 * repeat the last one. */
static struct attention_span choose_queries(const struct attention_args *c, struct many_state *s, int t0, int g,
                                            int from, int count) {
  const int group = c->H / c->kv->G;
  struct attention_span seen = attention_span_none();
  for (int r = 0; r < QUERIES; r++) {
    const int n = from + (r < count ? r : count - 1), t = t0 + n / group, last = c->rows->position[t];
    const int first = attention_first(c->rows->window, last);
    s->first[r] = first;
    s->position[r] = last;
    s->at[r] = (size_t)t * (size_t)c->H + (size_t)(g * group + n % group);
    attention_span_add(&seen, first, last);
  }
  return seen;
}

/* q [E][query] of the first `lanes`.  A word of a row is a pair of bf16 or a float; E is even. */
INLINE void load_queries(const struct attention_args *c, struct many_state *s, int lanes, const bool f32) {
  const int each = f32 ? 1 : 2, words = c->kv->E / each;
  for (int r = 0; r < lanes; r += VL) {
    for (int w = 0; w < words; w += VL) {
      vu rows[VL];
      UNROLL
      for (int l = 0; l < VL; l++)
        rows[l] = (vu)load_some((const float *)c->q + s->at[r + l] * (size_t)words + (size_t)w, words - w);
      transpose(rows);
      for (int i = 0; i < VL && w + i < words; i++) {
        vstore(s->q[(w + i) * each] + r, (vf)(f32 ? rows[i] : rows[i] << 16));
        if (!f32) vstore(s->q[(w + i) * each + 1] + r, (vf)(rows[i] & 0xffff0000u));
      }
    }
  }
}

/* The block's keys and values from where the pool has them; `count` keys are used. */
INLINE void load_block(const struct attention_args *c, struct many_state *s, int sequence, int g, int block, int count,
                       const bool f32) {
  const int E = c->kv->E, E16 = round_up(E, 16);
  for (int j = 0; j < count; j += 16) {
    size_t keys, values;
    attention_locate(c, sequence, g, block + j, &keys, &values);
    for (int i = 0; i < E / 2; i++, keys += 32) {
      UNROLL
      for (int p = 0; p < PARTS; p++) {
        vstore(s->k[i][0] + j + p * VL, load_even(c->kv->keys, keys, p, f32));
        vstore(s->k[i][1] + j + p * VL, load_odd(c->kv->keys, keys, p, f32));
      }
    }
    float *v = s->v + j * E16;
    for (int i = 0; i < 8; i++, v += 2 * E16) {
      for (int e = 0; e < E16; e += 16, values += 32) {
        UNROLL
        for (int p = 0; p < PARTS; p++) {
          vstore(v + e + p * VL, load_even(c->kv->values, values, p, f32));
          vstore(v + E16 + e + p * VL, load_odd(c->kv->values, values, p, f32));
        }
      }
    }
  }
}

/* p [key][query] = DOT over E of the keys and q. */
static void score_block(struct many_state *s, int E, int keys, int lanes, bool f32) {
  for (int e = 0; e < E; e += 32) {
    const struct block b = {.dst = s->p[0],
                            .ldd = QUERIES,
                            .a = s->k[e / 2][0],
                            .odd_a = BLOCK,
                            .step_a = 2 * BLOCK,
                            .w = s->q[e],
                            .odd_w = QUERIES,
                            .step_w = 2 * QUERIES,
                            .tile_w = 16,
                            .steps = E - e < 32 ? (E - e) / 2 : 16,
                            .rows = keys,
                            .lanes = lanes,
                            .first = e == 0,
                            .f32 = f32};
    ISA_NAME(attention_columns)(&b);
  }
}

/* VL queries from `at` on: from dots to p as operands, and the running maxima and sums.  Keys from `keys` on are seen
 * by none. */
INLINE void soften(struct many_state *s, const struct score_scale scale, const struct attention_span *seen, int block,
                   int keys, int at, const bool f32) {
  const vf before = vload(s->max + at);
  vf top = before, lane[16];
  vi first, position;
  memcpy(&first, s->first + at, sizeof first);
  memcpy(&position, s->position + at, sizeof position);
  for (int j = 0; j < keys; j++) {
    const vf x = attention_seen_key(attention_score(vload(s->p[j] + at), scale), block + j, first, position, seen);
    vstore(s->p[j] + at, x);
    top = vmax(x, top);
  }
  for (int j = keys; j < BLOCK; j++) vstore(s->p[j] + at, vset(-HUGE_VALF)); /* p is 0 */
  UNROLL
  for (int j = 0; j < 16; j++) {
    const vf a = vexp(vload(s->p[j] + at) - top), b = vexp(vload(s->p[j + 16] + at) - top);
    lane[j] = a + b;
    vstore(s->p[j] + at, vround(a, f32));
    vstore(s->p[j + 16] + at, vround(b, f32));
  }
  const vf tree = attention_tree(lane), correction = vexp(before - top);
  vstore(s->max + at, top);
  vstore(s->correction + at, correction);
  vstore(s->sum + at, vload(s->sum + at) * correction + tree);
}

/* o = o * correction + DOT over the block's keys of p and v. */
static void add_values(struct many_state *s, int E16, int keys, int queries, bool first, bool f32) {
  for (int r = 0; r < queries && !first; r++) {
    float *o = s->o + r * E16;
    for (int e = 0; e < E16; e += VL) vstore(o + e, vload(o + e) * s->correction[r]);
  }
  for (int e = 0; e < E16; e += 32) {
    const struct block b = {.dst = s->o + e,
                            .ldd = (size_t)E16,
                            .a = s->p[0],
                            .odd_a = QUERIES,
                            .step_a = 2 * QUERIES,
                            .w = s->v + e,
                            .odd_w = (size_t)E16,
                            .step_w = 2 * (size_t)E16,
                            .tile_w = 16,
                            .steps = (keys + 1) / 2,
                            .rows = queries,
                            .lanes = E16 - e < 32 ? E16 - e : 32,
                            .first = first,
                            .f32 = f32};
    ISA_NAME(attention_columns)(&b);
  }
}

static void store_out(const struct attention_args *c, const struct many_state *s, int count, bool f32) {
  const int E = c->kv->E, E16 = round_up(E, 16);
  for (int r = 0; r < count; r++)
    for (int e = 0; e < E; e += VL)
      store_some_operands(c->out, s->at[r] * (size_t)E + (size_t)e, vload(s->o + r * E16 + e) / s->sum[r], E - e, f32);
  for (int r = 0; c->lse && r < QUERIES; r += VL) {
    const vf lse = vload(s->max + r) + vlog(vload(s->sum + r));
    for (int l = 0; l < VL && r + l < count; l++) c->lse[s->at[r + l]] = lse[l];
  }
}

INLINE void attend(const struct attention_args *c, struct many_state *s, int t0, int g, int from, int count,
                   const bool f32) {
  const struct attention_span seen = choose_queries(c, s, t0, g, from, count);
  const int E = c->kv->E, lanes = round_up(count, 16), start = seen.first / BLOCK * BLOCK;
  load_queries(c, s, lanes, f32);
  for (int r = 0; r < QUERIES; r++) {
    s->max[r] = attention_lowest(c->rows->window);
    s->sum[r] = 0.0f;
  }
  for (int block = start; block <= seen.last; block += BLOCK) {
    const int keys = seen.last - block + 1 < BLOCK ? seen.last - block + 1 : BLOCK;
    load_block(c, s, c->rows->sequence[t0], g, block, keys, f32);
    score_block(s, E, keys, lanes, f32);
    for (int at = 0; at < lanes; at += VL) soften(s, attention_scale(c), &seen, block, keys, at, f32);
    add_values(s, round_up(E, 16), keys, count, block == start, f32);
  }
  store_out(c, s, count, f32);
}

void ISA_NAME(attend_many)(const struct attention_args *c, void *scratch, int t0, int t1, int g) {
  struct many_state *s = scratch;
  const int total = (t1 - t0) * (c->H / c->kv->G);
  for (int from = 0; from < total; from += QUERIES) {
    const int count = total - from < QUERIES ? total - from : QUERIES;
    if (c->format == FORMAT_F32)
      attend(c, s, t0, g, from, count, true);
    else
      attend(c, s, t0, g, from, count, false);
  }
}

_Static_assert(sizeof(struct many_state) <= CPU_SCRATCH_BYTES, "attention's scratch");

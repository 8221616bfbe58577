/* Computes attention of many queries of one sequence by chains of fused multiply-adds (micro_kernel.h): the same sums as
 * attention.c's, bit for bit (NUMERICS.md, "Attention").
 *
 * Up to QUERIES (row, head) pairs of one kv head are the rows of two products.  Per block of 32 keys, which is widened to
 * floats for all of them:
 *
 *   scores [queries][32] = q . keys  ->  p [queries][32], rounded  ->  o [queries][E] = o * correction + p . values */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/elementary.h"
#include "common/model/cpu/isa/micro_kernel.h"

enum { QUERIES = 24, BLOCK = 32, E_MAX = CPU_HEAD_DIM_MAX };

struct chains_state {
  float q[E_MAX / 32][QUERIES][32];                                /* of 32 along E: 16 even, 16 odd */
  float k[E_MAX / 2][2][BLOCK];                                    /* [pair along E][even, odd][key] */
  float v[E_MAX / 32][BLOCK][32];                                  /* of 32 along E: [key][32] */
  float s[QUERIES][BLOCK];                                         /* scores, then p */
  float o[QUERIES * E_MAX];                                        /* [query][E16] */
  float max[QUERIES + 16], correction[QUERIES + 16], sum[QUERIES]; /* whole vectors */
  int t[QUERIES], h[QUERIES], position[QUERIES];
  int count, E, E16;
};

INLINE void load_queries(const struct attention_args *c, struct chains_state *s, const bool f32) {
  for (int r = 0; r < s->count; r++) {
    const size_t at = ((size_t)s->t[r] * (size_t)c->H + (size_t)s->h[r]) * (size_t)s->E;
    for (int e = 0; e < s->E; e += 32) {
      float *even = s->q[e / 32][r];
      if (e + 32 <= s->E)
        split32(even, even + 16, c->q, at + (size_t)e, f32);
      else
        split_tail(even, even + 16, c->q, at + (size_t)e, s->E - e, f32);
    }
  }
}

/* A tile of 16 keys and their values, as keys `first` on of the block. */
INLINE void load_tile(const struct attention_args *c, struct chains_state *s, size_t keys, size_t values, int first,
                      const bool f32) {
  for (int i = 0; i < round_up(s->E, 2) / 2; i++)
    split32(s->k[i][0] + first, s->k[i][1] + first, c->kv->keys, keys + (size_t)i * 32, f32);
  for (int j = 0; j < 16; j += 2, values += 2 * (size_t)s->E16)
    for (int e = 0; e < s->E16; e += 16)
      split32(s->v[e / 32][first + j] + e % 32, s->v[e / 32][first + j + 1] + e % 32, c->kv->values,
              values + 2 * (size_t)e, f32);
}

static __attribute__((noinline)) void add(const struct block *b) { block_add(b, BLOCK, W_FLOATS); }

static void score(struct chains_state *s, int tiles) {
  for (int e = 0; e < s->E; e += 32) {
    const struct block b = {.dst = s->s[0],
                            .ldd = BLOCK,
                            .a = s->q[e / 32][0],
                            .odd_a = 16,
                            .step_a = 1,
                            .w = s->k[e / 2][0],
                            .odd_w = BLOCK,
                            .step_w = 2 * BLOCK,
                            .tile_w = 16,
                            .steps = s->E - e < 32 ? (s->E - e + 1) / 2 : 16,
                            .rows = s->count,
                            .lanes = 16 * tiles,
                            .first = e == 0};
    add(&b);
  }
}

/* From the scores of keys block..block + 31 to p as operands, and the running maxima and sums: attention.c's soften, for
 * more queries.  Stage by stage, so that no query waits for its own results alone. */
INLINE void soften(struct chains_state *s, int block, float scale, const bool f32) {
  float before[QUERIES + 16];
  memcpy(before, s->max, sizeof before);
  for (int r = 0; r < s->count; r++) {
    const int valid = s->position[r] - block + 1;
    struct f16 low = load16(s->s[r]), high = load16(s->s[r] + 16), top; /* of a missing tile: anything */
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      low.v[i] = low.v[i] * scale;
      high.v[i] = high.v[i] * scale;
    }
    low = attention_seen(low, valid);
    high = attention_seen(high, valid - 16);
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      vstore(s->s[r] + i * VL, low.v[i]);
      vstore(s->s[r] + 16 + i * VL, high.v[i]);
      top.v[i] = vmax(low.v[i], high.v[i]);
    }
    const float most = max16(top);
    s->max[r] = s->max[r] > most ? s->max[r] : most;
  }
  for (int r = 0; r < s->count; r += VL) vstore(s->correction + r, vexp(vload(before + r) - vload(s->max + r)));
  for (int r = 0; r < s->count; r++) {
    struct f16 sum;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
      float *low = s->s[r] + i * VL, *high = low + 16;
      const vf a = vexp(vload(low) - s->max[r]), b = vexp(vload(high) - s->max[r]);
      sum.v[i] = a + b;
      vstore(low, vround(a, f32));
      vstore(high, vround(b, f32));
    }
    s->sum[r] = s->sum[r] * s->correction[r] + tree16(sum);
  }
}

static void add_values(struct chains_state *s, int tiles, bool first) {
  for (int r = 0; r < s->count && !first; r++) {
    float *o = s->o + r * s->E16;
    for (int e = 0; e < s->E16; e += VL) vstore(o + e, vload(o + e) * s->correction[r]);
  }
  for (int e = 0; e < s->E16; e += 32) {
    const struct block b = {.dst = s->o + e,
                            .ldd = (size_t)s->E16,
                            .a = s->s[0],
                            .odd_a = 1,
                            .step_a = 2,
                            .w = s->v[e / 32][0],
                            .odd_w = 32,
                            .step_w = 2 * 32,
                            .tile_w = 16,
                            .steps = 8 * tiles,
                            .rows = s->count,
                            .lanes = s->E16 - e < 32 ? s->E16 - e : 32,
                            .first = first};
    add(&b);
  }
}

static void store_out(const struct attention_args *c, const struct chains_state *s, const bool f32) {
  for (int r = 0; r < s->count; r++) {
    const size_t row = (size_t)s->t[r] * (size_t)c->H + (size_t)s->h[r];
    for (int e = 0; e < s->E; e += VL)
      store_some_operands(c->out, row * (size_t)s->E + (size_t)e, vload(s->o + r * s->E16 + e) / s->sum[r], s->E - e,
                          f32);
    if (c->lse) c->lse[row] = s->max[r] + log_one(s->sum[r]);
  }
}

/* The queries of s, from first key to last. */
INLINE void attend(const struct attention_args *c, struct chains_state *s, int sequence, int g, const bool f32) {
  int last = 0;
  load_queries(c, s, f32);
  for (int r = 0; r < s->count; r++) {
    s->sum[r] = 0.0f;
    if (s->position[r] > last) last = s->position[r];
  }
  for (int r = 0; r < QUERIES + 16; r++) s->max[r] = -HUGE_VALF;
  for (int block = 0; block <= last; block += BLOCK) {
    const int tiles = block + 16 <= last ? 2 : 1;
    for (int j = 0; j < tiles; j++) {
      size_t keys, values;
      attention_locate(c, sequence, g, block + 16 * j, &keys, &values);
      load_tile(c, s, keys, values, 16 * j, f32);
    }
    score(s, tiles);
    soften(s, block, c->scale, f32);
    add_values(s, tiles, block == 0);
  }
  store_out(c, s, f32);
}

void ISA_NAME(attend_chains)(const struct attention_args *c, void *scratch, int t0, int t1, int g) {
  struct chains_state *s = scratch;
  const int group = c->H / c->kv->G, total = (t1 - t0) * group, parts = (total + QUERIES - 1) / QUERIES;
  s->E = c->kv->E;
  s->E16 = round_up(s->E, 16);
  for (int part = 0; part < parts; part++) {
    const int first = total * part / parts;
    s->count = total * (part + 1) / parts - first;
    for (int r = 0; r < s->count; r++) {
      s->t[r] = t0 + (first + r) / group;
      s->h[r] = g * group + (first + r) % group;
      s->position[r] = c->rows->position[s->t[r]];
    }
    if (c->format == FORMAT_F32)
      attend(c, s, c->rows->sequence[t0], g, true);
    else
      attend(c, s, c->rows->sequence[t0], g, false);
  }
}

_Static_assert(sizeof(struct chains_state) <= CPU_SCRATCH_BYTES, "attention's scratch");

/* Computes attention of rows that are alone in their sequence (a decode step), by links (bf16_chain.h).  The same sums
 * as attention.c's, bit for bit (NUMERICS.md, "Attention").
 *
 * The pool holds keys and values in links already (ops.h, struct kv_layer), so that every load gives an operand: scores
 * run over the 16 keys of a tile, values over 16 of E.  A unit is up to UNIT queries of one row that share a kv head
 * and all its loads.  Up to LANES queries, heads of a row and rows of different sequences, go from block to block
 * together, so that the softmax has full vectors and rarely waits for a result; a row without keys in the block is
 * idle.  One folding tree gives the maxima and sums of all of them, a lane for each.
 *
 * The pool is read once a step, from memory: while a unit works on a block, its next one is fetched.
 *
 *   q -> links; per block of 32 keys: scores [lane][key] -> p, rounded, as links [lane][key pairs] -> o [lane][E] */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/attention/fold.h"
#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AVX512BF16__)

enum { LANES = 16, UNIT = 4, BLOCK = 32, E_MAX = CPU_HEAD_DIM_MAX, TILE_STEPS = LINK_STEPS / 2 };

/* A block's tiles of 16 keys; without a second one, the first again. */
struct tiles {
  const uint32_t *keys[2], *values[2];
};

/* `count` neighbouring heads from h on of row t, in the lanes from `lane` on. */
struct unit {
  int t, g, h, count, lane, first, position; /* attends to first .. position */
  struct tiles now, next;                    /* the block's, and those that are fetched meanwhile */
};

struct rows_state {
  uint32_t q[LANES * E_MAX / 2]; /* [lane][E32 / 2]: per 32 along E its even links, then its odd ones */
  uint32_t p[LANES][LANES];      /* the block's even links, then its odd ones */
  float s[LANES][BLOCK];
  float fold[LANES][LANES]; /* rows that are folded to one number per lane */
  float o[LANES * E_MAX];   /* [lane][E16] */
  float max[LANES], correction[LANES], sum[LANES];
  int32_t first[LANES], position[LANES];
  struct unit unit[LANES];
  int units, lanes;
};

/* Into the second cache: a block of all units is more than the first one holds. */
INLINE void prefetch(const uint32_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* dot += the 32 (`steps` links of either chain) along E from q and the tiles on; q's lanes are q_stride apart. */
INLINE void score_links(vf dot[UNIT][2], const uint32_t *q, size_t q_stride, const uint32_t *const keys[2],
                        const uint32_t *const next[2], const int steps, const int R, const int NV) {
  vf even[UNIT][2], odd[UNIT][2];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) even[r][v] = odd[r][v] = (vf){0};
  }
  UNROLL
  for (int i = 0; i < steps; i++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      prefetch(next[v] + i * 32);
      prefetch(next[v] + i * 32 + 16);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
      const vu qe = link_set(q[(size_t)r * q_stride + (size_t)i]),
               qo = link_set(q[(size_t)r * q_stride + (size_t)(LINK_STEPS + i)]);
      UNROLL
      for (int v = 0; v < NV; v++) {
        even[r][v] = link_add(even[r][v], qe, link_load(keys[v] + i * 32));
        odd[r][v] = link_add(odd[r][v], qo, link_load(keys[v] + i * 32 + 16));
      }
    }
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      if (steps < LINK_STEPS) { /* the block's zero padding */
        even[r][v] = even[r][v] + 0.0f;
        odd[r][v] = odd[r][v] + 0.0f;
      }
      dot[r][v] = dot[r][v] + (even[r][v] + odd[r][v]);
    }
  }
}

/* Scores of a unit against NV tiles, of which the keys unseen .. valid - 1 count; -infinity for the others, and each
 * lane's larger halves. */
INLINE void score(struct rows_state *s, const struct unit *u, int E, struct score_scale scale, int unseen, int valid,
                  const int R, const int NV) {
  const size_t q_stride = (size_t)round_up(E, 32) / 2;
  const uint32_t *q = s->q + (size_t)u->lane * q_stride, *keys[2] = {u->now.keys[0], u->now.keys[1]},
                 *next[2] = {u->next.keys[0], u->next.keys[1]};
  vf dot[UNIT][2] = {{{0}}};
  int e = 0;
  for (; e + 32 <= E; e += 32, q += 16, keys[0] += 256, keys[1] += 256, next[0] += 256, next[1] += 256)
    score_links(dot, q, q_stride, keys, next, LINK_STEPS, R, NV);
  if (E - e == 16)
    score_links(dot, q, q_stride, keys, next, LINK_STEPS / 2, R, NV);
  else if (e < E)
    score_links(dot, q, q_stride, keys, next, link_steps(E - e), R, NV);
  const uint32_t counting = (valid < BLOCK ? (1u << valid) - 1u : ~0u) & ~0u << (unseen > 0 ? unseen : 0);
  const __mmask16 counts[2] = {(__mmask16)counting, (__mmask16)(counting >> 16)};
  UNROLL
  for (int r = 0; r < R; r++) {
    const vf none = vset(-HUGE_VALF);
    vf x[2] = {none, none};
    UNROLL
    for (int v = 0; v < NV; v++)
      x[v] = (vf)_mm512_mask_mov_ps((__m512)none, counts[v], (__m512)attention_score(dot[r][v], scale));
    vstore(s->s[u->lane + r], x[0]);
    vstore(s->s[u->lane + r] + 16, x[1]);
    vstore(s->fold[u->lane + r], larger(x[0], x[1]));
  }
}

INLINE void score_unit(struct rows_state *s, const struct unit *u, int E, struct score_scale scale, int block,
                       const int R) {
  const int valid = u->position - block + 1, unseen = u->first - block;
  if (valid > 16)
    score(s, u, E, scale, unseen, valid < BLOCK ? valid : BLOCK, R, 2);
  else
    score(s, u, E, scale, unseen, valid, R, 1);
}

/* The unit has keys in the block. */
INLINE bool is_active(const struct unit *u, int block) { return u->position >= block && u->first < block + BLOCK; }

/* The maxima and corrections of all lanes, from their scores. */
INLINE void raise_maxima(struct rows_state *s, vi active) {
  const vf before = vload(s->max), after = vselect(active, larger(before, fold(s->fold, false).v[0]), before);
  vstore(s->max, after);
  vstore(s->correction, vexp(before - after));
}

/* From scores to p and its links, and the terms of the tree. */
INLINE void soften_unit(struct rows_state *s, const struct unit *u, const int R) {
  UNROLL
  for (int r = 0; r < R; r++) {
    const int lane = u->lane + r;
    const vf max = vset(s->max[lane]), low = vexp(vload(s->s[lane]) - max), high = vexp(vload(s->s[lane] + 16) - max);
    vstore(s->fold[lane], low + high);
    link_store(s->p[lane], link_order((h32)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low)));
  }
}

/* o = o * correction + DOT over the block's keys of p and v, for NV vectors along E. */
INLINE void add_vectors(struct rows_state *s, const struct unit *u, float *o, size_t e, size_t E16, int steps,
                        const int R, const int NV) {
  vf even[UNIT][4], odd[UNIT][4];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) even[r][v] = odd[r][v] = (vf){0};
  }
  for (int tile = 0; tile * TILE_STEPS < steps; tile++) {
    const uint32_t *value = u->now.values[tile] + e, *next = u->next.values[tile] + e,
                   *p = s->p[u->lane] + tile * TILE_STEPS;
    const int left = steps - tile * TILE_STEPS;
    for (int i = 0; i < (left < TILE_STEPS ? left : TILE_STEPS); i++, value += 2 * E16, next += 2 * E16, p++) {
      UNROLL
      for (int v = 0; v < NV; v++) {
        prefetch(next + v * VL);
        prefetch(next + E16 + v * VL);
      }
      UNROLL
      for (int r = 0; r < R; r++) {
        const vu pe = link_set(p[r * LANES]), po = link_set(p[r * LANES + LINK_STEPS]);
        UNROLL
        for (int v = 0; v < NV; v++) {
          even[r][v] = link_add(even[r][v], pe, link_load(value + v * VL));
          odd[r][v] = link_add(odd[r][v], po, link_load(value + E16 + v * VL));
        }
      }
    }
  }
  UNROLL
  for (int r = 0; r < R; r++, o += E16) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      if (steps < LINK_STEPS) { /* the block's zero padding */
        even[r][v] = even[r][v] + 0.0f;
        odd[r][v] = odd[r][v] + 0.0f;
      }
      float *to = o + e + (size_t)v * VL;
      vstore(to, vload(to) * s->correction[u->lane + r] + (even[r][v] + odd[r][v]));
    }
  }
}

INLINE void add_unit(struct rows_state *s, const struct unit *u, int E, int valid, const int R) {
  const int NV = R <= 2 ? 4 : 2, steps = link_steps(valid < BLOCK ? valid : BLOCK);
  const size_t E16 = (size_t)round_up(E, 16);
  float *o = s->o + (size_t)u->lane * E16;
  size_t e = 0;
  for (; e + (size_t)NV * VL <= E16; e += (size_t)NV * VL) add_vectors(s, u, o, e, E16, steps, R, NV);
  for (; e < E16; e += VL) add_vectors(s, u, o, e, E16, steps, R, 1);
}

/* Calls f(.., R) with the unit's count as a constant. */
#define BY_COUNT(f, count, ...) \
  do {                          \
    if ((count) == 1)           \
      f(__VA_ARGS__, 1);        \
    else if ((count) == 2)      \
      f(__VA_ARGS__, 2);        \
    else if ((count) == 3)      \
      f(__VA_ARGS__, 3);        \
    else                        \
      f(__VA_ARGS__, 4);        \
  } while (0)

/* Where the block's tiles lie, which each unit needs next; past a row's end its last ones stay.  The page table is
 * asked once for all units of a row. */
static void find_next(const struct attention_args *c, struct rows_state *s, int block) {
  const struct kv_layer *kv = c->kv;
  const size_t tokens = (size_t)kv->page_tokens, key_head = tokens * (size_t)round_up(kv->E, 32),
               value_head = tokens * (size_t)round_up(kv->E, 16);
  size_t keys[2] = {0, 0}, values[2] = {0, 0};
  for (int i = 0, t = -1; i < s->units; i++) {
    struct unit *u = &s->unit[i];
    if (u->position < block) continue;
    for (int j = 0; u->t != t && j < 2; j++)
      attention_locate(c, c->rows->sequence[u->t], 0, block + 16 * j <= u->position ? block + 16 * j : block, &keys[j],
                       &values[j]);
    t = u->t;
    for (int j = 0; j < 2; j++) {
      u->next.keys[j] = (const uint32_t *)kv->keys + (keys[j] + (size_t)u->g * key_head) / 2;
      u->next.values[j] = (const uint32_t *)kv->values + (values[j] + (size_t)u->g * value_head) / 2;
    }
  }
}

static void attend_block(const struct attention_args *c, struct rows_state *s, int block) {
  const int E = c->kv->E;
  vi first, position;
  memcpy(&first, s->first, sizeof first);
  memcpy(&position, s->position, sizeof position);
  const vi active = (position >= block) & (first < block + BLOCK);
  for (int i = 0; i < s->units; i++) {
    const struct unit *u = &s->unit[i];
    if (is_active(u, block)) BY_COUNT(score_unit, u->count, s, u, E, attention_scale(c), block);
  }
  raise_maxima(s, active);
  for (int i = 0; i < s->units; i++) {
    const struct unit *u = &s->unit[i];
    if (is_active(u, block)) BY_COUNT(soften_unit, u->count, s, u);
  }
  const vf sum = vload(s->sum);
  vstore(s->sum, vselect(active, sum * vload(s->correction) + fold(s->fold, true).v[0], sum));
  for (int i = 0; i < s->units; i++) {
    const struct unit *u = &s->unit[i];
    if (is_active(u, block)) BY_COUNT(add_unit, u->count, s, u, E, u->position - block + 1);
  }
}

static void load_unit(const struct attention_args *c, struct rows_state *s, const struct unit *u) {
  const int E = c->kv->E;
  const size_t stride = (size_t)round_up(E, 32) / 2;
  for (int r = 0; r < u->count; r++) {
    const uint16_t *row = (const uint16_t *)c->q + ((size_t)u->t * (size_t)c->H + (size_t)(u->h + r)) * (size_t)E;
    uint32_t *to = s->q + (size_t)(u->lane + r) * stride;
    for (int e = 0; e < E; e += 32, to += 16) link_store(to, link_block(row + e, E - e));
    s->first[u->lane + r] = u->first;
    s->position[u->lane + r] = u->position;
  }
}

static void store_unit(const struct attention_args *c, const struct rows_state *s, const struct unit *u, vf lse) {
  const int E = c->kv->E;
  const size_t E16 = (size_t)round_up(E, 16);
  for (int r = 0; r < u->count; r++) {
    const size_t row = (size_t)u->t * (size_t)c->H + (size_t)(u->h + r);
    const float *o = s->o + (size_t)(u->lane + r) * E16, sum = s->sum[u->lane + r];
    for (int e = 0; e < E; e += VL)
      store_some_operands(c->out, row * (size_t)E + (size_t)e, vload(o + e) / sum, E - e, false);
    if (c->lse) c->lse[row] = lse[u->lane + r];
  }
}

/* All units, from first key to last. */
static void attend_units(const struct attention_args *c, struct rows_state *s) {
  int first = INT32_MAX, last = 0;
  memset(s->first, 0, sizeof s->first);
  memset(s->position, 0xff, sizeof s->position);
  memset(s->sum, 0, sizeof s->sum);
  memset(s->o, 0, (size_t)s->lanes * (size_t)round_up(c->kv->E, 16) * sizeof *s->o);
  vstore(s->max, vset(-HUGE_VALF));
  for (int i = 0; i < s->units; i++) {
    load_unit(c, s, &s->unit[i]);
    first = s->unit[i].first < first ? s->unit[i].first : first;
    last = s->unit[i].position > last ? s->unit[i].position : last;
  }
  first = first / BLOCK * BLOCK;
  find_next(c, s, first);
  for (int block = first; block <= last; block += BLOCK) {
    for (int i = 0; i < s->units; i++) s->unit[i].now = s->unit[i].next;
    find_next(c, s, block + BLOCK);
    attend_block(c, s, block);
  }
  const vf lse = c->lse ? vload(s->max) + vlog(vload(s->sum)) : (vf){0};
  for (int i = 0; i < s->units; i++) store_unit(c, s, &s->unit[i], lse);
  s->units = s->lanes = 0;
}

void ISA_NAME(attend_rows_bf16)(const struct attention_args *c, void *scratch, int t0, int t1) {
  struct rows_state *s = scratch;
  const int group = c->H / c->kv->G;
  s->units = s->lanes = 0;
  for (int t = t0; t < t1; t++)
    for (int h = 0, count; h < c->H; h += count) {
      const int left = group - h % group;
      count = left < UNIT ? left : UNIT;
      if (s->lanes + count > LANES) attend_units(c, s);
      s->unit[s->units++] = (struct unit){.t = t,
                                          .g = h / group,
                                          .h = h,
                                          .count = count,
                                          .lane = s->lanes,
                                          .first = attention_first(c->rows->window, c->rows->position[t]),
                                          .position = c->rows->position[t]};
      s->lanes += count;
    }
  if (s->units > 0) attend_units(c, s);
}

_Static_assert(sizeof(struct rows_state) <= CPU_SCRATCH_BYTES, "attention's scratch");

#endif

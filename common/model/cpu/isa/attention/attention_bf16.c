/* Computes attention of many rows of one sequence, by links (bf16_chain.h): 16 (row, head) pairs of one kv head lie
 * along the lanes, keys and values are broadcast.  The same sums as attention.c's, bit for bit (NUMERICS.md,
 * "Attention"): the softmax over a block's keys runs down 32 vectors, so that neither maximum nor tree crosses lanes.
 *
 *   q [16 rows][E] -> transposed links; per block of 32 keys: links of keys and values -> scores [key][16] -> p,
 *   rounded, as links [key pairs][16] -> o [E][16] -> rows */
#include "common/model/cpu/isa/attention/attention.h"
#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AVX512BF16__)

enum { LANES = 16, BLOCK = 32, E_MAX = CPU_HEAD_DIM_MAX };

struct lane {
  int t, h;
};

struct lanes_state {
  uint32_t q[E_MAX / 2][LANES];         /* per 32 along E its even links, then its odd ones */
  uint32_t k[E_MAX / 2][BLOCK];         /* the same of the block's keys */
  uint32_t v[BLOCK / 2 * (E_MAX + 16)]; /* [link][v_stride]: even links of the block's keys, then its odd ones */
  uint32_t p[BLOCK / 2][LANES];         /* likewise */
  float s[BLOCK][LANES];                /* scores, then p */
  float o[E_MAX][LANES];
  struct lane lane[LANES];
};

/* Not a multiple of the cache's way. */
INLINE size_t v_stride(int E) { return (size_t)round_up(E, 16) + 16; }

static void load_q(const struct attention_args *c, struct lanes_state *s) {
  const uint16_t *row[LANES];
  const int E = c->kv->E;
  for (int r = 0; r < LANES; r++)
    row[r] = (const uint16_t *)c->q + ((size_t)s->lane[r].t * (size_t)c->H + (size_t)s->lane[r].h) * (size_t)E;
  link_columns(s->q[0], LANES, row, E);
}

/* The block's keys and values from where the pool has them; `count` keys are used. */
static void load_block(const struct attention_args *c, struct lanes_state *s, int sequence, int g, int block,
                       int count) {
  const int E = c->kv->E, E16 = round_up(E, 16);
  for (int j = 0; j < count; j += 16) {
    size_t keys, values;
    attention_locate(c, sequence, g, block + j, &keys, &values);
    const uint32_t *k = (const uint32_t *)c->kv->keys + keys / 2, *v = (const uint32_t *)c->kv->values + values / 2;
    for (int e = 0; e < E; e += 32) {
      const int steps = link_steps(E - e < 32 ? E - e : 32);
      for (int i = 0; i < steps; i++, k += 32) {
        link_store(s->k[e / 2 + i] + j, link_load(k));
        link_store(s->k[e / 2 + steps + i] + j, link_load(k + 16));
      }
      k += (LINK_STEPS - steps) * 32;
    }
    for (int i = 0; i < 4; i++, v += 2 * E16)
      for (int e = 0; e < E; e += 16) {
        link_store(s->v + (size_t)(j / 4 + i) * v_stride(E) + e, link_load(v + e));
        link_store(s->v + (size_t)(LINK_STEPS + j / 4 + i) * v_stride(E) + e, link_load(v + E16 + e));
      }
  }
}

/* s[key][lane]: the scores; -infinity for keys outside the lane's first .. position. */
static void score_block(struct lanes_state *s, int E, struct score_scale scale, int block, int count, vi first,
                        vi position, const struct attention_span *seen) {
  for (int j = 0; j < count; j += LINK_ROWS) {
    vf dot[LINK_ROWS][2] = {{{0}}};
    for (int e = 0; e < E; e += 32) {
      const int steps = link_steps(E - e < 32 ? E - e : 32);
      link_dot(dot, s->k[e / 2] + j, 1, BLOCK, s->q[e / 2], LANES, steps, steps, LINK_ROWS, 1);
    }
    UNROLL
    for (int r = 0; r < LINK_ROWS; r++) {
      vf x = attention_score(dot[r][0], scale);
      vstore(s->s[j + r], attention_seen_key(x, block + j + r, first, position, seen));
    }
  }
}

/* From scores to p and its links; returns TREE(p_0 + p_16, ..).  count is a multiple of LINK_ROWS. */
static vf soften_block(struct lanes_state *s, int count, vf max) {
  for (int j = 0; j < count; j += 4) {
    vf p[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
      p[r] = vexp(vload(s->s[j + r]) - max);
      vstore(s->s[j + r], p[r]);
    }
    link_store(s->p[j / 4], link_rows(round16(p[0]), round16(p[2])));
    link_store(s->p[LINK_STEPS + j / 4], link_rows(round16(p[1]), round16(p[3])));
  }
  for (int j = count; j < BLOCK; j++) vstore(s->s[j], (vf){0});
  vf lane[16];
  UNROLL
  for (int j = 0; j < 16; j++) lane[j] = vload(s->s[j]) + vload(s->s[j + 16]);
  return attention_tree(lane);
}

/* o = o * correction + DOT over the block's keys of p and v. */
static void add_values(struct lanes_state *s, int E, int count, vf correction, bool first) {
  const int steps = link_steps(count);
  const size_t stride = v_stride(E);
  for (int e = 0; e < E; e += LINK_ROWS) {
    vf dot[LINK_ROWS][2], even[LINK_ROWS][2], odd[LINK_ROWS][2];
    link_chain(even, s->v + e, 1, stride, s->p[0], LANES, VL, steps, LINK_ROWS, 1);
    link_chain(odd, s->v + LINK_STEPS * stride + e, 1, stride, s->p[LINK_STEPS], LANES, VL, steps, LINK_ROWS, 1);
    UNROLL
    for (int r = 0; r < LINK_ROWS; r++) {
      dot[r][0] = even[r][0] + odd[r][0];
      if (!first) dot[r][0] = vload(s->o[e + r]) * correction + dot[r][0];
      vstore(s->o[e + r], dot[r][0]);
    }
  }
}

/* out = operand(o / l), back in rows; the first `count` lanes. */
static void store_out(const struct attention_args *c, struct lanes_state *s, int count, vf sum) {
  const int E = c->kv->E;
  for (int e = 0; e < E; e += 16) {
    vu z[8];
    UNROLL
    for (int i = 0; i < 8; i++)
      z[i] = link_rows(round16(vload(s->o[e + 2 * i + 1]) / sum), round16(vload(s->o[e + 2 * i]) / sum));
    transpose8(z);
    for (int r = 0; r < count; r++) {
      const struct lane *l = &s->lane[r];
      uint16_t *out = (uint16_t *)c->out + ((size_t)l->t * (size_t)c->H + (size_t)l->h) * (size_t)E + e;
      const size_t bytes = (size_t)(E - e) * sizeof *out;
      const char *from = (const char *)&z[r % 8] + r / 8 * 32;
      if (bytes >= 32)
        memcpy(out, from, 32);
      else
        memcpy(out, from, bytes);
    }
  }
}

/* The first `count` lanes hold queries; the others repeat the last one. */
static void attend_lanes(const struct attention_args *c, struct lanes_state *s, int sequence, int g, int count) {
  const int E = c->kv->E;
  vi first, position;
  struct attention_span seen = attention_span_none();
  for (int r = 0; r < LANES; r++) {
    const int at = c->rows->position[s->lane[r].t], from = attention_first(c->rows->window, at);
    first[r] = from;
    position[r] = at;
    attention_span_add(&seen, from, at);
  }
  const int start = seen.first / BLOCK * BLOCK;
  vf max = vset(attention_lowest(c->rows->window)), sum = {0};
  load_q(c, s);
  for (int block = start; block <= seen.last; block += BLOCK) {
    const int left = seen.last - block + 1, keys = round_up(left < BLOCK ? left : BLOCK, LINK_ROWS);
    load_block(c, s, sequence, g, block, keys);
    score_block(s, E, attention_scale(c), block, keys, first, position, &seen);
    vf top = vload(s->s[0]);
    for (int j = 1; j < keys; j++) top = vmax(vload(s->s[j]), top);
    top = vmax(max, top);
    const vf correction = block == start ? (vf){0} : vexp(max - top), tree = soften_block(s, keys, top);
    sum = block == start ? tree : sum * correction + tree;
    add_values(s, E, keys, correction, block == start);
    max = top;
  }
  store_out(c, s, count, sum);
  if (!c->lse) return;
  const vf lse = max + vlog(sum);
  for (int r = 0; r < count; r++) c->lse[(size_t)s->lane[r].t * (size_t)c->H + (size_t)s->lane[r].h] = lse[r];
}

void ISA_NAME(attend_bf16)(const struct attention_args *c, void *scratch, int t0, int t1, int g) {
  struct lanes_state *s = scratch;
  const int group = c->H / c->kv->G, total = (t1 - t0) * group;
  for (int first = 0; first < total; first += LANES) {
    const int count = total - first < LANES ? total - first : LANES;
    for (int r = 0; r < LANES; r++) {
      const int n = first + (r < count ? r : count - 1);
      s->lane[r] = (struct lane){.t = t0 + n / group, .h = g * group + n % group};
    }
    attend_lanes(c, s, c->rows->sequence[t0], g, count);
  }
}

_Static_assert(sizeof(struct lanes_state) <= CPU_SCRATCH_BYTES, "attention's scratch");

#endif

/* Computes gemm_weight_backward over bf16 operands by links (bf16_chain.h): the same sums as gemm.c's, bit for bit.
 *  Lanes run over K, rows over N, the dot over tokens, whose rows are interleaved by twos.
 *
 *   T_BLOCKS * 32 rows of dy [N_BLOCK] and x [K_BLOCK], in memory -> links, second-level cache
 *   -> sums [N_BLOCK][K_BLOCK]
 *
 * One of the next rows is prefetched after every product of the micro kernel (weight_window.h). */
#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/gemm/weight_window.h"

#if defined(__AVX512BF16__)

enum {
  T_BLOCKS = 8, /* of 32 places along the dot, in scratch at a time */
  T_STEPS = T_BLOCKS * 2 * LINK_STEPS,
  N_BLOCK = 256,
  K_BLOCK = 256
};

struct weight_scratch {
  uint32_t x[K_BLOCK / 32 * T_STEPS * 32];  /* [32 k][step][32] */
  uint32_t dy[N_BLOCK / 16 * T_STEPS * 16]; /* [16 n][step][16] */
  float acc[N_BLOCK * K_BLOCK];             /* when there are more places than fit */
  uint16_t zeros[K_BLOCK > N_BLOCK ? K_BLOCK : N_BLOCK];
};

/* The rows of one run of places along the dot, chain by chain. */
struct course {
  int steps;
  int even_steps[T_BLOCKS], odd_steps[T_BLOCKS], blocks;
  int first[T_STEPS], second[T_STEPS]; /* rows of dy; second -1: zero padding */
};

/* Appends a chain's links for its `count` rows. */
static int course_chain(struct course *o, const int *rows, int count) {
  for (int i = 0; i < count; i += 2, o->steps++) {
    o->first[o->steps] = rows[i];
    o->second[o->steps] = i + 1 < count ? rows[i + 1] : -1;
  }
  return (count + 1) / 2;
}

/* From row t on, as many blocks of 32 places as fit; returns the row after them. */
static int course_make(struct course *o, const struct weight_backward_args *c, int t) {
  o->steps = o->blocks = 0;
  while (t < c->T && o->blocks < T_BLOCKS) {
    int even[16], odd[16], evens = 0, odds = 0;
    const int block = (c->place ? c->place[t] : t) / 32;
    for (; t < c->T; t++) {
      const int place = c->place ? c->place[t] : t;
      if (place / 32 != block) break;
      if (place % 2 == 0)
        even[evens++] = t;
      else
        odd[odds++] = t;
    }
    o->even_steps[o->blocks] = course_chain(o, even, evens);
    o->odd_steps[o->blocks++] = course_chain(o, odd, odds);
  }
  return t;
}

static void link_course(struct weight_scratch *s, const struct weight_backward_args *c, const struct course *o,
                        const struct window *w) {
  const uint16_t *x = (const uint16_t *)c->x + w->k0, *dy = (const uint16_t *)c->dy + w->n0;
  for (int i = 0; i < o->steps; i++) {
    const int t = o->first[i], u = o->second[i];
    const uint16_t *a = x + row_of(c->row, (size_t)t) * (size_t)c->K, *b = s->zeros;
    if (u >= 0) b = x + row_of(c->row, (size_t)u) * (size_t)c->K;
    for (int k = 0; k < w->k_count; k += 16)
      link_store(s->x + (k / 32 * T_STEPS + i) * 32 + k % 32,
                 link_rows(load_h16(a + k, w->k_count - k), load_h16(b + k, w->k_count - k)));
    a = dy + (size_t)t * (size_t)c->N;
    b = u >= 0 ? dy + (size_t)u * (size_t)c->N : s->zeros;
    for (int n = 0; n < w->n_count; n += 16)
      link_store(s->dy + (n / 16 * T_STEPS + i) * 16,
                 link_rows(load_h16(a + n, w->n_count - n), load_h16(b + n, w->n_count - n)));
  }
}

/* R rows of dW from n on x NV vectors from k on. */
INLINE void weight_micro(const struct weight_backward_args *c, struct weight_scratch *s, const struct course *o,
                         const struct window *w, int n, int k, bool first, bool last, const int R, const int NV) {
  const uint32_t *x = s->x + k / 32 * T_STEPS * 32 + k % 32, *dy = s->dy + n / 16 * T_STEPS * 16 + n % 16;
  vf acc[LINK_ROWS][2];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = first ? (vf){0} : vload(s->acc + (n + r) * K_BLOCK + k + v * VL);
  }
  for (int b = 0; b < o->blocks; b++) {
    if (o->even_steps[b] == LINK_STEPS && o->odd_steps[b] == LINK_STEPS)
      link_dot(acc, dy, 1, 16, x, 32, LINK_STEPS, LINK_STEPS, R, NV);
    else
      link_dot(acc, dy, 1, 16, x, 32, o->even_steps[b], o->odd_steps[b], R, NV);
    x += (o->even_steps[b] + o->odd_steps[b]) * 32;
    dy += (o->even_steps[b] + o->odd_steps[b]) * 16;
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *dW = c->dW + (size_t)(w->n0 + n + r) * (size_t)c->K + w->k0 + k + v * VL;
      const int lanes = w->k_count - k - v * VL;
      if (last)
        store_lanes(dW, load_lanes(dW, lanes) + acc[r][v], lanes);
      else
        vstore(s->acc + (n + r) * K_BLOCK + k + v * VL, acc[r][v]);
    }
  }
}

INLINE void weight_rows(const struct weight_backward_args *c, struct weight_scratch *s, const struct course *o,
                        const struct window *w, int k, bool first, bool last, struct ahead *ahead, const int NV) {
  int n = 0;
  for (; n + LINK_ROWS <= w->n_count; n += LINK_ROWS) {
    weight_micro(c, s, o, w, n, k, first, last, LINK_ROWS, NV);
    ahead_ask(ahead);
  }
  for (; n < w->n_count; n++) weight_micro(c, s, o, w, n, k, first, last, 1, NV);
}

static void window_compute(const struct weight_backward_args *c, struct weight_scratch *s, int at, int end) {
  const struct window window = window_at(c, at, end), *w = &window;
  struct course course;
  for (int t = 0; t < c->T;) {
    const bool first = t == 0;
    t = course_make(&course, c, t);
    link_course(s, c, &course, w);
    struct ahead ahead = ahead_of(c, at, end, t, T_BLOCKS * 32);
    for (int k = 0; k < w->k_count; k += 32) {
      if (w->k_count - k > 16)
        weight_rows(c, s, &course, w, k, first, t == c->T, &ahead, 2);
      else
        weight_rows(c, s, &course, w, k, first, t == c->T, &ahead, 1);
    }
  }
}

const struct window_limit ISA_NAME(weight_windows_bf16) = {{N_BLOCK, K_BLOCK}, 16};

void ISA_NAME(gemm_weight_backward_bf16)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct weight_backward_args *c = args;
  struct weight_scratch *s = scratch;
  memset(s->zeros, 0, sizeof s->zeros);
  for (int at = (int)begin; at < (int)end; at++) window_compute(c, s, at, (int)end);
}

_Static_assert(sizeof(struct weight_scratch) <= CPU_SCRATCH_BYTES, "weight backward's scratch");

#endif

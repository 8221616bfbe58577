/* gemm and gemm_weight_backward over bf16 operands by links (links.h): the same sums as gemm.c's, bit for bit.
 *
 * gemm: W lies in links already (ops.h), x is laid out so once per block of rows; then LINK_ROWS rows x 32 outputs at
 * a time run along the dot with their sums in registers.  gemm_weight_backward: lanes run over K, rows over N, the dot
 * over tokens, whose rows are interleaved by twos. */
#include "common/model/cpu/isa/links.h"

#if defined(__AVX512BF16__)

enum {
  PANEL = 32,
  BLOCK_WORDS = 2 * LINK_STEPS * 16, /* 32 along the dot, of a tile of 16 rows of W */
  X_ROWS = 96,
  X_BLOCKS = 32, /* of 32 along the dot, of x in scratch */
  X_PAD = 16     /* so that rows do not share cache sets */
};

struct gemm_scratch {
  uint32_t x[X_ROWS * (X_BLOCKS * 2 * LINK_STEPS + X_PAD)];
  float acc[X_ROWS * PANEL]; /* sums so far, when x is longer than its scratch */
};

static void link_x(uint32_t *out, size_t stride, const struct gemm_args *c, int row, int rows, int block, int blocks) {
  const int K = c->W->K;
  for (int r = 0; r < rows; r++) {
    const uint16_t *in = (const uint16_t *)c->x + (size_t)(row + r) * (size_t)K;
    for (int b = 0; b < blocks; b++)
      link_store(out + (size_t)r * stride + b * 2 * LINK_STEPS,
                 link_block(in + (block + b) * 32, K - (block + b) * 32));
  }
}

/* Where the sums of some rows come from and go to. */
struct sums {
  float *acc; /* [rows][PANEL]: partial sums, in unless `first`, out unless `last` */
  float *y;   /* [rows][ldy], `lanes` of them */
  size_t ldy;
  int lanes;
  bool first, last, accumulate;
};

/* w: blocks of one tile; that of the second vector lies next_w words further. */
INLINE void micro(const struct sums *o, int row, const uint32_t *x, size_t stride, const uint32_t *w, size_t next_w,
                  int blocks, const int R, const int NV) {
  vf acc[LINK_ROWS][2];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = o->first ? (vf){0} : vload(o->acc + (row + r) * PANEL + v * VL);
  }
  for (int b = 0; b < blocks; b++, x += 2 * LINK_STEPS, w += BLOCK_WORDS) {
    vf even[LINK_ROWS][2], odd[LINK_ROWS][2];
    link_chain(even, x, stride, 1, w, 32, next_w, LINK_STEPS, R, NV);
    link_chain(odd, x + LINK_STEPS, stride, 1, w + 16, 32, next_w, LINK_STEPS, R, NV);
    link_sum(acc, even, odd, R, NV);
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *y = o->y + (size_t)(row + r) * o->ldy + v * VL;
      const int lanes = o->lanes - v * VL;
      if (!o->last)
        vstore(o->acc + (row + r) * PANEL + v * VL, acc[r][v]);
      else
        store_lanes(y, o->accumulate ? load_lanes(y, lanes) + acc[r][v] : acc[r][v], lanes);
    }
  }
}

INLINE void micro_rows(const struct sums *o, int rows, const uint32_t *x, size_t stride, const uint32_t *w,
                       size_t next_w, int blocks, const int NV) {
  int r = 0;
  for (; r + LINK_ROWS <= rows; r += LINK_ROWS, x += LINK_ROWS * stride)
    micro(o, r, x, stride, w, next_w, blocks, LINK_ROWS, NV);
  for (; r < rows; r++, x += stride) micro(o, r, x, stride, w, next_w, blocks, 1, NV);
}

/* One panel of outputs for a block of rows. */
static void gemm_panel(const struct gemm_args *c, struct gemm_scratch *s, int row, int rows, int n, bool x_ready) {
  const int blocks = round_up(c->W->K, 32) / 32;
  const size_t tile_words = (size_t)blocks * BLOCK_WORDS;
  const size_t stride = (size_t)(blocks < X_BLOCKS ? blocks : X_BLOCKS) * 2 * LINK_STEPS + X_PAD;
  const uint32_t *tile = (const uint32_t *)c->W->data + (size_t)(n / 16) * tile_words;
  struct sums o = {.acc = s->acc,
                   .y = c->y + (size_t)row * (size_t)c->W->N + n,
                   .ldy = (size_t)c->W->N,
                   .lanes = c->W->N - n,
                   .accumulate = c->accumulate};
  for (int b = 0; b < blocks; b += X_BLOCKS) {
    const int count = blocks - b < X_BLOCKS ? blocks - b : X_BLOCKS;
    const uint32_t *w = tile + (size_t)b * BLOCK_WORDS;
    if (!x_ready) link_x(s->x, stride, c, row, rows, b, count);
    o.first = b == 0;
    o.last = b + count == blocks;
    if (o.lanes > 16)
      micro_rows(&o, rows, s->x, stride, w, tile_words, count, 2);
    else
      micro_rows(&o, rows, s->x, stride, w, tile_words, count, 1);
  }
}

void ISA_NAME(gemm_links)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
  const int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  const int n0 = c->by_rows ? 0 : (int)begin * PANEL;
  const int n1 = c->by_rows || (int)end * PANEL > c->W->N ? c->W->N : (int)end * PANEL;
  const bool once = round_up(c->W->K, 32) / 32 <= X_BLOCKS;
  for (int t = t0; t < t1; t += X_ROWS) {
    const int rows = t1 - t < X_ROWS ? t1 - t : X_ROWS;
    for (int n = n0; n < n1; n += PANEL) gemm_panel(c, scratch, t, rows, n, once && n > n0);
  }
}

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

static void link_course(struct weight_scratch *s, const struct weight_backward_args *c, const struct course *o, int n0,
                        int n_count, int k0, int k_count, bool with_dy) {
  const uint16_t *x = c->x, *dy = c->dy;
  for (int i = 0; i < o->steps; i++) {
    const int t = o->first[i], u = o->second[i];
    const uint16_t *a = x + (size_t)(c->row ? c->row[t] : t) * (size_t)c->K + k0, *b = s->zeros;
    if (u >= 0) b = x + (size_t)(c->row ? c->row[u] : u) * (size_t)c->K + k0;
    for (int k = 0; k < k_count; k += 16)
      link_store(s->x + (k / 32 * T_STEPS + i) * 32 + k % 32,
                 link_rows(load_h16(a + k, k_count - k), load_h16(b + k, k_count - k)));
    if (!with_dy) continue;
    a = dy + (size_t)t * (size_t)c->N + n0;
    b = u >= 0 ? dy + (size_t)u * (size_t)c->N + n0 : s->zeros;
    for (int n = 0; n < n_count; n += 16)
      link_store(s->dy + (n / 16 * T_STEPS + i) * 16,
                 link_rows(load_h16(a + n, n_count - n), load_h16(b + n, n_count - n)));
  }
}

/* R rows of dW from n on x NV vectors from k on. */
INLINE void weight_micro(const struct weight_backward_args *c, struct weight_scratch *s, const struct course *o, int n0,
                         int n, int k0, int k, int k_count, bool first, bool last, const int R, const int NV) {
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
      float *dW = c->dW + (size_t)(n0 + n + r) * (size_t)c->K + k0 + k + v * VL;
      const int lanes = k_count - k - v * VL;
      if (last)
        store_lanes(dW, load_lanes(dW, lanes) + acc[r][v], lanes);
      else
        vstore(s->acc + (n + r) * K_BLOCK + k + v * VL, acc[r][v]);
    }
  }
}

INLINE void weight_rows(const struct weight_backward_args *c, struct weight_scratch *s, const struct course *o, int n0,
                        int n_count, int k0, int k, int k_count, bool first, bool last, const int NV) {
  int n = 0;
  for (; n + LINK_ROWS <= n_count; n += LINK_ROWS)
    weight_micro(c, s, o, n0, n, k0, k, k_count, first, last, LINK_ROWS, NV);
  for (; n < n_count; n++) weight_micro(c, s, o, n0, n, k0, k, k_count, first, last, 1, NV);
}

void ISA_NAME(gemm_weight_backward_links)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct weight_backward_args *c = args;
  struct weight_scratch *s = scratch;
  struct course course;
  memset(s->zeros, 0, sizeof s->zeros);
  for (int n0 = (int)begin; n0 < (int)end; n0 += N_BLOCK) {
    const int n_count = (int)end - n0 < N_BLOCK ? (int)end - n0 : N_BLOCK;
    for (int k0 = 0; k0 < c->K; k0 += K_BLOCK) {
      const int k_count = c->K - k0 < K_BLOCK ? c->K - k0 : K_BLOCK;
      for (int t = 0; t < c->T;) {
        const bool first = t == 0;
        t = course_make(&course, c, t);
        link_course(s, c, &course, n0, n_count, k0, k_count, true);
        for (int k = 0; k < k_count; k += 32) {
          if (k_count - k > 16)
            weight_rows(c, s, &course, n0, n_count, k0, k, k_count, first, t == c->T, 2);
          else
            weight_rows(c, s, &course, n0, n_count, k0, k, k_count, first, t == c->T, 1);
        }
      }
    }
  }
}

/* A bf16 for trying the instruction: one that is easy to get wrong, or with an exponent near `around`. */
static uint32_t link_sample(uint32_t *state, uint32_t around) {
  static const uint16_t special[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x8080, 0x7f7f,
                                     0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x3f80, 0xbf80};
  *state = *state * 1664525u + 1013904223u;
  const uint32_t r = *state >> 8;
  if (r % 16 == 0) return special[r / 16 % (sizeof special / sizeof special[0])];
  return (r & 0x807fu) | (around + (r >> 16) % 8) << 7;
}

/* Whether the instruction does what this file says, over some thousand lanes: ordinary numbers, sums that cancel,
 * products around the smallest normal number, zeros, infinities, NaNs. */
bool ISA_NAME(links_hold)(void) {
  const unsigned saved = _mm_getcsr();
  uint32_t state = 1, wrong = 0;
  _mm_setcsr(0x9fc0); /* nearest, flush to zero, subnormals are zero, no traps: as pool_enter's threads */
  for (int i = 0; i < 512; i++) {
    const uint32_t tiny = i % 2 ? 0 : 60;
    vu a, w;
    vf acc;
    for (int l = 0; l < VL; l++) {
      a[l] = link_sample(&state, 123 - tiny) << 16 | link_sample(&state, 123 - tiny);
      w[l] = link_sample(&state, 123 - tiny) << 16 | link_sample(&state, 123 - tiny);
      acc[l] = (float)(int32_t)state * (tiny ? 0x1p-125f : 0x1p-31f) * 0x1p-31f;
    }
    const vf one = link_add(acc, a, w);
    const vf two = vfma((vf)(a << 16), (vf)(w << 16), vfma((vf)(a & 0xffff0000u), (vf)(w & 0xffff0000u), acc));
    const vi same = ((vi)one == (vi)two) | ((one != one) & (two != two));
    for (int l = 0; l < VL; l++) wrong |= (uint32_t)~same[l];
  }
  _mm_setcsr(saved);
  return wrong == 0;
}

_Static_assert(sizeof(struct gemm_scratch) <= CPU_SCRATCH_BYTES, "gemm's scratch");
_Static_assert(sizeof(struct weight_scratch) <= CPU_SCRATCH_BYTES, "weight backward's scratch");

#endif

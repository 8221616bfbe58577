/* gemm and gemm_weight_backward over bf16 operands by links (links.h): the same sums as gemm.c's, bit for bit.
 *
 * gemm: W lies in links already (ops.h), x is laid out so once per block of rows; then LINK_ROWS rows x 32 outputs at
 * a time run along the dot with their sums in registers.
 *
 *   x [rows][K], second-level cache   W [32 outputs][W_BLOCKS * 32 of K], first level   -> sums [rows][32], first level
 *
 * While a piece of W is multiplied, the next one is asked for, a share by every group of rows: with few rows (decoding)
 * the memory has no other time to deliver it.
 *
 * gemm_weight_backward: lanes run over K, rows over N, the dot over tokens, whose rows are interleaved by twos. */
#include "common/model/cpu/isa/links.h"
#include "common/model/cpu/isa/trial.h"

#if defined(__AVX512BF16__)

enum {
  PANEL = 32,
  BLOCK_WORDS = 2 * LINK_STEPS * 16, /* 32 along the dot, of a tile of 16 rows of W */
  BLOCK_LINES = BLOCK_WORDS / 16,    /* the same in cache lines */
  W_BLOCKS = 8,                      /* of 32 along the dot, of W at a time: 16 KiB of a panel */
  X_ROWS = 96,
  X_WORDS = 100 << 10, /* of x in scratch */
  X_PAD = 16           /* so that rows do not share cache sets */
};

struct gemm_scratch {
  uint32_t x[X_WORDS];
  float acc[X_ROWS * PANEL]; /* sums so far */
};

/* Some rows of a call, and where they lie in scratch. */
struct pass {
  const struct gemm_args *c;
  struct gemm_scratch *s;
  int row, rows;
  int blocks, x_blocks; /* of 32 along the dot: all, and of x in scratch at a time */
  size_t stride;        /* words between rows in scratch */
};

/* The next of the rows [t, end), in equal shares: a small last one would cost a pass over W of its own. */
static struct pass pass_of(const struct gemm_args *c, struct gemm_scratch *s, int t, int end) {
  struct pass p = {.c = c, .s = s, .row = t, .blocks = round_up(c->W->K, 32) / 32};
  int most = X_WORDS / (p.blocks * 2 * LINK_STEPS + X_PAD) / LINK_ROWS * LINK_ROWS;
  p.x_blocks = p.blocks;
  if (most > X_ROWS) most = X_ROWS;
  if (most < LINK_ROWS) { /* a dot too long for scratch */
    most = LINK_ROWS;
    p.x_blocks = (X_WORDS / LINK_ROWS - X_PAD) / (2 * LINK_STEPS) / W_BLOCKS * W_BLOCKS;
  }
  p.stride = (size_t)p.x_blocks * 2 * LINK_STEPS + X_PAD;
  const int left = end - t, passes = (left + most - 1) / most;
  p.rows = round_up((left + passes - 1) / passes, LINK_ROWS);
  if (p.rows > left) p.rows = left;
  return p;
}

/* x's x_blocks from `block` on. */
static void link_x(const struct pass *p, int block) {
  const int K = p->c->W->K, count = p->blocks - block < p->x_blocks ? p->blocks - block : p->x_blocks;
  for (int r = 0; r < p->rows; r++) {
    const uint16_t *in = (const uint16_t *)p->c->x + (size_t)(p->row + r) * (size_t)K;
    uint32_t *out = p->s->x + (size_t)r * p->stride;
    for (int b = 0; b < count; b++)
      link_store(out + b * 2 * LINK_STEPS, link_block(in + (block + b) * 32, K - (block + b) * 32));
  }
}

/* A piece of a panel of outputs, and what is done with its sums. */
struct piece {
  const uint32_t *w; /* of the first tile; that of the second lies next_w words further */
  size_t next_w;
  const uint32_t *ahead; /* the piece after this one; NULL: none */
  int blocks;
  const uint32_t *x;
  size_t stride;
  float *acc; /* [rows][PANEL]: partial sums, in unless `first`, out unless `last` */
  float *y;   /* [rows][ldy], `lanes` of them */
  size_t ldy;
  int lanes;
  bool first, last, accumulate;
};

INLINE void ask_for(const struct piece *o, int block, int from, int to, const int NV) {
  const char *p = (const char *)(o->ahead + (size_t)block * BLOCK_WORDS);
  for (int l = from; l < to; l++) {
    UNROLL
    for (int v = 0; v < NV; v++) _mm_prefetch(p + (size_t)l * 64 + (size_t)v * o->next_w * 4, _MM_HINT_T1);
  }
}

/* Rows row .. row + R, which ask for lines [from, to) of every block of what comes next. */
INLINE void micro(const struct piece *o, int row, int from, int to, const int R, const int NV) {
  const uint32_t *x = o->x + (size_t)row * o->stride, *w = o->w;
  vf acc[LINK_ROWS][2];
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = o->first ? (vf){0} : vload(o->acc + (row + r) * PANEL + v * VL);
  }
  for (int b = 0; b < o->blocks; b++, x += 2 * LINK_STEPS, w += BLOCK_WORDS) {
    vf even[LINK_ROWS][2], odd[LINK_ROWS][2];
    ask_for(o, b, from, to, NV);
    link_chain(even, x, o->stride, 1, w, 32, o->next_w, LINK_STEPS, R, NV);
    link_chain(odd, x + LINK_STEPS, o->stride, 1, w + 16, 32, o->next_w, LINK_STEPS, R, NV);
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

INLINE void micro_rows(const struct piece *o, int rows, const int NV) {
  const int groups = (rows + LINK_ROWS - 1) / LINK_ROWS;
  const bool ahead = o->ahead && groups > 1; /* one group alone goes as the memory does; asking only delays it */
  for (int g = 0; g < groups; g++) {
    const int from = ahead ? BLOCK_LINES * g / groups : 0, to = ahead ? BLOCK_LINES * (g + 1) / groups : 0;
    const int row = g * LINK_ROWS, left = rows - row;
    if (left >= LINK_ROWS)
      micro(o, row, from, to, LINK_ROWS, NV);
    else if (left == 3)
      micro(o, row, from, to, 3, NV);
    else if (left == 2)
      micro(o, row, from, to, 2, NV);
    else
      micro(o, row, from, to, 1, NV);
  }
}

/* One panel of outputs for the rows of a pass; more: another panel follows. */
static void gemm_panel(const struct pass *p, int n, bool more) {
  const struct gemm_args *c = p->c;
  const size_t tile_words = (size_t)p->blocks * BLOCK_WORDS;
  const uint32_t *tile = (const uint32_t *)c->W->data + (size_t)(n / 16) * tile_words;
  struct piece o = {.next_w = tile_words,
                    .stride = p->stride,
                    .acc = p->s->acc,
                    .y = c->y + (size_t)p->row * (size_t)c->W->N + n,
                    .ldy = (size_t)c->W->N,
                    .lanes = c->W->N - n,
                    .accumulate = c->accumulate};
  for (int b = 0; b < p->blocks; b += W_BLOCKS) {
    if (p->x_blocks < p->blocks && b % p->x_blocks == 0) link_x(p, b);
    o.x = p->s->x + b % p->x_blocks * 2 * LINK_STEPS;
    o.w = tile + (size_t)b * BLOCK_WORDS;
    o.blocks = p->blocks - b < W_BLOCKS ? p->blocks - b : W_BLOCKS;
    o.first = b == 0;
    o.last = b + o.blocks == p->blocks;
    o.ahead = !o.last ? o.w + W_BLOCKS * BLOCK_WORDS : more ? tile + 2 * tile_words : NULL;
    if (o.lanes > 16)
      micro_rows(&o, p->rows, 2);
    else
      micro_rows(&o, p->rows, 1);
  }
}

void ISA_NAME(gemm_links)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
  const int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  const int n0 = c->by_rows ? 0 : (int)begin * PANEL;
  const int n1 = c->by_rows || (int)end * PANEL > c->W->N ? c->W->N : (int)end * PANEL;
  for (int t = t0; t < t1;) {
    const struct pass p = pass_of(c, scratch, t, t1);
    if (p.x_blocks == p.blocks) link_x(&p, 0);
    for (int n = n0; n < n1; n += PANEL) gemm_panel(&p, n, n + PANEL < n1);
    t += p.rows;
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

/* Whether the instruction does what this file says, over some thousand lanes: ordinary numbers, sums that cancel,
 * products around the smallest normal number, zeros, infinities, NaNs. */
bool ISA_NAME(links_hold)(void) {
  const unsigned saved = _mm_getcsr();
  uint32_t state = 1, wrong = 0;
  _mm_setcsr(TRIAL_MXCSR);
  for (int i = 0; i < 512; i++) {
    const uint32_t tiny = i % 2 ? 0 : 60;
    vu a, w;
    vf acc;
    for (int l = 0; l < VL; l++) {
      a[l] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
      w[l] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
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

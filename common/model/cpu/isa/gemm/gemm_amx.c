/* Computes gemm and gemm_weight_backward over bf16 operands by AMX tiles (amx_tiles.h): one instruction does DOT's
 * block for 16 rows against 16 outputs.  Sums of 32 x 32 outputs stay in four tiles (amx_tile_product.h).
 *
 * gemm: W lies in tiles already (ops.h); x is copied into tiles once per block of rows, zero padded.  Pieces of W stay
 * in the first-level cache while all rows pass; sums wait in scratch between pieces.  When there are 32 rows or fewer
 * in all, the tiles have just these rows, so that a decode step costs only as much as its rows. gemm_weight_backward:
 * "rows" are rows of dW, the dot runs over places: dy is transposed into tiles, x's rows are interleaved by twos.
 *
 * amx_tiles.h says where these kernels have run. */
#include "common/model/cpu/isa/amx_tile_product.h"
#include "common/model/cpu/isa/gemm/outputs.h"
#include "common/model/cpu/isa/gemm/weight_window.h"
#include "common/model/cpu/isa/instruction_trial.h"

#if defined(__AMX_BF16__) || defined(TILES_EMULATED)

cpu_kernel TILES_BESIDE(gemm), TILES_BESIDE(gemm_weight_backward); /* of fp32 */

enum {
  PANEL = 32,           /* outputs */
  PAIR = 2 * TILE_ROWS, /* rows */
  W_BLOCKS = 16,        /* of a panel in the first-level cache: 32 KiB */
  X_PAIRS = 4,          /* pairs of row tiles in scratch */
  X_TILES = 512         /* of x in scratch */
};

struct gemm_scratch {
  uint32_t x[X_TILES][TILE_WORDS];   /* [row tile][block] */
  float acc[X_PAIRS][4][TILE_WORDS]; /* sums so far, tile by tile */
};

/* Some rows of a call, and where they lie in scratch. */
struct pass {
  const struct gemm_args *c;
  struct gemm_scratch *s;
  int row, rows;
  int blocks, x_blocks; /* along the dot: all, and of x in scratch at a time */
};

static struct pass pass_of(const struct gemm_args *c, struct gemm_scratch *s, int t, int end) {
  struct pass p = {.c = c, .s = s, .row = t, .blocks = round_up(c->W->K, TILE_DEPTH) / TILE_DEPTH};
  int pairs = X_TILES / 2 / p.blocks;
  p.x_blocks = p.blocks;
  if (pairs > X_PAIRS) pairs = X_PAIRS;
  if (pairs < 1) {
    pairs = 1;
    p.x_blocks = X_TILES / 2 / W_BLOCKS * W_BLOCKS;
  }
  const int most = pairs * PAIR, left = end - t, passes = (left + most - 1) / most;
  p.rows = round_up((left + passes - 1) / passes, PAIR);
  if (p.rows > left) p.rows = left;
  return p;
}

/* x's x_blocks from `block` on, in tiles; rows that are missing to full pairs are zero. */
static void tile_x(const struct pass *p, int block) {
  const int K = p->c->W->K, count = p->blocks - block < p->x_blocks ? p->blocks - block : p->x_blocks;
  for (int r = 0; r < round_up(p->rows, PAIR); r++) {
    const uint16_t *in = (const uint16_t *)p->c->x + (size_t)(p->row + r) * (size_t)K;
    uint32_t *out = p->s->x[r / TILE_ROWS * p->x_blocks] + r % TILE_ROWS * (TILE_DEPTH / 2);
    for (int b = 0; b < count; b++, out += TILE_WORDS) {
      const int from = (block + b) * TILE_DEPTH;
      tile_row(out, in + from, r < p->rows ? K - from : 0);
    }
  }
}

/* From scratch to y: rows of a pair, `lanes` outputs. */
static void copy_out(const struct gemm_args *c, float *y, const float *acc, int rows, int lanes) {
  for (int r = 0; r < rows; r++, y += c->W->N) {
    const float *from = acc + r / TILE_ROWS * 2 * TILE_WORDS + r % TILE_ROWS * 16;
    for (int n = 0; n < lanes; n += VL) {
      const vf sum = vload(from + n / 16 * TILE_WORDS + n % 16);
      store_some(y + n, c->accumulate ? load_some(y + n, lanes - n) + sum : sum, lanes - n);
    }
  }
}

/* `count` blocks from b on, for one panel and all rows of the pass. */
static void gemm_piece(const struct pass *p, const uint32_t *w0, const uint32_t *w1, int n, int b, int count) {
  const struct gemm_args *c = p->c;
  const int lanes = c->W->N - n < PANEL ? c->W->N - n : PANEL;
  const bool last = b + count == p->blocks;
  for (int r = 0, i = 0; r < p->rows; r += PAIR, i++) {
    const int rows = p->rows - r < PAIR ? p->rows - r : PAIR;
    const bool both = rows > TILE_ROWS;
    const bool direct = last && lanes == PANEL && !c->accumulate && (rows == PAIR || p->rows <= PAIR);
    const uint32_t *x0 = p->s->x[2 * i * p->x_blocks + b % p->x_blocks], *x1 = x0 + (size_t)p->x_blocks * TILE_WORDS;
    float *acc = p->s->acc[i][0], *y = c->y + (size_t)(p->row + r) * (size_t)c->W->N + n;
    if (last && c->T > X_PAIRS * PAIR) ask_outputs(y, c->W->N, rows);
    product_begin(acc, b == 0, both);
    product_add(x0, x1, w0, w1, count, both, r == 0);
    product_end(direct ? y : acc, direct ? (size_t)c->W->N * sizeof(float) : 0, both);
    if (last && !direct) copy_out(c, y, acc, rows, lanes);
  }
}

void ISA_NAME(gemm)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
  if (c->format == FORMAT_F32) {
    TILES_BESIDE(gemm)(args, begin, end, scratch);
    return;
  }
  const int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  const int n0 = c->by_rows ? 0 : (int)begin * PANEL;
  const int n1 = c->by_rows || (int)end * PANEL > c->W->N ? c->W->N : (int)end * PANEL;
  for (int t = t0; t < t1;) {
    const struct pass p = pass_of(c, scratch, t, t1);
    const int below = p.rows - TILE_ROWS;
    product_configure(below < 0 ? p.rows : TILE_ROWS, below < 0 ? 0 : below < TILE_ROWS ? below : TILE_ROWS);
    if (p.x_blocks == p.blocks) tile_x(&p, 0);
    for (int n = n0; n < n1; n += PANEL) {
      const uint32_t *w0 = (const uint32_t *)c->W->data + (size_t)(n / 16) * (size_t)p.blocks * TILE_WORDS;
      const uint32_t *w1 = c->W->N - n > 16 ? w0 + (size_t)p.blocks * TILE_WORDS : w0; /* twice the same: not stored */
      for (int b = 0; b < p.blocks; b += W_BLOCKS) {
        const int count = p.blocks - b < W_BLOCKS ? p.blocks - b : W_BLOCKS;
        if (p.x_blocks < p.blocks && b % p.x_blocks == 0) tile_x(&p, b);
        gemm_piece(&p, w0 + (size_t)b * TILE_WORDS, w1 + (size_t)b * TILE_WORDS, n, b, count);
      }
    }
    t += p.rows;
  }
  tiles_release();
}

enum {
  T_BLOCKS = 8,                                                 /* of 32 places along the dot, in scratch at a time */
  N_BLOCK = 256,                                                /* each tile of x serves N_BLOCK / 16 products */
  K_BLOCK = 512,                                                /* each tile of dy, which costs more, K_BLOCK / 16 */
  ASKED = T_BLOCKS * TILE_DEPTH / (N_BLOCK / 32 * K_BLOCK / 32) /* rows after every 32 x 32 sums: all of them in time */
};

struct weight_scratch {
  uint32_t dy[N_BLOCK / 16][T_BLOCKS][TILE_WORDS]; /* [n][pairs of places] */
  uint32_t x[K_BLOCK / 16][T_BLOCKS][TILE_WORDS];  /* [pairs of places][k] */
  float acc[N_BLOCK / 32][K_BLOCK / 32][4][TILE_WORDS];
  uint16_t zeros[K_BLOCK];
};

/* Which rows of dy stand at the 32 places of a block; -1: none. */
struct places {
  int row[TILE_DEPTH];
};

/* Places first .. first + 31, from row *t on. */
static void places_take(struct places *p, const struct weight_backward_args *c, int first, int *t) {
  for (int i = 0; i < TILE_DEPTH; i++) {
    const bool here = *t < c->T && (c->place ? c->place[*t] : *t) == first + i;
    p->row[i] = here ? (*t)++ : -1;
  }
}

static void tile_block(const struct weight_backward_args *c, struct weight_scratch *s, const struct window *w,
                       const struct places *p, int block) {
  const uint16_t *dy[TILE_DEPTH], *x[TILE_DEPTH];
  for (int i = 0; i < TILE_DEPTH; i++) {
    const int t = p->row[i];
    dy[i] = t < 0 ? s->zeros : (const uint16_t *)c->dy + (size_t)t * (size_t)c->N + w->n0;
    x[i] = t < 0 ? s->zeros : (const uint16_t *)c->x + row_of(c->row, (size_t)t) * (size_t)c->K + w->k0;
  }
  for (int n = 0; n < w->n_count; n += 32) {
    words16 rows[2][16];
    for (int i = 0; i < 16; i++)
      interleave_fours(&rows[0][i], &rows[1][i], dy[2 * i] + n, dy[2 * i + 1] + n, w->n_count - n);
    transpose16(s->dy[n / 16][block], rows[0]);
    transpose16(s->dy[n / 16 + 1][block], rows[1]);
  }
  for (int k = 0; k < w->k_count; k += 32) {
    uint32_t *one = s->x[k / 16][block], *other = s->x[k / 16 + 1][block];
    for (int i = 0; i < 16; i++) {
      words16 row[2];
      interleave_fours(&row[0], &row[1], x[2 * i] + k, x[2 * i + 1] + k, w->k_count - k);
      memcpy(one + 16 * i, &row[0], sizeof row[0]);
      memcpy(other + 16 * i, &row[1], sizeof row[1]);
    }
  }
}

static void window_multiply(struct weight_scratch *s, const struct window *w, int blocks, bool first,
                            struct ahead *ahead) {
  for (int k = 0; k < w->k_count; k += 32) {
    for (int n = 0; n < w->n_count; n += 32) {
      float *acc = s->acc[n / 32][k / 32][0];
      product_begin(acc, first, true);
      product_add(s->dy[n / 16][0], s->dy[n / 16 + 1][0], s->x[k / 16][0], s->x[k / 16 + 1][0], blocks, true, false);
      product_end(acc, 0, true);
      for (int i = 0; i < ASKED; i++) ahead_ask(ahead);
    }
  }
}

/* Fours of rows and of columns lie in two tiles in turn. */
static void window_out(const struct weight_backward_args *c, const struct weight_scratch *s, const struct window *w) {
  for (int n = 0; n < w->n_count; n++) {
    float *dW = c->dW + (size_t)(w->n0 + n) * (size_t)c->K + w->k0;
    for (int k = 0; k < w->k_count; k += 4) {
      const float *sums =
          s->acc[n / 32][k / 32][n / 4 % 2 * 2 + k / 4 % 2] + (n % 32 / 8 * 4 + n % 4) * 16 + k % 32 / 8 * 4;
      const int lanes = w->k_count - k < 4 ? w->k_count - k : 4;
      v4 sum, before = {0};
      memcpy(&sum, sums, sizeof sum);
      if (lanes == 4) {
        memcpy(&before, dW + k, sizeof before);
        sum = before + sum;
        memcpy(dW + k, &sum, sizeof sum);
        continue;
      }
      for (int l = 0; l < lanes; l++) dW[k + l] = dW[k + l] + sums[l];
    }
  }
}

static void window_compute(const struct weight_backward_args *c, struct weight_scratch *s, int at, int end) {
  const struct window window = window_at(c, at, end), *w = &window;
  bool first = true;
  for (int t = 0; t < c->T; first = false) {
    int blocks = 0;
    for (; t < c->T && blocks < T_BLOCKS; blocks++) {
      struct places places;
      places_take(&places, c, (c->place ? c->place[t] : t) / TILE_DEPTH * TILE_DEPTH, &t);
      tile_block(c, s, w, &places, blocks);
    }
    struct ahead ahead = ahead_of(c, at, end, t, T_BLOCKS * TILE_DEPTH);
    window_multiply(s, w, blocks, first, &ahead);
  }
  window_out(c, s, w);
}

const struct window_limit ISA_NAME(weight_windows) = {{N_BLOCK, K_BLOCK}, 32};

void ISA_NAME(gemm_weight_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct weight_backward_args *c = args;
  struct weight_scratch *s = scratch;
  if (c->format == FORMAT_F32) {
    TILES_BESIDE(gemm_weight_backward)(args, begin, end, scratch);
    return;
  }
  memset(s->zeros, 0, sizeof s->zeros);
  product_configure(TILE_ROWS, TILE_ROWS);
  for (int at = (int)begin; at < (int)end; at++) window_compute(c, s, at, (int)end);
  tiles_release();
}

struct trial {
  uint32_t a[TILE_WORDS], b[TILE_WORDS];
  float before[TILE_WORDS], after[TILE_WORDS];
};

static float trial_dot(const struct trial *t, int m, int n) {
  float even = 0.0f, odd = 0.0f;
  for (int i = 0; i < 16; i++) {
    const uint32_t a[2] = {t->a[m * 16 + i] << 16, t->a[m * 16 + i] & 0xffff0000u};
    const uint32_t b[2] = {t->b[i * 16 + n] << 16, t->b[i * 16 + n] & 0xffff0000u};
    float x[2], y[2];
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    even = fmaf(x[0], y[0], even);
    odd = fmaf(x[1], y[1], odd);
  }
  return t->before[m * 16 + n] + (even + odd);
}

/* Checks over some thousand sums that the instruction gives DOT's bits. */
bool ISA_NAME(tiles_hold)(void) {
  const unsigned saved = _mm_getcsr();
  uint32_t state = 1;
  int wrong = 0;
  _mm_setcsr(TRIAL_MXCSR);
  product_configure(TILE_ROWS, TILE_ROWS);
  for (int i = 0; i < 32; i++) {
    const uint32_t tiny = i % 2 ? 0 : 60;
    struct trial t;
    for (int j = 0; j < TILE_WORDS; j++) {
      t.a[j] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
      t.b[j] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
      t.before[j] = (float)(int32_t)state * (tiny ? 0x1p-125f : 0x1p-31f) * 0x1p-31f;
    }
    tile_load(0, t.before, TILE_BYTES);
    tile_load(4, t.a, TILE_BYTES);
    tile_load(6, t.b, TILE_BYTES);
    tile_dot(0, 4, 6);
    tile_store(0, t.after, TILE_BYTES);
    for (int j = 0; j < TILE_WORDS; j++) {
      const float want = trial_dot(&t, j / 16, j % 16);
      wrong += t.after[j] != want && (t.after[j] == t.after[j] || want == want);
    }
  }
  tiles_release();
  _mm_setcsr(saved);
  return wrong == 0;
}

_Static_assert(sizeof(struct gemm_scratch) <= CPU_SCRATCH_BYTES, "gemm's scratch");
_Static_assert(sizeof(struct weight_scratch) <= CPU_SCRATCH_BYTES, "weight backward's scratch");

#endif

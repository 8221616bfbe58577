/* Computes y = x W^T by blocks of 32 along the dot (NUMERICS.md, DOT), of bf16: any rows by links (bf16_chain.h), and
 * few rows at the levels without such an instruction.  gemm_chains.c has all others.
 *
 * GEMM_ROWS rows x two vectors of outputs at a time run along the dot with their sums in registers.
 *
 *   x [rows][K], second-level cache   W [32 outputs][W_BLOCKS * 32 of K], first level   -> sums [rows][32], first level
 *
 * x is laid out once per block of rows, each 32 of K as 16 even then 16 odd floats, or as links; W is read as it is
 * packed and widened in registers, or lies in links already.  While a piece of W is multiplied, the next one is
 * prefetched, a share by every group of rows: with few rows (decoding) the memory has no other time to deliver it.  A
 * single row that reads W from far memory prefetches it into the first level, shortly before it is needed.  Data in
 * memory is read and prefetched in the order in which it lies: another order costs up to a third.  A row's bits depend
 * only on that row and W. */
#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/gemm/outputs.h"

cpu_kernel ISA_NAME(gemm_chains);

/* How operands are multiplied; a constant wherever it is passed. */
enum product { OF_PAIRS, OF_LINKS };

#if defined(__AVX512F__)
enum { GEMM_ROWS = 4 }; /* sums and both chains, two vectors each, fill 32 registers */
#else
enum { GEMM_ROWS = 3 }; /* both chains fill 16 */
#endif

enum {
  PANEL = 32,
  LINE = 64,                      /* bytes of the caches */
  NEAR_BYTES = 24 << 10,          /* of the first-level cache, beside data that passes through */
  TILE_BLOCK_BYTES = 16 * 32 * 2, /* of a tile of W along 32 of the dot */
  W_BLOCKS = 8,                   /* of 32 along the dot, of W at a time: 16 KiB of bf16 */
  AHEAD_BYTES = 2 << 10,          /* so far ahead a single row prefetches W */
  FAR_BYTES = 512 << 10,          /* of W: a model of larger matrices lies in far memory */
  FEW_ROWS = 16,                  /* so few wait for W more than W for them */
  X_ROWS = 96,                    /* a multiple of GEMM_ROWS */
  X_WORDS = 100 << 10,            /* of x in scratch */
  X_PAD = 16                      /* so that rows do not share cache sets */
};

struct gemm_scratch {
  union {
    float floats[X_WORDS];
    uint32_t links[X_WORDS];
  } x;
  float acc[X_ROWS * PANEL]; /* sums so far */
};

/* Some rows of a call, and where they lie in scratch. */
struct pass {
  const struct gemm_args *c;
  struct gemm_scratch *s;
  int row, rows;
  int blocks, x_blocks; /* of 32 along the dot: all, and of x in scratch at a time */
  int block_words;      /* of a block of x in scratch */
  size_t stride;        /* words between rows in scratch */
};

/* The next of the rows [t, end), in equal shares: a small last one would cost a pass over W of its own. */
static struct pass pass_of(const struct gemm_args *c, struct gemm_scratch *s, int t, int end, enum product of) {
  struct pass p = {.c = c, .s = s, .row = t, .block_words = of == OF_LINKS ? 16 : 32};
  p.blocks = round_up(c->W->K, 32) / 32;
  int most = X_WORDS / (p.blocks * p.block_words + X_PAD) / GEMM_ROWS * GEMM_ROWS;
  p.x_blocks = p.blocks;
  if (most > X_ROWS) most = X_ROWS;
  if (most < GEMM_ROWS) { /* a dot too long for scratch */
    most = GEMM_ROWS;
    p.x_blocks = (X_WORDS / GEMM_ROWS - X_PAD) / p.block_words / W_BLOCKS * W_BLOCKS;
  }
  p.stride = (size_t)(p.x_blocks * p.block_words) + X_PAD;
  const int left = end - t, passes = (left + most - 1) / most;
  p.rows = round_up((left + passes - 1) / passes, GEMM_ROWS);
  if (p.rows > left) p.rows = left;
  return p;
}

/* x's x_blocks from `block` on. */
INLINE void lay_out_x(const struct pass *p, int block, const enum product of) {
  const int K = p->c->W->K, count = p->blocks - block < p->x_blocks ? p->blocks - block : p->x_blocks;
  (void)of; /* where there are no links */
  for (int r = 0; r < p->rows; r++) {
    const size_t row = (size_t)(p->row + r) * (size_t)K, out = (size_t)r * p->stride;
    for (int b = 0; b < count; b++) {
      const int k = (block + b) * 32;
#if defined(__AVX512BF16__)
      if (of == OF_LINKS) {
        link_store(p->s->x.links + out + b * 16, link_block((const uint16_t *)p->c->x + row + k, K - k));
        continue;
      }
#endif
      float *even = p->s->x.floats + out + b * 32;
      if (k + 32 <= K)
        split32(even, even + 16, p->c->x, row + (size_t)k, false);
      else
        split_tail(even, even + 16, p->c->x, row + (size_t)k, K - k, false);
    }
  }
}

/* A piece of a panel of outputs, and the destination of its sums. */
struct piece {
  const char *w; /* of the first tile; that of the second lies next_w bytes further */
  size_t next_w;
  const char *ahead; /* the piece after this one, if there is one: */
  bool more;
  int blocks;
  const struct pass *p;
  size_t x; /* where x's words begin in scratch */
  float *y; /* [rows][N], `lanes` of them */
  int lanes;
  bool first, last, far; /* far: W comes from far memory */
};

/* One chain of a block for R rows (x[r * stride + step]) against NV vectors of W. */
INLINE void widening_chain(vf acc[GEMM_ROWS][2], const float *x, size_t stride, const char *const w[2], bool is_odd,
                           const int R, const int NV, const bool split) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = (vf){0};
  }
#if defined(__AVX2__) /* x86-64-v2 has no such chains of vectors: nothing to win, much to compile */
  UNROLL
#endif
  for (size_t s = 0; s < 16; s++) {
    vf wv[2];
    UNROLL
    for (int v = 0; v < NV; v++) wv[v] = is_odd ? load_odd(w[v], 32 * s, 0, false) : load_even(w[v], 32 * s, 0, false);
    UNROLL
    for (int r = 0; r < R; r++) {
      const vf xr = vset(x[(size_t)r * stride + s]);
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = vlink(xr, wv[v], acc[r][v], split);
    }
  }
}

/* Both chains of block b for rows from `row` on. */
INLINE void chains(vf even[GEMM_ROWS][2], vf odd[GEMM_ROWS][2], const struct piece *o, int row, int b,
                   const char *const w[2], const int R, const int NV, const bool in_order, const enum product of,
                   const bool split) {
  const size_t stride = o->p->stride, at = o->x + (size_t)row * stride;
  (void)in_order, (void)of; /* of links */
#if defined(__AVX512BF16__)
  if (of == OF_LINKS) {
    const uint32_t *x = o->p->s->x.links + at + b * 16, *words = (const uint32_t *)(const void *)w[0];
    if (in_order) {
      link_chains(even, odd, x, stride, words, o->next_w / 4, R, NV);
    } else {
      link_chain(even, x, stride, 1, words, 32, o->next_w / 4, LINK_STEPS, R, NV);
      link_chain(odd, x + LINK_STEPS, stride, 1, words + 16, 32, o->next_w / 4, LINK_STEPS, R, NV);
    }
    return;
  }
#endif
  const float *x = o->p->s->x.floats + at + b * 32;
  widening_chain(even, x, stride, w, false, R, NV, split);
  widening_chain(odd, x + 16, stride, w, true, R, NV, split);
}

/* The prefetching of both next tiles, line after line in the order in which they lie, which is fastest: each of the
 * full groups of rows prefetches the same share. */
struct coming {
  const char *at;
  int groups, due; /* groups 0: nothing is prefetched */
};

INLINE void coming_ask(struct coming *a, size_t next_w, int lines) {
  if (a->groups == 0) return;
  for (a->due += lines; a->due >= a->groups; a->due -= a->groups, a->at += LINE) {
    _mm_prefetch(a->at, _MM_HINT_T1);
    _mm_prefetch(a->at + next_w, _MM_HINT_T1);
  }
}

/* A block of a tile, for a single row, which waits for nothing but the memory. */
INLINE void ask_block(const char *w) {
  UNROLL
  for (int line = 0; line < TILE_BLOCK_BYTES / LINE; line++) _mm_prefetch(w + line * LINE, _MM_HINT_T0);
}

/* R rows from `row` on x NV vectors of outputs from `lane` on; a: the next data, which is prefetched meanwhile. */
INLINE void gemm_micro(const struct piece *o, int row, int lane, struct coming *a, const int R, const int NV,
                       const bool in_order, const enum product of) {
  const size_t block = TILE_BLOCK_BYTES;
  float *sums = o->p->s->acc + row * PANEL + lane;
  const char *w[2];
  vf acc[GEMM_ROWS][2];
  for (int v = 0; v < 2; v++) {
    const size_t at = (size_t)(lane + v * VL);
    w[v] = o->w + at / 16 * o->next_w + at % 16 * 4;
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = o->first ? (vf){0} : vload(sums + r * PANEL + v * VL);
  }
  for (int b = 0; b < o->blocks; b++) {
    vf even[GEMM_ROWS][2], odd[GEMM_ROWS][2];
    if (R == GEMM_ROWS) coming_ask(a, o->next_w, (int)(block / LINE));
    if (R == 1 && of == OF_PAIRS && o->far) ask_block(w[0] + AHEAD_BYTES);
#define CHAINS(split) chains(even, odd, o, row, b, w, R, NV, in_order, of, split)
    MAKE_LINKS(CHAINS, even, odd, false);
#undef CHAINS
    w[0] += block;
    w[1] += block;
    UNROLL
    for (int r = 0; r < R; r++) {
      UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = acc[r][v] + (even[r][v] + odd[r][v]);
    }
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *y = o->y + (size_t)(row + r) * (size_t)o->p->c->W->N + lane + v * VL;
      const int lanes = o->lanes - lane - v * VL;
      if (!o->last)
        vstore(sums + r * PANEL + v * VL, acc[r][v]);
      else if (lanes > 0)
        store_some(y, o->p->c->accumulate ? load_some(y, lanes) + acc[r][v] : acc[r][v], lanes);
    }
  }
}

INLINE void gemm_groups(const struct piece *o, int lane, const int NV, const bool in_order, const enum product of) {
  const int rows = o->p->rows, groups = (rows + GEMM_ROWS - 1) / GEMM_ROWS;
  const bool waits = o->more && lane == 0 && groups > 1; /* one group alone goes as the memory does */
  struct coming a = {.at = o->ahead, .groups = waits ? rows / GEMM_ROWS : 0};
  const bool far = o->last && lane == 0 && o->p->c->T > X_ROWS;
  for (int g = 0; g < groups; g++) {
    const int row = g * GEMM_ROWS, left = rows - row;
    if (far)
      ask_outputs(o->y + (size_t)row * (size_t)o->p->c->W->N, o->p->c->W->N, left < GEMM_ROWS ? left : GEMM_ROWS);
    if (left >= GEMM_ROWS)
      gemm_micro(o, row, lane, &a, GEMM_ROWS, NV, in_order, of);
    else if (GEMM_ROWS > 3 && left == 3)
      gemm_micro(o, row, lane, &a, GEMM_ROWS > 3 ? 3 : 1, NV, in_order, of);
    else if (left == 2)
      gemm_micro(o, row, lane, &a, 2, NV, in_order, of);
    else
      gemm_micro(o, row, lane, &a, 1, NV, in_order, of);
  }
}

/* Few rows take W as fast as the memory gives it, and that is fastest when W is read in the order in which it lies: a
 * tile, then the next.  A full group of rows does not where that drives x out of the first level: then each line of x
 * serves both tiles of the panel. */
INLINE bool tile_by_tile(const struct pass *p) {
  const size_t tile = (size_t)p->blocks * TILE_BLOCK_BYTES, x = (size_t)p->rows * p->stride * 4;
  return p->rows < GEMM_ROWS || (p->rows == GEMM_ROWS && tile + x <= NEAR_BYTES);
}

/* One panel of outputs for the rows of a pass; more: another panel follows. */
INLINE void gemm_panel(const struct pass *p, int n, bool more, const enum product of) {
  const size_t block = TILE_BLOCK_BYTES, tile = (size_t)p->blocks * block;
  const char *panel = (const char *)p->c->W->data + (size_t)(n / 16) * tile;
  struct piece o = {
      .next_w = tile, .p = p, .y = p->c->y + (size_t)p->row * (size_t)p->c->W->N + n, .lanes = p->c->W->N - n};
  o.far = (size_t)p->c->W->N * (size_t)p->c->W->K * 2 > FAR_BYTES;
  const bool single = tile_by_tile(p);
  const int at_once = single ? p->x_blocks : W_BLOCKS, step = single && VL == 16 ? VL : 2 * VL;
  for (int b = 0; b < p->blocks; b += at_once) {
    if (p->x_blocks < p->blocks && b % p->x_blocks == 0) lay_out_x(p, b, of);
    o.x = (size_t)(b % p->x_blocks * p->block_words);
    o.w = panel + (size_t)b * block;
    o.blocks = p->blocks - b < at_once ? p->blocks - b : at_once;
    o.first = b == 0;
    o.last = b + o.blocks == p->blocks;
    o.ahead = o.last ? panel + 2 * tile : o.w + W_BLOCKS * block;
    o.more = !o.last || more;
    for (int lane = 0; lane < PANEL && lane < o.lanes; lane += step) {
      const bool two = step == 2 * VL && o.lanes - lane > VL;
      if (two && of == OF_LINKS && p->rows <= FEW_ROWS)
        gemm_groups(&o, lane, 2, true, of);
      else if (two)
        gemm_groups(&o, lane, 2, false, of);
      else
        gemm_groups(&o, lane, 1, true, of);
    }
  }
}

INLINE void gemm_part(const struct gemm_args *c, size_t begin, size_t end, void *scratch, const enum product of) {
  const int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  const int n0 = c->by_rows ? 0 : (int)begin * PANEL;
  const int n1 = c->by_rows || (int)end * PANEL > c->W->N ? c->W->N : (int)end * PANEL;
  for (int t = t0; t < t1;) {
    const struct pass p = pass_of(c, scratch, t, t1, of);
    if (p.x_blocks == p.blocks) lay_out_x(&p, 0, of);
    for (int n = n0; n < n1; n += PANEL) gemm_panel(&p, n, n + PANEL < n1, of);
    t += p.rows;
  }
}

void ISA_NAME(gemm)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) gemm_part(c, begin, end, scratch, OF_LINKS);
#else
  if (c->format == FORMAT_BF16 && (c->by_rows ? (int)(end - begin) : c->T) <= GEMM_ROWS)
    gemm_part(c, begin, end, scratch, OF_PAIRS);
#endif
  else
    ISA_NAME(gemm_chains)(args, begin, end, scratch);
}

_Static_assert(sizeof(struct gemm_scratch) <= CPU_SCRATCH_BYTES, "gemm's scratch");

/* Computes y = x W^T by chains of fused multiply-adds (micro_kernel.h), for more rows than wait for W: gemm.c has the
 * others.
 *
 *   x [rows][K] -> floats, second-level cache   W [32 outputs][W_BLOCKS * 32 of K] -> floats, first level   -> sums [rows][32]
 *
 * A pass takes up to X_ROWS rows through all of W.  Its rows lie in groups of MICRO_GROUP: [group][block of 32 along K]
 * [MICRO_GROUP][16 even, 16 odd], so that the micro kernel reaches all rows by constant displacements from one pointer.
 * So few rows that one group holds them wait for nothing but W, and go by it alone.  The first of many groups widens a
 * piece of W in the micro kernel's registers, keeps the floats for the others, and prefetches the next piece.  A few
 * groups that read much of W wait for memory: there each prefetches its share, so that memory is asked evenly.  A row's
 * bits depend only on that row and W. */
#include "common/model/cpu/isa/gemm/outputs.h"
#include "common/model/cpu/isa/micro_kernel.h"

/* So few groups widen W each for itself: storing its floats would cost more. */
#if defined(__AVX512F__)
enum { PAIRS_GROUPS = 1 };
#else
enum { PAIRS_GROUPS = 8 };
#endif

enum {
  PANEL = 32,
  LINE = 64,
  TILE_BLOCK = 16 * 32, /* operands of a tile of W along 32 of the dot */
  W_BLOCKS = 4,         /* of 32 along the dot, of W at a time: 16 KiB of floats */
  FEW_ROWS = 36,        /* whose groups share the prefetching of W, */
  MUCH_W = 512 << 10,   /* of this many bytes at least */
  X_ROWS = 96,          /* a multiple of MICRO_GROUP */
  X_WORDS = 196608,     /* of x in scratch */
  ROW_BLOCK = 32        /* floats of a row along 32 of the dot */
};

struct chains_scratch {
  float x[X_WORDS];
  float w[W_BLOCKS * 32 * PANEL]; /* [block][even, odd][16][PANEL] */
  float sums[X_ROWS * PANEL];
};

struct pass {
  const struct gemm_args *c;
  struct chains_scratch *s;
  int row, rows;
  struct row_groups groups;
  int group_block;      /* of its largest group */
  int blocks, x_blocks; /* of 32 along the dot: all, and of x in scratch at a time */
  int shares;           /* how many groups prefetch W */
};

/* Floats of a group of `rows` along 32 of the dot: few rows may be more than a group of many has. */
INLINE int group_block(int rows) { return (rows > MICRO_GROUP ? MICRO_ROWS : MICRO_GROUP) * ROW_BLOCK; }

/* The next of rows [t, end). */
static struct pass pass_of(const struct gemm_args *c, struct chains_scratch *s, int t, int end) {
  struct pass p = {.c = c, .s = s, .row = t, .blocks = round_up(c->W->K, 32) / 32};
  const int left = end - t;
  int most = X_WORDS / (p.blocks * MICRO_GROUP * ROW_BLOCK) * MICRO_GROUP;
  p.x_blocks = p.blocks;
  if (most > X_ROWS) most = X_ROWS;
  if (most == 0) { /* a dot too long for scratch */
    most = MICRO_GROUP;
    p.x_blocks = X_WORDS / (MICRO_GROUP * ROW_BLOCK) / W_BLOCKS * W_BLOCKS;
  }
  const int passes = (left + most - 1) / most;
  p.rows = round_up((left + passes - 1) / passes, MICRO_GROUP);
  if (p.rows > left) p.rows = left;
  p.groups = row_groups_of(p.rows);
  p.group_block = group_block(p.groups.each + (p.groups.larger > 0));
  const bool waits = (size_t)c->W->N * (size_t)c->W->K * sizeof(uint16_t) >= MUCH_W;
  p.shares = waits && p.rows <= FEW_ROWS ? p.groups.count : 1;
  return p;
}

/* x's x_blocks from `block` on. */
INLINE void lay_out_x(const struct pass *p, int block, const bool f32) {
  const int K = p->c->W->K, count = p->blocks - block < p->x_blocks ? p->blocks - block : p->x_blocks;
  for (int g = 0; g < p->groups.count; g++) {
    const int first = row_groups_row(&p->groups, g), end = row_groups_row(&p->groups, g + 1);
    for (int r = first; r < end; r++) {
      const size_t row = (size_t)(p->row + r) * (size_t)K;
      float *even = p->s->x + g * p->x_blocks * p->group_block + (r - first) * ROW_BLOCK;
      for (int b = 0; b < count; b++, even += p->group_block) {
        const int k = (block + b) * 32;
        if (k + 32 <= K)
          split32(even, even + 16, p->c->x, row + (size_t)k, f32);
        else
          split_tail(even, even + 16, p->c->x, row + (size_t)k, K - k, f32);
      }
    }
  }
}

/* A piece of a panel of outputs. */
struct piece {
  const struct pass *p;
  const char *w; /* of the first tile; that of the second lies next_w bytes further */
  size_t next_w;
  int begin, blocks; /* along the dot */
  int lanes;         /* outputs that there are, and their place: */
  float *y;          /* [rows][N] */
  bool last;
  const char *ahead; /* the piece after this one; the last one: itself */
};

/* W in float32. */
static void lay_out_w(const struct piece *o) {
  float *to = o->p->s->w;
  const int tiles = o->lanes > 16 ? 2 : 1;
  for (int tile = 0; tile < tiles; tile++) {
    const char *w = o->w + (size_t)tile * o->next_w;
    for (int b = 0; b < o->blocks; b++)
      for (int s = 0; s < 16; s++) {
        float *even = to + (b * 32 + s) * PANEL + tile * 16;
        UNROLL
        for (int part = 0; part < PARTS; part++) {
          vstore(even + part * VL, load_even(w, (size_t)(b * 16 + s) * 32, part, true));
          vstore(even + 16 * PANEL + part * VL, load_odd(w, (size_t)(b * 16 + s) * 32, part, true));
        }
      }
  }
}

/* y = sums, or y += sums, for rows [row, row + rows) of the pass. */
static void store_sums(const struct piece *o, int row, int rows) {
  const struct gemm_args *c = o->p->c;
  for (int r = row; r < row + rows; r++) {
    const float *sums = o->p->s->sums + r * PANEL;
    float *y = o->y + (size_t)r * (size_t)c->W->N;
    UNROLL
    for (int at = 0; at < PANEL; at += VL) {
      const int lanes = o->lanes - at;
      if (lanes <= 0) break;
      store_some(y + at, c->accumulate ? load_some(y + at, lanes) + vload(sums + at) : vload(sums + at), lanes);
    }
  }
}

INLINE void block_next(struct block *b, const int R, const enum micro_w kind) {
  b->a += group_block(R);
  b->w = (const char *)b->w + (micro_floats(kind) ? 32 * PANEL * sizeof(float) : TILE_BLOCK * sizeof(uint16_t));
  for (int tile = 0; tile < 2 && kind != W_FLOATS; tile++) b->ahead[tile] += TILE_BLOCK * sizeof(uint16_t);
  if (kind == W_PAIRS_KEPT) b->keep += 32 * PANEL;
}

/* A group of R rows, from `row` on, against two vectors of the panel, along the whole piece. */
INLINE void run_along(const struct piece *o, struct block b, int row, int lane, const int R, const enum micro_w kind) {
  const bool asks = o->last && lane == 0 && o->p->c->T > X_ROWS;
  const int N = o->p->c->W->N;
  for (int i = 0; i < o->blocks; i++) {
    const int asked = R * i / o->blocks;
    if (asks) ask_outputs(o->y + (size_t)(row + asked) * (size_t)N, N, R * (i + 1) / o->blocks - asked);
    b.first = o->begin + i == 0;
    micro(&b, ROW_BLOCK, 0, lane, R, 2, kind);
    block_next(&b, R, kind);
  }
}

/* Group g: `rows` rows from `row` on.  Where the panel has one tile only, AVX-512's second vector repeats it. */
INLINE void group_add(const struct piece *o, int g, int row, int rows, int lane, const enum micro_w kind) {
  const struct pass *p = o->p;
  const size_t next = micro_floats(kind) ? 16 : o->next_w / 4;
  const char *ahead =
      o->ahead + TILE_BLOCK * sizeof(uint16_t) * (size_t)g / (size_t)p->shares; /* this group's share of a block */
  const struct block b = {.dst = p->s->sums + row * PANEL,
                          .ldd = PANEL,
                          .a = p->s->x + (g * p->x_blocks + o->begin % p->x_blocks) * p->group_block,
                          .odd_a = 16,
                          .step_a = 1,
                          .w = micro_floats(kind) ? (const void *)p->s->w : (const void *)o->w,
                          .odd_w = 16 * PANEL,
                          .step_w = micro_floats(kind) ? PANEL : 16,
                          .tile_w = o->lanes > 16 ? next : 0,
                          .steps = 16,
                          .ahead = {ahead, ahead + (o->lanes > 16 ? o->next_w : 0)},
                          .step_ahead = LINE / (size_t)p->shares,
                          .f32 = p->c->format == FORMAT_F32,
                          .keep = p->s->w};
#define RUN_ALONG(R) run_along(o, b, row, lane, R, kind)
  MICRO_BY_ROWS(rows, RUN_ALONG);
#undef RUN_ALONG
}

/* Groups [g, end), each against all of the panel, while its rows are near. */
INLINE void groups_add(const struct piece *o, int g, int end, const enum micro_w kind) {
  for (; g < end; g++) {
    const int row = row_groups_row(&o->p->groups, g), rows = row_groups_row(&o->p->groups, g + 1) - row;
    for (int lane = 0; lane < PANEL && lane < o->lanes; lane += 2 * VL) group_add(o, g, row, rows, lane, kind);
    if (o->last) store_sums(o, row, rows);
  }
}

static __attribute__((noinline)) void add_floats(const struct piece *o, int g) {
  groups_add(o, g, o->p->groups.count, W_FLOATS);
}
static __attribute__((noinline)) void add_kept(const struct piece *o, int g) {
  groups_add(o, g, o->p->groups.count, W_KEPT);
}
static __attribute__((noinline)) void add_pairs(const struct piece *o) {
  groups_add(o, 0, o->p->groups.count, W_PAIRS);
}
static __attribute__((noinline)) void add_pairs_kept(const struct piece *o) { groups_add(o, 0, 1, W_PAIRS_KEPT); }

/* All groups of rows.  The first of many widens W for the others. */
INLINE void piece_add(const struct piece *o, const bool f32) {
  if (f32) {
    lay_out_w(o);
    add_floats(o, 0);
  } else if (o->p->groups.count <= PAIRS_GROUPS) {
    add_pairs(o);
  } else {
    add_pairs_kept(o);
    if (o->p->shares > 1)
      add_kept(o, 1);
    else
      add_floats(o, 1);
  }
}

/* One panel of outputs for the rows of a pass; more: another panel follows. */
INLINE void panel_add(const struct pass *p, int n, bool more, const bool f32) {
  const size_t block = TILE_BLOCK * (f32 ? 4 : 2), tile = (size_t)p->blocks * block;
  const char *panel = (const char *)p->c->W->data + (size_t)(n / 16) * tile;
  struct piece o = {
      .p = p, .next_w = tile, .y = p->c->y + (size_t)p->row * (size_t)p->c->W->N + n, .lanes = p->c->W->N - n};
  for (o.begin = 0; o.begin < p->blocks; o.begin += o.blocks) {
    if (p->x_blocks < p->blocks && o.begin % p->x_blocks == 0) lay_out_x(p, o.begin, f32);
    o.w = panel + (size_t)o.begin * block;
    o.blocks = p->blocks - o.begin < W_BLOCKS ? p->blocks - o.begin : W_BLOCKS;
    o.last = o.begin + o.blocks == p->blocks;
    o.ahead = !o.last ? o.w + W_BLOCKS * block : more ? panel + 2 * tile : o.w;
    piece_add(&o, f32);
  }
}

INLINE void gemm_part(const struct gemm_args *c, size_t begin, size_t end, void *scratch, const bool f32) {
  const int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  const int n0 = c->by_rows ? 0 : (int)begin * PANEL;
  const int n1 = c->by_rows || (int)end * PANEL > c->W->N ? c->W->N : (int)end * PANEL;
  for (int t = t0; t < t1;) {
    const struct pass p = pass_of(c, scratch, t, t1);
    if (p.x_blocks == p.blocks) lay_out_x(&p, 0, f32);
    for (int n = n0; n < n1; n += PANEL) panel_add(&p, n, n + PANEL < n1, f32);
    t += p.rows;
  }
}

void ISA_NAME(gemm_chains)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
  if (c->format == FORMAT_F32)
    gemm_part(c, begin, end, scratch, true);
  else
    gemm_part(c, begin, end, scratch, false);
}

_Static_assert(sizeof(struct chains_scratch) <= CPU_SCRATCH_BYTES, "gemm's scratch");

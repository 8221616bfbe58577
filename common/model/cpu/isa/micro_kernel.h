/* The inner ("micro") kernel of all products by fused multiply-adds: one block of 32 along the dot (NUMERICS.md, DOT)
 * for some rows of `a`, whose elements are broadcast, against lanes of `w`:
 *
 *   dst[r][lane] = dst[r][lane] + (even + odd)
 *
 * Registers: with AVX-512 12 rows x 2 vectors hold a chain, 24 sums, beside 2 vectors of w and some elements of a.  The
 * even chain runs before the odd one, and its sums wait in the first-level cache, as do those over blocks, in dst: 5
 * loads and stores for 32 FMAs.  Both chains of few rows fit side by side.  Fewer rows, with all sums in registers,
 * would need more loads: 4 rows x 2 vectors take 6 for 8 FMAs, 12 rows 14 for 24, and on Intel's processors loads are
 * what FMAs wait for.  (Where stores are dearer than loads, on AMD's Zen 4, 4 rows were 1.05 times as fast; it has
 * instructions for bf16.)  An FMA's latency asks for 8 sums at a time; with fewer the processor starts the odd chain
 * before the even one is done.
 *
 * With AVX2 4 rows x 2 vectors are those 8 sums.  6 rows fit into 16 registers and need fewer loads, but on AMD's Zen 3
 * they reach 82 % of the FMA loop where 4 reach 96, both from the first level: they are taken where they save a group.
 * Of 3 rows and less both chains' sums fit, and they run step by step, 93 %; not those of 3 rows of pairs, which leave
 * no register to widen in.
 *
 * w is float, laid out by the caller, or pairs of bf16 (vec.h), widened in registers: one instruction for R FMAs.
 *
 * Bounds: an FMA, an addition, a multiplication and a widening take the same two ports of AVX-512.  Of 2 x 16 steps of
 * R x 2 sums, R x 4 additions and (of pairs) 64 widenings leave R / (R + 1 + R / 16): 87 % at 12 rows; of floats 94 %.
 * Where additions have ports of their own (AMD's), nothing is lost to them. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_MICRO_KERNEL_H
#define LEASEHOLD_MODEL_CPU_ISA_MICRO_KERNEL_H

#include "common/model/cpu/isa/vec.h"

/* Rows of a group at most, and where there are several groups; sums of a chain for which both chains' fit into
 * registers, of pairs and of floats; for which steps are short. */
#if defined(__AVX512F__)
enum { MICRO_ROWS = 12, MICRO_GROUP = 12, MICRO_FEW_PAIRS = 8, MICRO_FEW = 8, MICRO_SHORT = 6 };
#else
enum { MICRO_ROWS = 6, MICRO_GROUP = 4, MICRO_FEW_PAIRS = 4, MICRO_FEW = 6, MICRO_SHORT = 0 };
#endif

/* What w holds; a constant wherever it is passed, as is row_a, the distance between rows of a.  W_PAIRS_KEPT: pairs,
 * whose floats are stored for more rows; W_KEPT: such floats.  All but W_FLOATS prefetch what comes next, a little with
 * each step: many lines at once would hold up the loads. */
enum micro_w { W_FLOATS, W_KEPT, W_PAIRS, W_PAIRS_KEPT };
INLINE bool micro_floats(const enum micro_w kind) { return kind == W_FLOATS || kind == W_KEPT; }

/* Element 2s of row r: a[r * row_a + s * step_a]; element 2s + 1: odd_a further.  Lane l of elements 2s of w:
 * w[s * step_w + l / 16 * tile_w + l % 16]; of elements 2s + 1: odd_w further, or the other half of the pair. */
struct block {
  float *dst;
  size_t ldd;
  const float *a;
  size_t odd_a, step_a;
  const void *w;
  size_t odd_w, step_w, tile_w;
  int steps;       /* pairs, at most 16; fewer when the rest is zero padding */
  int rows, lanes; /* lanes: a multiple of 16 */
  bool first;      /* dst is taken as +0 */
  bool f32;        /* a and w may hold any floats, not only bf16 */
  const char *ahead[2]; /* what comes next, of either tile */
  size_t step_ahead;    /* bytes */
  float *keep;          /* of W_PAIRS_KEPT: [even, odd][16][32 lanes] */
};

INLINE vf micro_load(const void *w, size_t at, bool is_odd, const enum micro_w kind) {
  if (micro_floats(kind)) return vload((const float *)w + at);
  vu pair;
  memcpy(&pair, (const uint32_t *)w + at, sizeof pair);
  return (vf)(is_odd ? pair & 0xffff0000u : pair << 16);
}

/* Where a chain stands. */
struct chain {
  const float *a;
  size_t w[2];
  const char *ahead;
  float *keep;
};

/* One step.  The first may only multiply: that is fma(x, w, +0) but for the sign of a zero, and dst, which begins as +0
 * and so never is -0, takes no notice of that. */
INLINE void micro_step(vf acc[MICRO_ROWS][2], struct chain *c, const struct block *b, const size_t row_a, bool is_first,
                       bool is_odd, const int R, const int NV, const enum micro_w kind, const bool split) {
  vf w[2];
  UNROLL
  for (int v = 0; v < NV; v++) {
    w[v] = micro_load(b->w, c->w[v], is_odd, kind);
    c->w[v] += b->step_w;
    if (kind == W_PAIRS_KEPT) vstore(c->keep + v * VL, w[v]);
  }
  if (kind == W_PAIRS_KEPT) c->keep += 32;
  if (kind != W_FLOATS && (VL == 16 || !is_odd)) {
    _mm_prefetch(c->ahead, _MM_HINT_T1);
    c->ahead += b->step_ahead;
  }
  UNROLL
  for (int r = 0; r < R; r++) {
    const vf x = vset(c->a[(size_t)r * row_a]);
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = is_first ? x * w[v] : vlink(x, w[v], acc[r][v], split);
  }
  c->a += b->step_a;
}

INLINE struct chain chain_begin(const struct block *b, const size_t row_a, int row, int lane, bool is_odd, const int NV,
                                const enum micro_w kind) {
  const bool second_tile = VL == 16 ? is_odd : lane >= 16;
  struct chain c = {.a = b->a + (size_t)row * row_a + (is_odd ? b->odd_a : 0)};
  if (kind != W_FLOATS) c.ahead = b->ahead[second_tile];
  if (kind == W_PAIRS_KEPT) c.keep = b->keep + (is_odd ? 16 * 32 : 0) + lane;
  UNROLL
  for (int v = 0; v < NV; v++) {
    const size_t l = (size_t)(lane + v * VL);
    c.w[v] = l / 16 * b->tile_w + l % 16 + (is_odd && micro_floats(kind) ? b->odd_w : 0);
  }
  return c;
}

INLINE void sums_clear(vf acc[MICRO_ROWS][2], const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = (vf){0};
  }
}

/* The first step multiplies only where both chains' sums fit into AVX-512's registers: sums set to zero are copies of
 * one register, 1 to 3 % of the time.  Where they do not fit, or with AVX2, gcc keeps other values better without
 * it. */
INLINE void micro_chain(vf acc[MICRO_ROWS][2], const struct block *b, const size_t row_a, int row, int lane,
                        bool is_odd, const int R, const int NV, const enum micro_w kind, const bool split) {
  const bool multiplies = VL == 16 && R * NV <= MICRO_FEW;
  struct chain c = chain_begin(b, row_a, row, lane, is_odd, NV, kind);
  if (multiplies)
    micro_step(acc, &c, b, row_a, true, is_odd, R, NV, kind, split);
  else
    sums_clear(acc, R, NV);
  if (VL == 16 && R * NV <= MICRO_SHORT) { /* a loop costs a part of short steps: 1.2 times as fast with 3 rows */
#pragma GCC unroll 3
    for (int s = multiplies; s < b->steps; s++) micro_step(acc, &c, b, row_a, false, is_odd, R, NV, kind, split);
    return;
  }
#if defined(__AVX512F__)
#pragma GCC unroll 5
#elif defined(__AVX2__)
#pragma GCC unroll 4
#endif
  for (int s = multiplies; s < b->steps; s++) micro_step(acc, &c, b, row_a, false, is_odd, R, NV, kind, split);
}

/* Both chains of a few rows, step by step. */
INLINE void micro_both(vf even[MICRO_ROWS][2], vf odd[MICRO_ROWS][2], const struct block *b, const size_t row_a,
                       int row, int lane, const int R, const int NV, const enum micro_w kind, const bool split) {
  struct chain e = chain_begin(b, row_a, row, lane, false, NV, kind),
               o = chain_begin(b, row_a, row, lane, true, NV, kind);
  sums_clear(even, R, NV);
  sums_clear(odd, R, NV);
#pragma GCC unroll 4
  for (int s = 0; s < b->steps; s++) {
    micro_step(even, &e, b, row_a, false, false, R, NV, kind, split);
    micro_step(odd, &o, b, row_a, false, true, R, NV, kind, split);
  }
}

/* Adds the chains' sums to dst; even's are those that lie at `kept`. */
INLINE void micro_out(const struct block *b, float *dst, const float *kept, vf odd[MICRO_ROWS][2], const bool first,
                      const int R, const int NV) {
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *d = dst + (size_t)r * b->ldd + v * VL;
      vstore(d, (first ? (vf){0} : vload(d)) + (vload(kept + (r * 2 + v) * VL) + odd[r][v]));
    }
  }
}

/* More sums than registers hold twice: even's lie in memory while odd's are made.  Left to itself, gcc exchanges some
 * of both, up to 13 % of the time. */
INLINE void micro_apart(float kept[MICRO_ROWS * 2 * VL], vf odd[MICRO_ROWS][2], const struct block *b,
                        const size_t row_a, int row, int lane, const int R, const int NV, const enum micro_w kind,
                        const bool split) {
  micro_chain(odd, b, row_a, row, lane, false, R, NV, kind, split);
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) vstore(kept + (r * 2 + v) * VL, odd[r][v]);
  }
  /* as far as gcc knows they may have changed */
  __asm__ volatile("" : "+m"(*(float(*)[MICRO_ROWS * 2 * VL]) kept));
  micro_chain(odd, b, row_a, row, lane, true, R, NV, kind, split);
}

INLINE void micro_many(const struct block *b, const size_t row_a, int row, int lane, const int R, const int NV,
                       const enum micro_w kind) {
  float kept[MICRO_ROWS * 2 * VL] __attribute__((aligned(64)));
  float *dst = b->dst + (size_t)row * b->ldd + lane;
  vf odd[MICRO_ROWS][2];
#define MICRO_APART(split) micro_apart(kept, odd, b, row_a, row, lane, R, NV, kind, split)
  MAKE_LINKS(MICRO_APART, kept, odd, b->f32);
#undef MICRO_APART
  if (b->first)
    micro_out(b, dst, kept, odd, true, R, NV);
  else
    micro_out(b, dst, kept, odd, false, R, NV);
}

/* Few sums: both chains' fit into registers. */
INLINE void micro_few(const struct block *b, const size_t row_a, int row, int lane, const int R, const int NV,
                      const enum micro_w kind) {
  vf even[MICRO_ROWS][2], odd[MICRO_ROWS][2];
#if defined(__AVX512F__)
  micro_chain(even, b, row_a, row, lane, false, R, NV, kind, false);
  micro_chain(odd, b, row_a, row, lane, true, R, NV, kind, false);
#else
#define MICRO_BOTH(split) micro_both(even, odd, b, row_a, row, lane, R, NV, kind, split)
  MAKE_LINKS(MICRO_BOTH, even, odd, b->f32);
#undef MICRO_BOTH
#endif
  float *dst = b->dst + (size_t)row * b->ldd + lane;
  UNROLL
  for (int r = 0; r < R; r++) {
    UNROLL
    for (int v = 0; v < NV; v++) {
      float *d = dst + (size_t)r * b->ldd + v * VL;
      vstore(d, (b->first ? (vf){0} : vload(d)) + (even[r][v] + odd[r][v]));
    }
  }
}

INLINE void micro(const struct block *b, const size_t row_a, int row, int lane, const int R, const int NV,
                  const enum micro_w kind) {
  if (R * NV <= (micro_floats(kind) ? MICRO_FEW : MICRO_FEW_PAIRS))
    micro_few(b, row_a, row, lane, R, NV, kind);
  else
    micro_many(b, row_a, row, lane, R, NV, kind);
}

/* Calls call(R) for the R that `rows` is, 1 to MICRO_ROWS: a constant for each, so that its sums stay in registers. */
#define MICRO_CASE(R, call) \
  case R:                   \
    call(R);                \
    break
#define MICRO_CASES_TO_6(call) \
  MICRO_CASE(1, call);         \
  MICRO_CASE(2, call);         \
  MICRO_CASE(3, call);         \
  MICRO_CASE(4, call);         \
  MICRO_CASE(5, call);         \
  MICRO_CASE(6, call)
#if defined(__AVX512F__)
#define MICRO_CASES(call) \
  MICRO_CASES_TO_6(call); \
  MICRO_CASE(7, call);    \
  MICRO_CASE(8, call);    \
  MICRO_CASE(9, call);    \
  MICRO_CASE(10, call);   \
  MICRO_CASE(11, call);   \
  MICRO_CASE(12, call)
#else
#define MICRO_CASES(call) MICRO_CASES_TO_6(call)
#endif
#define MICRO_BY_ROWS(rows, call) \
  do {                            \
    switch (rows) {               \
      MICRO_CASES(call);          \
      default: break;             \
    }                             \
  } while (0)

/* Rows [row, row + rows), at most MICRO_ROWS. */
INLINE void micro_group(const struct block *b, const size_t row_a, int row, int rows, int lane, const int NV,
                        const enum micro_w kind) {
#define MICRO_CALL(R) micro(b, row_a, row, lane, R, NV, kind)
  MICRO_BY_ROWS(rows, MICRO_CALL);
#undef MICRO_CALL
}

/* How rows are shared out: `count` groups of `each`, of which the first `larger` have one more.  A small group would
 * wait for its FMAs. */
struct row_groups {
  int count, each, larger;
};

/* rows > 0 */
INLINE struct row_groups row_groups_of(int rows) {
  const int count = rows <= MICRO_ROWS ? 1 : (rows + MICRO_GROUP - 1) / MICRO_GROUP;
  return (struct row_groups){.count = count, .each = rows / count, .larger = rows % count};
}

/* The first row of group g. */
INLINE int row_groups_row(const struct row_groups *groups, int g) {
  return g * groups->each + (g < groups->larger ? g : groups->larger);
}

INLINE void micro_groups(const struct block *b, const size_t row_a, int lane, const int NV, const enum micro_w kind) {
  const struct row_groups groups = row_groups_of(b->rows);
  for (int g = 0, row = 0, end; g < groups.count; g++, row = end) {
    end = row_groups_row(&groups, g + 1);
    micro_group(b, row_a, row, end - row, lane, NV, kind);
  }
}

/* The whole block. */
INLINE void block_add(const struct block *b, const size_t row_a, const enum micro_w kind) {
  int lane = 0;
  for (; lane + 2 * VL <= b->lanes; lane += 2 * VL) micro_groups(b, row_a, lane, 2, kind);
  if (VL == 16 && lane < b->lanes) micro_groups(b, row_a, lane, 1, kind);
}

#endif

/* Computes dW += dy^T x by chains of fused multiply-adds (micro_kernel.h).  Lanes run over K, rows over N, the dot over
 * tokens (NUMERICS.md, DOT).
 *
 *   T_CHUNK tokens of dy [N_BLOCK] and x [K_BLOCK], in memory -> floats, second-level cache
 *   -> sums [K_BLOCK / LANES][N_BLOCK][LANES]
 *
 * x lies by [32 lanes][token]: such a slice, T_CHUNK lines of 128 bytes, and GROUP_ROWS columns of dy are multiplied
 * from the first-level cache.  16 columns of dy lie together, a line of each token.  A window is tall because x is laid
 * out once for all of its rows.  Sums are added to dW once at the end.  The next tokens are prefetched between the
 * products, evenly: many at once hold up what is loaded meanwhile (weight_window.h). */
#include "common/model/cpu/isa/gemm/weight_window.h"
#include "common/model/cpu/isa/micro_kernel.h"

#if defined(__AVX512BF16__)
cpu_kernel ISA_NAME(gemm_weight_backward_bf16); /* of bf16: gemm_bf16.c */
#endif

#if defined(__AVX512F__)
enum { T_CHUNK = 128, GROUP_ROWS = 8 };
#else
enum { T_CHUNK = 64, GROUP_ROWS = MICRO_GROUP };
#endif

enum {
  N_BLOCK = 384, /* a multiple of DY_GROUP and LANES */
  K_BLOCK = 256,
  LANES = 32,
  DY_GROUP = 16,                          /* a multiple of GROUP_ROWS */
  DY_GROUP_SIZE = T_CHUNK * DY_GROUP + 16 /* so that a token's groups do not share cache sets */
};

struct weight_scratch {
  float x[K_BLOCK / LANES][T_CHUNK][LANES];
  float dy[N_BLOCK / DY_GROUP][DY_GROUP_SIZE];
  float sums[K_BLOCK / LANES][N_BLOCK][LANES];
};

/* n operands from index `at` on as floats, in lines of `width` that lie `stride` floats apart, the last one zero padded
 * to a multiple of 16. */
INLINE void load_lines(float *to, const int width, size_t stride, const void *base, size_t at, int n, const bool f32) {
  for (; n >= width; n -= width, at += (size_t)width, to += stride) {
    UNROLL
    for (int l = 0; l < width; l += VL) vstore(to + l, load_operands(base, at + (size_t)l, f32));
  }
  for (int l = 0; l < round_up(n, 16); l += VL)
    vstore(to + l, load_some_operands(base, at + (size_t)l, n - l > 0 ? n - l : 0, f32));
}

INLINE void clear_lines(float *to, const int width, size_t stride, int n) {
  for (; n > 0; n -= width, to += stride) {
    UNROLL
    for (int l = 0; l < width; l += VL) vstore(to + l, (vf){0});
  }
}

/* Row t of dy and of x as floats in line `line`. */
INLINE void load_line(const struct weight_backward_args *c, struct weight_scratch *s, const struct window *w, int line,
                      int t, const bool f32) {
  const size_t x = row_of(c->row, (size_t)t) * (size_t)c->K + (size_t)w->k0,
               dy = (size_t)t * (size_t)c->N + (size_t)w->n0;
  load_lines(s->x[0][line], LANES, T_CHUNK * LANES, c->x, x, w->k_count, f32);
  load_lines(s->dy[0] + line * DY_GROUP, DY_GROUP, DY_GROUP_SIZE, c->dy, dy, w->n_count, f32);
}

/* Lines line, line + 2 .. before `end`. */
static void clear_rest(struct weight_scratch *s, const struct window *w, int line, int end) {
  for (; line < end; line += 2) {
    clear_lines(s->x[0][line], LANES, T_CHUNK * LANES, w->k_count);
    clear_lines(s->dy[0] + line * DY_GROUP, DY_GROUP, DY_GROUP_SIZE, w->n_count);
  }
}

/* Blocks of 32 places along the dot, laid out one after the other: of each 2 x steps lines, which its even and its odd
 * chain take in turns.  A place without a row adds nothing to its chain, so it has no line, except at the end of the
 * shorter chain. */
struct chunk {
  int blocks, steps[T_CHUNK / 2];
};

INLINE int place_of(const struct weight_backward_args *c, int t) { return c->place ? c->place[t] : t; }

/* The row behind those that stand in the block of row t; *steps: of the longer chain. */
static int block_end(const struct weight_backward_args *c, int t, int *steps) {
  const int block = place_of(c, t) / 32, first = t;
  int odd = 0;
  for (; t < c->T && place_of(c, t) / 32 == block; t++) odd += place_of(c, t) % 2;
  const int even = t - first - odd;
  *steps = even > odd ? even : odd;
  return t;
}

/* From row t < T on, as many blocks as fit; returns the row after them. */
INLINE int load_chunk(const struct weight_backward_args *c, struct weight_scratch *s, const struct window *w, int t,
                      struct chunk *chunk, const bool f32) {
  int line = 0, steps;
  for (chunk->blocks = 0; t < c->T; chunk->blocks++) {
    const int end = block_end(c, t, &steps), line_end = line + 2 * steps;
    if (line_end > T_CHUNK) break;
    int next[2] = {line, line + 1};
    for (; t < end; t++) {
      int *const chain = &next[place_of(c, t) % 2];
      load_line(c, s, w, *chain, t, f32);
      *chain += 2;
    }
    clear_rest(s, w, next[0], line_end);
    clear_rest(s, w, next[1], line_end);
    chunk->steps[chunk->blocks] = steps;
    line = line_end;
  }
  return t;
}

/* R rows of a group against NV vectors of 32 lanes, over all blocks of the chunk. */
INLINE void run_blocks(struct block b, const struct chunk *chunk, int lane, const int R, const int NV) {
  for (int i = 0; i < chunk->blocks; i++) {
    b.steps = chunk->steps[i];
    micro(&b, 1, 0, lane, R, NV, W_FLOATS);
    b.first = false;
    b.a += b.steps * 2 * DY_GROUP;
    b.w = (const float *)b.w + b.steps * 2 * LANES;
  }
}

static void multiply_chunk(struct weight_scratch *s, const struct window *w, const struct chunk *chunk, bool first,
                           bool f32, struct ahead *ahead) {
  const int lanes = round_up(w->k_count, 16), rows_asked = ahead->end - ahead->t;
  const int products = (w->k_count + LANES - 1) / LANES * ((w->n_count + GROUP_ROWS - 1) / GROUP_ROWS);
  int due = 0;
  for (int k = 0; k < lanes; k += LANES)
    for (int n = 0; n < w->n_count; n += GROUP_ROWS) {
      const int rows = w->n_count - n < GROUP_ROWS ? w->n_count - n : GROUP_ROWS;
      const struct block b = {.dst = s->sums[k / LANES][n],
                              .ldd = LANES,
                              .a = s->dy[n / DY_GROUP] + n % DY_GROUP,
                              .odd_a = DY_GROUP,
                              .step_a = 2 * DY_GROUP,
                              .w = s->x[k / LANES][0],
                              .odd_w = LANES,
                              .step_w = 2 * LANES,
                              .tile_w = 16,
                              .first = first,
                              .f32 = f32};
      for (int lane = 0; lane < LANES && k + lane < lanes; lane += 2 * VL) {
#define RUN_TWO(R) run_blocks(b, chunk, lane, R, 2)
#define RUN_ONE(R) run_blocks(b, chunk, lane, R, 1)
        if (VL < 16 || k + VL < lanes)
          MICRO_BY_ROWS(rows, RUN_TWO);
        else
          MICRO_BY_ROWS(rows, RUN_ONE);
#undef RUN_TWO
#undef RUN_ONE
      }
      for (due += rows_asked; due >= products; due -= products) ahead_ask(ahead);
    }
}

static void add_sums(const struct weight_backward_args *c, const struct weight_scratch *s, const struct window *w) {
  for (int n = 0; n < w->n_count; n++) {
    float *dW = c->dW + (size_t)(w->n0 + n) * (size_t)c->K + w->k0;
    for (int k = 0; k < w->k_count; k += VL) {
      const int lanes = w->k_count - k;
      store_some(dW + k, load_some(dW + k, lanes) + vload(s->sums[k / LANES][n] + k % LANES), lanes);
    }
  }
}

static void window_compute(const struct weight_backward_args *c, struct weight_scratch *s, int at, int end) {
  const struct window window = window_at(c, at, end), *w = &window;
  for (int t = 0; t < c->T;) {
    struct chunk chunk;
    struct ahead ahead = {0};
    const bool first = t == 0;
    t = c->format == FORMAT_F32 ? load_chunk(c, s, w, t, &chunk, true) : load_chunk(c, s, w, t, &chunk, false);
    if (c->format == FORMAT_BF16) ahead = ahead_of(c, at, end, t, T_CHUNK);
    multiply_chunk(s, w, &chunk, first, c->format == FORMAT_F32, &ahead);
  }
  add_sums(c, s, w);
}

const struct window_limit ISA_NAME(weight_windows) = {{N_BLOCK, K_BLOCK}, DY_GROUP};

void ISA_NAME(gemm_weight_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct weight_backward_args *c = args;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) {
    ISA_NAME(gemm_weight_backward_bf16)(args, begin, end, scratch);
    return;
  }
#endif
  for (int at = (int)begin; at < (int)end; at++) window_compute(c, scratch, at, (int)end);
}

_Static_assert(sizeof(struct weight_scratch) <= CPU_SCRATCH_BYTES, "weight backward's scratch");

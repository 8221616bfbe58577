/* y = x W^T and dW += dy^T x by blocks of 32 along the dot (NUMERICS.md, DOT).
 *
 * gemm: for a block of rows, x is widened once into `xs`, each 32-block as 16 even then 16 odd floats; for each panel
 * of 32 outputs W is widened the same way into `panel`; then the micro kernel runs.  A row's bits depend on that row
 * and W alone. gemm_weight_backward: lanes run over K, rows over N, the dot over tokens; sums are kept apart and
 * added to dW once at the end.
 */
#include "common/model/cpu/isa/micro.h"

#if defined(__AVX512BF16__)
cpu_kernel ISA_NAME(gemm_links), ISA_NAME(gemm_weight_backward_links); /* of bf16: gemm_links.c */
#endif

enum {
  ROW_BLOCK = 48,          /* rows of x in scratch */
  K_CHUNK = 1024,          /* of x in scratch */
  X_STRIDE = K_CHUNK + 16, /* so that rows do not share cache sets */
  PANEL_K = 256,           /* of W in scratch: 32 KiB */
  PANEL = 32
};

struct gemm_scratch {
  float xs[ROW_BLOCK * X_STRIDE];
  float panel[PANEL_K * PANEL];
  float acc[ROW_BLOCK * PANEL];
};

static void widen_x(float *xs, const void *x, size_t row, int rows, int K, int k0, int k1, bool f32) {
  for (int r = 0; r < rows; r++) {
    size_t at = (row + (size_t)r) * (size_t)K;
    float *out = xs + (size_t)r * X_STRIDE;
    for (int k = k0; k < k1; k += 32, out += 32) {
      if (k + 32 <= K)
        split32(out, out + 16, x, at + (size_t)k, f32);
      else
        split_tail(out, out + 16, x, at + (size_t)k, K - k, f32);
    }
  }
}

/* Columns [k0, k1) of `tiles` tiles of W from tile `tile`, as [k'][32]: each 32-block's even k first. */
static void widen_panel(float *panel, const struct matrix *W, int tile, int tiles, int k0, int k1, bool f32) {
  size_t pairs = (size_t)round_up(W->K, 32) / 2;
  for (int j = 0; j < tiles; j++) {
    size_t at = ((size_t)(tile + j) * pairs + (size_t)k0 / 2) * 32;
    for (int k = k0; k < k1; k += 32) {
      float *even = panel + (size_t)(k - k0) * PANEL + j * 16;
      for (int i = 0; i < 16; i++, at += 32) split32(even + i * PANEL, even + (16 + i) * PANEL, W->data, at, f32);
    }
  }
}

static void store_panel(const struct gemm_args *c, const float *acc, size_t row, int rows, int n0, int count) {
  for (int r = 0; r < rows; r++) {
    float *restrict y = c->y + (row + (size_t)r) * (size_t)c->W->N + n0;
    const float *restrict a = acc + r * PANEL;
    if (c->accumulate)
      for (int n = 0; n < count; n++) y[n] = y[n] + a[n];
    else
      memcpy(y, a, (size_t)count * sizeof *y);
  }
}

/* One panel of outputs for a block of rows, along K. */
static void gemm_panel(const struct gemm_args *c, struct gemm_scratch *s, size_t row, int rows, int n0, bool x_ready) {
  bool f32 = c->format == FORMAT_F32;
  int N = c->W->N, K = c->W->K, K32 = round_up(K, 32);
  int count = N - n0 < PANEL ? N - n0 : PANEL, tiles = count > 16 ? 2 : 1;
  bool direct = !c->accumulate && count == PANEL;
  float *dst = direct ? c->y + row * (size_t)N + n0 : s->acc;
  size_t ldd = direct ? (size_t)N : PANEL;
  for (int kc = 0; kc < K32; kc += K_CHUNK) {
    int kc_end = kc + K_CHUNK < K32 ? kc + K_CHUNK : K32;
    if (!x_ready) widen_x(s->xs, c->x, row, rows, K, kc, kc_end, f32);
    for (int kp = kc; kp < kc_end; kp += PANEL_K) {
      int kp_end = kp + PANEL_K < kc_end ? kp + PANEL_K : kc_end;
      widen_panel(s->panel, c->W, n0 / 16, tiles, kp, kp_end, f32);
      for (int r = 0; r < rows; r += MICRO_ROWS) {
        for (int k = kp; k < kp_end; k += 32) {
          const float *x = s->xs + (size_t)r * X_STRIDE + (k - kc), *w = s->panel + (size_t)(k - kp) * PANEL;
          struct block b = {.dst = dst + (size_t)r * ldd,
                            .ldd = ldd,
                            .a_even = x,
                            .a_odd = x + 16,
                            .step_a = 1,
                            .w_even = w,
                            .w_odd = w + 16 * PANEL,
                            .step_w = PANEL,
                            .steps = 16,
                            .rows = rows - r < MICRO_ROWS ? rows - r : MICRO_ROWS,
                            .lanes = tiles * 16,
                            .first = k == 0};
          block_add(&b, X_STRIDE);
        }
      }
    }
  }
  if (!direct) store_panel(c, s->acc, row, rows, n0, count);
}

void ISA_NAME(gemm)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct gemm_args *c = args;
  struct gemm_scratch *s = scratch;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) {
    ISA_NAME(gemm_links)(args, begin, end, scratch);
    return;
  }
#endif
  int t0 = c->by_rows ? (int)begin : 0, t1 = c->by_rows ? (int)end : c->T;
  int n0 = c->by_rows ? 0 : (int)begin * PANEL, n1 = c->by_rows ? c->W->N : (int)end * PANEL;
  if (n1 > c->W->N) n1 = c->W->N;
  bool once = round_up(c->W->K, 32) <= K_CHUNK;
  for (int t = t0; t < t1; t += ROW_BLOCK) {
    int rows = t1 - t < ROW_BLOCK ? t1 - t : ROW_BLOCK;
    for (int n = n0; n < n1; n += PANEL) gemm_panel(c, s, (size_t)t, rows, n, once && n > n0);
  }
}

enum { T_CHUNK = 128, N_BLOCK = 48, K_BLOCK = 256 };

struct weight_scratch {
  float x[T_CHUNK * K_BLOCK];
  float dy[T_CHUNK * N_BLOCK];
  float acc[N_BLOCK * K_BLOCK];
};

/* The rows that stand at places [first, first + T_CHUNK), each at its place, zeros between them, from row *t on;
 * returns the number of places. */
static int weight_load(const struct weight_backward_args *c, struct weight_scratch *s, int first, int *t, int n0,
                       int n_count, int k0, int k_count) {
  bool f32 = c->format == FORMAT_F32;
  int places = 0;
  size_t x_bytes = (size_t)round_up(k_count, 16) * sizeof(float), dy_bytes = (size_t)n_count * sizeof(float);
  for (; *t < c->T; ++*t) {
    int place = (c->place ? c->place[*t] : *t) - first, row = c->row ? c->row[*t] : *t;
    if (place >= T_CHUNK) break;
    for (; places < place; places++) {
      memset(s->x + places * K_BLOCK, 0, x_bytes);
      memset(s->dy + places * N_BLOCK, 0, dy_bytes);
    }
    widen_row(s->x + place * K_BLOCK, c->x, (size_t)row * (size_t)c->K + (size_t)k0, k_count, f32);
    memset(s->x + place * K_BLOCK + k_count, 0, x_bytes - (size_t)k_count * sizeof(float));
    widen_row(s->dy + place * N_BLOCK, c->dy, (size_t)*t * (size_t)c->N + (size_t)n0, n_count, f32);
    places = place + 1;
  }
  if (places % 2) { /* the other half of the last pair */
    memset(s->x + places * K_BLOCK, 0, x_bytes);
    memset(s->dy + places * N_BLOCK, 0, dy_bytes);
  }
  return places;
}

static void weight_chunk(struct weight_scratch *s, int places, int n_count, int lanes, bool first) {
  for (int lane = 0; lane < lanes; lane += 32) {
    for (int t = 0; t < places; t += 32) {
      const float *dy = s->dy + t * N_BLOCK, *x = s->x + t * K_BLOCK + lane;
      struct block b = {.dst = s->acc + lane,
                        .ldd = K_BLOCK,
                        .a_even = dy,
                        .a_odd = dy + N_BLOCK,
                        .step_a = 2 * N_BLOCK,
                        .w_even = x,
                        .w_odd = x + K_BLOCK,
                        .step_w = 2 * K_BLOCK,
                        .steps = places - t >= 32 ? 16 : (places - t + 1) / 2,
                        .rows = n_count,
                        .lanes = lanes - lane < 32 ? lanes - lane : 32,
                        .first = first && t == 0};
      block_add(&b, 1);
    }
  }
}

void ISA_NAME(gemm_weight_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct weight_backward_args *c = args;
  struct weight_scratch *s = scratch;
#if defined(__AVX512BF16__)
  if (c->format == FORMAT_BF16) {
    ISA_NAME(gemm_weight_backward_links)(args, begin, end, scratch);
    return;
  }
#endif
  for (int n0 = (int)begin; n0 < (int)end; n0 += N_BLOCK) {
    int n_count = (int)end - n0 < N_BLOCK ? (int)end - n0 : N_BLOCK;
    for (int k0 = 0; k0 < c->K; k0 += K_BLOCK) {
      int k_count = c->K - k0 < K_BLOCK ? c->K - k0 : K_BLOCK;
      for (int t = 0, first = 0; t < c->T; first += T_CHUNK) {
        bool begins = t == 0;
        int places = weight_load(c, s, first, &t, n0, n_count, k0, k_count);
        if (places > 0) weight_chunk(s, places, n_count, round_up(k_count, 16), begins);
      }
      for (int n = 0; n < n_count; n++) {
        float *restrict dW = c->dW + (size_t)(n0 + n) * (size_t)c->K + k0;
        const float *restrict a = s->acc + n * K_BLOCK;
        for (int k = 0; k < k_count; k++) dW[k] = dW[k] + a[k];
      }
    }
  }
}

_Static_assert(sizeof(struct gemm_scratch) <= CPU_SCRATCH_BYTES, "gemm's scratch");
_Static_assert(sizeof(struct weight_scratch) <= CPU_SCRATCH_BYTES, "weight backward's scratch");

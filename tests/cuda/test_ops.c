/* Every operation of the CUDA table against the CPU's, over odd sizes: to the bit where NUMERICS.md is what both
 * compute, within roundings where the tensor cores multiply; and the promise of the invariant choice: a row's bits do
 * not depend on the other rows of the call.  If this fails, a device trains or samples something else. */
#include "tests/cuda/support.h"

#ifdef LEASEHOLD_CUDA_EMULATED
#include "tests/cuda/emulated/emulated.h"
#endif

/* --- memory, layouts, rows --- */

static void test_memory(void **state) {
  const size_t n = (20u << 20) + 12; /* more than both halves of the pinned memory */
  unsigned char *sent = host_array(n), *back = host_array(n);
  (void)state;
  unsigned char *a = device_array(n), *b = device_array(n);
  gpu->download(gpu, back, a, n);
  for (size_t i = 0; i < n; i++) assert_int_equal(back[i], 0);
  for (size_t i = 0; i < n; i++) sent[i] = (unsigned char)(i * 2654435761u >> 13);
  gpu->upload(gpu, a, sent, n);
  for (size_t i = 0; i < 40000; i++) sent[i] = (unsigned char)~sent[i]; /* the host's again at once */
  gpu->copy(gpu, b, a, n);
  gpu->clear(gpu, a, n);
  gpu->download(gpu, back, b, n);
  for (size_t i = 0; i < 40000; i++) sent[i] = (unsigned char)~sent[i];
  assert_memory_equal(back, sent, n);
  gpu->download(gpu, back, a, n);
  for (size_t i = 0; i < n; i++) assert_int_equal(back[i], 0);
  assert_true(gpu->room(gpu) > 0);
  assert_null(gpu->alloc(gpu, (size_t)1 << 50)); /* refused, and nothing has failed */
  arrays_free();
}

static void test_operands(void **state) {
  const size_t n = 10007;
  float *x = floats(n), *back = floats(n);
  uint16_t *want = host_array(n * sizeof *want);
  (void)state;
  for (size_t i = 0; i < n; i++) { /* any bits but subnormal ones */
    const uint32_t u = random_u32();
    x[i] = lit_float((u & 0x7f800000u) == 0 ? 0 : u);
  }
  x[0] = INFINITY, x[1] = -NAN, x[2] = lit_float(0x3f808000u), x[3] = lit_float(0x3f818000u),
  x[4] = lit_float(0x7f7fffffu);
  void *out = device_array(n * 2);
  gpu->to_operand(gpu, out, put_floats(x, n), n);
  cpu->to_operand(cpu, want, x, n);
  same_operands("to_operand", out, want, n);
  float *wide = device_array(n * sizeof *wide);
  gpu->from_operand(gpu, wide, out, n);
  cpu->from_operand(cpu, back, want, n);
  same_floats("from_operand", wide, back, n);
  uint16_t *some = random_operands(n, 3.0f);
  some[n - 1] = lit_bf16(-7.5f);
  assert_true(gpu->largest(gpu, put_operands(some, n), n) == 7.5f);
  some[17] = 0x7fc0;
  assert_true(gpu->largest(gpu, put_operands(some, n), n) == INFINITY);
  arrays_free();
}

static struct matrix device_matrix(const uint16_t *w, int N, int K) {
  struct matrix W = {.data = device_array(gpu->matrix_bytes(gpu, N, K)), .N = N, .K = K};
  gpu->matrix_pack(gpu, &W, put_operands(w, (size_t)N * (size_t)K));
  return W;
}
static struct matrix host_matrix(const uint16_t *w, int N, int K) {
  struct matrix W = {.data = host_array(cpu->matrix_bytes(cpu, N, K)), .N = N, .K = K};
  cpu->matrix_pack(cpu, &W, w);
  return W;
}

static void test_matrix(void **state) {
  static const int sizes[][2] = {{1, 1}, {16, 32}, {17, 33}, {90, 130}, {5, 7}};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int N = sizes[s][0], K = sizes[s][1];
    const size_t n = (size_t)N * (size_t)K;
    const uint16_t *w = random_operands(n, 1.0f);
    uint16_t *turned = host_array(n * sizeof *turned);
    for (int i = 0; i < N; i++)
      for (int k = 0; k < K; k++) turned[k * N + i] = w[i * K + k];
    const struct matrix W = device_matrix(w, N, K);
    struct matrix X = {.data = device_array(gpu->matrix_bytes(gpu, K, N)), .N = K, .K = N};
    gpu->matrix_pack_transposed(gpu, &X, put_operands(w, n), N, K);
    void *rows = device_array(n * 2);
    gpu->matrix_unpack_rows(gpu, rows, &W, 0, N);
    same_operands("matrix_unpack_rows", rows, w, n);
    gpu->matrix_unpack_rows(gpu, rows, &W, N / 2, 1);
    same_operands("matrix_unpack_rows of one", rows, w + (size_t)(N / 2) * (size_t)K, (size_t)K);
    gpu->matrix_unpack_rows(gpu, rows, &X, 0, K);
    same_operands("matrix_pack_transposed", rows, turned, n);
    const int32_t tokens[] = {N - 1, 0, N / 2};
    float *x = device_array((size_t)(3 * K) * sizeof *x), *want = floats((size_t)(3 * K));
    const struct matrix table = host_matrix(w, N, K);
    gpu->embed(gpu, x, &W, put_list(tokens, 3), 3);
    cpu->embed(cpu, want, &table, tokens, 3);
    same_floats("embed", x, want, (size_t)(3 * K));
    arrays_free();
  }
}

/* Rows of `bytes` by from; within one array when `within`. */
static void move_on(const int32_t *from, int count, int rows, size_t bytes, bool within) {
  uint16_t *x = random_operands((size_t)rows * bytes / 2, 1.0f), *want = host_array((size_t)rows * bytes);
  memcpy(want, x, (size_t)rows * bytes);
  void *device = put(x, (size_t)rows * bytes), *out = within ? device : device_array((size_t)rows * bytes);
  gpu->move_rows(gpu, out, device, put_list(from, (size_t)count), count, bytes);
  cpu->move_rows(cpu, want, within ? want : x, from, count, bytes);
  same_operands(within ? "move_rows within" : "move_rows", out, want, (size_t)count * bytes / 2);
}

static void test_move_rows(void **state) {
  static const size_t widths[] = {2, 6, 64, 1000, 132};
  enum { ROWS = 90, PICKED = 37 };
  (void)state;
  for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
    const int32_t *down = random_ascending(PICKED, ROWS);
    int32_t up[ROWS], any[ROWS];
    for (int i = 0; i < ROWS; i++) up[i] = -1;
    for (int i = 0; i < PICKED; i++) up[down[i]] = i;
    for (int i = 0; i < ROWS; i++) any[i] = random_below(ROWS + 1) - 1;
    move_on(down, PICKED, ROWS, widths[w], false);
    move_on(down, PICKED, ROWS, widths[w], true);
    move_on(up, ROWS, ROWS, widths[w], true);
    move_on(any, ROWS, ROWS, widths[w], false);
    for (int i = 0; i < ROWS; i++) any[i] = random_below(i + 1); /* equal rows of a head's block */
    move_on(any, ROWS, ROWS, widths[w], true);
    arrays_free();
  }
}

static void test_embed_backward(void **state) {
  enum { T = 70, V = 30, D = 300 };
  int32_t token[T];
  (void)state;
  for (int t = 0; t < T; t++) token[t] = t % 3 ? random_below(V) : 4;
  float *dtable = random_floats(V * D, 1.0f), *dx = random_floats(T * D, 1.0f), *device = put_floats(dtable, V * D);
  gpu->embed_backward(gpu, device, put_floats(dx, T * D), put_list(token, T), T, V, D);
  cpu->embed_backward(cpu, dtable, dx, token, T, V, D);
  same_floats("embed_backward", device, dtable, V * D);
  arrays_free();
}

/* --- products --- */

struct product {
  int T, N, K;
  const uint16_t *x; /* [T,K] on the host */
  struct matrix W;   /* on the device */
  const float *bits; /* [T,N] */
};

/* Random ones, near the CPU's. */
static struct product product_of(int T, int N, int K) {
  const size_t outputs = (size_t)T * (size_t)N;
  const uint16_t *x = random_operands((size_t)T * (size_t)K, 1.0f), *w = random_operands((size_t)N * (size_t)K, 1.0f);
  const struct matrix W = host_matrix(w, N, K), D = device_matrix(w, N, K);
  float *want = random_floats(outputs, 2.0f), *y = put_floats(want, outputs),
        *whole = device_array(outputs * sizeof *y);
  const uint16_t *on_device = put_operands(x, (size_t)T * (size_t)K);
  gpu->gemm(gpu, y, on_device, &D, T, true);
  cpu->gemm(cpu, want, x, &W, T, true);
  near_floats("gemm, accumulating", y, want, outputs, 1e-5);
  gpu->gemm(gpu, whole, on_device, &D, T, false);
  cpu->gemm(cpu, want, x, &W, T, false);
  near_floats("gemm", whole, want, outputs, 1e-5);
  return (struct product){.T = T, .N = N, .K = K, .x = x, .W = D, .bits = got_floats(whole, outputs)};
}

/* Rows t and those behind it, in a smaller call, on the device. */
static float *product_rows(const struct product *p, int t, int count) {
  float *some = device_array((size_t)count * (size_t)p->N * sizeof *some);
  const uint16_t *x = put_operands(p->x + (size_t)t * (size_t)p->K, (size_t)count * (size_t)p->K);
  gpu->gemm(gpu, some, x, &p->W, count, false);
  return some;
}

static void gemm_of(int T, int N, int K) {
  const struct product p = product_of(T, N, K);
  for (int t = 0; t<T; t += T> 20 ? 13 : 3) {
    const int counts[] = {1, 7, 17, 65};
    for (int i = 0; i < 4; i++) {
      if (t + counts[i] > T) continue;
      same_floats("gemm of some of the rows", product_rows(&p, t, counts[i]), p.bits + (size_t)t * (size_t)N,
                  (size_t)counts[i] * (size_t)N);
    }
  }
  arrays_free();
}

static void test_gemm(void **state) {
  static const int sizes[][3] = {{1, 1, 1},    {3, 17, 33},  {1, 100, 72},  {13, 48, 64},  {16, 40, 200},
                                 {17, 70, 30}, {64, 33, 72}, {65, 129, 65}, {90, 150, 96}, {130, 20, 257}};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) gemm_of(sizes[s][0], sizes[s][1], sizes[s][2]);
}

#ifndef LEASEHOLD_CUDA_EMULATED
/* The hardware's part of the promise: every number of rows that a decode step can have gives a row the same bits. */
static void test_every_number_of_rows(void **state) {
  static const int sizes[][2] = {{2048, 2048}, {1024, 3072}, {4096, 1000}};
  enum { ROWS = 512 };
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int N = sizes[s][0], K = sizes[s][1];
    const size_t row_bytes = (size_t)N * sizeof(float);
    const uint16_t *x = random_operands(ROWS * (size_t)K, 1.0f), *w = random_operands((size_t)N * (size_t)K, 1.0f);
    const struct matrix W = device_matrix(w, N, K);
    const uint16_t *on_device = put_operands(x, ROWS * (size_t)K);
    float *y = device_array(ROWS * row_bytes), *all = floats(ROWS * (size_t)N), *some = floats(ROWS * (size_t)N);
    gpu->gemm(gpu, y, on_device, &W, ROWS, false);
    gpu->download(gpu, all, y, ROWS * row_bytes);
    for (int rows = 1; rows < ROWS; rows++) {
      gpu->clear(gpu, y, ROWS * row_bytes);
      gpu->gemm(gpu, y, on_device, &W, rows, false);
      gpu->download(gpu, some, y, (size_t)rows * row_bytes);
      if (memcmp(some, all, (size_t)rows * row_bytes) != 0)
        fail_msg("%d rows of [%d,%d] have other bits than %d", rows, N, K, ROWS);
    }
    arrays_free();
  }
}
#endif

static void test_weight_backward(void **state) {
  static const int sizes[][3] = {{1, 1, 1}, {5, 17, 33}, {33, 136, 40}, {70, 24, 150}, {100, 257, 72}};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], N = sizes[s][1], K = sizes[s][2], saved = T + 9;
    const uint16_t *dy = random_operands((size_t)(T * N), 1.0f), *x = random_operands((size_t)(saved * K), 1.0f);
    const int32_t *row = s % 2 ? random_ascending(T, saved) : NULL;
    float *dW = random_floats((size_t)(N * K), 2.0f), *device = put_floats(dW, (size_t)(N * K));
    gpu->gemm_weight_backward(gpu, device, put_operands(dy, (size_t)(T * N)), put_operands(x, (size_t)(saved * K)),
                              row ? put_list(row, (size_t)T) : NULL, NULL, T, N, K);
    cpu->gemm_weight_backward(cpu, dW, dy, x, row, NULL, T, N, K);
    near_floats("gemm_weight_backward", device, dW, (size_t)(N * K), 1e-5);
    arrays_free();
  }
}

/* The vendor's products: right, and no more is promised.  One of the shapes has no kernel of the vendor's. */
static void test_fastest(void **state) {
  static const int sizes[][3] = {{1, 100, 72}, {16, 40, 200}, {13, 48, 33}, {65, 129, 72}, {130, 24, 64}};
  struct ops *const invariant = gpu;
  struct err err = {0};
  if (ops_cuda_create(&gpu, FORMAT_BF16, 0, EXACTNESS_FASTEST, pool, &err) != RC_OK) fail_msg("%s", err.message);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    product_of(sizes[s][0], sizes[s][1], sizes[s][2]);
    arrays_free();
  }
  test_weight_backward(state);
#ifdef LEASEHOLD_CUDA_EMULATED /* or nothing over it would tell whether a mismatch is seen */
  const struct product p = product_of(100, 64, 200);
  const float *alone = got_floats(product_rows(&p, 0, 1), 64);
  assert_memory_not_equal(alone, p.bits, 64 * sizeof *alone);
#endif
  arrays_free();
  ops_free(gpu);
  gpu = invariant;
}

/* --- norms, rotation, SwiGLU --- */

static void norm_of(int T, int D, bool plus_one) {
  const size_t n = (size_t)T * (size_t)D;
  const int saved = T + 3;
  const float *x = random_floats((size_t)saved * (size_t)D, 2.0f);
  const uint16_t *w = random_operands((size_t)D, 1.5f);
  float *rstd = floats((size_t)saved), *y_rstd = device_array((size_t)saved * sizeof(float));
  uint16_t *y = host_array((size_t)saved * (size_t)D * sizeof *y);
  const float *x_there = put_floats(x, (size_t)saved * (size_t)D);
  const uint16_t *w_there = put_operands(w, (size_t)D);
  void *y_there = device_array((size_t)saved * (size_t)D * sizeof(uint16_t));
  gpu->rmsnorm(gpu, y_there, y_rstd, x_there, w_there, plus_one, 1e-6f, saved, D);
  cpu->rmsnorm(cpu, y, rstd, x, w, plus_one, 1e-6f, saved, D);
  same_operands("rmsnorm", y_there, y, (size_t)saved * (size_t)D);
  same_floats("rmsnorm's rstd", y_rstd, rstd, (size_t)saved);
  gpu->rmsnorm(gpu, y_there, NULL, x_there, w_there, plus_one, 1e-6f, saved, D);
  const int32_t *row = random_ascending(T, saved);
  const float *dy = random_floats(n, 1.0f);
  float *dx = random_floats(n, 1.0f), *dw = random_floats((size_t)D, 1.0f);
  float *dx_there = put_floats(dx, n), *dw_there = put_floats(dw, (size_t)D);
  gpu->rmsnorm_backward(gpu, dx_there, dw_there, put_floats(dy, n), x_there, w_there, plus_one, y_rstd,
                        put_list(row, (size_t)T), T, D);
  cpu->rmsnorm_backward(cpu, dx, dw, dy, x, w, plus_one, rstd, row, T, D);
  same_floats("rmsnorm_backward's dx", dx_there, dx, n);
  near_floats("rmsnorm_backward's dw", dw_there, dw, (size_t)D, 1e-5);
  arrays_free();
}

static void test_norms(void **state) {
  (void)state;
  norm_of(1, 1, false);
  norm_of(9, 40, false);
  norm_of(5, 129, false);
  norm_of(5, 129, true);
  norm_of(600, 33, false); /* more rows than the lanes of dw's sums */
}

static void heads_of(int T, int H, int E, bool normed, bool plus_one) {
  enum { POSITIONS = 50 };
  const int saved = T + 2;
  const size_t n = (size_t)(T * H * E), all = (size_t)(saved * H * E);
  const float *x = random_floats(all, 2.0f), *rope = random_floats((size_t)(POSITIONS * E), 1.0f),
              *dy = random_floats(n, 1.0f);
  const uint16_t *w = normed ? random_operands((size_t)E, 1.5f) : NULL;
  int32_t position[64];
  for (int t = 0; t < saved; t++) position[t] = random_below(POSITIONS);
  const int32_t *row = random_ascending(T, saved);
  uint16_t *y = host_array(all * sizeof *y);
  float *rstd = floats((size_t)(saved * H)), *dx = random_floats(n, 1.0f), *dw = random_floats((size_t)E, 1.0f);
  const float *x_there = put_floats(x, all), *rope_there = put_floats(rope, (size_t)(POSITIONS * E));
  const uint16_t *w_there = normed ? put_operands(w, (size_t)E) : NULL;
  const int32_t *position_there = put_list(position, (size_t)saved);
  void *y_there = device_array(all * sizeof *y);
  float *rstd_there = device_array((size_t)(saved * H) * sizeof *rstd), *dx_there = put_floats(dx, n),
        *dw_there = put_floats(dw, (size_t)E);
  gpu->head_norm_rope(gpu, y_there, rstd_there, x_there, w_there, plus_one, 1e-6f, rope_there, position_there, saved, H,
                      E);
  cpu->head_norm_rope(cpu, y, rstd, x, w, plus_one, 1e-6f, rope, position, saved, H, E);
  same_operands("head_norm_rope", y_there, y, all);
  if (normed) same_floats("head_norm_rope's rstd", rstd_there, rstd, (size_t)(saved * H));
  gpu->head_norm_rope_backward(gpu, dx_there, dw_there, put_floats(dy, n), x_there, w_there, plus_one, rstd_there,
                               rope_there, position_there, put_list(row, (size_t)T), T, H, E);
  cpu->head_norm_rope_backward(cpu, dx, dw, dy, x, w, plus_one, rstd, rope, position, row, T, H, E);
  same_floats("head_norm_rope_backward's dx", dx_there, dx, n);
  near_floats("head_norm_rope_backward's dw", dw_there, dw, (size_t)E, 1e-5);
  arrays_free();
}

static void test_heads(void **state) {
  (void)state;
  heads_of(1, 1, 2, true, false);
  heads_of(7, 3, 12, true, false);
  heads_of(5, 2, 128, true, false);
  heads_of(7, 3, 12, true, true);
  heads_of(6, 5, 64, false, false);
}

static void test_swiglu(void **state) {
  enum { T = 9, SAVED = 12, F = 133 };
  const float *gate = random_floats(SAVED * F, 9.0f), *up = random_floats(SAVED * F, 2.0f),
              *dh = random_floats(T * F, 1.0f);
  const int32_t *row = random_ascending(T, SAVED);
  uint16_t *h = host_array(SAVED * F * 2), *dgate = host_array(T * F * 2), *dup = host_array(T * F * 2);
  const float *gate_there = put_floats(gate, SAVED * F), *up_there = put_floats(up, SAVED * F);
  void *h_there = device_array(SAVED * F * 2), *dgate_there = device_array(T * F * 2),
       *dup_there = device_array(T * F * 2);
  (void)state;
  gpu->swiglu(gpu, h_there, gate_there, up_there, SAVED * F);
  cpu->swiglu(cpu, h, gate, up, SAVED * F);
  same_operands("swiglu", h_there, h, SAVED * F);
  gpu->swiglu_backward(gpu, dgate_there, dup_there, put_floats(dh, T * F), gate_there, up_there, put_list(row, T), T,
                       F);
  cpu->swiglu_backward(cpu, dgate, dup, dh, gate, up, row, T, F);
  same_operands("swiglu_backward's dgate", dgate_there, dgate, T * F);
  same_operands("swiglu_backward's dup", dup_there, dup, T * F);
  arrays_free();
}

static void test_geglu(void **state) {
  enum { T = 9, SAVED = 12, F = 133 };
  const float *gate = random_floats(SAVED * F, 9.0f), *up = random_floats(SAVED * F, 2.0f),
              *dh = random_floats(T * F, 1.0f);
  const int32_t *row = random_ascending(T, SAVED);
  uint16_t *h = host_array(SAVED * F * 2), *dgate = host_array(T * F * 2), *dup = host_array(T * F * 2);
  const float *gate_there = put_floats(gate, SAVED * F), *up_there = put_floats(up, SAVED * F);
  void *h_there = device_array(SAVED * F * 2), *dgate_there = device_array(T * F * 2),
       *dup_there = device_array(T * F * 2);
  (void)state;
  gpu->geglu(gpu, h_there, gate_there, up_there, SAVED * F);
  cpu->geglu(cpu, h, gate, up, SAVED * F);
  same_operands("geglu", h_there, h, SAVED * F);
  gpu->geglu_backward(gpu, dgate_there, dup_there, put_floats(dh, T * F), gate_there, up_there, put_list(row, T), T, F);
  cpu->geglu_backward(cpu, dgate, dup, dh, gate, up, row, T, F);
  same_operands("geglu_backward's dgate", dgate_there, dgate, T * F);
  same_operands("geglu_backward's dup", dup_there, dup, T * F);
  arrays_free();
}

static void test_elements(void **state) {
  enum { N = 5003 };
  (void)state;
  float *x = random_floats(N, 3.0f), *x_there = put_floats(x, N);
  const uint16_t *y = random_operands(N, 2.0f);
  gpu->scale(gpu, x_there, 5.65625f, N);
  cpu->scale(cpu, x, 5.65625f, N);
  same_floats("scale", x_there, x, N);
  gpu->add_operand(gpu, x_there, put_operands(y, N), N);
  cpu->add_operand(cpu, x, y, N);
  same_floats("add_operand", x_there, x, N);
  arrays_free();
}

/* --- biases --- */

static void test_bias(void **state) {
  static const int sizes[][2] = {{1, 1}, {3, 7}, {70, 257}, {600, 40}};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], N = sizes[s][1];
    const size_t n = (size_t)(T * N);
    const uint16_t *b = random_operands((size_t)N, 2.0f), *dy = random_operands(n, 1.0f);
    float *y = random_floats(n, 3.0f), *db = random_floats((size_t)N, 1.0f);
    float *y_there = put_floats(y, n), *db_there = put_floats(db, (size_t)N);
    gpu->add_bias(gpu, y_there, put_operands(b, (size_t)N), T, N);
    cpu->add_bias(cpu, y, b, T, N);
    same_floats("add_bias", y_there, y, n);
    gpu->add_bias_backward(gpu, db_there, put_operands(dy, n), T, N);
    cpu->add_bias_backward(cpu, db, dy, T, N);
    near_floats("add_bias_backward", db_there, db, (size_t)N, 1e-5);
    arrays_free();
  }
}

/* --- attention --- */

/* Sequences with their keys in pages dealt out at random, and a call of some of their positions. */
struct paged {
  int H, G, E, page_tokens, sequences, window, pages_per_sequence, pages, T;
  int32_t *page, *sequence, *position;
  struct kv_layer host, device;
  struct rows host_rows, device_rows;
};

static size_t key_elements(const struct paged *p) {
  return (size_t)p->pages * (size_t)p->G * (size_t)p->page_tokens * (size_t)((p->E + 31) / 32 * 32);
}
static size_t value_elements(const struct paged *p) {
  return (size_t)p->pages * (size_t)p->G * (size_t)p->page_tokens * (size_t)((p->E + 15) / 16 * 16);
}

static struct rows rows_of(const struct paged *p, const int32_t *sequence, const int32_t *position, const int32_t *page,
                           int T, int longest) {
  return (struct rows){.T = T,
                       .sequence = sequence,
                       .position = position,
                       .pages = page,
                       .pages_per_sequence = p->pages_per_sequence,
                       .sequences = p->sequences,
                       .longest = longest,
                       .window = p->window};
}

/* lengths: of the sequences; all their positions are written to both pools. */
static void paged_open(struct paged *p, const int *lengths) {
  int longest = 0, total = 0;
  for (int s = 0; s < p->sequences; s++) {
    longest = lengths[s] > longest ? lengths[s] : longest;
    total += lengths[s];
  }
  p->pages_per_sequence = (longest + p->page_tokens - 1) / p->page_tokens;
  p->pages = p->sequences * p->pages_per_sequence;
  p->page = host_array((size_t)p->pages * sizeof *p->page);
  for (int i = 0; i < p->pages; i++) p->page[i] = i;
  for (int i = p->pages - 1; i > 0; i--) {
    const int j = random_below(i + 1);
    const int32_t kept = p->page[i];
    p->page[i] = p->page[j];
    p->page[j] = kept;
  }
  p->host =
      (struct kv_layer){host_array(key_elements(p) * 2), host_array(value_elements(p) * 2), p->page_tokens, p->G, p->E};
  p->device = (struct kv_layer){device_array(key_elements(p) * 2), device_array(value_elements(p) * 2), p->page_tokens,
                                p->G, p->E};
  p->sequence = host_array((size_t)total * sizeof *p->sequence);
  p->position = host_array((size_t)total * sizeof *p->position);
  for (int s = 0, t = 0; s < p->sequences; s++)
    for (int i = 0; i < lengths[s]; i++, t++) {
      p->sequence[t] = s;
      p->position[t] = i;
    }
  p->T = total;
  const size_t width = (size_t)(p->G * p->E);
  const uint16_t *k = random_operands((size_t)total * width, 1.0f), *v = random_operands((size_t)total * width, 1.0f);
  p->host_rows = rows_of(p, p->sequence, p->position, p->page, total, longest);
  p->device_rows = rows_of(p, put_list(p->sequence, (size_t)total), put_list(p->position, (size_t)total),
                           put_list(p->page, (size_t)p->pages), total, longest);
  cpu->kv_write(cpu, &p->host, &p->host_rows, k, v, NULL);
  gpu->kv_write(gpu, &p->device, &p->device_rows, put_operands(k, (size_t)total * width),
                put_operands(v, (size_t)total * width), NULL);
}

/* All rows at once, by the CPU and by the device; then each of some rows alone, to the device's bits. */
static void attention_of(struct paged *p, const int *lengths) {
  paged_open(p, lengths);
  const size_t row = (size_t)(p->H * p->E), n = (size_t)p->T * row;
  const float scale = 1.0f / sqrtf((float)p->E);
  const uint16_t *q = random_operands(n, 2.0f);
  uint16_t *out = host_array(n * 2);
  float *lse = floats((size_t)(p->T * p->H)), *lse_there = device_array((size_t)(p->T * p->H) * sizeof *lse);
  void *out_there = device_array(n * 2);
  gpu->attention(gpu, out_there, lse_there, put_operands(q, n), &p->device, &p->device_rows, p->H, scale);
  cpu->attention(cpu, out, lse, q, &p->host, &p->host_rows, p->H, scale);
  near_operands("attention", out_there, out, n, 0.01);
  near_floats("attention's lse", lse_there, lse, (size_t)(p->T * p->H), 1e-4);
  const uint16_t *bits = got_operands(out_there, n);
  const float *lse_bits = got_floats(lse_there, (size_t)(p->T * p->H));
  for (int t = 0; t < p->T; t += 1 + p->T / 9) {
    const int count = t + 5 <= p->T ? 5 : 1; /* alone, and with four others: in calls of few rows */
    const struct rows some =
        rows_of(p, put_list(p->sequence + t, (size_t)count), put_list(p->position + t, (size_t)count),
                p->device_rows.pages, count, p->device_rows.longest);
    void *part = device_array((size_t)count * row * 2);
    float *part_lse = device_array((size_t)(count * p->H) * sizeof *part_lse);
    gpu->attention(gpu, part, part_lse, put_operands(q + (size_t)t * row, (size_t)count * row), &p->device, &some, p->H,
                   scale);
    same_operands("attention of some of the rows", part, bits + (size_t)t * row, (size_t)count * row);
    same_floats("their lse", part_lse, lse_bits + (size_t)(t * p->H), (size_t)(count * p->H));
  }
  arrays_free();
}

static void test_attention(void **state) {
  (void)state;
  attention_of(&(struct paged){.H = 1, .G = 1, .E = 2, .page_tokens = 16, .sequences = 1}, (int[]){1});
  attention_of(&(struct paged){.H = 6, .G = 2, .E = 12, .page_tokens = 16, .sequences = 3}, (int[]){33, 1, 70});
  attention_of(&(struct paged){.H = 4, .G = 2, .E = 64, .page_tokens = 48, .sequences = 2}, (int[]){40, 61});
  attention_of(&(struct paged){.H = 2, .G = 1, .E = 128, .page_tokens = 32, .sequences = 2}, (int[]){35, 9});
  attention_of(&(struct paged){.H = 6, .G = 2, .E = 12, .page_tokens = 16, .sequences = 3, .window = 1},
               (int[]){33, 1, 70});
  attention_of(&(struct paged){.H = 4, .G = 2, .E = 64, .page_tokens = 48, .sequences = 2, .window = 33},
               (int[]){40, 61});
}

/* More rows than ROWS_FEW, and longer than a span: the kernel for many rows against the one for few. */
static void test_attention_of_many_rows(void **state) {
  (void)state;
  attention_of(&(struct paged){.H = 2, .G = 1, .E = 16, .page_tokens = 32, .sequences = 3}, (int[]){10, 300, 7});
  attention_of(&(struct paged){.H = 3, .G = 1, .E = 32, .page_tokens = 16, .sequences = 1}, (int[]){530});
  attention_of(&(struct paged){.H = 2, .G = 1, .E = 16, .page_tokens = 32, .sequences = 3, .window = 40},
               (int[]){10, 300, 7});
  attention_of(&(struct paged){.H = 3, .G = 1, .E = 32, .page_tokens = 16, .sequences = 1, .window = 256},
               (int[]){530});
}

/* Samples one behind another; when `partly` only some rows have queries, and everything saved lies elsewhere. */
static void attention_backward_of(int H, int G, int E, const int *lengths, int sequences, bool partly, int window) {
  int32_t start[8] = {0};
  for (int s = 0; s < sequences; s++) start[s + 1] = start[s] + lengths[s];
  const int T = start[sequences], saved = T + 5, queries = partly ? T / 3 + 1 : T;
  const size_t HE = (size_t)(H * E), GE = (size_t)(G * E);
  const uint16_t *q = random_operands((size_t)saved * HE, 1.5f), *k = random_operands((size_t)saved * GE, 1.0f),
                 *v = random_operands((size_t)saved * GE, 1.0f), *out = random_operands((size_t)saved * HE, 1.0f),
                 *dout = random_operands((size_t)queries * HE, 1.0f);
  float *lse = floats((size_t)(saved * H));
  for (int i = 0; i < saved * H; i++) lse[i] = 2.0f + random_float(1.0f);
  const int32_t *at = random_ascending(queries, T), *row = partly ? random_ascending(T, saved) : NULL,
                *query_row = partly ? random_ascending(queries, saved) : NULL;
  int32_t *query = host_array((size_t)T * sizeof *query);
  for (int t = 0; t < T; t++) query[t] = -1;
  for (int i = 0; i < queries; i++) query[at[i]] = i;
  const struct packed host = {.T = T,
                              .sequences = sequences,
                              .start = start,
                              .row = row,
                              .query = partly ? query : NULL,
                              .query_row = query_row,
                              .window = window};
  const struct packed device = {.T = T,
                                .sequences = sequences,
                                .start = put_list(start, (size_t)sequences + 1),
                                .row = put_list(row, (size_t)T),
                                .query = partly ? put_list(query, (size_t)T) : NULL,
                                .query_row = put_list(query_row, (size_t)queries),
                                .window = window};
  const float scale = 1.0f / sqrtf((float)E);
  float *dq = floats((size_t)queries * HE), *dk = floats((size_t)T * GE), *dv = floats((size_t)T * GE);
  float *dq_there = device_array((size_t)queries * HE * 4), *dk_there = device_array((size_t)T * GE * 4),
        *dv_there = device_array((size_t)T * GE * 4);
  gpu->attention_backward(gpu, dq_there, dk_there, dv_there, put_operands(dout, (size_t)queries * HE),
                          put_operands(out, (size_t)saved * HE), put_floats(lse, (size_t)(saved * H)),
                          put_operands(q, (size_t)saved * HE), put_operands(k, (size_t)saved * GE),
                          put_operands(v, (size_t)saved * GE), &device, H, G, E, scale);
  cpu->attention_backward(cpu, dq, dk, dv, dout, out, lse, q, k, v, &host, H, G, E, scale);
  near_floats("attention_backward's dq", dq_there, dq, (size_t)queries * HE, 2e-3);
  near_floats("attention_backward's dk", dk_there, dk, (size_t)T * GE, 2e-3);
  near_floats("attention_backward's dv", dv_there, dv, (size_t)T * GE, 2e-3);
  arrays_free();
}

static void test_attention_backward(void **state) {
  (void)state;
  attention_backward_of(1, 1, 2, (int[]){1}, 1, false, 0);
  attention_backward_of(1, 1, 16, (int[]){32, 1}, 2, false, 0); /* a tile's last row begins a sequence */
  attention_backward_of(6, 2, 12, (int[]){33, 1, 70}, 3, false, 0);
  attention_backward_of(6, 2, 12, (int[]){33, 1, 70}, 3, true, 0);
  attention_backward_of(2, 2, 64, (int[]){20, 90}, 2, true, 0);
  attention_backward_of(2, 1, 128, (int[]){67, 3}, 2, false, 0);
  for (int window = 1; window < 80; window = 2 * window + 5) {
    attention_backward_of(6, 2, 12, (int[]){33, 1, 150}, 3, false, window);
    attention_backward_of(6, 2, 12, (int[]){33, 1, 150}, 3, true, window);
  }
}

/* --- the vocabulary --- */

static void vocabulary_of(int T, int V, float temperature) {
  const size_t n = (size_t)T * (size_t)V;
  const float *logits = random_floats(n, 12.0f), *dlogprob = random_floats((size_t)T, 1.0f);
  int32_t target[32];
  float *logprob = floats((size_t)T), *lse = floats((size_t)T), *entropy = floats((size_t)T);
  uint16_t *dlogits = host_array(n * 2);
  for (int t = 0; t < T; t++) target[t] = t % 5 == 3 ? -1 : random_below(V);
  const float *logits_there = put_floats(logits, n);
  const int32_t *target_there = put_list(target, (size_t)T);
  float *there = device_array((size_t)(3 * T) * sizeof *there);
  void *dlogits_there = device_array(n * 2);
  gpu->logprob(gpu, there, there + T, there + 2 * T, logits_there, target_there, temperature, T, V);
  cpu->logprob(cpu, logprob, lse, entropy, logits, target, temperature, T, V);
  same_floats("logprob", there, logprob, (size_t)T);
  same_floats("logprob's lse", there + T, lse, (size_t)T);
  same_floats("logprob's entropy", there + 2 * T, entropy, (size_t)T);
  gpu->logprob_backward(gpu, dlogits_there, put_floats(dlogprob, (size_t)T), NULL, NULL, logits_there, there + T,
                        target_there, temperature, T, V);
  cpu->logprob_backward(cpu, dlogits, dlogprob, NULL, NULL, logits, lse, target, temperature, T, V);
  same_operands("logprob_backward", dlogits_there, dlogits, n);
  float *dentropy = random_floats((size_t)T, 1.0f);
  dentropy[0] = 0;
  gpu->logprob_backward(gpu, dlogits_there, put_floats(dlogprob, (size_t)T), put_floats(dentropy, (size_t)T),
                                there + 2 * T, logits_there, there + T, target_there, temperature, T, V);
  cpu->logprob_backward(cpu, dlogits, dlogprob, dentropy, entropy, logits, lse, target, temperature, T, V);
  same_operands("logprob_backward with entropy", dlogits_there, dlogits, n);
  struct draw draws[64], want[64];
  for (int i = 0; i < 64; i++) {
    draws[i] = (struct draw){.row = random_below(T),
                             .temperature = i % 4 == 0   ? 0
                                            : i % 4 == 1 ? 1
                                                         : temperature,
                             .u = ((float)(random_u32() >> 9) + 0.5f) * 0x1p-23f};
    if (i == 2) draws[i].u = 0x1p-24f;
    if (i == 3) draws[i].u = 1.0f - 0x1p-24f;
    want[i] = draws[i];
  }
  gpu->sample(gpu, draws, 64, logits_there, V);
  cpu->sample(cpu, want, 64, logits, V);
  for (int i = 0; i < 64; i++) {
    assert_int_equal(draws[i].token, want[i].token);
    assert_int_equal(lit_bits(draws[i].logprob), lit_bits(want[i].logprob));
  }
  arrays_free();
}

/* What a cut leaves out, ties at its border included: as the CPU's. */
static void test_cut(void **state) {
  enum { ROWS = 3 };
  static const struct sampling_params cuts[] = {{1, 5, 1, 0},        {0.7f, 0, 0.9f, 0},     {3, 0, 1, 0.05f},
                                                {1, 40, 0.5f, 0},    {1.3f, 300, 0.99f, 0.01f}, {1, 0, 1e-20f, 0},
                                                {1, 2000, 0.3f, 1}};
  static const int widths[] = {1, 17, 300, 1000};
  (void)state;
  for (size_t i = 0; i < 4 * sizeof cuts / sizeof cuts[0]; i++) {
    const int V = widths[i % 4];
    const size_t n = (size_t)(ROWS * V);
    float *logits = random_floats(n, 6.0f);
    for (size_t k = 0; k < n; k++)
      if (random_below(3) == 0) logits[k] = random_below(4) ? (float)random_below(4) : -0.0f;
    if (i % 5 == 0) logits[0] = HUGE_VALF;
    float *there = put_floats(logits, n);
    gpu->cut(gpu, there, &cuts[i / 4], ROWS, V);
    cpu->cut(cpu, logits, &cuts[i / 4], ROWS, V);
    same_floats("cut", there, logits, n);
  }
  arrays_free();
}

/* Equal logits, and a threshold that a block's sum meets exactly: it must be exceeded. */
static void test_threshold(void **state) {
  enum { ENTRIES = 1024 };
  const float *logits = floats(ENTRIES);
  (void)state;
  for (int i = 0; i <= 8; i++) {
    struct draw draw = {.temperature = 1, .u = (float)i / 8}, want = draw;
    gpu->sample(gpu, &draw, 1, put_floats(logits, ENTRIES), ENTRIES);
    cpu->sample(cpu, &want, 1, logits, ENTRIES);
    assert_int_equal(draw.token, want.token);
    assert_int_equal(want.token, i < 8 ? i * ENTRIES / 8 : ENTRIES - 1);
  }
  arrays_free();
}

static void test_vocabulary(void **state) {
  (void)state;
  vocabulary_of(3, 1, 1.0f);
  vocabulary_of(9, 257, 0.7f);
  vocabulary_of(12, 1000, 1.0f);
  vocabulary_of(2, 10007, 1.3f);
}

/* --- the optimizer --- */

static void test_accumulate(void **state) {
  const size_t n = 3001;
  float *g = random_floats(n, 1000.0f);
  int64_t *acc = host_array(n * sizeof *acc), *got = host_array(n * sizeof *got);
  (void)state;
  for (size_t i = 0; i < n; i += 2) g[i] = random_float(3e-9f); /* a few units, and their fractions */
  for (size_t i = 0; i < n; i++) acc[i] = (int64_t)random_u32() * 1000 - 5000;
  int64_t *acc_there = put(acc, n * sizeof *acc);
  float *g_there = put_floats(g, n), *out = floats(n), *out_there = device_array(n * sizeof *out);
  assert_true(gpu->accumulate(gpu, acc_there, g_there, n, 32) && cpu->accumulate(cpu, acc, g, n, 32));
  assert_true(gpu->accumulate_and_clear(gpu, acc_there, g_there, n, 32));
  assert_true(cpu->accumulate(cpu, acc, g, n, 32));
  gpu->download(gpu, got, acc_there, n * sizeof *got);
  assert_memory_equal(got, acc, n * sizeof *got);
  same_floats("accumulate_and_clear's gradient", g_there, out, n);
  gpu->grad_from_accumulator(gpu, out_there, acc_there, n, 32, 7.0);
  cpu->grad_from_accumulator(cpu, out, acc, n, 32, 7.0);
  same_floats("grad_from_accumulator", out_there, out, n);
  gpu->download(gpu, got, acc_there, n * sizeof *got);
  for (size_t i = 0; i < n; i++) assert_int_equal(got[i], 0);
  static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p19f};
  for (size_t b = 0; b < 4; b++) {
    g[1234] = bad[b];
    assert_false(gpu->accumulate(gpu, acc_there, put_floats(g, n), n, 32));
  }
  g[1234] = 0x1p18f; /* exactly 2^50 */
  assert_true(gpu->accumulate(gpu, acc_there, put_floats(g, n), n, 32));
  arrays_free();
}

static void test_step(void **state) {
  const size_t n = 65536 + 4097;
  float *master = random_floats(n, 1.0f), *m = random_floats(n, 0.1f), *v = random_floats(n, 0.1f),
        *g = random_floats(n, 1.0f);
  const struct adamw step = {.lr = 3e-4f,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .eps = 1e-8f,
                             .weight_decay = 0.01f,
                             .bias1 = 0.19f,
                             .bias2 = 0.002f,
                             .grad_scale = 0.7f};
  (void)state;
  for (size_t i = 0; i < n; i++) v[i] = v[i] < 0 ? -v[i] : v[i];
  float *master_there = put_floats(master, n), *m_there = put_floats(m, n), *v_there = put_floats(v, n),
        *g_there = put_floats(g, n);
  for (size_t count = 1; count <= n; count = count * 16 + 1)
    assert_true(gpu->sum_of_squares(gpu, g_there, count) == cpu->sum_of_squares(cpu, g, count));
  assert_true(gpu->sum_of_squares(gpu, g_there, n) == cpu->sum_of_squares(cpu, g, n));
  gpu->adamw(gpu, master_there, m_there, v_there, g_there, &step, n);
  cpu->adamw(cpu, master, m, v, g, &step, n);
  same_floats("adamw's master", master_there, master, n);
  same_floats("adamw's m", m_there, m, n);
  same_floats("adamw's v", v_there, v, n);
  arrays_free();
}

/* Called twice, then repeated from what was kept, over what the arrays hold by then; until memory is released. */
static void test_repeat(void **state) {
  enum { N = 1000 };
  float *x = device_array(N * sizeof *x);
  void *y = device_array(N * 2), *z = device_array(N * 2);
  (void)state;
  for (int i = 0; i < 8; i++) {
    const struct repeat_key key = {{x, i % 2 ? y : z}, {N}};
    const float *now = random_floats(N, 1.0f);
    uint16_t *want = host_array(N * sizeof *want);
    if (i == 6) gpu->release(gpu, gpu->alloc(gpu, 64));
    gpu->upload(gpu, x, now, N * sizeof *x);
    const bool call = gpu->repeat_begin(gpu, &key);
    assert_int_equal(call, i < 4 || i >= 6);
    if (call) {
      gpu->to_operand(gpu, i % 2 ? y : z, x, N);
      gpu->repeat_end(gpu);
    }
    cpu->to_operand(cpu, want, now, N);
    same_operands("repeated operations", i % 2 ? y : z, want, N);
  }
  assert_true(cpu->repeat_begin(cpu, &(struct repeat_key){{x}, {1}}));
  cpu->repeat_end(cpu);
  arrays_free();
}

#ifdef LEASEHOLD_CUDA_EMULATED
/* The first failure stays, with a sentence; nothing computes behind it; results are zero. */
static void test_failure(void **state) {
  struct err err = {0};
  struct ops *table;
  float x[4] = {1, 2, 3, 4}, back[4];
  (void)state;
  assert_int_equal(ops_cuda_create(&table, FORMAT_F32, 0, EXACTNESS_INVARIANT, pool, &err), RC_UNSUPPORTED);
  assert_int_equal(ops_cuda_create(&table, FORMAT_BF16, 3, EXACTNESS_INVARIANT, pool, &err), RC_UNSUPPORTED);
  assert_int_equal(ops_cuda_create(&table, FORMAT_BF16, 0, EXACTNESS_INVARIANT, pool, &err), RC_OK);
  float *a = table->alloc(table, sizeof x);
  table->upload(table, a, x, sizeof x);
  assert_int_equal(table->status(table, &err), RC_OK);
  emulated_fail_after(0);
  table->copy(table, a + 2, a, 8);
  emulated_fail_after(-1); /* the device works again, the table is lost */
  table->download(table, back, a, sizeof back);
  for (int i = 0; i < 4; i++) assert_true(back[i] == 0);
  assert_int_equal(table->status(table, &err), RC_INTERNAL);
  assert_string_equal(err.message,
                      "cuda:0: cudaErrorLaunchFailure (unspecified launch failure) while copying on the device");
  struct draw d = {.row = 0, .temperature = 1, .u = 0.5f, .token = 77, .logprob = 5};
  table->sample(table, &d, 1, a, 4);
  assert_true(d.token == 0 && d.logprob == 0);
  assert_null(table->alloc(table, 64));
  ops_free(table);
}

/* The block's threads in the other order: what is not fenced by barriers shows. */
static void test_backwards(void **state) {
  emulated_run_backwards(1);
  gemm_of(65, 129, 72);
  norm_of(9, 40, false);
  vocabulary_of(9, 600, 0.7f);
  test_cut(state);
  test_embed_backward(state);
  test_move_rows(state);
  attention_backward_of(6, 2, 12, (int[]){33, 1, 20}, 3, true, 0);
  attention_of(&(struct paged){.H = 4, .G = 2, .E = 64, .page_tokens = 48, .sequences = 2}, (int[]){40, 61});
  attention_of(&(struct paged){.H = 2, .G = 1, .E = 16, .page_tokens = 32, .sequences = 2}, (int[]){270, 7});
  emulated_run_backwards(0);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_operands),
      cmocka_unit_test(test_matrix),
      cmocka_unit_test(test_move_rows),
      cmocka_unit_test(test_embed_backward),
      cmocka_unit_test(test_gemm),
#ifndef LEASEHOLD_CUDA_EMULATED
      cmocka_unit_test(test_every_number_of_rows),
#endif
      cmocka_unit_test(test_weight_backward),
      cmocka_unit_test(test_fastest),
      cmocka_unit_test(test_norms),
      cmocka_unit_test(test_heads),
      cmocka_unit_test(test_swiglu),
      cmocka_unit_test(test_geglu),
      cmocka_unit_test(test_elements),
      cmocka_unit_test(test_bias),
      cmocka_unit_test(test_attention),
      cmocka_unit_test(test_attention_of_many_rows),
      cmocka_unit_test(test_attention_backward),
      cmocka_unit_test(test_vocabulary),
      cmocka_unit_test(test_cut),
      cmocka_unit_test(test_threshold),
      cmocka_unit_test(test_accumulate),
      cmocka_unit_test(test_step),
      cmocka_unit_test(test_repeat),
#ifdef LEASEHOLD_CUDA_EMULATED
      cmocka_unit_test(test_failure),
      cmocka_unit_test(test_backwards),
#endif
  };
  const char *only = getenv("LEASEHOLD_TEST_ONLY"); /* of the sanitizer's runs, which take long */
  if (only) cmocka_set_test_filter(only);
  return cmocka_run_group_tests(tests, tables_open, tables_close);
}

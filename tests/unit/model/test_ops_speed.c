/* Prints the kernels' speed on one core at the demo's shapes, and fails when a level is far slower than it should be:
 * so a kernel that is no longer vectorized is noticed.  It depends on the wall clock, so it is not part of `make check`
 * (make speed); a level that the CPU lacks is reported as skipped. */
#include <stdlib.h>

#include "tests/unit/model/ops_support.h"

static struct ops *ops;

static void *fill(size_t bytes) {
  float *x = ops->alloc(ops, bytes);
  assert_non_null(x);
  return x;
}

static float *fill_floats(size_t n) {
  float *x = fill(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = random_float(1.0f);
  return x;
}

static void *fill_operands(size_t n) {
  float *x = fill_floats(n);
  void *out = fill(n * ops->operand_bytes);
  ops->to_operand(ops, out, x, n);
  ops->release(ops, x);
  return out;
}

/* Runs `call` for about 15 ms and prints its rate; the best of the repetitions, which other processes disturb least. */
#define RATE(result, flops, call)                   \
  do {                                              \
    double best_ = 1e9, until_ = seconds() + 0.015; \
    while (seconds() < until_ || best_ > 1e8) {     \
      double at_ = seconds();                       \
      call;                                         \
      double took_ = seconds() - at_;               \
      if (took_ < best_) best_ = took_;             \
    }                                               \
    (result) = (flops) / best_ * 1e-9;              \
  } while (0)

static double gemm_rate(int T, int N, int K) {
  double rate;
  float *y = fill_floats((size_t)T * (size_t)N);
  void *x = fill_operands((size_t)T * (size_t)K), *w = fill_operands((size_t)N * (size_t)K);
  struct matrix W = {.data = fill(ops->matrix_bytes(ops, N, K)), .N = N, .K = K};
  ops->matrix_pack(ops, &W, w);
  RATE(rate, 2.0 * T * N * K, ops->gemm(ops, y, x, &W, T, false));
  print_message("  gemm %dx%dx%d: %.1f GFLOP/s\n", T, N, K, rate);
  ops->release(ops, y);
  ops->release(ops, x);
  ops->release(ops, w);
  ops->release(ops, W.data);
  return rate;
}

static double weight_rate(int T, int N, int K) {
  double rate;
  float *dW = fill_floats((size_t)N * (size_t)K);
  void *x = fill_operands((size_t)T * (size_t)K), *dy = fill_operands((size_t)T * (size_t)N);
  RATE(rate, 2.0 * T * N * K, ops->gemm_weight_backward(ops, dW, dy, x, NULL, NULL, T, N, K));
  print_message("  gemm_weight_backward %dx%dx%d: %.1f GFLOP/s\n", T, N, K, rate);
  ops->release(ops, dW);
  ops->release(ops, x);
  ops->release(ops, dy);
  return rate;
}

/* `sequences` of `length`: all rows (a training chunk), or the last row of each (a decode step), and the backward. */
static void attention_rates(int sequences, int length, int H, int G, int E) {
  size_t T = (size_t)(sequences * length), HE = (size_t)(H * E), GE = (size_t)(G * E);
  int per = (length + 15) / 16;
  struct kv_layer kv = {.page_tokens = 16, .G = G, .E = E};
  kv.keys = fill((size_t)(sequences * per * 16 * round_up(E, 32)) * (size_t)G * ops->operand_bytes);
  kv.values = fill((size_t)(sequences * per * 16 * round_up(E, 16)) * (size_t)G * ops->operand_bytes);
  int32_t *sequence = fill(T * 4), *position = fill(T * 4), *pages = fill((size_t)(sequences * per) * 4),
          *start = fill((size_t)(sequences + 1) * 4);
  for (int i = 0; i < sequences * per; i++) pages[i] = i;
  for (int s = 0; s <= sequences; s++) start[s] = s * length;
  for (int i = 0; i < (int)T; i++) {
    sequence[i] = i / length;
    position[i] = i % length;
  }
  struct rows rows = {.T = (int)T,
                      .sequence = sequence,
                      .position = position,
                      .pages = pages,
                      .pages_per_sequence = per,
                      .sequences = sequences};
  void *q = fill_operands(T * HE), *k = fill_operands(T * GE), *v = fill_operands(T * GE),
       *out = fill(T * HE * ops->operand_bytes);
  float *lse = fill_floats(T * (size_t)H), *dq = fill_floats(T * HE), *dk = fill_floats(T * GE),
        *dv = fill_floats(T * GE);
  struct packed batch = {.sequences = sequences, .start = start};
  double pairs = 0.5 * sequences * length * (length + 1.0) * H, rate;
  ops->kv_write(ops, &kv, &rows, k, v, NULL);
  RATE(rate, 4.0 * pairs * E, ops->attention(ops, out, lse, q, &kv, &rows, H, 0.25f));
  print_message("  attention, %d sequences of %d, E %d: %.1f GFLOP/s\n", sequences, length, E, rate);
  RATE(rate, 10.0 * pairs * E,
       ops->attention_backward(ops, dq, dk, dv, out, out, lse, q, k, v, &batch, H, G, E, 0.25f));
  print_message("  its backward: %.1f GFLOP/s\n", rate);
  for (int s = 0; s < sequences; s++) {
    sequence[s] = s;
    position[s] = length - 1;
  }
  rows.T = sequences;
  RATE(rate, 4.0 * sequences * length * H * E, ops->attention(ops, out, lse, q, &kv, &rows, H, 0.25f));
  print_message("  a decode step of it: %.1f GFLOP/s\n", rate);
  void *all[] = {kv.keys, kv.values, sequence, position, pages, start, q, k, v, out, lse, dq, dk, dv};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ops->release(ops, all[i]);
}

static void vocabulary_rates(int T, int V) {
  double rate;
  const size_t n = (size_t)T * (size_t)V;
  float *logits = fill_floats(n), *lp = fill_floats((size_t)T), *lse = fill_floats((size_t)T);
  void *dlogits = fill(n * ops->operand_bytes);
  int32_t *target = fill((size_t)T * 4);
  struct draw *draws = fill((size_t)T * sizeof *draws);
  for (int t = 0; t < T; t++) draws[t] = (struct draw){.row = t, .temperature = 1.0f, .u = 0.5f};
  print_message("  vocabulary %d, G entries/s:", V);
  RATE(rate, (double)n, ops->logprob(ops, lp, lse, NULL, logits, target, 1.0f, T, V));
  print_message(" logprob %.2f", rate);
  RATE(rate, (double)n, ops->logprob_backward(ops, dlogits, lp, NULL, NULL, logits, lse, target, 1.0f, T, V));
  print_message(", its backward %.2f", rate);
  RATE(rate, (double)n, ops->sample(ops, draws, T, logits, V));
  print_message(", tokens with log-probability %.2f\n", rate);
  void *all[] = {logits, lp, lse, dlogits, target, draws};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ops->release(ops, all[i]);
}

/* n elements, more than any cache holds; rates as memory sees them. */
static void optimizer_rates(size_t n) {
  double rate;
  float *g = fill_floats(n), *master = fill_floats(n), *m = fill(n * sizeof *m), *v = fill(n * sizeof *v);
  int64_t *acc = fill(n * sizeof *acc);
  const struct adamw a = {
      .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .bias1 = 0.5f, .bias2 = 0.5f, .grad_scale = 1.0f};
  RATE(rate, 8.0 * (double)n, memcpy(master, g, n * sizeof *g));
  print_message("  GB/s: memcpy %.1f", rate);
  RATE(rate, 20.0 * (double)n, ops->accumulate(ops, acc, g, n, 32));
  print_message(", accumulate %.1f", rate);
  RATE(rate, 20.0 * (double)n, ops->grad_from_accumulator(ops, m, acc, n, 32, 3.0));
  print_message(", grad_from_accumulator %.1f", rate);
  RATE(rate, 4.0 * (double)n, (void)ops->sum_of_squares(ops, g, n));
  print_message(", sum_of_squares %.1f", rate);
  memset(m, 0, n * sizeof *m);
  RATE(rate, 28.0 * (double)n, ops->adamw(ops, master, m, v, g, &a, n));
  print_message(", adamw %.1f", rate);
  const struct moments8 moments = {fill(n), fill(n), fill_floats(n / MOMENT_BLOCK + 1),
                                   fill_floats(n / MOMENT_BLOCK + 1)};
  RATE(rate, 16.0 * (double)n, ops->adamw8(ops, master, &moments, g, &a, MOMENT_BLOCK, n));
  print_message(", of 8-bit moments %.1f\n", rate);
  void *all[] = {g, master, m, v, acc, moments.m, moments.v, moments.m_max, moments.v_max};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ops->release(ops, all[i]);
}

static void swiglu_rate(size_t n) {
  double rate;
  float *gate = fill_floats(n), *up = fill_floats(n);
  void *h = fill(n * ops->operand_bytes);
  RATE(rate, (double)n, ops->swiglu(ops, h, gate, up, n));
  print_message("  swiglu: %.2f G elements/s\n", rate);
  void *all[] = {gate, up, h};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ops->release(ops, all[i]);
}

/* A weight matrix [N, K] into tiles, into transposed tiles, and back into rows: once a version. */
static void layout_rates(int N, int K) {
  double rate;
  const double n = (double)N * K;
  void *w = fill_operands((size_t)N * (size_t)K);
  struct matrix W = {.data = fill(ops->matrix_bytes(ops, N, K)), .N = N, .K = K},
                transposed = {.data = fill(ops->matrix_bytes(ops, K, N)), .N = K, .K = N};
  RATE(rate, n, ops->matrix_pack(ops, &W, w));
  print_message("  G elements/s: pack %.2f", rate);
  RATE(rate, n, ops->matrix_pack_transposed(ops, &transposed, w, N, K));
  print_message(", pack_transposed %.2f", rate);
  RATE(rate, n, ops->matrix_unpack_rows(ops, w, &W, 0, N));
  print_message(", unpack_rows %.2f\n", rate);
  void *all[] = {w, W.data, transposed.data};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ops->release(ops, all[i]);
}

static void level_on(const char *level, double gemm_floor) {
  struct err err;
  const enum rc rc = ops_cpu_create(&ops, FORMAT_BF16, level, NULL, &err);
  if (rc == RC_UNSUPPORTED) {
    print_message("%s\n", err.message);
    skip();
  }
  if (rc != RC_OK) fail_msg("%s", err.message);
  print_message("%s\n", ops->name);
  double best = gemm_rate(128, 64, 64), next = gemm_rate(256, 272, 64);
  if (next > best) best = next;
  gemm_rate(1, 192, 64);
  next = gemm_rate(128, 1024, 1024);
  if (next > best) best = next;
  weight_rate(2048, 192, 64);
  attention_rates(64, 45, 4, 2, 16);
  attention_rates(1, 600, 4, 2, 64);
  swiglu_rate(128 * 272);
  vocabulary_rates(128, 272);
  vocabulary_rates(8, 151936);
  optimizer_rates((size_t)6 << 20);
  layout_rates(3072, 1024);
  ops_free(ops);
  assert_true(best > gemm_floor);
}

static void test_v3(void **state) {
  (void)state;
  level_on("v3", 2.0);
}

static void test_v4(void **state) {
  (void)state;
  level_on("v4", 3.0);
}

static void test_v4_bf16(void **state) {
  (void)state;
  level_on("v4-bf16", 6.0);
}

/* Of a large product; 0: the CPU lacks the level.  level NULL: that which is chosen by itself. */
static double product_rate(const char *level) {
  struct err err;
  if (ops_cpu_create(&ops, FORMAT_BF16, level, NULL, &err) != RC_OK) return 0;
  print_message("%s, %s:\n", level ? level : "chosen", ops->name);
  const double rate = gemm_rate(128, 1024, 1024);
  ops_free(ops);
  return rate;
}

/* A newer instruction is not always a faster one. */
static void test_the_fastest_is_chosen(void **state) {
  static const char *const levels[] = {"v2", "v3", "v4", "v4-bf16", "amx"};
  const double chosen = product_rate(NULL);
  (void)state;
  for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) assert_true(chosen > 0.75 * product_rate(levels[i]));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_v3), cmocka_unit_test(test_v4),
                                     cmocka_unit_test(test_v4_bf16), cmocka_unit_test(test_the_fastest_is_chosen)};
  random_seed(5);
  pool_enter();
  return cmocka_run_group_tests_name("ops speed", tests, NULL, NULL);
}

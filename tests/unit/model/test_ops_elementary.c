/* exp and log stay within 2 ulp of the double reference and are the literal text's bits on every level;
 * ops_cpu_create names unsupported and supported kernels; alloc gives zeroed, aligned memory. */
#include <stdlib.h>

#include "tests/unit/model/ops_support.h"

enum { LEVELS = 4 };

static int present(const struct cpu_kernels *out[LEVELS]) {
  int n = 0;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v2")) out[n++] = &cpu_kernels_v2;
  if (__builtin_cpu_supports("x86-64-v3")) out[n++] = &cpu_kernels_v3;
  if (__builtin_cpu_supports("x86-64-v4")) out[n++] = &cpu_kernels_v4;
  if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16")) out[n++] = &cpu_kernels_v4_bf16;
  return n;
}

static double ulps(float got, double want) {
  float near = (float)want;
  double ulp = (double)nextafterf(fabsf(near), INFINITY) - (double)fabsf(near);
  return fabs((double)got - want) / ulp;
}

static void test_exp(void **state) {
  const struct cpu_kernels *kernels[LEVELS];
  int levels = present(kernels);
  double worst = 0;
  (void)state;
  for (int i = 0; i < 400000; i++) {
    float x = i < 200000 ? -87.3f + (float)i * (176.0f / 200000.0f) : random_float(2.0f), y;
    for (int l = 0; l < levels; l++) {
      kernels[l]->exp_row(&y, &x, 1);
      assert_int_equal(lit_bits(y), lit_bits(lit_exp(x)));
    }
    double u = ulps(y, exp((double)x));
    if (u > worst) worst = u;
  }
  print_message("exp: %.3f ulp\n", worst);
  assert_true(worst <= 2.0);
}

static void test_exp_edges(void **state) {
  const struct cpu_kernels *kernels[LEVELS];
  int levels = present(kernels);
  (void)state;
  for (int l = 0; l < levels; l++) {
    float x[] = {0.0f, -0.0f, -INFINITY, -87.34f, -1e30f, 88.72f, 1e30f, INFINITY, NAN}, y[9];
    kernels[l]->exp_row(y, x, 9);
    assert_int_equal(lit_bits(y[0]), lit_bits(1.0f));
    assert_int_equal(lit_bits(y[1]), lit_bits(1.0f));
    for (int i = 2; i < 5; i++) assert_int_equal(lit_bits(y[i]), 0);
    for (int i = 5; i < 8; i++) assert_true(y[i] > 3.3e38f && y[i] == y[5] && !isinf(y[i]));
    assert_true(isnan(y[8]));
    for (float at = -87.34f; at < -87.3f; at = nextafterf(at, 0.0f)) { /* where results are barely normal numbers */
      kernels[l]->exp_row(y, &at, 1);
      assert_int_equal(lit_bits(y[0]), lit_bits(lit_exp(at)));
    }
  }
}

static void test_log(void **state) {
  const struct cpu_kernels *kernels[LEVELS];
  int levels = present(kernels);
  double worst = 0;
  (void)state;
  for (int i = 0; i < 300000; i++) {
    float x = i < 100000   ? 1.0f + (float)i * 1e-5f
              : i < 200000 ? 1.0f + (float)i * 7.3f
                           : lit_float(0x00800000u + random_u32() % 0x7f000000u),
          y = 0;
    for (int l = 0; l < levels; l++) {
      y = kernels[l]->log(x);
      assert_int_equal(lit_bits(y), lit_bits(lit_log(x)));
    }
    double u = x == 1.0f ? (double)y : ulps(y, log((double)x));
    if (u > worst) worst = u;
  }
  print_message("log: %.3f ulp\n", worst);
  assert_true(worst <= 2.0);
  for (int l = 0; l < levels; l++) {
    assert_int_equal(lit_bits(kernels[l]->log(1.0f)), 0);
    assert_true(isinf(kernels[l]->log(0.0f)) && kernels[l]->log(0.0f) < 0);
    assert_true(kernels[l]->log(INFINITY) > 0 && isinf(kernels[l]->log(INFINITY)));
    assert_true(isnan(kernels[l]->log(-1.0f)) && isnan(kernels[l]->log(-INFINITY)) && isnan(kernels[l]->log(NAN)));
  }
}

static void test_create(void **state) {
  struct ops *ops = NULL;
  struct err err;
  (void)state;
  assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, "v9", NULL, &err), RC_INVALID);
  assert_string_equal(err.field, "isa");
  assert_non_null(strstr(err.message, "v9"));
  assert_non_null(strstr(err.message, "v2"));
  assert_null(ops);
  if (!__builtin_cpu_supports("amx-bf16")) {
    assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, "amx", NULL, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.message, "the amx kernels; it can run "));
    assert_non_null(strstr(err.message, "v2"));
  }
  assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, "v2", NULL, &err), RC_OK);
  assert_string_equal(ops->name, "cpu-v2");
  ops_free(ops);
  assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, "", NULL, &err), RC_OK); /* as an empty variable */
  ops_free(ops);
  assert_int_equal(ops_cpu_create(&ops, FORMAT_F32, NULL, NULL, &err), RC_OK);
  assert_int_equal(ops->operand_bytes, 4);
  assert_int_equal(strncmp(ops->name, "cpu-", 4), 0);
  ops_free(ops);
  ops_free(NULL);
}

/* An instruction that adds in another order is not taken. */
static void test_trial(void **state) {
  (void)state;
  assert_true(tiles_hold_emulated());
  tiles_swap_chains = true;
  assert_false(tiles_hold_emulated());
  tiles_swap_chains = false;
}

static void test_alloc(void **state) {
  static const size_t sizes[] = {0, 1, 100, 1 << 20, 5 << 20};
  struct ops *ops = NULL;
  (void)state;
  assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, NULL, NULL, NULL), RC_OK);
  for (int i = 0; i < 5; i++) {
    unsigned char *memory = ops->alloc(ops, sizes[i]);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (size_t b = 0; b < sizes[i]; b++)
      if (memory[b]) fail_msg("byte %zu of %zu is not zero", b, sizes[i]);
    ops->release(ops, memory);
  }
  assert_null(ops->alloc(ops, SIZE_MAX / 2));
  ops->release(ops, NULL);
  ops_free(ops);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp),    cmocka_unit_test(test_exp_edges), cmocka_unit_test(test_log),
      cmocka_unit_test(test_create), cmocka_unit_test(test_trial),     cmocka_unit_test(test_alloc),
  };
  random_seed(3);
  pool_enter();
  return cmocka_run_group_tests_name("ops elementary", tests, NULL, NULL);
}

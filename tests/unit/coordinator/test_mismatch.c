/* How far two sides' log-probabilities are apart. What would break: a difference is not counted, or counted where
 * there is none; the next token hides a NaN; a KL estimate has the wrong sign. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "services/coordinator/decide/mismatch.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct mismatch compared(const float *samplers, const float *trainers, size_t count) {
  struct mismatch m = {0};
  mismatch_add(&m, samplers, trainers, count);
  return m;
}

static void assert_near(double got, double want) {
  if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("got %.17g, expected %.17g", got, want);
}

static void equal_bits_are_exactly_zero(void **state) {
  (void)state;
  const float x[] = {-0.25f, -3.0f, -1e-30f, NAN, -INFINITY};
  const struct mismatch zero = {0}, none = compared(x, x, 0), same = compared(x, x, COUNT(x));
  assert_memory_equal(&none, &zero, sizeof zero);
  assert_memory_equal(&same, &zero, sizeof zero);
  assert_true(mismatch_mean(same.k1_sum, same.nonfinite, 5) == 0);
  assert_true(mismatch_mean(0, 0, 0) == 0); /* a round without trained tokens */
}

static void one_unequal_token_is_seen_with_its_sign(void **state) {
  (void)state;
  const float samplers[] = {-1.0f, -2.0f, -3.0f, -4.0f}, trainers[] = {-1.0f, -2.5f, -3.0f, -4.0f};
  const struct mismatch m = compared(samplers, trainers, 4), turned = compared(trainers, samplers, 4);
  assert_int_equal(m.unequal, 1);
  assert_int_equal(m.nonfinite, 0);
  assert_true(m.max_abs == 0.5 && m.abs_sum == 0.5 && m.k1_sum == 0.5);
  assert_near(m.k3_sum, exp(-0.5) - 1 + 0.5); /* the trainer holds the token for less likely: r = exp(-d) < 1 */
  assert_true(turned.max_abs == 0.5 && turned.abs_sum == 0.5 && turned.k1_sum == -0.5);
  assert_near(turned.k3_sum, exp(0.5) - 1 - 0.5);
  assert_near(mismatch_mean(m.abs_sum, m.nonfinite, 4), 0.125);
}

/* One unit in the last place: k3 is half of d squared, which no difference of floats would leave anything of. */
static void a_rounding_is_not_lost(void **state) {
  (void)state;
  const float sampler = -0.001f, trainer = nextafterf(sampler, 0);
  const double d = (double)sampler - (double)trainer;
  const struct mismatch m = compared(&sampler, &trainer, 1);
  assert_int_equal(m.unequal, 1);
  assert_true(m.max_abs == -d && m.k1_sum == d && m.k3_sum > 0);
  assert_true(fabs(m.k3_sum - d * d / 2) < 1e-4 * d * d);
}

/* Bits differ and numbers do not: counted, at no distance. */
static void a_zero_of_the_other_sign_counts(void **state) {
  (void)state;
  const float plus = 0.0f, minus = -0.0f;
  const struct mismatch m = compared(&plus, &minus, 1);
  assert_int_equal(m.unequal, 1);
  assert_true(m.max_abs == 0 && m.k3_sum == 0);
}

static void what_is_not_finite_stays_seen(void **state) {
  (void)state;
  const float bad[] = {NAN, -INFINITY, INFINITY};
  for (size_t i = 0; i < COUNT(bad); i++) {
    const float samplers[] = {-1.0f, -1.0f, -1.0f}, trainers[] = {-2.0f, bad[i], -1.5f};
    const struct mismatch m = compared(samplers, trainers, 3), turned = compared(trainers, samplers, 3);
    assert_int_equal(m.unequal, 3);
    assert_int_equal(m.nonfinite, 1);
    assert_true(isinf(m.max_abs) && m.abs_sum == 1.5); /* a finite difference behind it does not take its place */
    assert_true(isnan(mismatch_mean(m.abs_sum, m.nonfinite, 3)));
    assert_int_equal(turned.nonfinite, 1);
    assert_true(isinf(turned.max_abs));
  }
}

static void samples_add_up(void **state) {
  (void)state;
  const float samplers[] = {-1.0f, -2.0f, -3.0f}, trainers[] = {-1.25f, -1.5f, -3.0f};
  struct mismatch parts = {0};
  const struct mismatch whole = compared(samplers, trainers, 3);
  for (size_t i = 0; i < 3; i++) mismatch_add(&parts, &samplers[i], &trainers[i], 1);
  assert_memory_equal(&parts, &whole, sizeof whole);
  assert_true(whole.max_abs == 0.5 && whole.abs_sum == 0.75 && whole.k1_sum == -0.25);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_bits_are_exactly_zero),   cmocka_unit_test(one_unequal_token_is_seen_with_its_sign),
      cmocka_unit_test(a_rounding_is_not_lost),        cmocka_unit_test(a_zero_of_the_other_sign_counts),
      cmocka_unit_test(what_is_not_finite_stays_seen), cmocka_unit_test(samples_add_up),
  };
  return cmocka_run_group_tests_name("coordinator/mismatch", tests, NULL, NULL);
}

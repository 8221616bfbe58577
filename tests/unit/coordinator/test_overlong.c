/* The penalty of completions that come close to their longest length. What would break: short completions are punished,
 * the last token of the buffer is not worth -1, or a prompt with fewer tokens than the buffer divides by something
 * else. */
#include <math.h>

#include "services/coordinator/decide/overlong.h"
#include "tests/unit/base/cm.h"

static void only_the_buffer_costs_something(void **state) {
  (void)state;
  assert_true(overlong_penalty(1, 100, 20) == 0);
  assert_true(overlong_penalty(80, 100, 20) == 0 && !signbit(overlong_penalty(80, 100, 20)));
  assert_true(overlong_penalty(81, 100, 20) == -0.05);
  assert_true(overlong_penalty(95, 100, 20) == -0.75); /* ((100 - 20) - 95) / 20 */
  assert_true(overlong_penalty(100, 100, 20) == -1);
  assert_true(overlong_penalty(100, 100, 1) == -1);
  assert_true(overlong_penalty(99, 100, 1) == 0);
}

static void without_a_buffer_nothing_is_overlong(void **state) {
  (void)state;
  assert_true(overlong_penalty(100, 100, 0) == 0);
  assert_true(overlong_penalty(101, 100, 0) == 0);
  assert_true(overlong_penalty(5, 0, 20) == 0); /* no length is known */
}

static void a_buffer_is_no_longer_than_the_completion_may_be(void **state) {
  (void)state;
  assert_true(overlong_penalty(4, 8, 20) == -0.5);
  assert_true(overlong_penalty(8, 8, 20) == -1);
  assert_true(overlong_penalty(8, 8, 8) == -1);
  assert_true(overlong_penalty(1, 1, 1) == -1);
  assert_true(overlong_penalty(0, 8, 20) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_the_buffer_costs_something),
      cmocka_unit_test(without_a_buffer_nothing_is_overlong),
      cmocka_unit_test(a_buffer_is_no_longer_than_the_completion_may_be),
  };
  return cmocka_run_group_tests_name("coordinator/overlong", tests, NULL, NULL);
}

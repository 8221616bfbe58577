/* How far a worker's clock is from ours. What would break: a worker whose clock was set has its times shown
 * uncorrected, or the time that a message takes on its way is mistaken for a difference of clocks. */
#include "services/coordinator/decide/clock_skew.h"
#include "tests/unit/base/cm.h"

static const int64_t ms = 1000, second = 1000000, minute = 60000000;

static void a_worker_that_sends_no_time_has_no_known_skew(void **state) {
  (void)state;
  assert_true(clock_skew_learn(CLOCK_SKEW_UNKNOWN, 0, 5 * second) == CLOCK_SKEW_UNKNOWN);
  assert_int_equal(clock_skew_learn(7, 0, 5 * second), 7);
  assert_int_equal(clock_skew_learn(-7, 0, 0), -7);
  assert_int_equal(clock_skew_us(CLOCK_SKEW_UNKNOWN), 0);
}

static void the_first_message_gives_the_skew(void **state) {
  (void)state;
  assert_int_equal(clock_skew_learn(CLOCK_SKEW_UNKNOWN, 70 * minute, 10 * minute), 60 * minute);
  assert_int_equal(clock_skew_learn(CLOCK_SKEW_UNKNOWN, 10 * minute, 70 * minute), -60 * minute);
  assert_int_equal(clock_skew_learn(CLOCK_SKEW_UNKNOWN, 1, 2), -1);
  assert_int_equal(clock_skew_learn(CLOCK_SKEW_UNKNOWN, -1, 2), -3);
}

static void the_quickest_message_gives_the_best_skew(void **state) {
  (void)state;
  assert_int_equal(clock_skew_learn(5 * second, 20 * second, 15 * second - 1), 5 * second + 1);
  assert_int_equal(clock_skew_learn(5 * second, 20 * second, 15 * second), 5 * second);
  assert_int_equal(clock_skew_learn(5 * second, 20 * second, 15 * second + 1), 5 * second);
  assert_int_equal(clock_skew_learn(5 * second, 20 * second, 18 * second), 5 * second);
}

static void a_message_more_than_a_minute_late_comes_from_a_clock_that_was_set(void **state) {
  (void)state;
  assert_int_equal(clock_skew_learn(0, minute, 2 * minute), 0);
  assert_int_equal(clock_skew_learn(0, minute, 2 * minute + 1), -minute - 1);
  assert_int_equal(clock_skew_learn(9 * minute, minute, 30 * minute), -29 * minute);
}

static void clocks_within_a_second_agree(void **state) {
  (void)state;
  assert_int_equal(clock_skew_us(0), 0);
  assert_int_equal(clock_skew_us(300 * ms), 0);
  assert_int_equal(clock_skew_us(second), 0);
  assert_int_equal(clock_skew_us(-second), 0);
  assert_int_equal(clock_skew_us(second + 1), second + 1);
  assert_int_equal(clock_skew_us(-second - 1), -second - 1);
  assert_int_equal(clock_skew_us(120 * minute), 120 * minute);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_worker_that_sends_no_time_has_no_known_skew),
      cmocka_unit_test(the_first_message_gives_the_skew),
      cmocka_unit_test(the_quickest_message_gives_the_best_skew),
      cmocka_unit_test(a_message_more_than_a_minute_late_comes_from_a_clock_that_was_set),
      cmocka_unit_test(clocks_within_a_second_agree),
  };
  return cmocka_run_group_tests_name("coordinator/clock_skew", tests, NULL, NULL);
}

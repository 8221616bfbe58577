/* Which prompts rest.  What would break: a prompt without a record is never tried; a rate at a bound counts as outside; a prompt
 * that rested never comes back, or comes too early. */
#include "services/coordinator/run/curriculum.h"
#include "tests/unit/base/cm.h"

static bool rests(double rate_min, double rate_max, int32_t rest, int64_t passed, int64_t samples, int64_t recorded,
                  int64_t epoch) {
  const struct curriculum_rule rule = {rate_min, rate_max, rest};
  const struct curriculum_record record = {samples, passed, recorded};
  return curriculum_rests(&rule, &record, epoch);
}

static void a_prompt_without_a_record_is_tried(void **state) {
  (void)state;
  assert_false(rests(0.5, 0.5, 1000, 0, 0, 0, 0));
  assert_false(rests(0.5, 0.5, 1000, 3, 0, 0, 0)); /* whatever else it says */
  assert_true(rests(0.5, 0.5, 1000, 0, 1, 0, 0));
}

static void rates_between_the_bounds_come_and_so_do_those_at_them(void **state) {
  (void)state;
  for (int64_t passed = 0; passed <= 8; passed++)
    assert_int_equal(rests(0.25, 0.75, 1, passed, 8, 0, 1), passed < 2 || passed > 6);
  assert_true(rests(0.001, 1, 1, 0, 8, 0, 1));
  assert_false(rests(0, 0.999, 1, 0, 8, 0, 1));
  assert_true(rests(0, 0.999, 1, 8, 8, 0, 1));
}

static void what_rested_is_tried_again(void **state) {
  (void)state;
  assert_true(rests(0, 0.5, 1, 8, 8, 3, 3)); /* once more in the same epoch, where parts go round at their own pace */
  assert_true(rests(0, 0.5, 1, 8, 8, 3, 4));
  assert_false(rests(0, 0.5, 1, 8, 8, 3, 5));
  assert_true(rests(0, 0.5, 3, 8, 8, 3, 6));
  assert_false(rests(0, 0.5, 3, 8, 8, 3, 7));
}

/* Rates of an earlier run are of epoch -1. */
static void an_earlier_runs_rates_count_in_the_first_epoch(void **state) {
  (void)state;
  assert_true(rests(0, 0.5, 1, 8, 8, -1, 0));
  assert_false(rests(0, 0.5, 1, 8, 8, -1, 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_prompt_without_a_record_is_tried),
      cmocka_unit_test(rates_between_the_bounds_come_and_so_do_those_at_them),
      cmocka_unit_test(what_rested_is_tried_again),
      cmocka_unit_test(an_earlier_runs_rates_count_in_the_first_epoch),
  };
  return cmocka_run_group_tests_name("curriculum", tests, NULL, NULL);
}

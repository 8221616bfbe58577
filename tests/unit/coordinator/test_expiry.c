/* Deadlines at their very edges. What would break: a process that was stopped takes all workers for lost, a group
 * fails for a time in which nobody could work, the writer sleeps past a deadline. */
#include "services/coordinator/decide/expiry.h"
#include "tests/unit/base/cm.h"

enum { NAP_MS = 100 };

static void a_worker_lives_for_its_whole_time_to_live(void **state) {
  (void)state;
  assert_false(expiry_worker_lost(1000, 500, 1500));
  assert_true(expiry_worker_lost(1000, 500, 1501));
}

static void who_samples_nothing_for_eight_groups_time_stands_still(void **state) {
  (void)state;
  assert_false(expiry_stands_still(1000, 0.5, 30, 1000 + STANDSTILL_GROUPS * 500));
  assert_true(expiry_stands_still(1000, 0.5, 30, 1001 + STANDSTILL_GROUPS * 500));
  assert_false(expiry_stands_still(1000, 0.5, 30000, 31000)); /* a time to live at least */
  assert_true(expiry_stands_still(1000, 0.5, 30000, 31001));
  assert_false(expiry_stands_still(1000, 0, 30, INT64_MAX / 2)); /* nothing is known of the pace */
}

static void a_deadline_is_passed_when_it_is_reached(void **state) {
  (void)state;
  assert_int_equal(expiry_lease_deadline(7, 30), 37);
  assert_false(expiry_passed(37, 36));
  assert_true(expiry_passed(37, 37));
  assert_true(expiry_passed(37, 38));
}

static void the_writer_sleeps_until_the_deadline_and_no_longer_than_a_nap(void **state) {
  (void)state;
  assert_int_equal(expiry_sleep(5, 10, NAP_MS), 0);
  assert_int_equal(expiry_sleep(10, 10, NAP_MS), 0);
  assert_int_equal(expiry_sleep(11, 10, NAP_MS), 1);
  assert_int_equal(expiry_sleep(109, 10, NAP_MS), 99);
  assert_int_equal(expiry_sleep(111, 10, NAP_MS), NAP_MS);
  assert_int_equal(expiry_sleep(INT64_MAX, 10, NAP_MS), NAP_MS);
}

static void a_look_later_than_three_naps_is_a_stall(void **state) {
  (void)state;
  assert_int_equal(expiry_stall(1000, 1000, NAP_MS), 0);
  assert_int_equal(expiry_stall(1000, 1250, NAP_MS), 0);
  assert_int_equal(expiry_stall(1000, 1300, NAP_MS), 0);
  assert_int_equal(expiry_stall(1000, 1301, NAP_MS), 201); /* late by what goes beyond a nap */
  assert_int_equal(expiry_stall(1000, 61000, NAP_MS), 59900);
}

static void only_time_in_which_somebody_could_work_counts(void **state) {
  (void)state;
  assert_int_equal(expiry_uncounted(90, true, NAP_MS), 0);
  assert_int_equal(expiry_uncounted(90, false, NAP_MS), 90);
  assert_int_equal(expiry_uncounted(300, true, NAP_MS), 0);
  assert_int_equal(expiry_uncounted(301, true, NAP_MS), 201); /* a stall: one nap of it counts */
  assert_int_equal(expiry_uncounted(301, false, NAP_MS), 301);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_worker_lives_for_its_whole_time_to_live),
      cmocka_unit_test(who_samples_nothing_for_eight_groups_time_stands_still),
      cmocka_unit_test(a_deadline_is_passed_when_it_is_reached),
      cmocka_unit_test(the_writer_sleeps_until_the_deadline_and_no_longer_than_a_nap),
      cmocka_unit_test(a_look_later_than_three_naps_is_a_stall),
      cmocka_unit_test(only_time_in_which_somebody_could_work_counts),
  };
  return cmocka_run_group_tests_name("coordinator/expiry", tests, NULL, NULL);
}

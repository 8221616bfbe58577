/* Which run the slot time of a heartbeat belongs to. What would break: idle time of one run appears in another's
 * figures, time outside every run is counted, a worker reports its pool busier than it can be. */
#include <stdbool.h>
#include <string.h>

#include "services/coordinator/decide/slot_time.h"
#include "tests/unit/base/cm.h"

static void check_account(const struct slot_account *got, int64_t run, int64_t busy_us, int64_t window_us) {
  assert_int_equal(got->run, run);
  assert_int_equal(got->busy_us, busy_us);
  assert_int_equal(got->window_us, window_us);
}

static void check_window(const struct slot_window *got, int64_t run, int64_t begin_ms, int64_t end_ms) {
  assert_int_equal(got->run, run);
  assert_int_equal(got->begin_ms, begin_ms);
  assert_int_equal(got->end_ms, end_ms);
}

static void slot_time_is_shared_between_runs_and_carried_over_jitter(void **state) {
  (void)state;
  struct slot_window w[SLOT_WINDOWS] = {0};
  struct slot_account a[SLOT_WINDOWS];
  assert_int_equal(slot_time_share(w, 8, 0, 1000, 5000, a), 0); /* no run */
  assert_int_equal(a[0].run, 0);
  slot_windows_begin(w, 1, 1000);
  slot_windows_begin(w, 1, 1500); /* a repeat */
  assert_int_equal(slot_time_share(w, 2, 0, 3000, 1000000, a), 0);
  assert_int_equal(a[0].window_us, 4000000);
  assert_int_equal(a[0].busy_us, 1000000);
  assert_int_equal(slot_time_share(w, 2, 3000, 4000, 2050000, a), 50000); /* busier than time allows */
  assert_int_equal(a[0].busy_us, 2000000);
  assert_int_equal(slot_time_share(w, 2, 4000, 5000, INT64_MAX, a), 200000); /* a lie is bounded */
  assert_int_equal(slot_time_share(w, 2, 4000, 5000, -5, a), 0);             /* a counter that fell */
  assert_int_equal(a[0].busy_us, 0);
  slot_windows_end(w, 1, 5500);
  slot_windows_end(w, 1, 9000);
  slot_windows_begin(w, 2, 5750);
  slot_time_share(w, 1, 5000, 6000, 300000, a);
  assert_int_equal(a[0].run, 2);
  assert_int_equal(a[0].window_us, 250000);
  assert_int_equal(a[0].busy_us, 100000);
  assert_int_equal(a[1].run, 1);
  assert_int_equal(a[1].window_us, 500000);
  assert_int_equal(a[1].busy_us, 200000);
}

static void a_new_run_ends_the_one_before_and_the_third_is_forgotten(void **state) {
  (void)state;
  struct slot_window w[SLOT_WINDOWS] = {0};
  slot_windows_begin(w, 1, 1000);
  check_window(&w[0], 1, 1000, INT64_MAX);
  assert_int_equal(w[1].run, 0);
  slot_windows_begin(w, 1, 1100);
  check_window(&w[0], 1, 1000, INT64_MAX);
  assert_int_equal(w[1].run, 0);
  slot_windows_begin(w, 2, 2000);
  check_window(&w[0], 2, 2000, INT64_MAX);
  check_window(&w[1], 1, 1000, 2000);
  slot_windows_end(w, 7, 2500); /* nobody's */
  slot_windows_end(w, 1, 2600); /* it had ended */
  check_window(&w[0], 2, 2000, INT64_MAX);
  check_window(&w[1], 1, 1000, 2000);
  slot_windows_end(w, 2, 2700);
  slot_windows_begin(w, 3, 3000);
  check_window(&w[0], 3, 3000, INT64_MAX);
  check_window(&w[1], 2, 2000, 2700);
}

static void only_the_windows_of_the_list_are_ended(void **state) {
  (void)state;
  struct slot_window w[1 + SLOT_WINDOWS + 1];
  for (int i = 0; i < SLOT_WINDOWS + 2; i++) w[i] = (struct slot_window){.run = 1, .begin_ms = i, .end_ms = INT64_MAX};
  slot_windows_end(w + 1, 1, 50);
  check_window(&w[0], 1, 0, INT64_MAX);
  for (int i = 1; i <= SLOT_WINDOWS; i++) check_window(&w[i], 1, i, 50);
  check_window(&w[SLOT_WINDOWS + 1], 1, SLOT_WINDOWS + 1, INT64_MAX);
}

/* One window of [1000, 2000) against heartbeats before, across, within and behind it. */
static void only_time_within_the_window_counts(void **state) {
  (void)state;
  const struct {
    int64_t from_ms, to_ms, counted_ms;
  } cases[] = {{0, 900, 0},       {0, 1000, 0},      {0, 1001, 1},    {900, 1100, 100}, {1000, 2000, 1000},
               {1200, 1300, 100}, {1900, 2100, 100}, {1999, 2100, 1}, {2000, 2100, 0},  {500, 2500, 1000}};
  const struct slot_window w[SLOT_WINDOWS] = {{.run = 5, .begin_ms = 1000, .end_ms = 2000}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct slot_account a[SLOT_WINDOWS];
    memset(a, 0x55, sizeof a);
    assert_int_equal(slot_time_share(w, 3, cases[i].from_ms, cases[i].to_ms, 600, a), 0); /* no run is open */
    const bool counts = cases[i].counted_ms > 0;
    check_account(&a[0], counts ? 5 : 0, counts ? 600 : 0, cases[i].counted_ms * 1000 * 3);
    check_account(&a[1], 0, 0, 0);
  }
}

static void a_window_of_no_run_takes_nothing(void **state) {
  (void)state;
  const struct slot_window w[SLOT_WINDOWS] = {{.run = 0, .begin_ms = 0, .end_ms = INT64_MAX},
                                              {.run = 4, .begin_ms = 0, .end_ms = 100}};
  struct slot_account a[SLOT_WINDOWS];
  assert_int_equal(slot_time_share(w, 1, 0, 200, 300000, a), 0); /* nor is anything carried to it */
  check_account(&a[0], 0, 0, 0);
  check_account(&a[1], 4, 100000, 100000);
}

static void what_does_not_fit_is_carried_up_to_a_tenth_of_a_second_of_each_slot(void **state) {
  (void)state;
  const struct slot_window open[SLOT_WINDOWS] = {{.run = 1, .begin_ms = 0, .end_ms = INT64_MAX}};
  struct slot_account a[SLOT_WINDOWS];
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 3000000, a), 0);
  check_account(&a[0], 1, 3000000, 3000000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 2999999, a), 0);
  check_account(&a[0], 1, 2999999, 3000000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 3000001, a), 1);
  check_account(&a[0], 1, 3000000, 3000000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 3299999, a), 299999);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 3300000, a), 300000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 3300001, a), 300000);
  assert_int_equal(slot_time_share(open, 3, 1000, 1000, 7, a), 7); /* no time at all went by */
  check_account(&a[0], 0, 0, 0);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 1, a), 0);
  check_account(&a[0], 1, 1, 3000000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, 0, a), 0);
  check_account(&a[0], 1, 0, 3000000);
  assert_int_equal(slot_time_share(open, 3, 0, 1000, -1, a), 0);
  check_account(&a[0], 1, 0, 3000000);
}

/* 2^53 + 3 is no double: the share is rounded up, beyond what there was to share. */
static void a_rounded_share_takes_nothing_from_the_next_heartbeat(void **state) {
  (void)state;
  const struct slot_window open[SLOT_WINDOWS] = {{.run = 1, .begin_ms = 0, .end_ms = INT64_MAX}};
  struct slot_account a[SLOT_WINDOWS];
  assert_int_equal(slot_time_share(open, 1000000, 0, 9000000000, 9007199254740995, a), 0);
  check_account(&a[0], 1, 9007199254740996, 9000000000000000000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slot_time_is_shared_between_runs_and_carried_over_jitter),
      cmocka_unit_test(a_new_run_ends_the_one_before_and_the_third_is_forgotten),
      cmocka_unit_test(only_the_windows_of_the_list_are_ended),
      cmocka_unit_test(only_time_within_the_window_counts),
      cmocka_unit_test(a_window_of_no_run_takes_nothing),
      cmocka_unit_test(what_does_not_fit_is_carried_up_to_a_tenth_of_a_second_of_each_slot),
      cmocka_unit_test(a_rounded_share_takes_nothing_from_the_next_heartbeat),
  };
  return cmocka_run_group_tests_name("coordinator/slot_time", tests, NULL, NULL);
}

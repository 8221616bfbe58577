/* decide/lag.h: how old a token may be, and how far sampling runs ahead. */
#include "services/coordinator/decide/lag.h"

#include "tests/unit/base/cm.h"

static void versions_within_the_range_may_be_sampled_from(void **state) {
  (void)state;
  static const struct {
    int64_t current, max_lag, oldest;
  } cases[] = {{0, 0, 0}, {0, 3, 0}, {2, 3, 0}, {3, 3, 0}, {4, 3, 1}, {9, 0, 9}, {1000, 1, 999}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(lag_oldest(cases[i].current, cases[i].max_lag), cases[i].oldest);
    for (int64_t v = 0; v <= cases[i].current + 2; v++) {
      const bool may = v >= cases[i].oldest && v <= cases[i].current;
      if (lag_may_sample(v, cases[i].current, cases[i].max_lag) != may) fail_msg("case %zu, version %d", i, (int)v);
    }
  }
}

static void sums_are_over_all_tokens(void **state) {
  (void)state;
  struct lag_sums s = {0};
  lag_add(&s, 3, false);
  assert_true(s.tokens == 1 && s.min == 3 && s.max == 3 && s.sum == 3 && s.compared == 0);
  lag_add(&s, 5, false);
  lag_add(&s, 0, true);
  lag_add(&s, 1, false);
  assert_true(s.tokens == 4 && s.min == 0 && s.max == 5 && s.sum == 9 && s.compared == 1);
}

static void sums_of_two_are_those_of_all_tokens(void **state) {
  (void)state;
  struct lag_sums a = {0}, b = {0}, all = {0};
  const struct lag_sums none = {0};
  static const int64_t lags[] = {3, 5, 1, 0, 4};
  for (int i = 0; i < 5; i++) {
    lag_add(i < 1 ? &a : &b, lags[i], lags[i] == 0);
    lag_add(&all, lags[i], lags[i] == 0);
  }
  struct lag_sums sums = none;
  lag_merge(&sums, &none);
  lag_merge(&sums, &a);
  lag_merge(&sums, &none);
  assert_true(sums.tokens == 1 && sums.min == 3 && sums.max == 3);
  lag_merge(&sums, &b);
  assert_true(sums.tokens == all.tokens && sums.min == all.min && sums.max == all.max && sums.sum == all.sum &&
              sums.compared == all.compared);
  assert_true(sums.min == 0 && sums.max == 5 && sums.compared == 1);
}

static void exact_are_those_behind_the_last_that_is_not_compared(void **state) {
  (void)state;
  static const bool compared[] = {true, false, true, true, false};
  static const int32_t from[] = {0, 0, 2, 2, 2, 5};
  for (size_t n = 0; n <= 5; n++) assert_int_equal(lag_exact_from(compared, n), from[n]);
  assert_int_equal(lag_exact_from(compared + 1, 1), 1);
}

static void groups_are_issued_up_to_both_bounds(void **state) {
  (void)state;
  static const struct {
    struct stream_state s;
    int64_t allowed;
  } cases[] = {
      {{.samples_ahead = 32, .samples = 8, .groups_ahead = 0, .groups_needed = 100}, 4},
      {{.samples_ahead = 39, .samples = 8, .groups_ahead = 1, .groups_needed = 100}, 3}, /* whole groups only */
      {{.samples_ahead = 32, .samples = 8, .groups_ahead = 4, .groups_needed = 100}, 0},
      {{.samples_ahead = 32, .samples = 8, .groups_ahead = 9, .groups_needed = 100}, 0},
      {{.samples_ahead = 32, .samples = 8, .groups_ahead = 1, .groups_needed = 3}, 2}, /* the run's end */
      {{.samples_ahead = 32, .samples = 8, .groups_ahead = 0, .groups_needed = 0}, 0},
      {{.samples_ahead = 7, .samples = 8, .groups_ahead = 0, .groups_needed = 5}, 1}, /* never dry */
      {{.samples_ahead = 7, .samples = 8, .groups_ahead = 1, .groups_needed = 5}, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const int64_t allowed = lag_groups_allowed(&cases[i].s);
    if (allowed != cases[i].allowed) fail_msg("case %zu: %d", i, (int)allowed);
  }
}

static void a_full_queue_drops_what_is_more_than_it_holds(void **state) {
  (void)state;
  static const struct {
    int64_t samples_ahead, samples, complete, dropped;
  } cases[] = {{32, 8, 3, 0}, {32, 8, 4, 0}, {32, 8, 5, 1}, {39, 8, 5, 1},
               {32, 8, 9, 5}, {8, 8, 2, 1},  {7, 8, 1, 0},  {7, 8, 2, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const int64_t n = lag_groups_dropped(cases[i].samples_ahead, cases[i].samples, cases[i].complete);
    if (n != cases[i].dropped) fail_msg("case %zu: %d", i, (int)n);
  }
}

static void a_run_is_held_after_sixteen_steps_of_groups_without_signal_and_256_at_least(void **state) {
  (void)state;
  assert_int_equal(lag_groups_without_signal(1), 256);
  assert_int_equal(lag_groups_without_signal(16), 256);
  assert_int_equal(lag_groups_without_signal(17), 272);
  assert_int_equal(lag_groups_without_signal(64), 1024);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(versions_within_the_range_may_be_sampled_from),
      cmocka_unit_test(sums_are_over_all_tokens),
      cmocka_unit_test(sums_of_two_are_those_of_all_tokens),
      cmocka_unit_test(exact_are_those_behind_the_last_that_is_not_compared),
      cmocka_unit_test(groups_are_issued_up_to_both_bounds),
      cmocka_unit_test(a_full_queue_drops_what_is_more_than_it_holds),
      cmocka_unit_test(a_run_is_held_after_sixteen_steps_of_groups_without_signal_and_256_at_least),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

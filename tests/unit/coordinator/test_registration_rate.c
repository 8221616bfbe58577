/* The buckets of registrations: how many at once, how many in time, who pays for whom. */
#include "tests/unit/base/cm.h"

#include <stdlib.h>

#include "services/coordinator/pool/registration_rate.h"

enum { BURST = 128, PER_S = 32 };

static int start(void **state) {
  *state = calloc(1, sizeof(struct registration_rate));
  return *state ? 0 : 1;
}

static int stop(void **state) {
  free(*state);
  return 0;
}

static int64_t taken(struct registration_rate *r, uint64_t key, int64_t tries, int64_t now_ms) {
  int64_t n = 0;
  for (int64_t i = 0; i < tries; i++) n += registration_rate_take(r, key, BURST, PER_S, now_ms) == 0;
  return n;
}

static void a_burst_then_the_rate(void **state) {
  assert_int_equal(taken(*state, 7, 1600, 1000), BURST);
  assert_int_equal(registration_rate_take(*state, 7, BURST, PER_S, 1000), 32); /* ms: a thousandth of a second over
                                                                                * 32 */
  assert_int_equal(registration_rate_take(*state, 7, BURST, PER_S, 1031), 1);
  assert_int_equal(registration_rate_take(*state, 7, BURST, PER_S, 1032), 0);
  assert_int_equal(taken(*state, 7, 100, 2032), PER_S);
  assert_int_equal(taken(*state, 7, 1000, 3600 * 1000 * 3), BURST); /* no more than the burst, however long the pause */
}

static void one_key_does_not_pay_for_another(void **state) {
  assert_int_equal(taken(*state, 7, 1600, 1000), BURST);
  assert_int_equal(taken(*state, 8, 3, 1000), 3);
  assert_int_equal(taken(*state, 7 + RATE_SETS, 3, 1000), 3); /* in the same corner of the table */
}

static void a_full_corner_forgets_what_was_asked_for_longest_ago(void **state) {
  for (uint64_t i = 0; i < RATE_WAYS; i++)
    assert_int_equal(taken(*state, 7 + i * RATE_SETS, 200, (int64_t)i + 1), BURST);
  assert_int_equal(taken(*state, 7 + RATE_WAYS * RATE_SETS, 1, 100), 1);
  assert_int_equal(taken(*state, 7 + (RATE_WAYS - 1) * RATE_SETS, 200, 101) < BURST, 1); /* the newest is remembered */
  assert_int_equal(taken(*state, 7, 200, 102), BURST);                                   /* the oldest is not */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_burst_then_the_rate, start, stop),
      cmocka_unit_test_setup_teardown(one_key_does_not_pay_for_another, start, stop),
      cmocka_unit_test_setup_teardown(a_full_corner_forgets_what_was_asked_for_longest_ago, start, stop),
  };
  return cmocka_run_group_tests_name("registration_rate", tests, NULL, NULL);
}

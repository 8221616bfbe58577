/* A time-out that counts only the time in which the waiter ran: it ends after its time, and standing still hardly
 * counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/comm/awake_timeout.h"

static void test_it_ends_after_its_time(void **state) {
  (void)state;
  struct awake_timeout t = awake_timeout_start(2500, 1000);
  int64_t now_us = 1000;
  for (int look = 0; look < 24; look++) assert_false(awake_timeout_expired(&t, now_us += 100000));
  assert_true(awake_timeout_expired(&t, now_us += 100000));
  assert_true(awake_timeout_expired(&t, now_us)); /* and stays so */
}

/* A waiter that stood still for an hour has not waited for an hour. */
static void test_standing_still_counts_little(void **state) {
  (void)state;
  struct awake_timeout t = awake_timeout_start(3000, 0);
  assert_false(awake_timeout_expired(&t, 3600000000));
  assert_false(awake_timeout_expired(&t, 7200000000));
  assert_true(awake_timeout_expired(&t, 10800000000));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_it_ends_after_its_time),
      cmocka_unit_test(test_standing_still_counts_little),
  };
  return cmocka_run_group_tests_name("comm/awake_timeout", tests, NULL, NULL);
}

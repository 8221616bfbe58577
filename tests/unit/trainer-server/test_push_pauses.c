/* Which servers are not pushed to for a while.  What would break: a server that drops what it is sent costs every round
 * its time; one that fails at once, or is reached again, is left out; one stands for another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "services/trainer-server/publish/push_pauses.h"

static void a_slow_failure_pauses_for_longer_and_longer(void **state) {
  (void)state;
  struct push_pauses p = {.count = 0};
  int64_t now = 1000;
  assert_int_equal(push_pause_left(&p, "w1", now), 0);
  for (int64_t times = PAUSE_TIMES; times < PAUSE_TIMES_MAX * 4; times *= 2) {
    const int64_t pause = 10000 * (times < PAUSE_TIMES_MAX ? times : PAUSE_TIMES_MAX);
    push_pause_note(&p, "w1", false, 10000, now);
    assert_int_equal(push_pause_left(&p, "w1", now), pause);
    assert_int_equal(push_pause_left(&p, "w1", now + pause - 1), 1);
    now += pause;
    assert_int_equal(push_pause_left(&p, "w1", now), 0);
  }
  assert_int_equal(push_pause_left(&p, "w2", 1000), 0);
}

static void a_failure_at_once_costs_nothing_and_pauses_for_nothing(void **state) {
  (void)state;
  struct push_pauses p = {.count = 0};
  push_pause_note(&p, "w1", false, 0, 1000);
  assert_int_equal(push_pause_left(&p, "w1", 1000), 0);
  push_pause_note(&p, "w1", false, 1, 1000);
  assert_int_equal(push_pause_left(&p, "w1", 1000), 2 * PAUSE_TIMES);
}

static void a_server_that_is_reached_begins_anew(void **state) {
  (void)state;
  struct push_pauses p = {.count = 0};
  for (int i = 0; i < 3; i++) push_pause_note(&p, "w1", false, 100, 1000);
  push_pause_note(&p, "w2", false, 100, 1000);
  push_pause_note(&p, "w1", true, 10000, 1000);
  assert_int_equal(push_pause_left(&p, "w1", 1000), 0);
  assert_int_equal(push_pause_left(&p, "w2", 1000), 100 * PAUSE_TIMES);
  push_pause_note(&p, "w1", false, 100, 1000);
  assert_int_equal(push_pause_left(&p, "w1", 1000), 100 * PAUSE_TIMES);
}

static void the_pause_that_ends_first_gives_its_place(void **state) {
  (void)state;
  struct push_pauses p = {.count = 0};
  char id[LIMIT_NAME_MAX];
  for (int i = 0; i < PAUSES_MAX; i++) {
    snprintf(id, sizeof id, "w%d", i);
    push_pause_note(&p, id, false, i == 7 ? 50 : 100 + i, 1000);
  }
  push_pause_note(&p, "new", false, 60, 1000);
  assert_int_equal(p.count, PAUSES_MAX);
  assert_int_equal(push_pause_left(&p, "w7", 1000), 0);
  assert_int_equal(push_pause_left(&p, "new", 1000), 60 * PAUSE_TIMES);
  assert_int_equal(push_pause_left(&p, "w8", 1000), 108 * PAUSE_TIMES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_slow_failure_pauses_for_longer_and_longer),
      cmocka_unit_test(a_failure_at_once_costs_nothing_and_pauses_for_nothing),
      cmocka_unit_test(a_server_that_is_reached_begins_anew),
      cmocka_unit_test(the_pause_that_ends_first_gives_its_place),
  };
  return cmocka_run_group_tests_name("trainer-server/push_pauses", tests, NULL, NULL);
}

/* A round's trace: the same whenever it is asked for, and no other round's. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/run/round_work.h"

static struct run_context made_of(int64_t run, int64_t created_ms, uint64_t seed) {
  return (struct run_context){.run = run, .created_ms = created_ms, .config = {.seed = seed}};
}

static void test_a_round_has_one_trace_and_no_other_has_it(void **state) {
  (void)state;
  const struct run_context x = made_of(7, 1000, 1), again = made_of(7, 1000, 1);
  const struct run_context others[] = {made_of(8, 1000, 1), made_of(7, 1001, 1), made_of(7, 1000, 2)};
  struct trace t, other;
  round_trace(&t, &x, 3);
  round_trace(&other, &again, 3); /* after a restart */
  assert_string_equal(t.id, other.id);
  assert_string_equal(t.span, other.span);
  round_trace(&other, &x, 4);
  assert_string_not_equal(t.id, other.id);
  for (int i = 0; i < 3; i++) {
    round_trace(&other, &others[i], 3);
    assert_string_not_equal(t.id, other.id);
  }
}

static void test_a_thread_works_for_a_round_or_a_group_and_nothing_else(void **state) {
  (void)state;
  const struct run_context x = made_of(7, 1000, 1);
  struct trace round, mine;
  round_trace(&round, &x, 12);
  log_context_id("r1.2.3.4-5");
  log_context_number(LOG_REQUEST, 9);
  round_work(&x, 12, 3);
  assert_string_equal(log_context_get(LOG_GROUP), "r7.12.3");
  assert_string_equal(log_context_get(LOG_LEASE), "");
  assert_string_equal(log_context_get(LOG_REQUEST), "");
  assert_true(trace_get(&mine));
  assert_string_equal(mine.id, round.id);
  round_work(&x, 12, -1);
  assert_string_equal(log_context_get(LOG_ROUND), "12");
  assert_string_equal(log_context_get(LOG_GROUP), "");
  log_context_clear();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_round_has_one_trace_and_no_other_has_it),
      cmocka_unit_test(test_a_thread_works_for_a_round_or_a_group_and_nothing_else),
  };
  return cmocka_run_group_tests_name("coordinator/round_work", tests, NULL, NULL);
}

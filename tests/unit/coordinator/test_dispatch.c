/* How samples become leases and groups become batches, beyond the plain cases of test_decisions.c. What would break: a
 * lease gets the fence of a lost one, or a sample that does not exist; more leases are planned than there is room
 * for. */
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/decide/dispatch.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

static void a_leases_fence_is_one_above_the_highest_of_its_samples(void **state) {
  (void)state;
  const int64_t fences[][4] = {{0, 0, 0, 1}, {3, 1, 2, 4}, {1, 3, 2, 4}, {1, 2, 3, 4}, {4, 4, 4, 5}, {4, 5, 4, 6}};
  for (size_t i = 0; i < sizeof fences / sizeof fences[0]; i++) {
    const int64_t *f = fences[i];
    const struct waiting_sample w[] = {{7, 0, f[0]}, {7, 1, f[1]}, {7, 2, f[2]}};
    struct planned_lease lease;
    assert_int_equal(dispatch_plan(w, 3, 3, 0, &lease, 1), 1);
    assert_int_equal(lease.count, 3);
    assert_int_equal(lease.fence, f[3]);
  }
}

static void a_plan_keeps_to_what_it_is_given(void **state) {
  (void)state;
  const struct waiting_sample w[] = {{0, 0, 0}, {0, 1, 0}, {1, 0, 0}};
  struct guarded waiting = guarded_copy(w, sizeof w);
  struct planned_lease unused[2] = {{0}};
  struct guarded out = guarded_copy(unused, sizeof unused);
  assert_int_equal(dispatch_plan(waiting.at, 3, 9, 0, out.at, 2), 2);
  const struct planned_lease *p = out.at;
  assert_int_equal(p[0].group, 0);
  assert_int_equal(p[0].first, 0);
  assert_int_equal(p[0].count, 2);
  assert_int_equal(p[1].group, 1);
  assert_int_equal(p[1].first, 0);
  assert_int_equal(p[1].count, 1);
  guarded_free(&out);
  guarded_free(&waiting);
}

static void a_full_plan_still_lengthens_its_last_lease(void **state) {
  (void)state;
  const struct waiting_sample w[] = {{0, 0, 0}, {0, 1, 0}, {1, 0, 0}};
  struct planned_lease lease;
  assert_int_equal(dispatch_plan(w, 3, 3, 0, &lease, 1), 1);
  assert_int_equal(lease.count, 2);
}

static void a_share_is_rounded_up_and_no_more_than_the_free_slots(void **state) {
  (void)state;
  assert_int_equal(dispatch_share(9, 3, 16, 0, 0), 3);
  assert_int_equal(dispatch_share(10, 3, 16, 0, 0), 4);
  assert_int_equal(dispatch_share(10, 3, 4, 0, 0), 4);
  assert_int_equal(dispatch_share(10, 3, 3, 0, 0), 3);
  assert_int_equal(dispatch_share(5, 1, 16, 0, 0), 5);
  assert_int_equal(dispatch_share(5, 0, 16, 0, 0), 5); /* the one that asks is ready */
  assert_int_equal(dispatch_share(0, 2, 16, 0, 0), 0);
}

static void who_holds_more_gets_less_and_never_nothing(void **state) {
  (void)state;
  assert_int_equal(dispatch_share(4, 2, 16, 0, 4), 4); /* the other one has four already */
  assert_int_equal(dispatch_share(4, 2, 16, 4, 4), 1);
  assert_int_equal(dispatch_share(4, 2, 16, 3, 5), 2);
  assert_int_equal(dispatch_share(5, 2, 16, 3, 5), 2);
  assert_int_equal(dispatch_share(6, 2, 16, 3, 5), 3);  /* rounded up */
  assert_int_equal(dispatch_share(2, 2, 16, 1, 60), 2); /* no more than what waits */
  assert_int_equal(dispatch_share(9, 2, 4, 0, 10), 4);
  assert_int_equal(dispatch_share(1, 2, 4, 99, 99), 1);
  assert_int_equal(dispatch_share(0, 2, 4, 0, 99), 0);
  assert_int_equal(dispatch_share(0, 2, 4, 99, 99), 0);
  assert_int_equal(dispatch_share(INT32_MAX, 1, 4, 0, INT32_MAX), 4);
}

static void a_batch_may_be_full_to_the_last_token(void **state) {
  (void)state;
  const int64_t tokens[] = {40, 50, 10, 1};
  struct guarded first = guarded_copy(tokens, sizeof tokens);
  assert_int_equal(batching_select(first.at, 4, 99), 2);
  assert_int_equal(batching_select(first.at, 4, 100), 3);
  assert_int_equal(batching_select(first.at, 4, 101), 4);
  guarded_free(&first);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_leases_fence_is_one_above_the_highest_of_its_samples),
      cmocka_unit_test(a_plan_keeps_to_what_it_is_given),
      cmocka_unit_test(a_full_plan_still_lengthens_its_last_lease),
      cmocka_unit_test(a_share_is_rounded_up_and_no_more_than_the_free_slots),
      cmocka_unit_test(who_holds_more_gets_less_and_never_nothing),
      cmocka_unit_test(a_batch_may_be_full_to_the_last_token),
  };
  return cmocka_run_group_tests_name("coordinator/dispatch", tests, NULL, NULL);
}

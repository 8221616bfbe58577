/* One rank alone: every operation of its comm succeeds at once and leaves the values as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/comm/comm.h"

static void test_one_rank_has_what_all_have(void **state) {
  (void)state;
  struct comm *c = comm_self();
  struct err err;
  const size_t begin[] = {0, 3};
  int64_t values[] = {5, -6, 7};
  assert_int_equal(c->rank, 0);
  assert_int_equal(c->size, 1);
  assert_int_equal(c->broadcast(c, values, sizeof values, 0, 1, &err), RC_OK);
  assert_int_equal(c->all_gather(c, values, begin, 1, &err), RC_OK);
  assert_int_equal(c->reduce_scatter(c, values, begin, 1, &err), RC_OK);
  assert_int_equal(c->all_reduce(c, values, 3, COMM_SUM, 1, &err), RC_OK);
  assert_int_equal(c->barrier(c, 1, &err), RC_OK);
  assert_true(values[0] == 5 && values[1] == -6 && values[2] == 7);
  assert_int_equal(c->check(c, &err), RC_OK);
  c->give_up(c);
  c->free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_rank_has_what_all_have),
  };
  return cmocka_run_group_tests_name("comm/comm_self", tests, NULL, NULL);
}

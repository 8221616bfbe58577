/* A slice of the simulation of frontier-group dispatch (all of it: make sim). What would break: a promise holds in
 * each decision alone, but not in whole rounds with lost servers, late messages and trainers that die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "tests/sim/world.h"

enum { CHAOS_SEEDS = 120 };

static void hundreds_of_simulated_rounds_keep_the_promises(void **state) {
  (void)state;
  struct world *w = world_create();
  struct world_result sum = {0};
  assert_non_null(w);
  for (uint64_t seed = 1000001; seed <= 1000000 + CHAOS_SEEDS && !sum.fault[0]; seed++) world_chaos(w, seed, &sum);
  world_destroy(w);
  assert_string_equal(sum.fault, "");
  assert_true(sum.regranted > 100 && sum.refused > 10 && sum.overtaken > 10 && sum.aged > 5); /* it was put to it */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hundreds_of_simulated_rounds_keep_the_promises),
  };
  return cmocka_run_group_tests_name("coordinator/simulation", tests, NULL, NULL);
}

/* A slice of the simulation of whole runs in virtual time (all of it: make sim).  What would break: a promise holds in each
 * command alone, but not in whole rounds with lost servers, lost messages and trainers that die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/sim/world.h"

/* Of make sim's: these have small rounds with accidents of every kind, one of them with several steps a round. */
static const uint64_t seeds[] = {2, 6, 10};

static void simulated_rounds_keep_the_promises(void **state) {
  static struct world_result sum;
  (void)state;
  struct world *w = world_create();
  assert_non_null(w);
  for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) world_chaos(w, seeds[i], &sum);
  world_destroy(w);
  assert_string_equal(sum.fault, "");
  assert_true(sum.regranted > 0 && sum.refused > 0 && sum.repeated > 0 && sum.partial > 0 && sum.resumed > 0);
  assert_true(sum.trainers > 20 && sum.inner_steps > 0 && sum.lost > 0);
}

/* Of make sim's: with samples of several versions, some too old, lost servers and trainers, evaluations that outlast rounds. */
static const uint64_t seeds_inflight[] = {3, 11, 27};

static void simulated_runs_in_flight_keep_the_promises(void **state) {
  static struct world_result sum;
  (void)state;
  struct world *w = world_create();
  assert_non_null(w);
  for (size_t i = 0; i < sizeof seeds_inflight / sizeof seeds_inflight[0]; i++)
    world_chaos_inflight(w, seeds_inflight[i], &sum);
  world_destroy(w);
  assert_string_equal(sum.fault, "");
  assert_true(sum.regranted > 0 && sum.refused > 0 && sum.trainers > 9 && sum.skipped > 0);
  assert_true(sum.swapped > 0 && sum.mixed > 0 && sum.again > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simulated_rounds_keep_the_promises),
      cmocka_unit_test(simulated_runs_in_flight_keep_the_promises),
  };
  return cmocka_run_group_tests_name("coordinator/simulation", tests, NULL, NULL);
}

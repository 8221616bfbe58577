/* A slice of the simulation of whole runs in virtual time (all of it: make sim).  What would break: a promise holds in
 * each command alone, but not in whole rounds with lost servers, lost messages and trainers that die; rounds are held
 * against a bound that some order passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/sim/clairvoyant.h"
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

/* Of make sim's: with samples of several versions, some too old, lost servers and trainers, evaluations that outlast
 * rounds. */
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

/* A step of one row was measured to be dearer than one of two. */
static void no_order_passes_the_bound_where_one_row_is_dear(void **state) {
  static const struct world_step steps[] = {{1, 3000}, {2, 1000}};
  static const struct world_config c = {.seed = 1,
                                        .kind = FRONTIER_PRIORITY,
                                        .groups = 2,
                                        .samples = 2,
                                        .servers = 1,
                                        .slots = 2,
                                        .steps = steps,
                                        .step_count = 2,
                                        .tokens_mean = 100,
                                        .tokens_max = 1000,
                                        .message_us = 100,
                                        .train_us_per_token = 1,
                                        .batch_tokens = 65536,
                                        .heartbeat_ms = 1000,
                                        .worker_ttl_ms = 10000,
                                        .lease_ttl_ms = 30000,
                                        .aging_ms = 30000};
  (void)state;
  struct world *w = world_create();
  assert_non_null(w);
  const double bound_us = clairvoyant_bound(&c);
  const int64_t end_us = clairvoyant_end(w, &c, 20);
  world_destroy(w);
  assert_true(bound_us >= 2 * 100 * 1000); /* two rows from beginning to end */
  if (bound_us > (double)end_us) fail_msg("the bound is %.0f us, and a round took %lld", bound_us, (long long)end_us);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simulated_rounds_keep_the_promises),
      cmocka_unit_test(simulated_runs_in_flight_keep_the_promises),
      cmocka_unit_test(no_order_passes_the_bound_where_one_row_is_dear),
  };
  return cmocka_run_group_tests_name("coordinator/simulation", tests, NULL, NULL);
}

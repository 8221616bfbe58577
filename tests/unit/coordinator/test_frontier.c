/* Frontier-group dispatch, decision by decision, and a slice of the simulation (all of it: make sim).  What would
 * break: the trainer waits for a lost sample that is served last, a gate that lets others through or never opens,
 * evaluation before training, an estimate that starves a group, whole rounds ordered by age, a frontier larger than a
 * poll reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "common/base/limits.h"
#include "services/coordinator/decide/dispatch.h"
#include "services/coordinator/decide/frontier.h"

/* A test program links its module only. */
#include "tests/sim/world.c"
#include "tests/sim/world_coordinator.c"
#include "tests/sim/world_pool.c"

enum { CHAOS_SEEDS = 120 };

static const struct frontier_policy priority = {
    .kind = FRONTIER_PRIORITY, .end = 6, .aging_ms = 1000, .now_ms = 50000, .tokens_prior = 100};

/* Indices in `order`, as one decimal number: 312 is 3, 1, 2. */
static int order_digits(const struct waiting_group *groups, int n, const struct frontier_policy *p) {
  int32_t order[8];
  int digits = 0;
  const int count = frontier_order(groups, n, p, order);
  assert_in_range(count, 0, n);
  for (int i = 0; i < count; i++) digits = 10 * digits + order[i];
  return digits;
}

static void untouched_groups_go_by_ordinal_whoever_waits_longer(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 0, .waiting = 8},
                                    {.ordinal = 3, .waiting = 8, .waiting_since_ms = 40000},
                                    {.ordinal = 5, .waiting = 8, .waiting_since_ms = 1},
                                    {.ordinal = 6, .waiting = 1, .waiting_since_ms = 1},
                                    {.ordinal = 7, .waiting = 8}};
  assert_int_equal(order_digits(g, 5, &priority), 1234);
}

static void what_lacks_least_goes_first_within_the_frontier_only(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 1, .waiting = 8},
      {.ordinal = 2, .waiting = 2, .leased = 2, .done = 4, .done_tokens = 4 * 500}, /* 1000 tokens to come */
      {.ordinal = 3, .waiting = 2, .leased = 6},                                    /* 200, by the prior */
      {.ordinal = 4, .waiting = 3, .done = 5, .done_tokens = 5 * 60},               /* 180 */
      {.ordinal = 6, .waiting = 1, .done = 7, .done_tokens = 7}};                   /* 1, but behind the frontier */
  struct frontier_policy p = priority;
  assert_int_equal(order_digits(g, 5, &p), 32014);
  p.tokens_prior = 0; /* no length is known: fewest waiting samples first */
  assert_int_equal(order_digits(g, 5, &p), 12304);
  p.end = INT32_MAX; /* nothing is behind */
  p.tokens_prior = 100;
  assert_int_equal(order_digits(g, 5, &p), 43201);
}

static void a_gate_stops_behind_the_frontier(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 5, .waiting = 8}, {.ordinal = 6, .waiting = 1}, {.ordinal = 9000, .waiting = 4, .evaluation = true}};
  struct frontier_policy p = priority;
  int32_t order[3];
  p.kind = FRONTIER_GATE;
  assert_int_equal(frontier_order(g, 3, &p, order), 1);
  assert_int_equal(order[0], 0);
  assert_int_equal(frontier_order(g + 1, 2, &p, order), 0); /* shut: evaluation would take the slots that open next */
  assert_int_equal(frontier_order(g + 2, 1, &p, order), 1); /* no training group waits */
  const struct waiting_group old = {
      .ordinal = 6, .waiting = 1, .overtaken_since_ms = 1}; /* when it was in the frontier */
  assert_int_equal(frontier_order(&old, 1, &p, order), 0);
}

static void off_is_first_come_first_served(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 9000, .waiting = 4, .waiting_since_ms = 5, .evaluation = true},
                                    {.ordinal = 1, .waiting = 1, .waiting_since_ms = 900, .overtaken_since_ms = 1},
                                    {.ordinal = 4, .waiting = 8, .waiting_since_ms = 10},
                                    {.ordinal = 7, .waiting = 1, .waiting_since_ms = 10}};
  struct frontier_policy p = priority;
  p.kind = FRONTIER_OFF;
  assert_int_equal(order_digits(g, 4, &p), 2310);
}

static void evaluation_never_delays_training(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 0, .waiting = 1, .waiting_since_ms = 1, .overtaken_since_ms = 1, .evaluation = true},
      {.ordinal = 8, .waiting = 8}};
  assert_int_equal(order_digits(g, 2, &priority), 10);
}

static void the_overtaken_go_first_once_they_are_of_age(void **state) {
  (void)state;
  struct waiting_group g[] = {{.ordinal = 1, .waiting = 8, .overtaken_since_ms = 49001},
                              {.ordinal = 2, .waiting = 1, .done = 7, .done_tokens = 7},
                              {.ordinal = 3, .waiting = 8, .overtaken_since_ms = 40000},
                              {.ordinal = 4, .waiting = 8, .overtaken_since_ms = 30000}};
  assert_int_equal(order_digits(g, 4, &priority), 3210);
  g[0].overtaken_since_ms = 49000; /* now of age too, the youngest of them */
  assert_int_equal(order_digits(g, 4, &priority), 3201);
}

static void overtaken_is_who_still_waits_below_a_training_group_that_was_served(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 0, .waiting = 2, .evaluation = true},      {.ordinal = 1, .waiting = 3}, {.ordinal = 2, .waiting = 2},
      {.ordinal = 3, .waiting = 2, .overtaken_since_ms = 7}, {.ordinal = 4, .waiting = 2}, {.ordinal = 5, .waiting = 2},
      {.ordinal = 9000, .waiting = 2, .evaluation = true}};
  const int32_t granted[] = {0, 1, 2, 0, 1, 0, 0}, in_order[] = {0, 3, 1, 0, 0, 0, 0};
  const int32_t evaluation[] = {0, 3, 2, 2, 2, 1, 1};
  int32_t overtaken[7];
  assert_int_equal(frontier_overtaken(g, 7, granted, overtaken), 1); /* 2 is served out, 3 is known, 4 is the highest */
  assert_int_equal(overtaken[0], 1);
  assert_int_equal(frontier_overtaken(g, 7, in_order, overtaken), 0);
  assert_int_equal(frontier_overtaken(g, 7, evaluation, overtaken), 0);
}

static void leases_are_cut_in_the_frontiers_order(void **state) {
  (void)state;
  const struct waiting_sample w[] = {{5, 0, 2}, {1, 1, 0}, {1, 2, 0}, {3, 4, 1}};
  struct planned_lease p[4];
  assert_int_equal(dispatch_plan(w, 4, 3, 0, p, 4), 2);
  assert_int_equal(p[0].group, 5);
  assert_int_equal(p[0].fence, 3);
  assert_int_equal(p[1].group, 1);
  assert_int_equal(p[1].count, 2);
}

static void the_frontier_is_what_the_trainer_drains_meanwhile_and_one(void **state) {
  (void)state;
  assert_int_equal(frontier_size(0, 50, 96), FRONTIER_SIZE_DEFAULT);
  assert_int_equal(frontier_size(0.16, 0, 96), FRONTIER_SIZE_DEFAULT);
  assert_int_equal(frontier_size(0, 0, 1), 1);
  assert_int_equal(frontier_size(0.5, 10, 96), 6);
  assert_int_equal(frontier_size(0.16, 50.5, 96), 10);
  assert_int_equal(frontier_size(1e-9, 1e-9, 96), 2);
  assert_int_equal(frontier_size(1e9, 1e9, 96), 96);
  assert_int_equal(frontier_size(1e9, 1e300, LIMIT_GROUPS_PER_ROUND), FRONTIER_CANDIDATES_MAX);
  assert_int_equal(frontier_size(1, 1, 0), 1);
}

static void rates_are_weighted_and_fade(void **state) {
  (void)state;
  struct rate r = {0};
  assert_true(rate_value(&r) == 0);
  rate_note(&r, 3, 1, 5000);
  assert_true(rate_value(&r) == 3);
  rate_note(&r, 1, 3, 5000); /* four in four */
  assert_true(rate_value(&r) == 1);
  rate_note(&r, 40, 4, 5000 + 3600000); /* an hour later only the new one counts */
  assert_true(rate_value(&r) > 9.99 && rate_value(&r) <= 10);
  rate_note(&r, 4, 4, 0); /* a clock that went back fades nothing */
  assert_true(rate_value(&r) > 5.49 && rate_value(&r) < 5.51);
}

static void hundreds_of_rounds_keep_the_promises(void **state) {
  (void)state;
  struct world *w = malloc(world_bytes());
  struct world_result sum = {0};
  assert_non_null(w);
  for (uint64_t seed = 1000001; seed <= 1000000 + CHAOS_SEEDS && !sum.fault[0]; seed++) world_chaos(w, seed, &sum);
  free(w);
  assert_string_equal(sum.fault, "");
  assert_true(sum.regranted > 100 && sum.refused > 10 && sum.overtaken > 10 && sum.aged > 5); /* it was put to it */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(untouched_groups_go_by_ordinal_whoever_waits_longer),
      cmocka_unit_test(what_lacks_least_goes_first_within_the_frontier_only),
      cmocka_unit_test(a_gate_stops_behind_the_frontier),
      cmocka_unit_test(off_is_first_come_first_served),
      cmocka_unit_test(evaluation_never_delays_training),
      cmocka_unit_test(the_overtaken_go_first_once_they_are_of_age),
      cmocka_unit_test(overtaken_is_who_still_waits_below_a_training_group_that_was_served),
      cmocka_unit_test(leases_are_cut_in_the_frontiers_order),
      cmocka_unit_test(the_frontier_is_what_the_trainer_drains_meanwhile_and_one),
      cmocka_unit_test(rates_are_weighted_and_fade),
      cmocka_unit_test(hundreds_of_rounds_keep_the_promises),
  };
  return cmocka_run_group_tests_name("coordinator/frontier", tests, NULL, NULL);
}

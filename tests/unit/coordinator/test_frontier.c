/* Frontier-group dispatch, decision by decision (test_simulation.c has whole rounds). What would break: the trainer
 * waits for a lost sample that is served last, a gate lets others through or never opens, evaluation goes before
 * training, an estimate starves a group, whole rounds are ordered by age, the frontier is larger than a poll reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/base/limits.h"
#include "services/coordinator/decide/dispatch.h"
#include "services/coordinator/decide/frontier.h"
#include "tests/unit/base/guarded.h"

static const struct frontier_policy priority = {
    .kind = FRONTIER_PRIORITY, .end = 6, .aging_ms = 1000, .now_ms = 50000, .tokens_prior = 100};

/* Exactly `want` comes out, and no memory but n groups and n places is touched. */
static void check_order(const struct waiting_group *groups, int n, const struct frontier_policy *p, const int32_t *want,
                        int count) {
  struct guarded given = guarded_copy(groups, (size_t)n * sizeof *groups),
                 places = guarded_copy(NULL, (size_t)n * sizeof *want);
  const int32_t *order = places.at;
  assert_int_equal(frontier_order(given.at, n, p, places.at), count);
  for (int i = 0; i < count; i++) {
    if (order[i] != want[i]) fail_msg("place %d: expected group %d, got %d", i, want[i], order[i]);
  }
  guarded_free(&places);
  guarded_free(&given);
}
#define CHECK_ORDER(groups, n, policy, ...)                      \
  check_order(groups, n, policy, (const int32_t[]){__VA_ARGS__}, \
              (int)(sizeof(const int32_t[]){__VA_ARGS__} / sizeof(int32_t)))

static void untouched_groups_go_by_ordinal_not_by_waiting_time(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 0, .waiting = 8},
                                    {.ordinal = 3, .waiting = 8, .waiting_since_ms = 40000},
                                    {.ordinal = 5, .waiting = 8, .waiting_since_ms = 1},
                                    {.ordinal = 6, .waiting = 1, .waiting_since_ms = 1},
                                    {.ordinal = 7, .waiting = 8}};
  CHECK_ORDER(g, 5, &priority, 0, 1, 2, 3, 4);
}

static void a_planned_order_is_kept_but_for_age(void **state) {
  (void)state;
  struct frontier_policy p = priority;
  p.end = INT32_MAX;
  p.planned = true;
  const struct waiting_group g[] = {{.ordinal = 0, .place = 4, .waiting = 1},
                                    {.ordinal = 1, .place = 3, .waiting = 8},
                                    {.ordinal = 2, .place = 1, .waiting = 8},
                                    {.ordinal = 3, .place = 2, .waiting = 8, .overtaken_since_ms = 49001},
                                    {.ordinal = 4, .waiting = 1},
                                    {.ordinal = 9000, .waiting = 1, .evaluation = true}}; /* 4 is a refill: unplanned */
  CHECK_ORDER(g, 6, &p, 2, 3, 1, 0, 4, 5);
  p.now_ms++; /* now it has been overtaken for long enough */
  CHECK_ORDER(g, 6, &p, 3, 2, 1, 0, 4, 5);
  p.end = 2; /* places, from 0 */
  p.now_ms--;
  p.kind = FRONTIER_GATE;
  CHECK_ORDER(g, 6, &p, 2, 3);
  int32_t overtaken[6] = {0};
  assert_int_equal(frontier_overtaken(g, 6, (const int32_t[]){0, 8, 0, 0, 0, 0}, overtaken), 1);
  assert_int_equal(overtaken[0], 2); /* 3 was overtaken before, and 0 is behind */
}

static void the_group_that_lacks_least_goes_first_within_the_frontier_only(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 1, .waiting = 8},
      {.ordinal = 2, .waiting = 2, .leased = 2, .done = 4, .done_tokens = 4 * 500}, /* 1000 tokens to come */
      {.ordinal = 3, .waiting = 2, .leased = 6},                                    /* 200, by the prior */
      {.ordinal = 4, .waiting = 3, .done = 5, .done_tokens = 5 * 60},               /* 180 */
      {.ordinal = 6, .waiting = 1, .done = 7, .done_tokens = 7}};                   /* 1, but behind the frontier */
  struct frontier_policy p = priority;
  CHECK_ORDER(g, 5, &p, 3, 2, 0, 1, 4);
  p.tokens_prior = 0; /* no length is known: fewest waiting samples first */
  CHECK_ORDER(g, 5, &p, 1, 2, 3, 0, 4);
  p.end = INT32_MAX; /* nothing is behind */
  p.tokens_prior = 100;
  CHECK_ORDER(g, 5, &p, 4, 3, 2, 0, 1);
}

static void a_prior_of_a_single_token_is_known_too(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 1, .waiting = 3, .done = 5, .done_tokens = 5 * 10},
                                    {.ordinal = 2, .waiting = 7}};
  struct frontier_policy p = priority;
  p.tokens_prior = 1;
  CHECK_ORDER(g, 2, &p, 1, 0); /* 7 tokens against 30 */
}

static void an_overtaken_group_keeps_its_place_until_it_is_of_age(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 1, .waiting = 8, .overtaken_since_ms = 49500},
                                    {.ordinal = 2, .waiting = 1, .overtaken_since_ms = 49600}};
  CHECK_ORDER(g, 2, &priority, 1, 0);
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

static void without_a_frontier_groups_go_first_come_first_served(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 9000, .waiting = 4, .waiting_since_ms = 5, .evaluation = true},
                                    {.ordinal = 1, .waiting = 1, .waiting_since_ms = 900, .overtaken_since_ms = 1},
                                    {.ordinal = 4, .waiting = 8, .waiting_since_ms = 10},
                                    {.ordinal = 7, .waiting = 1, .waiting_since_ms = 10}};
  struct frontier_policy p = priority;
  p.kind = FRONTIER_OFF;
  CHECK_ORDER(g, 4, &p, 2, 3, 1, 0);
}

static void evaluation_never_delays_training(void **state) {
  (void)state;
  const struct waiting_group g[] = {
      {.ordinal = 0, .waiting = 1, .waiting_since_ms = 1, .overtaken_since_ms = 1, .evaluation = true},
      {.ordinal = 8, .waiting = 8}};
  CHECK_ORDER(g, 2, &priority, 1, 0);
}

static void overtaken_groups_go_first_once_they_are_of_age(void **state) {
  (void)state;
  struct waiting_group g[] = {{.ordinal = 1, .waiting = 8, .overtaken_since_ms = 49001},
                              {.ordinal = 2, .waiting = 1, .done = 7, .done_tokens = 7},
                              {.ordinal = 3, .waiting = 8, .overtaken_since_ms = 40000},
                              {.ordinal = 4, .waiting = 8, .overtaken_since_ms = 30000}};
  CHECK_ORDER(g, 4, &priority, 3, 2, 1, 0);
  g[0].overtaken_since_ms = 49000; /* now of age too, the youngest of them */
  CHECK_ORDER(g, 4, &priority, 3, 2, 0, 1);
}

static void a_group_that_waits_is_overtaken_by_a_later_training_group(void **state) {
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

static void every_given_group_is_judged_for_being_overtaken(void **state) {
  (void)state;
  /* The first and the last row are nobody's: only the middle three are given. */
  const struct waiting_group g[] = {{.ordinal = 9, .waiting = 5},
                                    {.ordinal = 4, .waiting = 5},
                                    {.ordinal = 2, .waiting = 5},
                                    {.ordinal = 5, .waiting = 5},
                                    {.ordinal = 8, .waiting = 5}};
  const int32_t first[] = {1, 1, 0, 0, 1}, last[] = {1, 0, 0, 1, 1}, none[] = {1, 0, 0, 0, 1};
  int32_t overtaken[3] = {-1, -1, -1};
  assert_int_equal(frontier_overtaken(g + 1, 3, first + 1, overtaken), 1);
  assert_int_equal(overtaken[0], 1);
  assert_int_equal(frontier_overtaken(g + 1, 3, last + 1, overtaken), 2);
  assert_int_equal(overtaken[0], 0);
  assert_int_equal(overtaken[1], 1);
  assert_int_equal(overtaken[2], -1);
  assert_int_equal(frontier_overtaken(g + 1, 3, none + 1, overtaken), 0);
}

/* Here the first and the last row, which are not given either, would be overtaken. */
static void a_group_that_was_not_given_is_not_overtaken(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 1, .waiting = 5},
                                    {.ordinal = 4, .waiting = 5},
                                    {.ordinal = 9, .waiting = 5},
                                    {.ordinal = 2, .waiting = 5}};
  const int32_t granted[] = {0, 0, 1, 0};
  int32_t overtaken[4] = {-1, -1, -1, -1};
  assert_int_equal(frontier_overtaken(g + 1, 2, granted + 1, overtaken), 1);
  assert_int_equal(overtaken[0], 0);
  assert_int_equal(overtaken[1], -1);
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

static void the_frontier_is_one_more_than_the_trainer_drains_meanwhile(void **state) {
  (void)state;
  assert_int_equal(frontier_size(0, 50, 96), FRONTIER_SIZE_DEFAULT);
  assert_int_equal(frontier_size(0.16, 0, 96), FRONTIER_SIZE_DEFAULT);
  assert_int_equal(frontier_size(0, 0, 1), 1);
  assert_int_equal(frontier_size(0.5, 10, 96), 6);
  assert_int_equal(frontier_size(4, 0.5, 96), 3);
  assert_int_equal(frontier_size(0.5, 10, 6), 6);
  assert_int_equal(frontier_size(0.5, 10, 5), 5);
  assert_int_equal(frontier_size(0.16, 50.5, 96), 10);
  assert_int_equal(frontier_size(1e-9, 1e-9, 96), 2);
  assert_int_equal(frontier_size(1e9, 1e9, 96), 96);
  assert_int_equal(frontier_size(1e9, 1e300, LIMIT_GROUPS_PER_ROUND), FRONTIER_CANDIDATES_MAX);
  assert_int_equal(frontier_size(1, 1, 0), 1);
}

static void a_rate_halves_in_two_minutes(void **state) {
  (void)state;
  struct rate r = {0};
  rate_note(&r, 3, 1, 5000);
  rate_note(&r, 0, 0.5, 5000 + 120000);
  assert_true(r.amount == 1.5);
  assert_true(r.per == 1);
  assert_true(rate_value(&r) == 1.5);
  assert_int_equal(r.at_ms, 125000);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(untouched_groups_go_by_ordinal_not_by_waiting_time),
      cmocka_unit_test(a_planned_order_is_kept_but_for_age),
      cmocka_unit_test(the_group_that_lacks_least_goes_first_within_the_frontier_only),
      cmocka_unit_test(a_prior_of_a_single_token_is_known_too),
      cmocka_unit_test(an_overtaken_group_keeps_its_place_until_it_is_of_age),
      cmocka_unit_test(a_gate_stops_behind_the_frontier),
      cmocka_unit_test(without_a_frontier_groups_go_first_come_first_served),
      cmocka_unit_test(evaluation_never_delays_training),
      cmocka_unit_test(overtaken_groups_go_first_once_they_are_of_age),
      cmocka_unit_test(a_group_that_waits_is_overtaken_by_a_later_training_group),
      cmocka_unit_test(every_given_group_is_judged_for_being_overtaken),
      cmocka_unit_test(a_group_that_was_not_given_is_not_overtaken),
      cmocka_unit_test(leases_are_cut_in_the_frontiers_order),
      cmocka_unit_test(the_frontier_is_one_more_than_the_trainer_drains_meanwhile),
      cmocka_unit_test(a_rate_halves_in_two_minutes),
      cmocka_unit_test(rates_are_weighted_and_fade),
  };
  return cmocka_run_group_tests_name("coordinator/frontier", tests, NULL, NULL);
}

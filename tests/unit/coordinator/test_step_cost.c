/* What a step costs by its rows.  What would break: rounds planned with a cost that was never measured, one that falls
 * as rows are added, one of a model that is gone, sums that lie about their slot. */
#include "services/coordinator/decide/step_cost.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

enum { HALF_LIFE_MS = 300000 };

static void close_to(double got, double want) {
  if (!(got > want - 1e-6 && got < want + 1e-6)) fail_msg("%.9f is not %.9f", got, want);
}

static void the_cost_is_read_between_the_means_and_beyond_them(void **state) {
  (void)state;
  struct step_costs c = {0};
  assert_false(step_costs_known(&c));
  step_costs_note(&c, 1, 10, 20, 3000, 5); /* 2 rows: 300 */
  assert_false(step_costs_known(&c));
  step_costs_note(&c, 3, 10, 60, 5000, 5); /* 6 rows: 500 */
  assert_true(step_costs_known(&c));
  close_to(step_costs_us(&c, 2), 300);
  close_to(step_costs_us(&c, 3), 350);
  close_to(step_costs_us(&c, 6), 500);
  close_to(step_costs_us(&c, 10), 700);
  close_to(step_costs_us(&c, 1), 300);       /* not less than what was seen */
  step_costs_note(&c, 4, 10, 160, 25000, 5); /* 16 rows: 2500, a steeper line */
  close_to(step_costs_us(&c, 5), 450);
  close_to(step_costs_us(&c, 11), 1500);
  close_to(step_costs_us(&c, 17), 2700);
}

static void more_rows_never_cost_less(void **state) {
  (void)state;
  struct step_costs c = {0};
  step_costs_note(&c, 0, 10, 10, 4000, 0);
  step_costs_note(&c, 2, 10, 40, 3000, 0);
  step_costs_note(&c, 3, 10, 80, 8000, 0);
  close_to(step_costs_us(&c, 1), 400);
  close_to(step_costs_us(&c, 4), 400);
  close_to(step_costs_us(&c, 6), 600);
}

static void the_past_fades_by_half(void **state) {
  (void)state;
  struct step_costs c = {0};
  step_costs_note(&c, 0, 100, 100, 10000, 1000);
  step_costs_note(&c, 1, 100, 200, 30000, 1000);
  step_costs_note(&c, 0, 50, 50, 20000, 1000 + HALF_LIFE_MS); /* 50 of 100, 50 of 400 */
  close_to(step_costs_us(&c, 1), 250);
  close_to(step_costs_us(&c, 2), 300);
  step_costs_note(&c, 0, 100, 100, 25000, 1000); /* a clock that is behind fades nothing, and does not go back */
  close_to(step_costs_us(&c, 1), 250);
  close_to(c.slots[0].steps, 200);
  close_to(c.slots[0].rows, 200);
  close_to(c.slots[1].rows, 100);
  assert_int_equal(c.at_ms, 1000 + HALF_LIFE_MS);
}

static void what_has_faded_away_is_not_known(void **state) {
  (void)state;
  struct step_costs c = {0};
  step_costs_note(&c, 0, 1, 1, 100, 0);
  step_costs_note(&c, 1, 2, 4, 400, 0);
  assert_false(step_costs_known(&c)); /* one step is none */
  step_costs_note(&c, 0, 1, 1, 100, 0);
  assert_true(step_costs_known(&c));
  step_costs_note(&c, 2, 2, 8, 900, 1);
  step_costs_note(&c, 5, 2, 40, 900, 1);
  assert_true(step_costs_known(&c)); /* of the last two */
  close_to(step_costs_us(&c, 1), 450);
}

/* Its bits are a number that would do for steps, and nothing lies behind it. */
static void the_time_is_no_slot(void **state) {
  (void)state;
  const struct step_costs late = {.at_ms = 0x4059000000000000};
  struct guarded g = guarded_copy(&late, sizeof late);
  assert_false(step_costs_known(g.at));
  guarded_free(&g);
}

static void sums_that_cannot_be_are_left_out(void **state) {
  (void)state;
  struct step_costs c = {0};
  step_costs_note(&c, -1, 10, 10, 100, 0);
  step_costs_note(&c, STEP_COST_SLOTS, 10, 1000000, 100, 0);
  step_costs_note(&c, 0, 0, 0, 100, 0);
  step_costs_note(&c, 0, 10, 10, 0, 0);
  step_costs_note(&c, 0, -10, -10, 100, 0);
  step_costs_note(&c, 0, 10, 0, 100, 0);  /* no rows */
  step_costs_note(&c, 0, 10, 11, 100, 0); /* more than one row */
  step_costs_note(&c, STEP_COST_SLOTS - 2, 10, 10 * 16385, 100, 0);
  step_costs_note(&c, 2, 10, 20, 100, 0); /* two rows belong to slot 1 */
  step_costs_note(&c, 2, 10, 41, 100, 0);
  for (int i = 0; i < STEP_COST_SLOTS; i++) assert_true(c.slots[i].steps == 0 && c.slots[i].us == 0);
  struct step_costs two[2] = {0};
  step_costs_note(&two[1], -1, 10, 4, 100, 0); /* what half a row would be */
  assert_true(two[0].at_ms == 0 && two[0].slots[STEP_COST_SLOTS - 1].us == 0);
  step_costs_note(&c, 2, 10, 21, 100, 0);
  step_costs_note(&c, 3, 10, 80, 100, 0);
  step_costs_note(&c, 0, 10, 10, 1, 0);
  step_costs_note(&c, 1, 1, 2, 100, 0);
  step_costs_note(&c, STEP_COST_SLOTS - 1, 10, 1000000, 100, 0); /* the last slot has no end */
  assert_true(c.slots[0].steps == 10 && c.slots[1].steps == 1 && c.slots[2].steps == 10 && c.slots[3].steps == 10);
  assert_true(c.slots[STEP_COST_SLOTS - 1].steps == 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_cost_is_read_between_the_means_and_beyond_them),
      cmocka_unit_test(more_rows_never_cost_less),
      cmocka_unit_test(the_past_fades_by_half),
      cmocka_unit_test(what_has_faded_away_is_not_known),
      cmocka_unit_test(the_time_is_no_slot),
      cmocka_unit_test(sums_that_cannot_be_are_left_out),
  };
  return cmocka_run_group_tests_name("coordinator/step_cost", tests, NULL, NULL);
}

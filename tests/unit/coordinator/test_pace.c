/* What a round is planned with, and when it is.  What would break: a heartbeat's sums counted twice, another run's
 * lengths, lengths that are known or remembered and not used, a plan that changes within its round, a ramp finer than
 * anybody looks, a round planned unasked. */
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/pool/pace.h"
#include "tests/unit/base/cm.h"

enum { GROUPS = 12, SAMPLES = 4, SLOTS = 48 };

static struct pace *pace_new(void) {
  struct pace *p = calloc(1, sizeof *p);
  assert_non_null(p);
  return p;
}

static void sums_are_counted_once(void **state) {
  (void)state;
  struct pace *p = pace_new();
  struct steps_seen seen = {0}, other = {0};
  const struct step_sum first[] = {{0, 10, 10, 1000}, {2, 4, 16, 900}}, next[] = {{0, 15, 15, 2000}, {2, 4, 16, 900}};
  pace_note_steps(p, &seen, first, 2, 0);
  pace_note_steps(p, &seen, first, 2, 0);
  assert_true(p->costs.slots[0].steps == 10 && p->costs.slots[2].steps == 4);
  pace_note_steps(p, &seen, next, 2, 0);
  assert_true(p->costs.slots[0].steps == 15 && p->costs.slots[0].us == 2000 && p->costs.slots[2].rows == 16);
  pace_note_steps(p, &other, first, 2, 0); /* another server's */
  assert_true(p->costs.slots[0].steps == 25);
  pace_note_steps(p, &other, NULL, 0, 0); /* it does not measure any more */
  assert_true(p->costs.slots[0].steps == 25);
  free(p);
}

static void lengths_are_the_last_groups_of_one_run(void **state) {
  (void)state;
  struct pace *p = pace_new();
  const int32_t a[] = {1, 2}, b[] = {3, 4}, longer[] = {5, 6, 7};
  pace_note_group(p, 7, a, 2);
  pace_note_group(p, 7, b, 2);
  assert_int_equal(p->groups, 2);
  assert_true(p->lengths[0] == 1 && p->lengths[1] == 2 && p->lengths[2] == 3 && p->lengths[3] == 4);
  for (int i = 0; i < ADMISSION_GROUPS_MAX - 2; i++) pace_note_group(p, 7, a, 2);
  assert_int_equal(p->groups, ADMISSION_GROUPS_MAX);
  pace_note_group(p, 7, b, 2); /* in the place of the first */
  assert_int_equal(p->groups, ADMISSION_GROUPS_MAX);
  assert_true(p->lengths[0] == 3 && p->lengths[2] == 3);
  pace_note_group(p, 7, longer, 3);
  assert_int_equal(p->groups, 1);
  pace_note_group(p, 8, longer, 3);
  assert_int_equal(p->groups, 1);
  assert_int_equal(p->run, 8);
  pace_note_group(p, 8, longer, 0);
  assert_int_equal(p->groups, 1);
  int32_t *many = calloc(ADMISSION_SAMPLES_MAX + 1, sizeof *many);
  assert_non_null(many);
  pace_note_group(p, 8, many, ADMISSION_SAMPLES_MAX + 1);
  assert_int_equal(p->samples, 3);
  pace_note_group(p, 8, many, ADMISSION_SAMPLES_MAX);
  pace_note_group(p, 8, many, ADMISSION_SAMPLES_MAX);
  assert_int_equal(p->groups, 1); /* no more fit */
  free(many);
  free(p);
}

/* Rows are dear, and a trainer's group takes seconds. */
static struct pace *measured(void) {
  struct pace *p = pace_new();
  struct steps_seen seen = {0};
  for (int slot = 0, rows = 1; slot < 7; slot++, rows *= 2) {
    const struct step_sum sum = {slot, 10, 10 * rows, 10 * (20000 + 2000 * rows)};
    pace_note_steps(p, &seen, &sum, 1, 0);
  }
  for (int g = 0; g < GROUPS; g++) {
    const int32_t lengths[SAMPLES] = {90 + g, 100, 105, 95};
    pace_note_group(p, 7, lengths, SAMPLES);
  }
  return p;
}
static const float longest[GROUPS + 1] = {200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200};
static const struct pace_round dear = {.run = 7,
                                       .round = 3,
                                       .wanted = true,
                                       .groups = GROUPS,
                                       .samples = SAMPLES,
                                       .servers = 1,
                                       .slots = SLOTS,
                                       .groups_per_s = 0.5,
                                       .tokens = 100,
                                       .most = longest};

static void a_round_is_planned_once(void **state) {
  (void)state;
  struct pace *p = measured();
  struct pace_round r = dear;
  const struct admission_plan *plan = pace_plan(p, &r, 5000);
  assert_true(plan->bounded);
  const int32_t first = plan->first;
  const int64_t spacing_us = plan->spacing_us;
  assert_in_range(first, 1, GROUPS - 1);
  assert_int_equal(pace_groups(p, 5000, 0, 0), first);
  assert_int_equal(pace_groups(p, 5000 + spacing_us / 1000 + 1, first, 1), first + 1);
  assert_int_equal(pace_groups(p, 5000, first, 1), first);
  assert_int_equal(pace_groups(p, 5000, first, 0), first + 1); /* all of these are in: nothing stands still */
  assert_true(pace_planned(p, 7, 3) && !pace_planned(p, 7, 4) && !pace_planned(p, 8, 3));
  r.servers = 0; /* whatever is true later */
  plan = pace_plan(p, &r, 9000);
  assert_true(plan->bounded && plan->first == first && plan->spacing_us == spacing_us && p->opened_ms == 5000);
  r = dear;
  r.round++;
  assert_true(pace_plan(p, &r, 9000)->bounded);
  assert_int_equal(p->opened_ms, 9000);
  free(p);
}

/* Also what is admitted between a round's opening and the tick after it: parked polls are looked at when it is. */
static void a_tick_tells_when_more_is_admitted(void **state) {
  (void)state;
  struct pace *p = measured();
  pace_moved(p, 4000); /* no round is planned, so everything is admitted */
  const int64_t spacing_ms = pace_plan(p, &dear, 5000)->spacing_us / 1000;
  assert_true(pace_moved(p, 5000 + spacing_ms + 1));
  assert_false(pace_moved(p, 5000 + spacing_ms + 2));
  assert_true(pace_moved(p, 5000 + 2 * spacing_ms + 2));
  free(p);
}

/* A plan's order goes by what is expected of each prompt; where nothing is, of none of them more than of another. */
static void groups_are_ordered_by_what_is_expected_of_their_prompts(void **state) {
  (void)state;
  struct pace *p = measured();
  struct pace_round r = dear;
  float expected[GROUPS];
  for (int g = 0; g < GROUPS; g++) expected[g] = g == 7 ? 190 : g == 4 ? 0 : 20;
  r.groups_per_s = 20; /* what is sampled last is what counts */
  r.slots = 8;
  r.expected = expected;
  assert_true(pace_plan(p, &r, 5000)->ordered);
  assert_in_range(pace_place(p, 7), 1, GROUPS / 2); /* by far the longest: not in the tail */
  assert_true(p->scale[4] > 90 && p->scale[4] < 105 && p->scale[5] == 20); /* not known: as groups are in general */
  for (int i = 0; i < GROUPS * SAMPLES; i++) /* the ring stays what was measured */
    assert_true(p->lengths[i] >= 90 && p->lengths[i] <= 105);
  free(p);
}

static void every_slot_is_filled_while_something_is_not_known(void **state) {
  (void)state;
  struct pace_round bad[9];
  for (size_t i = 0; i < 9; i++) bad[i] = dear;
  bad[0].wanted = false;
  bad[1].run = 8; /* nothing of this run was sealed */
  bad[2].groups = GROUPS + 1;
  bad[3].samples = SAMPLES + 1;
  bad[4].groups_per_s = 0;
  bad[5].tokens = 0;
  bad[6].servers = 0;
  bad[7].groups_per_s = 1000; /* there is no trainer to wait for */
  bad[8].begun = true;        /* by another plan, which is lost */
  for (size_t i = 0; i < 9; i++) {
    struct pace *p = measured();
    if (pace_plan(p, &bad[i], 0)->bounded) fail_msg("case %zu is bounded", i);
    assert_int_equal(pace_groups(p, 0, 0, 0), INT32_MAX);
    free(p);
  }
  struct pace *p = measured();
  p->costs = (struct step_costs){0};
  assert_false(pace_plan(p, &dear, 0)->bounded);
  free(p);
}

/* Prompts with their own max_new_tokens under ignore_eos: no group of this run need have been seen. */
static void lengths_that_the_prompts_have_are_exact(void **state) {
  (void)state;
  struct pace *p = measured();
  struct pace_round r = dear;
  float most[GROUPS];
  for (int g = 0; g < GROUPS; g++) most[g] = g == GROUPS - 1 ? 400 : (float)(60 + g);
  r.most = most;
  r.exact = true;
  r.run = 8;
  const struct admission_plan *plan = pace_plan(p, &r, 0);
  assert_true(plan->ordered && plan->bounded && plan->end_us > 0);
  assert_true(p->room.deals == 1 && p->played[0] == 60 && p->played[SAMPLES * GROUPS - 1] == 400);
  for (int i = 0; i < GROUPS; i++) assert_int_equal(pace_place(p, plan->order[i]), i + 1);
  assert_int_equal(pace_place(p, GROUPS), 0); /* a refill */
  assert_int_equal(pace_place(p, ADMISSION_GROUPS_MAX), 0);
  r.round++;
  r.slots = 2 * SAMPLES;
  r.groups_per_s = 20; /* only generation takes time */
  pace_plan(p, &r, 0);
  assert_in_range(pace_place(p, GROUPS - 1), 1, 4); /* the longest is not begun in the tail */
  r.round++;
  r.wanted = false;
  pace_plan(p, &r, 0);
  assert_int_equal(pace_place(p, 0), 0); /* the plan before is gone */
  r.round++;
  r.wanted = true;
  r.groups = ADMISSION_GROUPS_MAX + 1;
  assert_false(pace_plan(p, &r, 0)->end_us > 0);
  r.round++;
  r.groups = GROUPS;
  r.samples = ADMISSION_SAMPLES_MAX / GROUPS + 1;
  assert_false(pace_plan(p, &r, 0)->end_us > 0);
  free(p);
}

/* A prompt's samples are never longer than its max_new_tokens, whatever others are. */
static void expected_lengths_are_bounded_by_what_the_prompts_may_have(void **state) {
  (void)state;
  float most[GROUPS];
  struct pace_round r = dear;
  struct pace *p = measured();
  const double free_us = pace_plan(p, &r, 0)->filled_end_us;
  for (int g = 0; g < GROUPS; g++) most[g] = 50;
  r.most = most;
  r.round++;
  const struct admission_plan *plan = pace_plan(p, &r, 0);
  assert_false(plan->ordered);
  assert_true(plan->filled_end_us < 0.55 * free_us);
  for (int g = 0; g < GROUPS; g++) most[g] = g < GROUPS / 2 ? 1000 : 5; /* the short ones are told from the long ones */
  r.round++;
  plan = pace_plan(p, &r, 0);
  assert_true(plan->ordered && plan->end_us < plan->filled_end_us);
  free(p);
}

static void parked_polls_are_looked_at_when_one_more_is_admitted(void **state) {
  (void)state;
  struct pace *p = measured();
  assert_true(pace_moved(p, 0)); /* nothing is planned: all are */
  assert_false(pace_moved(p, 0));
  const int64_t spacing_ms = pace_plan(p, &dear, 0)->spacing_us / 1000 + 1;
  assert_false(pace_moved(p, 1));
  assert_false(pace_moved(p, spacing_ms - 2));
  assert_true(pace_moved(p, spacing_ms));
  assert_false(pace_moved(p, spacing_ms));
  assert_true(pace_moved(p, 2 * spacing_ms));
  free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_counted_once),
      cmocka_unit_test(lengths_are_the_last_groups_of_one_run),
      cmocka_unit_test(a_round_is_planned_once),
      cmocka_unit_test(a_tick_tells_when_more_is_admitted),
      cmocka_unit_test(groups_are_ordered_by_what_is_expected_of_their_prompts),
      cmocka_unit_test(every_slot_is_filled_while_something_is_not_known),
      cmocka_unit_test(lengths_that_the_prompts_have_are_exact),
      cmocka_unit_test(expected_lengths_are_bounded_by_what_the_prompts_may_have),
      cmocka_unit_test(parked_polls_are_looked_at_when_one_more_is_admitted),
  };
  return cmocka_run_group_tests_name("coordinator/pace", tests, NULL, NULL);
}

/* How long rounds take from measured paces, held against rounds that can be reckoned by hand.  What would break: modes
 * that do not differ by what overlaps, rounds too large for the play, and an answer where nothing was measured. */
#include <stdlib.h>

#include "services/coordinator/foresee/round_times.h"
#include "tests/unit/base/cm.h"

/* A step of b rows takes base + row * b. */
static struct step_costs costs_of(int64_t base, int64_t row) {
  struct step_costs c = {0};
  for (int slot = 0, rows = 1; slot < 12; slot++, rows *= 2)
    step_costs_note(&c, slot, 10, 10 * rows, 10 * (base + row * rows), 0);
  return c;
}

static void close_to(double got, double want) {
  if (!(got > 0.999 * want && got < 1.001 * want)) fail_msg("%.3f is not %.3f", got, want);
}

static struct round_times times_of(const struct round_paces *p) {
  struct admission_room *room = malloc(sizeof *room);
  struct round_times t;
  assert_non_null(room);
  assert_true(round_times(&t, p, room));
  free(room);
  return t;
}

static void modes_differ_by_what_overlaps(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(1000, 0);
  /* 16 groups of 4, 16 slots: 4 groups at once, four times 100 steps of 1000 us */
  struct round_paces p = {.costs = &costs,
                          .spacing_least_us = 200000,
                          .servers = 1,
                          .slots = 16,
                          .groups = 16,
                          .samples = 4,
                          .new_tokens = 100,
                          .group_us = 10000};
  struct round_times t = times_of(&p);
  close_to(t.sampled, 400000);
  close_to(t.learned, 160000);
  close_to(t.sync, 560000);
  close_to(t.pipelined, 440000); /* the last four groups are learned from when nothing is sampled any more */
  close_to(t.inflight, 400000);
  p.prompt_us = 500; /* of each group, one after the other */
  p.round_us = 7000;
  t = times_of(&p);
  close_to(t.sampled, 408000);
  close_to(t.sync, 575000);
  close_to(t.pipelined, 455000);
  p.servers = 2; /* all prompts in half the time, and twice the slots */
  t = times_of(&p);
  close_to(t.sampled, 204000);
  close_to(t.sync, 371000);
  p.group_us = 100000; /* the trainer is the slower one */
  t = times_of(&p);
  close_to(t.inflight, 1607000);
  assert_true(t.pipelined < t.sync && t.pipelined > t.learned);
}

static void nothing_is_learned_in_an_evaluation(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(1000, 0);
  const struct round_paces p = {.costs = &costs,
                                .spacing_least_us = 200000,
                                .servers = 1,
                                .slots = 8,
                                .groups = 8,
                                .samples = 1,
                                .new_tokens = 10};
  const struct round_times t = times_of(&p);
  close_to(t.sync, 10000);
  close_to(t.pipelined, 10000);
}

static void a_large_round_is_played_in_part(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(1000, 0);
  struct round_paces p = {.costs = &costs,
                          .spacing_least_us = 200000,
                          .servers = 1,
                          .slots = 64,
                          .groups = 256,
                          .samples = 32,
                          .new_tokens = 10,
                          .group_us = 10};
  const struct round_times one = times_of(&p);
  p.groups = 4 * 256;
  const struct round_times four = times_of(&p);
  close_to(four.sampled, 4 * one.sampled);
  close_to(four.sync, 4 * one.sync);
  close_to(four.pipelined, 4 * one.pipelined);
  p.groups = 128; /* of more samples: as many groups as there is room for */
  p.samples = 64;
  const struct round_times some = times_of(&p);
  p.groups = 256;
  const struct round_times twice = times_of(&p);
  close_to(some.sampled, 128 * 10000);
  close_to(twice.sampled, 2 * some.sampled);
  p.groups = 1;
  p.samples = ADMISSION_SAMPLES_MAX;
  p.slots = ADMISSION_SAMPLES_MAX;
  close_to(times_of(&p).sampled, 10000);
}

static void a_little_to_learn_is_learned_meanwhile(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(10, 0);
  const struct round_paces p = {.costs = &costs,
                                .spacing_least_us = 200000,
                                .servers = 1,
                                .slots = 1,
                                .groups = 100,
                                .samples = 1,
                                .new_tokens = 1,
                                .group_us = 0.5};
  const struct round_times t = times_of(&p);
  close_to(t.sync, 1050);
  close_to(t.pipelined, 1000.5);
}

static void without_measures_there_are_no_times(void **state) {
  (void)state;
  const struct step_costs none = {0}, costs = costs_of(1000, 0);
  const struct round_paces whole = {.costs = &costs,
                                    .spacing_least_us = 200000,
                                    .servers = 1,
                                    .slots = 8,
                                    .groups = 8,
                                    .samples = 1,
                                    .new_tokens = 10};
  struct admission_room *room = malloc(sizeof *room);
  struct round_times t;
  assert_non_null(room);
  for (int missing = 0; missing < 7; missing++) {
    struct round_paces p = whole;
    if (missing == 0) p.costs = &none;
    if (missing == 1) p.servers = 0;
    if (missing == 2) p.slots = 0;
    if (missing == 3) p.groups = 0;
    if (missing == 4) p.new_tokens = 0;
    if (missing == 5) p.samples = 0;
    if (missing == 6) p.samples = ADMISSION_SAMPLES_MAX + 1;
    assert_false(round_times(&t, &p, room));
  }
  free(room);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(modes_differ_by_what_overlaps),          cmocka_unit_test(nothing_is_learned_in_an_evaluation),
      cmocka_unit_test(a_little_to_learn_is_learned_meanwhile), cmocka_unit_test(a_large_round_is_played_in_part),
      cmocka_unit_test(without_measures_there_are_no_times),
  };
  return cmocka_run_group_tests_name("coordinator/round_times", tests, NULL, NULL);
}

/* The state tables: what may follow what, by name, and that nothing leaves an end state. */
#include "services/coordinator/decide/states.h"
#include "tests/unit/base/cm.h"

static void drawn_transitions_are_allowed(void **state) {
  (void)state;
  assert_true(state_may(MACHINE_RUN, RUN_QUEUED, RUN_STARTING));
  assert_true(state_may(MACHINE_RUN, RUN_RUNNING, RUN_PAUSED));
  assert_true(state_may(MACHINE_RUN, RUN_PAUSED, RUN_RUNNING));
  assert_true(state_may(MACHINE_RUN, RUN_STARTING, RUN_PAUSED));
  assert_true(state_may(MACHINE_RUN, RUN_PAUSED, RUN_STARTING));
  assert_true(state_may(MACHINE_GROUP, GROUP_SUBMITTED, GROUP_SEALED));
  assert_true(state_may(MACHINE_SAMPLE, SAMPLE_LEASED, SAMPLE_WAITING));
  assert_true(state_may(MACHINE_VERSION, VERSION_CURRENT, VERSION_SUPERSEDED));
}

/* A superseded version that became current again would let stale samples in. */
static void nothing_leaves_an_end_state(void **state) {
  (void)state;
  for (int to = VERSION_STAGED; to <= VERSION_SUPERSEDED; to++)
    assert_false(state_may(MACHINE_VERSION, VERSION_SUPERSEDED, to));
  for (int to = GROUP_OPEN; to <= GROUP_ABANDONED; to++) {
    assert_false(state_may(MACHINE_GROUP, GROUP_CONSUMED, to));
    assert_false(state_may(MACHINE_GROUP, GROUP_FILTERED, to));
  }
  for (int to = RUN_QUEUED; to <= RUN_FAILED; to++) {
    assert_false(state_may(MACHINE_RUN, RUN_COMPLETED, to));
    assert_false(state_may(MACHINE_RUN, RUN_STOPPED, to));
  }
  for (int to = LEASE_GRANTED; to <= LEASE_SUPERSEDED; to++) assert_false(state_may(MACHINE_LEASE, LEASE_DONE, to));
  for (int to = SAMPLE_WAITING; to <= SAMPLE_VOID; to++) assert_false(state_may(MACHINE_SAMPLE, SAMPLE_DONE, to));
}

/* What cannot go on is paused, and can be resumed. */
static void no_run_fails(void **state) {
  (void)state;
  for (int from = RUN_QUEUED; from <= RUN_FAILED; from++) assert_false(state_may(MACHINE_RUN, from, RUN_FAILED));
}

static void a_refused_transition_names_thing_and_states(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(state_check(MACHINE_ROUND, ROUND_DONE, ROUND_OPEN, "r1.2", &err), RC_CONFLICT);
  assert_string_equal(err.message, "round r1.2 is done and cannot become open");
}

static void names_and_states_match_both_ways(void **state) {
  (void)state;
  for (int s = RUN_QUEUED; s <= RUN_FAILED; s++)
    assert_int_equal(state_parse(MACHINE_RUN, state_name(MACHINE_RUN, s)), s);
  for (int s = GROUP_OPEN; s <= GROUP_ABANDONED; s++)
    assert_int_equal(state_parse(MACHINE_GROUP, state_name(MACHINE_GROUP, s)), s);
  assert_int_equal(state_parse(MACHINE_RUN, "sleeping"), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drawn_transitions_are_allowed),
      cmocka_unit_test(nothing_leaves_an_end_state),
      cmocka_unit_test(no_run_fails),
      cmocka_unit_test(a_refused_transition_names_thing_and_states),
      cmocka_unit_test(names_and_states_match_both_ways),
  };
  return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}

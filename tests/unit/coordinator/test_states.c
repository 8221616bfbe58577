/* The state tables: which state may follow which, pair by pair, by name. What would break: a superseded version
 * becomes current again, an ended thing goes on, the code takes a transition that the table does not have. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "services/coordinator/decide/states.h"
#include "tests/unit/base/cm.h"

enum { STATES = 9, FOLLOWERS = 5 };

/* As states.h draws them: each state with those that may follow it. */
static const struct drawn {
  enum state_machine machine;
  const char *name;
  const char *states[STATES][1 + FOLLOWERS];
} drawn[] = {
    {MACHINE_RUN,
     "run",
     {{"queued", "starting", "stopping", "stopped"},
      {"starting", "running", "paused", "stopping", "queued"},
      {"running", "paused", "stopping", "completed"},
      {"paused", "running", "starting", "stopping"},
      {"stopping", "stopped"},
      {"stopped"},
      {"completed"},
      {"failed"},
      {"checking", "queued", "failed", "stopping"}}},
    {MACHINE_ROUND,
     "round",
     {{"open", "training", "done", "abandoned"},
      {"training", "stepping", "open", "abandoned"},
      {"stepping", "publishing", "abandoned"},
      {"publishing", "done", "abandoned"},
      {"done"},
      {"abandoned"}}},
    {MACHINE_GROUP,
     "group",
     {{"open", "sealed", "filtered", "failed", "evaluated", "abandoned"},
      {"sealed", "submitted", "filtered", "abandoned"},
      {"submitted", "consumed", "sealed", "filtered", "abandoned"},
      {"consumed"},
      {"filtered"},
      {"failed"},
      {"evaluated"},
      {"abandoned"}}},
    {MACHINE_SAMPLE,
     "sample",
     {{"waiting", "leased", "void"}, {"leased", "done", "waiting", "void"}, {"done", "waiting"}, {"void"}}},
    {MACHINE_LEASE,
     "lease",
     {{"granted", "done", "expired", "lost", "handed_back", "superseded"},
      {"done"},
      {"expired"},
      {"lost"},
      {"handed_back"},
      {"superseded"}}},
    {MACHINE_VERSION, "version", {{"staged", "current", "superseded"}, {"current", "superseded"}, {"superseded"}}},
};
#define MACHINES (sizeof drawn / sizeof drawn[0])

static int states_of(const struct drawn *d) {
  int n = 0;
  while (n < STATES && d->states[n][0]) n++;
  return n;
}

static bool is_drawn(const struct drawn *d, int from, int to) {
  for (int i = 1; i <= FOLLOWERS && d->states[from][i]; i++) {
    if (strcmp(d->states[from][i], d->states[to][0]) == 0) return true;
  }
  return false;
}

static void a_state_has_its_name(void **state) {
  (void)state;
  for (size_t m = 0; m < MACHINES; m++) {
    for (int s = 0; s < states_of(&drawn[m]); s++)
      assert_string_equal(state_name(drawn[m].machine, s), drawn[m].states[s][0]);
  }
  assert_string_equal(state_name(MACHINE_GROUP, GROUP_ABANDONED), "abandoned"); /* the enums are in the same order */
  assert_string_equal(state_name(MACHINE_LEASE, LEASE_HANDED_BACK), "handed_back");
}

static void exactly_the_drawn_transitions_are_allowed(void **state) {
  (void)state;
  for (size_t m = 0; m < MACHINES; m++) {
    const struct drawn *d = &drawn[m];
    for (int from = 0; from < states_of(d); from++) {
      for (int to = 0; to < states_of(d); to++) {
        if (state_may(d->machine, from, to) != is_drawn(d, from, to))
          fail_msg("%s: %s to %s is %s", d->name, d->states[from][0], d->states[to][0],
                   is_drawn(d, from, to) ? "refused" : "allowed");
      }
    }
  }
}

/* What cannot go on is paused, and can be resumed. */
static void no_run_fails_that_was_checked(void **state) {
  (void)state;
  for (int from = RUN_QUEUED; from <= RUN_CHECKING; from++)
    assert_int_equal(state_may(MACHINE_RUN, from, RUN_FAILED), from == RUN_CHECKING);
}

static void a_refused_transition_names_thing_and_states(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(state_check(MACHINE_ROUND, ROUND_DONE, ROUND_OPEN, "r1.2", &err), RC_CONFLICT);
  assert_string_equal(err.message, "round r1.2 is done and cannot become open");
  for (size_t m = 0; m < MACHINES; m++) { /* every machine has a state that nothing follows */
    int last = states_of(&drawn[m]) - 1;
    while (drawn[m].states[last][1]) last--;
    char message[96];
    snprintf(message, sizeof message, "%s x is %s and cannot become %s", drawn[m].name, drawn[m].states[last][0],
             drawn[m].states[0][0]);
    assert_int_equal(state_check(drawn[m].machine, last, 0, "x", &err), RC_CONFLICT);
    assert_string_equal(err.message, message);
    assert_string_equal(err.field, "state");
  }
}

static void an_allowed_transition_passes(void **state) {
  (void)state;
  struct err err = {0};
  assert_int_equal(state_check(MACHINE_GROUP, GROUP_SUBMITTED, GROUP_SEALED, "r1.0.1", &err), RC_OK);
  assert_string_equal(err.message, "");
}

/* What a process died of that asks about such states; 0: it did not. */
static int dies_of(enum state_machine machine, int from, int to) {
  int status = 0;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);
    if (to == INT32_MIN)
      (void)state_name(machine, from);
    else
      (void)state_may(machine, from, to);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Never bad input: a number from nowhere must not pass for a state. */
static void a_state_that_does_not_exist_ends_the_process(void **state) {
  (void)state;
  for (size_t m = 0; m < MACHINES; m++) {
    const int count = states_of(&drawn[m]);
    assert_int_equal(dies_of(drawn[m].machine, count - 1, 0), 0);
    assert_int_equal(dies_of(drawn[m].machine, count, 0), SIGABRT);
    assert_int_equal(dies_of(drawn[m].machine, 0, count), SIGABRT);
    assert_int_equal(dies_of(drawn[m].machine, count, INT32_MIN), SIGABRT);
  }
  assert_int_equal(dies_of(MACHINE_RUN, -1, 0), SIGABRT);
  assert_int_equal(dies_of(MACHINE_RUN, 0, -1), SIGABRT);
  assert_int_equal(dies_of(MACHINE_RUN, -1, INT32_MIN), SIGABRT);
  assert_int_equal(dies_of((enum state_machine)MACHINES, 0, 0), SIGABRT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_run_fails_that_was_checked),
      cmocka_unit_test(a_state_has_its_name),
      cmocka_unit_test(exactly_the_drawn_transitions_are_allowed),
      cmocka_unit_test(a_refused_transition_names_thing_and_states),
      cmocka_unit_test(an_allowed_transition_passes),
      cmocka_unit_test(a_state_that_does_not_exist_ends_the_process),
  };
  return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}

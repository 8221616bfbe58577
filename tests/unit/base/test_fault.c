/* Which fault a process has, and when it strikes: in the second round and not in the first, once where it says so, and
 * only the one that was chosen.  Without -DLEASEHOLD_FAULTS nothing of it is there; `make faults` runs this with it. */
#include "tests/unit/base/cm.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/log.h"

enum { FAULT_FIRST = FAULT_NONE + 1, FAULT_SECOND };

#ifdef LEASEHOLD_FAULTS
static const bool EFFECT = true;
static const char *const names[] = {"", "first", "second", NULL};

static void choose(const char *name) { assert_int_equal(fault_set(names, name, NULL), RC_OK); }

static void unknown_faults_are_refused(void **state) {
  (void)state;
  struct err err = {0};
  choose("first");
  assert_int_equal(fault_set(names, "firsts", &err), RC_INVALID);
  assert_string_equal(err.field, "fault");
  assert_true(fault_is(FAULT_FIRST));
  choose("");
  assert_false(fault_is(FAULT_FIRST));
}
#else
static const bool EFFECT = false;
static void choose(const char *name) { (void)name; }
#endif

static void a_fault_is_due_from_the_second_round_on(void **state) {
  (void)state;
  choose("second");
  assert_int_equal(fault_is(FAULT_SECOND), EFFECT);
  assert_false(fault_is(FAULT_FIRST));
  assert_false(fault_is_due(FAULT_SECOND, 0));
  assert_int_equal(fault_is_due(FAULT_SECOND, 1), EFFECT);
  assert_int_equal(fault_is_due(FAULT_SECOND, 7), EFFECT);
  assert_false(fault_is_due(FAULT_FIRST, 7));
  choose("");
}

static void it_strikes_once(void **state) {
  (void)state;
  for (int again = 0; again < 2; again++) {
    choose("first");
    assert_false(fault_strikes_once(FAULT_FIRST, 0));
    assert_false(fault_strikes_once(FAULT_SECOND, 1));
    assert_int_equal(fault_strikes_once(FAULT_FIRST, 1), EFFECT);
    assert_false(fault_strikes_once(FAULT_FIRST, 2));
  }
  choose("");
}

/* Whether a process of its own is killed by it. */
static bool dies(const char *name, int fault, int64_t round) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    choose(name);
    fault_die(fault, round);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGKILL);
  return WIFSIGNALED(status);
}

static void death_comes_in_the_second_round_and_by_its_own_fault(void **state) {
  (void)state;
  assert_false(dies("first", FAULT_FIRST, 0));
  assert_int_equal(dies("first", FAULT_FIRST, 1), EFFECT);
  assert_int_equal(dies("first", FAULT_FIRST, 7), EFFECT);
  assert_false(dies("first", FAULT_SECOND, 1));
  assert_false(dies("", FAULT_FIRST, 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
#ifdef LEASEHOLD_FAULTS
      cmocka_unit_test(unknown_faults_are_refused),
#endif
      cmocka_unit_test(a_fault_is_due_from_the_second_round_on),
      cmocka_unit_test(it_strikes_once),
      cmocka_unit_test(death_comes_in_the_second_round_and_by_its_own_fault),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("base/fault", tests, NULL, NULL);
}

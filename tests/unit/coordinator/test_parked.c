/* Commands that park: a core without a thread, whose clock the test moves.  What would break: with thousands of waiting
 * polls one that is due, or whose turn it is, is passed over, or all of them are gone through for every one that is
 * due. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/rounds/tick.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/core_state.h"

enum { CALLS = 4, MS = 1000 };

static int64_t now_us = 5000 * MS;
static struct core *core;
static struct command *posted[CALLS];
static int runs, answered[CALLS], answered_count, left; /* left: samples, so to say */

static int64_t time_us(void *context) { return *(const int64_t *)context; }

struct wait {
  int64_t ms;
  bool of_passes;
};

/* Waits until one of `left` is there for it, or for as long as its message says. */
static enum rc wait_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct wait *wait = cmd->message;
  (void)err;
  runs++;
  cmd->of_passes = wait->of_passes;
  if (cmd->due_ms == 0) cmd->due_ms = c->now_ms + wait->ms;
  const bool given = left > 0 && !wait->of_passes;
  cmd->parked = !given && c->now_ms < cmd->due_ms;
  if (given) left--;
  if (cmd->parked && !wait->of_passes) c->nothing_waits = true;
  return RC_OK;
}

static enum rc nothing_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  (void)err;
  c->samples_due = left > 0;
  return RC_OK;
}

static void note(struct command *cmd, void *context) {
  (void)cmd;
  answered[answered_count++] = *(const int *)context;
}

static void passes(int64_t ms) {
  struct err err;
  now_us += ms * MS;
  assert_int_equal(core_call(core, command_new(nothing_execute, 0), &err), RC_OK);
}

static void post_wait(int which, struct wait wait) {
  static const int names[CALLS] = {0, 1, 2, 3};
  posted[which] = command_new(wait_execute, sizeof wait);
  memcpy(posted[which]->message, &wait, sizeof wait);
  core_post(core, posted[which], note, (void *)&names[which]);
}

static void post(int which, int64_t wait_ms) { post_wait(which, (struct wait){.ms = wait_ms}); }

static int begin(void **state) {
  const struct core_options options = {.db_path = ":memory:",
                                       .data_dir = ".",
                                       .lease_ttl_ms = 1000,
                                       .heartbeat_ms = 500,
                                       .worker_ttl_ms = 1000,
                                       .batch_tokens = 100,
                                       .clock = {time_us, time_us, &now_us},
                                       .callbacks = &tick_callbacks};
  struct err err;
  (void)state;
  log_init("test", LOG_ERROR);
  runs = answered_count = left = 0;
  return core_create(&core, &options, &err) == RC_OK ? 0 : 1;
}

static int end(void **state) {
  (void)state;
  core_destroy(core); /* parked ones with it */
  return 0;
}

static void each_is_answered_when_it_is_due(void **state) {
  (void)state;
  post(0, 90);
  post(1, 30);
  post(2, 60);
  passes(40);
  assert_int_equal(answered_count, 1);
  assert_int_equal(answered[0], 1);
  passes(30);
  assert_int_equal(answered[1], 2);
  passes(30);
  assert_int_equal(answered_count, 3);
  assert_int_equal(answered[2], 0);
  post(3, 10); /* the list is empty again */
  passes(20);
  assert_int_equal(answered[3], 3);
}

static void one_that_is_due_costs_no_look_at_the_others(void **state) {
  (void)state;
  for (int i = 0; i < CALLS; i++) post(i, 20 + 10 * i);
  runs = 0;
  passes(25);
  assert_int_equal(runs, 1);
  passes(10);
  assert_int_equal(runs, 2);
}

static void what_comes_back_goes_to_those_that_wait_longest(void **state) {
  (void)state;
  for (int i = 0; i < CALLS; i++) post(i, 80);
  left = 2;
  runs = 0;
  passes(10);
  assert_int_equal(answered_count, 2);
  assert_int_equal(answered[0] + answered[1], 0 + 1);
  assert_int_equal(runs, 3); /* the third says that nothing waits any more */
}

static void one_of_passes_hides_none_of_samples(void **state) {
  (void)state;
  post_wait(0, (struct wait){.ms = 40, .of_passes = true});
  post(1, 80);
  post_wait(2, (struct wait){.ms = 120, .of_passes = true});
  post(3, 160);
  left = 2;
  runs = 0;
  passes(10);
  assert_int_equal(answered_count, 2);
  assert_int_equal(answered[0] + answered[1], 1 + 3);
  assert_int_equal(runs, 2);
}

static void one_whose_caller_has_gone_takes_nothing(void **state) {
  (void)state;
  post(0, 80);
  post(1, 80);
  core_hung_up(core, posted[0]);
  left = 1;
  passes(10);
  assert_int_equal(answered_count, 1);
  assert_int_equal(answered[0], 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(each_is_answered_when_it_is_due, begin, end),
      cmocka_unit_test_setup_teardown(one_that_is_due_costs_no_look_at_the_others, begin, end),
      cmocka_unit_test_setup_teardown(what_comes_back_goes_to_those_that_wait_longest, begin, end),
      cmocka_unit_test_setup_teardown(one_of_passes_hides_none_of_samples, begin, end),
      cmocka_unit_test_setup_teardown(one_whose_caller_has_gone_takes_nothing, begin, end),
  };
  return cmocka_run_group_tests_name("coordinator/parked", tests, NULL, NULL);
}

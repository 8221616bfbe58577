/* Pipelined rounds and refills over real HTTP. What would break: a complete group waits for the rest of its round, or
 * for a second commit; a step begins with a group missing; a refill depends on which group was first; a round hangs on
 * filtered groups; the next round begins with prompts that a refill has used. */
#include <limits.h>

#include "services/coordinator/driver/driver.h"
#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/decide/states.h"

/* 3 groups x 4 samples of ten prompts in file order. */
#define RUN(rest)                                                                                              \
  "{\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_per_round\":3," \
  "\"samples_per_group\":4,\"seed\":3,"                                                                        \
  "\"sampling\":{\"max_new_tokens\":8}," rest

static void wait_batches(struct fixture *f, int n) {
  AWAIT(fake_trainer_batches(&f->trainer) >= n, "the trainer has seen %d batches, not %d",
        fake_trainer_batches(&f->trainer), n)
  continue;
}

/* One server holds the run's three groups. */
static struct fixture *begin(void **state, struct fake_server *s, struct lease leases[3], const char *run) {
  struct fixture *f = *state;
  register_server(f, s, "gen-1");
  post_run(f, run);
  collect_leases(f, s, leases, 3);
  return f;
}

static void a_complete_group_is_trained_while_others_are_open(void **state) {
  struct fake_server s;
  struct lease leases[3];
  struct fixture *f = begin(state, &s, leases, RUN("\"mode\":\"pipelined\",\"rounds\":1}"));
  answer_lease(f, &s, &leases[2]); /* the last one is the first to come */
  wait_batches(f, 1);
  assert_int_equal(read_int_of(f, "SELECT state FROM rounds WHERE run = ?1", 1), ROUND_OPEN);
  answer_lease(f, &s, &leases[0]);
  wait_batches(f, 2);
  assert_int_equal(f->trainer.steps, 0);
  assert_int_equal(read_int_of(f, "SELECT state FROM rounds WHERE run = ?1", 1), ROUND_OPEN);
  answer_lease(f, &s, &leases[1]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(f->trainer.batches, 3);
  assert_int_equal(f->trainer.last_groups, 3);
  assert_true(f->trainer.last_denominator == 36);
  assert_int_equal(read_int_of(f, "SELECT count(*) FROM groups WHERE run = ?1 AND state = 3", 1), 3);
}

/* Without a driver, in whose place the test says what the trainer has room for. */
static void a_batch_is_planned_with_the_sealing_of_its_last_group(void **state) {
  struct fake_server s;
  struct lease leases[3];
  struct fixture *f = begin(state, &s, leases, RUN("\"mode\":\"pipelined\",\"rounds\":1}"));
  driver_has_looked(f);
  struct driver *stopped = f->driver;
  driver_stop(stopped);
  f->driver = NULL;
  core_await_groups(f->core, INT_MAX, false);
  answer_lease(f, &s, &leases[2]);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches"), 0);
  core_await_groups(f->core, 1, true);
  answer_lease(f, &s, &leases[0]);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches WHERE groups = 2"), 1);
  answer_lease(f, &s, &leases[1]); /* the trainer has a batch now: no more are planned until the driver asks for them */
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches"), 1);
  assert_int_equal(read_int_of(f, "SELECT groups_sealed FROM rounds WHERE run = ?1", 1), 1);
  coordinator_down(f);
  driver_destroy(stopped);
}

static void in_sync_nothing_is_sent_before_the_last_group(void **state) {
  struct fake_server s;
  struct lease leases[3];
  struct fixture *f = begin(state, &s, leases, RUN("\"mode\":\"sync\",\"rounds\":1}"));
  answer_lease(f, &s, &leases[0]);
  answer_lease(f, &s, &leases[1]);
  driver_has_looked(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches"), 0);
  answer_lease(f, &s, &leases[2]);
  json_free(wait_state(f, "r1", "completed"));
}

/* The last group is filtered after all others were trained: only this filtering can begin the step. */
static void a_round_whose_last_group_is_filtered_goes_on(void **state) {
  struct fake_server s;
  struct lease leases[3];
  struct fixture *f = begin(state, &s, leases, RUN("\"filter\":{\"zero_advantage\":\"shrink\"},\"rounds\":1}"));
  answer_lease(f, &s, &leases[0]);
  answer_lease(f, &s, &leases[1]);
  AWAIT(read_int(f, "SELECT total(groups) FROM batches WHERE done = 1") == 2, "two groups are not trained") continue;
  driver_has_looked(f);
  answer_lease_alike(f, &s, &leases[2], false);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(f->trainer.last_groups, 2);
}

/* Round 0: groups 0, 1, 2 and the refills 3 and 4 (group 3 is filtered too).  Round 1 begins with prompt 5.  In both
 * orders of completion. */
static void refills_take_the_next_prompts_in_any_order_of_completion(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3], more;
  for (int order = 0; order < 2; order++) {
    char run[16];
    snprintf(run, sizeof run, "r%d", order + 1);
    register_server(f, &s, "gen-1");
    post_run(f, RUN("\"filter\":{\"zero_advantage\":\"refill\"},\"rounds\":2}"));
    collect_leases(f, &s, leases, 3);
    answer_lease_alike(f, &s, &leases[order ? 2 : 0], false);
    collect_leases(f, &s, &more, 1);
    assert_int_equal(more.group_ordinal, 3);
    assert_int_equal(more.prompt_ids.items[0], '3');
    if (order) { /* the refill is filtered before or after the others are done */
      answer_lease(f, &s, &leases[0]);
      answer_lease(f, &s, &leases[1]);
    }
    answer_lease_alike(f, &s, &more, false);
    collect_leases(f, &s, &more, 1);
    assert_int_equal(more.group_ordinal, 4);
    assert_int_equal(more.prompt_ids.items[0], '4');
    answer_lease(f, &s, &more);
    if (!order) {
      answer_lease(f, &s, &leases[1]);
      answer_lease(f, &s, &leases[2]);
    }
    collect_leases(f, &s, leases, 3);
    assert_int_equal(leases[0].round, 1);
    assert_int_equal(leases[0].group_ordinal, 0);
    assert_int_equal(leases[0].prompt_ids.items[0], '5');
    assert_int_equal(leases[2].prompt_ids.items[0], '7');
    for (int i = 0; i < 3; i++) answer_lease(f, &s, &leases[i]);
    json_free(wait_state(f, run, "completed"));
    assert_int_equal(
        read_int_of(f, "SELECT count(*) FROM groups WHERE run = ?1 AND round = 0 AND state = 3", order + 1), 3);
    assert_int_equal(read_int_of(f, "SELECT groups_refilled FROM rounds WHERE run = ?1 AND round = 0", order + 1), 2);
    assert_int_equal(read_int_of(f, "SELECT count(*) FROM refills WHERE run = ?1", order + 1), 2);
  }
}

static void a_round_is_refilled_a_limited_number_of_times(void **state) {
  struct fake_server s;
  struct lease leases[3];
  struct fixture *f =
      begin(state, &s, leases, RUN("\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":2},\"rounds\":1}"));
  for (int i = 0; i < 3; i++) answer_lease_alike(f, &s, &leases[i], false);
  collect_leases(f, &s, leases, 2);
  for (int i = 0; i < 2; i++) answer_lease_alike(f, &s, &leases[i], false);
  struct json *run = wait_state(f, "r1", "completed");
  assert_int_equal(f->trainer.last_groups, 0); /* a step over nothing */
  assert_int_equal(read_int_of(f, "SELECT groups_filtered FROM rounds WHERE run = ?1", 1), 5);
  json_free(run);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_complete_group_is_trained_while_others_are_open),
      CASE(a_batch_is_planned_with_the_sealing_of_its_last_group),
      CASE(in_sync_nothing_is_sent_before_the_last_group),
      CASE(a_round_whose_last_group_is_filtered_goes_on),
      CASE(refills_take_the_next_prompts_in_any_order_of_completion),
      CASE(a_round_is_refilled_a_limited_number_of_times),
  };
  return cmocka_run_group_tests_name("coordinator/pipelined", tests, NULL, NULL);
}

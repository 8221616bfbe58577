/* Checked runs (checks/README.md) over a whole coordinator: what was made up is found, drawn again and never trained
 * on. */
#include "tests/unit/base/cm.h"

#include <limits.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/coordinator/decide/states.h"
#include "tests/unit/coordinator/fake_server.h"

#define CHECKED                                                                                               \
  "{\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"groups_per_round\":3," \
  "\"samples_per_group\":4,"                                                                                  \
  "\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}"
#define SYNC                                                                                                \
  "{\"mode\":\"sync\",\"rounds\":4,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},"    \
  "\"groups_per_round\":3,\"samples_per_group\":4,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8}," \
  "\"training\":{\"objective\":\"grpo\"},"                                                                  \
  "\"evaluation\":{\"path\":\"train.jsonl\",\"every_rounds\":1,\"samples\":1,\"problems\":1}}"
#define REFUSED     "SELECT count(*) FROM incidents WHERE kind = 'sample_refused'"
#define QUARANTINED "SELECT count(*) FROM quarantines"
#define CLOSED      "SELECT count(*) FROM groups WHERE state <> 0"

enum { GROUPS = 3, SYNC_ROUNDS = 4, MOMENTS = 5 };
enum { WHOLE = 4 /* samples of a group */, LOOKS = 200 /* some hundredths of a second */ };

static int setup(void **state) {
  if (fixture_setup(state) != 0) return 1;
  struct fixture *f = *state;
  f->checks_samples = true;
  coordinator_restart(f);
  return 0;
}

static void wait_count(struct fixture *f, const char *sql, int64_t wanted) {
  AWAIT(read_int(f, sql) == wanted, "%s: %lld, not %lld", sql, (long long)read_int(f, sql), (long long)wanted)
  a_moment_passes(f);
}

/* One lease of so many samples at most, of the group that is due first. */
static struct lease lease_of(struct fixture *f, struct fake_server *s, int slots) {
  struct lease_answer a;
  poll_leases(f, s, slots, &a);
  assert_int_equal(a.lease_count, 1);
  return a.leases[0];
}

/* The first sample of the lease is made up; the lease's other ones are right. */
static void answer_with_made_up(struct fixture *f, const struct fake_server *s, const struct lease *l,
                                enum made_up which) {
  struct err err = {0};
  const struct lease_result r = make_result(f, s, l);
  make_up_sample(f, &r.samples[0], l, which);
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", l->id, err.message);
}

static void what_was_made_up_is_drawn_again_by_others(void **state) {
  struct fixture *f = *state;
  for (int which = MADE_UP_TOKEN; which <= MADE_UP_LENGTH; which++) {
    struct fake_server liar, honest;
    struct lease_answer a;
    struct err err = {0};
    register_server(f, &liar, "liar");
    register_server(f, &honest, "honest");
    post_run(f, CHECKED);
    const struct lease first = lease_of(f, &liar, WHOLE);
    const int64_t refused = read_int(f, REFUSED);
    answer_with_made_up(f, &liar, &first, (enum made_up)which);
    wait_count(f, REFUSED, refused + 1);
    assert_int_equal(read_int_of(f, "SELECT count(*) FROM quarantines WHERE run = ?1 AND name = 'liar'", which + 1), 1);
    assert_int_equal(poll_once(f, &liar, 64, &a, &err), RC_OK);
    assert_int_equal(a.lease_count, 0);
    const struct lease second = lease_of(f, &honest, 1);
    assert_int_equal(second.sample_first, first.sample_first);
    assert_string_equal(second.group, first.group);
    assert_true(second.fence > first.fence);
    answer_lease(f, &honest, &second);
    char run[8];
    snprintf(run, sizeof run, "r%d", which + 1);
    json_free(serve_run(f, &honest, run, "completed"));
    assert_int_equal(read_int_of(f, "SELECT count(*) FROM quarantines WHERE run = ?1", which + 1), 1);
  }
}

/* It may be found so once, by a fault that passes. */
static void a_difference_that_is_found_once_refuses_nothing(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.doubt = DOUBT_ONCE;
  register_server(f, &s, "honest");
  post_run(f, CHECKED);
  json_free(serve_run(f, &s, "r1", "completed"));
  assert_int_equal(f->trainer.doubt, DOUBT_NOTHING);
  assert_int_equal(read_int(f, REFUSED), 0);
  assert_int_equal(read_int(f, QUARANTINED), 0);
}

/* By the time the answer comes the trainer is gone, and with it the promise of equal bits. */
static void a_check_that_outlives_its_trainer_decides_nothing(void **state) {
  struct fixture *f = *state;
  struct fake_server liar, honest;
  struct err err = {0};
  f->trainer.slow_checks = true;
  register_server(f, &liar, "liar");
  register_server(f, &honest, "honest");
  post_run(f, CHECKED);
  const struct lease drawn = lease_of(f, &liar, WHOLE);
  answer_with_made_up(f, &liar, &drawn, MADE_UP_TOKEN);
  AWAIT(fake_trainer_checks(&f->trainer) > 0, "no check has come") a_moment_passes(f);
  assert_int_equal(coordinator_leave(&f->client, f->trainer_is.worker_id, DEADLINE_MS, &err), RC_OK);
  fake_trainer_finish_checks(&f->trainer);
  for (int i = 0; i < LOOKS; i++) {
    time_passes(f, 0);
    assert_int_equal(read_int(f, CLOSED), 0);
  }
  register_trainer(f);
  wait_count(f, REFUSED, 1);
  json_free(serve_run(f, &honest, "r1", "completed"));
}

/* Nothing of the run goes on meanwhile, so it says why; then it says so no more. */
static void checks_that_keep_failing_are_what_the_run_waits_for(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "honest");
  f->trainer.failed_checks = INT_MAX;
  post_run(f, CHECKED);
  const struct lease drawn = lease_of(f, &s, WHOLE);
  answer_lease(f, &s, &drawn);
#define WAITS "SELECT count(*) FROM runs WHERE waiting_for LIKE 'samples could not be checked: %'"
  AWAIT(read_int(f, WAITS) == 1, "the run does not say what it waits for") time_passes(f, 200);
  assert_true(read_int(f, "SELECT error IS NULL FROM runs"));
  for (int i = 0; i < LOOKS; i++) time_passes(f, 200);
  assert_int_equal(read_int(f, WAITS), 1); /* the driver lets it stand */
  /* so it does to a coordinator that comes back, until a check holds */
  coordinator_restart(f);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.failed_checks = 0;
  pthread_mutex_unlock(&f->trainer.lock);
  AWAIT(read_int(f, WAITS) == 0, "it still waits") time_passes(f, 200);
  register_server(f, &s, "honest");
  json_free(serve_run(f, &s, "r1", "completed"));
}

/* In sync, checks wait until nothing is sampled any more: an evaluation that ends last sends for them.  Otherwise the
 * checkers would look when their rest is over, 200 ms later. */
static void checks_of_a_round_in_sync_begin_when_its_evaluation_ends(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  int64_t waited_us = 0;
  register_server(f, &s, "honest");
  post_run(f, SYNC);
  for (int round = 0; round < SYNC_ROUNDS; round++) {
    struct lease leases[GROUPS + 1], *last = NULL;
    const int checked = fake_trainer_checks(&f->trainer);
    collect_leases(f, &s, leases, GROUPS + 1);
    for (int i = 0; i <= GROUPS; i++) {
      if (leases[i].purpose == LEASE_EVALUATION)
        last = &leases[i];
      else
        answer_lease(f, &s, &leases[i]);
    }
    assert_non_null(last);
    for (int i = 0; i < MOMENTS; i++) a_moment_passes(f); /* the checkers have looked, and rest */
    answer_lease(f, &s, last);
    const int64_t begun_us = clock_monotonic_us();
    AWAIT(fake_trainer_checks(&f->trainer) > checked, "no check has come in round %d", round) a_moment_passes(f);
    waited_us += clock_monotonic_us() - begun_us;
  }
  json_free(serve_run(f, &s, "r1", "completed"));
  if (waited_us > SYNC_ROUNDS * 100000) fail_msg("checks came %lld us late in all", (long long)waited_us);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_was_made_up_is_drawn_again_by_others, setup, fixture_teardown),
      cmocka_unit_test_setup_teardown(a_difference_that_is_found_once_refuses_nothing, setup, fixture_teardown),
      cmocka_unit_test_setup_teardown(checks_of_a_round_in_sync_begin_when_its_evaluation_ends, setup,
                                      fixture_teardown),
      cmocka_unit_test_setup_teardown(a_check_that_outlives_its_trainer_decides_nothing, setup, fixture_teardown),
      cmocka_unit_test_setup_teardown(checks_that_keep_failing_are_what_the_run_waits_for, setup, fixture_teardown),
  };
  return cmocka_run_group_tests_name("coordinator/sample_checks", tests, NULL, NULL);
}

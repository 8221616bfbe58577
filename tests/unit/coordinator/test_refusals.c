/* Batches of a run in flight that are verified (checks/refusals.h), over real HTTP with a fake trainer that refuses.
 * What would break: a refused group is in the step, or in its figures; a step is short of a group; who lied gets more,
 * or what it drew is trained on; who did not is accused; nobody can tell who is at fault and the run goes on; a
 * restart, of the coordinator or of the trainer, between a refusal and the step stores another record. */
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "tests/unit/coordinator/fake_server.h"

enum { GROUPS = 2, SAMPLES = 2, AHEAD = 4 };

/* Steps of 2 groups of 2 samples; what is ahead: 4 groups; no lease becomes too old. */
#define VERIFIED(more)                                                                                              \
  "{\"mode\":\"inflight\",\"max_lag\":8,\"rounds\":4,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":" \
  "false},"                                                                                                         \
  "\"groups_per_round\":2,\"samples_per_group\":2,\"lease_samples_max\":2,\"sampling\":{\"temperature\":1.0,"       \
  "\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}" more "}"

struct two {
  struct fake_server liar, honest;
  struct lease leases[AHEAD]; /* the liar has the first two, the honest one the others */
};

/* One group's samples a poll. */
static void take(struct fixture *f, struct fake_server *s, struct lease *leases, int count) {
  for (int n = 0; n < count; n++) {
    struct lease_answer a;
    poll_leases(f, s, SAMPLES, &a);
    assert_int_equal(a.lease_count, 1);
    leases[n] = a.leases[0];
  }
}

/* The trainer refuses group 0, which it has not seen yet. */
static void begin(struct fixture *f, struct two *t, const char *run, enum worker_exactness exactness) {
  snprintf(f->trainer.refuse, sizeof f->trainer.refuse, "r1.0.0");
  post_run(f, run);
  json_free(wait_state(f, "r1", "running"));
  register_server_as(f, &t->liar, "liar", exactness);
  register_server(f, &t->honest, "honest");
  take(f, &t->liar, t->leases, GROUPS);
  take(f, &t->honest, t->leases + GROUPS, GROUPS);
}

static void wait_version(struct fixture *f, int64_t version) {
  AWAIT(read_int(f, "SELECT coalesce(max(version), -1) FROM versions") >= version, "version %lld is not current",
        (long long)version)
  a_moment_passes(f);
}

static void wait_left(struct fixture *f) {
  AWAIT(read_int(f, "SELECT count(*) FROM incidents WHERE kind IN ('sample_refused', 'inexact')") > 0,
        "no group is refused")
  a_moment_passes(f);
}

/* A run whose trainer has refused group 0, which has left the step; another group is in it. */
static void one_leaves(struct fixture *f, struct two *t, const char *run, enum worker_exactness exactness) {
  begin(f, t, run, exactness);
  answer_lease(f, &t->liar, &t->leases[0]);
  answer_lease(f, &t->honest, &t->leases[2]);
  wait_left(f);
}

/* Whatever happened, the first step has two groups, of which none is the refused one. */
static void expect_a_whole_step(struct fixture *f) {
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 0 AND state = 3"), GROUPS);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 0 AND round = 0 AND ordinal = 0"), 0);
  assert_int_equal(read_int(f, "SELECT state = 4 AND batch IS NULL FROM groups WHERE round = 0 AND ordinal = 0"), 1);
  assert_int_equal(read_int(f, "SELECT sum(groups) FROM batches WHERE round = 0"), GROUPS);
  assert_int_equal(
      read_int(f, "SELECT groups_trained * 100 + groups_filtered * 10 + groups_refused FROM rounds WHERE round = 0"),
      211);
  assert_int_equal(read_int(f, "SELECT submitted_samples * 10 + training_samples FROM rounds WHERE round = 0"),
                   GROUPS * SAMPLES * 11);
  assert_int_equal(read_int(f, "SELECT denominator FROM rounds WHERE round = 0"), GROUPS * SAMPLES);
  assert_int_equal(
      read_int(f,
               "SELECT trained_tokens = (SELECT sum(tokens) FROM groups WHERE trained_in = 0) FROM rounds WHERE "
               "round = 0"),
      1);
}

/* The next group of the same worker takes its place. */
static void step_without_it(struct fixture *f, struct two *t) {
  answer_lease(f, &t->liar, &t->leases[1]);
  wait_version(f, 1);
  expect_a_whole_step(f);
}

static void a_refused_group_leaves_its_step_and_its_worker_the_run(void **state) {
  struct fixture *f = *state;
  struct two t;
  struct lease_answer a;
  one_leaves(f, &t, VERIFIED(""), WORKER_INVARIANT);
  assert_int_equal(read_int(f, "SELECT state FROM rounds WHERE round = 0"), ROUND_OPEN);
  assert_int_equal(read_int(f, "SELECT count(*) FROM quarantines WHERE name = 'liar' AND round = 0"), 1);
  assert_int_equal(
      read_int(f,
               "SELECT count(*) FROM incidents WHERE kind = 'sample_refused' AND subject = 'r1.0.0.0' AND detail "
               "LIKE '%(liar) sent token % draws token 1 there%'"),
      1);
  assert_int_equal(read_int(f, "SELECT state FROM leases WHERE group_ordinal = 1"), LEASE_LOST);
  assert_int_equal(poll_once(f, &t.liar, 8, &a, &(struct err){0}), RC_OK);
  assert_int_equal(a.lease_count, 0);
  answer_lease(f, &t.honest, &t.leases[3]);
  wait_version(f, 1);
  expect_a_whole_step(f);
  struct json *run = serve_run(f, &t.honest, "r1", "completed");
  assert_int_equal(get_int(json_get(run, "totals"), "logprob_unequal", NULL), 0);
  json_free(run);
  assert_int_equal(read_int(f, "SELECT count(*) FROM quarantines"), 1);
  assert_int_equal(read_int(f, "SELECT held > 0 FROM checked WHERE name = 'honest' LIMIT 1"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM handed_back"), 0);
}

/* Group 1 is complete, and of the same worker. */
static void what_a_liar_drew_is_not_trained_on(void **state) {
  struct fixture *f = *state;
  struct two t;
  f->trainer.slow_batches = true;
  begin(f, &t, VERIFIED(""), WORKER_INVARIANT);
  answer_lease(f, &t.liar, &t.leases[0]);
  answer_lease(f, &t.honest, &t.leases[2]);
  AWAIT(read_int(f, "SELECT state FROM rounds WHERE round = 0") == ROUND_TRAINING, "the step is not full")
  a_moment_passes(f);
  answer_lease(f, &t.liar, &t.leases[1]);
  fake_trainer_finish_batches(&f->trainer);
  wait_left(f);
  assert_int_equal(read_int(f, "SELECT state = 4 AND reason = 'refused' FROM groups WHERE ordinal = 1"), 1);
  answer_lease(f, &t.honest, &t.leases[3]);
  wait_version(f, 1);
  assert_int_equal(read_int(f, "SELECT groups_refused FROM rounds WHERE round = 0"), 2);
  json_free(serve_run(f, &t.honest, "r1", "completed"));
  assert_int_equal(
      read_int(f,
               "SELECT count(*) FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = "
               "s.group_ordinal JOIN workers w ON w.id = s.worker WHERE g.state = 3 AND w.name = 'liar'"),
      0);
}

static void where_nobody_can_tell_the_run_is_paused(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[AHEAD];
  snprintf(f->trainer.refuse, sizeof f->trainer.refuse, "r1.0.0");
  post_run(f, VERIFIED(""));
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "alone");
  collect_leases(f, &s, leases, AHEAD);
  for (int g = 0; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  json_free(wait_held(f, "r1", "the trainer and alone draw different samples"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM quarantines"), 0);
  for (int g = GROUPS; g < AHEAD; g++) answer_lease(f, &s, &leases[g]);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  wait_version(f, 1);
  expect_a_whole_step(f);
  json_free(serve_run(f, &s, "r1", "completed"));
}

/* The trainer still knows the batch as it was sent. */
static void a_coordinator_that_comes_back_takes_the_refusal_once(void **state) {
  struct fixture *f = *state;
  struct two t;
  one_leaves(f, &t, VERIFIED(""), WORKER_INVARIANT);
  coordinator_restart(f);
  register_server(f, &t.honest, "honest");
  struct json *run = serve_run(f, &t.honest, "r1", "completed");
  json_free(run);
  expect_a_whole_step(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'sample_refused'"), 1);
}

/* It has the answer, and the coordinator does not, which is told before the servers are back: the honest one is still
 * counted among those that can tell who is at fault. */
static void a_coordinator_that_comes_back_before_the_answer_takes_it_then(void **state) {
  struct fixture *f = *state;
  struct two t;
  f->trainer.slow_batches = true;
  begin(f, &t, VERIFIED(""), WORKER_INVARIANT);
  answer_lease(f, &t.liar, &t.leases[0]);
  answer_lease(f, &t.honest, &t.leases[2]);
  AWAIT(read_int(f, "SELECT state FROM rounds WHERE round = 0") == ROUND_TRAINING &&
            fake_trainer_batches(&f->trainer) > 0,
        "the batch is not sent")
  a_moment_passes(f);
  coordinator_down(f);
  fake_trainer_finish_batches(&f->trainer);
  coordinator_up(f);
  register_trainer(f);
  wait_left(f);
  register_server(f, &t.honest, "honest");
  register_server(f, &t.liar, "liar");
  json_free(serve_run(f, &t.honest, "r1", "completed"));
  expect_a_whole_step(f);
}

/* It is sent what is left of the batch, and nothing is refused twice. */
static void a_trainer_that_comes_back_is_sent_what_is_left(void **state) {
  struct fixture *f = *state;
  struct two t;
  one_leaves(f, &t, VERIFIED(""), WORKER_INVARIANT);
  fake_trainer_forget(&f->trainer, false);
  register_trainer(f);
  answer_lease(f, &t.honest, &t.leases[3]);
  json_free(serve_run(f, &t.honest, "r1", "completed"));
  expect_a_whole_step(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'sample_refused'"), 1);
}

/* ---- where equal bits are not promised ---- */

static void nothing_is_judged_where_nothing_is_promised(void **state) {
  struct fixture *f = *state;
  struct two t;
  begin(f, &t, VERIFIED(""), WORKER_FASTEST);
  answer_lease(f, &t.liar, &t.leases[0]);
  answer_lease(f, &t.liar, &t.leases[1]);
  wait_version(f, 1);
  assert_int_equal(f->trainer.verified, 0);
  answer_lease(f, &t.honest, &t.leases[2]);
  answer_lease(f, &t.honest, &t.leases[3]);
  wait_version(f, 2);
  assert_true(f->trainer.verified > 0);
  assert_true(f->trainer.exact_from > 0); /* they are of version 0 */
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 0 AND ordinal = 0"), 1);
}

static void drop_leaves_out_what_is_inexact_and_accuses_nobody(void **state) {
  struct fixture *f = *state;
  struct two t;
  one_leaves(f, &t, VERIFIED(",\"on_inexact\":\"drop\""), WORKER_FASTEST);
  assert_int_equal(read_int(f, "SELECT state = 4 AND reason = 'inexact' FROM groups WHERE ordinal = 0"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM quarantines"), 0);
  step_without_it(f, &t);
}

/* Nothing tells whether it was the worker or the policy that moved. */
static void past_a_bound_nobody_is_accused_where_no_others_tell(void **state) {
  struct fixture *f = *state;
  struct two t;
  f->trainer.refuse_for = REFUSED_MISMATCH;
  one_leaves(f, &t, VERIFIED(""), WORKER_INVARIANT);
  assert_int_equal(read_int(f, "SELECT state = 4 AND reason = 'inexact' FROM groups WHERE ordinal = 0"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM quarantines"), 0);
  assert_int_equal(
      read_int(f,
               "SELECT count(*) FROM incidents WHERE kind = 'inexact' AND detail LIKE '%; nobody is accused: % at "
               "least 64 are needed, and the step has 0'"),
      1);
  step_without_it(f, &t);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'sample_refused'"), 0);
}

/* The kernels promise equal bits: people who look after them would find nothing, and the next step may be so again. */
static void fail_does_not_pause_for_a_policy_that_moves_fast(void **state) {
  struct fixture *f = *state;
  struct two t;
  f->trainer.refuse_for = REFUSED_MISMATCH;
  one_leaves(f, &t, VERIFIED(",\"on_inexact\":\"fail\""), WORKER_INVARIANT);
  assert_int_equal(read_int(f, "SELECT state FROM runs"), RUN_RUNNING);
  step_without_it(f, &t);
}

static void fail_pauses_the_run_and_goes_on_without_the_group(void **state) {
  struct fixture *f = *state;
  struct two t;
  begin(f, &t, VERIFIED(",\"on_inexact\":\"fail\""), WORKER_FASTEST);
  answer_lease(f, &t.liar, &t.leases[0]);
  answer_lease(f, &t.honest, &t.leases[2]);
  json_free(wait_held(f, "r1", "sample r1.0.0.0: "));
  answer_lease(f, &t.honest, &t.leases[3]);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  wait_version(f, 1);
  expect_a_whole_step(f);
}

/* The run ends with the first of them, while version 1 is announced and its push still goes on. */
static void two_inexact_groups_of_a_run_that_is_stopping_stop_it(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[AHEAD];
  struct err err = {0};
  post_run(f, VERIFIED(",\"on_inexact\":\"fail\""));
  json_free(wait_state(f, "r1", "running"));
  register_server_as(f, &s, "gpu", WORKER_FASTEST);
  take(f, &s, leases, AHEAD);
  f->trainer.slow_steps = true;
  for (int i = 0; i < GROUPS; i++) answer_lease(f, &s, &leases[i]);
  AWAIT(fake_trainer_steps(&f->trainer) == 1, "no step") a_moment_passes(f);
  for (int i = GROUPS; i < AHEAD; i++) answer_lease(f, &s, &leases[i]);
  const int before = fake_trainer_batches(&f->trainer);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.slow_batches = true;
  snprintf(f->trainer.refuse, sizeof f->trainer.refuse, "r1.0.");
  pthread_mutex_unlock(&f->trainer.lock);
  struct version_announce m = {.run = "r1",
                               .step_id = "r1.0",
                               .worker_id = f->trainer_is.worker_id,
                               .epoch = f->trainer_is.epoch,
                               .fence = f->trainer_is.fence,
                               .version = 1,
                               .grad_norm = 0.5,
                               .lr = 0.25};
  fake_digest(&m.digest, "r1", 1);
  if (coordinator_announce_version(&f->client, &m, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
  AWAIT(fake_trainer_batches(&f->trainer) > before, "the next batch is not sent") a_moment_passes(f);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  fake_trainer_finish_batches(&f->trainer);
  json_free(wait_state(f, "r1", "stopped"));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
  const struct CMUnitTest tests[] = {
      T(a_refused_group_leaves_its_step_and_its_worker_the_run),
      T(what_a_liar_drew_is_not_trained_on),
      T(where_nobody_can_tell_the_run_is_paused),
      T(a_coordinator_that_comes_back_takes_the_refusal_once),
      T(a_coordinator_that_comes_back_before_the_answer_takes_it_then),
      T(a_trainer_that_comes_back_is_sent_what_is_left),
      T(nothing_is_judged_where_nothing_is_promised),
      T(drop_leaves_out_what_is_inexact_and_accuses_nobody),
      T(past_a_bound_nobody_is_accused_where_no_others_tell),
      T(fail_does_not_pause_for_a_policy_that_moves_fast),
      T(fail_pauses_the_run_and_goes_on_without_the_group),
      T(two_inexact_groups_of_a_run_that_is_stopping_stop_it),
  };
  return cmocka_run_group_tests_name("coordinator/refusals", tests, NULL, NULL);
}

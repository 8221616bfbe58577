/* What a round says about its exactness, over real HTTP with a fake trainer and fake servers. What would break: a
 * mismatch is measured and not shown, a NaN looks like agreement, kernels that promise nothing are not named, a replay
 * ends in other weights without naming the kernels that may be the reason. */
#include <math.h>
#include <stdlib.h>

#include "tests/unit/coordinator/fake_server.h"

static const struct json *first_round(const struct json *run) { return json_at(json_get(run, "history"), 0); }

static const char *reason_of(const struct json *run) {
  const struct json *reason = json_get(first_round(run), "inexact_reason");
  assert_true(json_bool(json_get(first_round(run), "exact")) == (json_type_of(reason) == JSON_NULL));
  return json_type_of(reason) == JSON_NULL ? "" : json_string(reason, NULL);
}

static double figure(const struct json *shown, const char *name) {
  const struct json *v = json_get(shown, name);
  return json_type_of(v) == JSON_NULL ? NAN : json_number(v);
}

static const char *const FIGURES[] = {"logprob_max_abs_diff", "logprob_mean_abs_diff", "logprob_kl_k1",
                                      "logprob_kl_k3"};

static void agreement_is_exactly_zero(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_string_equal(reason_of(run), "");
  for (int i = 0; i < 4; i++) {
    char name[64];
    snprintf(name, sizeof name, "leasehold_round_%s", FIGURES[i]);
    assert_true(figure(first_round(run), FIGURES[i]) == 0 && figure(json_get(run, "totals"), FIGURES[i]) == 0);
    wait_metric(f, name, 0);
  }
  json_free(run);
}

/* Serves the run to its end; the trainer differs in the first of the three tokens of each of the twelve samples. */
static struct json *run_that_differs(struct fixture *f) {
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_string_equal(reason_of(run), "12 log-probabilities of the trainer's differ from the samplers'");
  return run;
}

static void a_difference_is_shown_in_figures(void **state) {
  struct fixture *f = *state;
  const float theirs = fake_logprob('#');
  const double d = (double)theirs - (double)(theirs * (1 + 1e-6f));
  f->trainer.wrong_logprobs = true;
  struct json *run = run_that_differs(f);
  const struct json *shown[] = {first_round(run), json_get(run, "totals")};
  for (int i = 0; i < 2; i++) {
    assert_true(figure(shown[i], "logprob_max_abs_diff") == d);
    assert_true(fabs(figure(shown[i], "logprob_mean_abs_diff") - d / 3) < 1e-12 * d);
    assert_true(fabs(figure(shown[i], "logprob_kl_k1") - d / 3) < 1e-12 * d); /* the token is likelier to the sampler */
    assert_true(fabs(figure(shown[i], "logprob_kl_k3") - d * d / 6) < 1e-5 * d * d);
    assert_int_equal(get_int(shown[i], "logprob_unequal", NULL), 12);
    assert_int_equal(get_int(shown[i], "logprob_nonfinite", NULL), 0);
  }
  wait_metric(f, "leasehold_round_logprob_max_abs_diff", d);
  assert_true(read_metric(f, "leasehold_round_logprob_kl_k1") == figure(shown[0], "logprob_kl_k1"));
  assert_true(read_metric(f, "leasehold_round_logprob_unequal_tokens") == 12);
  json_free(run);
}

static void a_nan_is_shown_and_counted(void **state) {
  struct fixture *f = *state;
  const double before =
      read_metric(f, "leasehold_logprob_unequal_tokens_total"); /* of this process, other tests included */
  f->trainer.nan_logprobs = true;
  struct json *run = run_that_differs(f);
  const struct json *shown[] = {first_round(run), json_get(run, "totals")};
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 4; k++) assert_true(isnan(figure(shown[i], FIGURES[k])));
    assert_int_equal(get_int(shown[i], "logprob_unequal", NULL), 12);
    assert_int_equal(get_int(shown[i], "logprob_nonfinite", NULL), 12);
  }
  wait_metric(f, "leasehold_round_logprob_max_abs_diff", INFINITY);
  assert_true(isnan(read_metric(f, "leasehold_round_logprob_mean_abs_diff")));
  assert_true(read_metric(f, "leasehold_round_logprob_nonfinite_tokens") == 12);
  assert_true(read_metric(f, "leasehold_logprob_unequal_tokens_total") == before + 12);
  json_free(run);
}

static void kernels_that_promise_nothing_are_named(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server_as(f, &s, "gen-2", WORKER_FASTEST);
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_string_equal(reason_of(run), "the kernels of gen-2 are not batch-invariant"); /* though all agree */
  assert_true(figure(first_round(run), "logprob_max_abs_diff") == 0);
  json_free(run);
  register_trainer_as(f, WORKER_FASTEST);
  post_run(f, GRPO(1, "}"));
  run = serve_run(f, &s, "r2", "completed");
  assert_string_equal(reason_of(run), "the kernels of gen-2 and trainer are not batch-invariant");
  json_free(run);
}

static void an_engine_of_others_is_named(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server_as(f, &s, "agent-1", WORKER_FOREIGN);
  report_ready(f, &s);
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_string_equal(reason_of(run), "the engine of agent-1 is not ours"); /* though all agree */
  assert_true(figure(first_round(run), "logprob_max_abs_diff") == 0);
  assert_int_equal(f->trainer.last_pushes, 0); /* it pulls */
  json_free(run);
  register_trainer_as(f, WORKER_FASTEST);
  post_run(f, GRPO(1, "}"));
  run = serve_run(f, &s, "r2", "completed");
  assert_string_equal(reason_of(run),
                      "the kernels of trainer are not batch-invariant; the engine of agent-1 is not ours");
  json_free(run);
}

/* One server begins the samples and hands them back; another one, which is batch-invariant, ends them. */
static void kernels_that_only_began_a_sample_are_named_too(void **state) {
  struct fixture *f = *state;
  struct fake_server begins, ends;
  struct lease_answer a;
  struct err err = {0};
  post_run(f, GRPO(1, "}"));
  register_server_as(f, &begins, "gen-2", WORKER_FASTEST);
  poll_leases(f, &begins, 4, &a);
  struct lease_result r = make_result(f, &begins, &a.leases[0]);
  r.handed_back = true;
  for (size_t i = 0; i < r.sample_count; i++) {
    struct sample_result *s = &r.samples[i];
    s->token_ids.count = s->logprobs.count = 1;
    s->segments[0].count = s->spans[0].count = 1;
    s->finish = FINISH_ABORT;
  }
  if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  for (size_t i = 1; i < a.lease_count; i++) {
    r = make_result(f, &begins, &a.leases[i]);
    r.handed_back = true;
    r.sample_count = 0;
    if (put_result(f, &a.leases[i], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  }
  register_server(f, &ends, "gen-1");
  struct json *run = serve_run(f, &ends, "r1", "completed");
  assert_string_equal(reason_of(run), "the kernels of gen-2 are not batch-invariant");
  json_free(run);
}

/* The trainer that replays is not batch-invariant, and reaches other weights than the recorded ones. */
static void a_replay_that_reaches_other_weights_names_the_kernels(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(2, "}"));
  while (read_int(f, "SELECT count(*) FROM versions") < 2) {
    struct err err = {0};
    if (poll_once(f, &s, 64, &a, &err) != RC_OK) fail_msg("%s", err.message);
    if (read_int(f, "SELECT count(*) FROM versions") == 2) break; /* these leases belong to round 1 */
    for (size_t i = 0; i < a.lease_count; i++) {
      struct lease_result r = make_result(f, &s, &a.leases[i]);
      put_result(f, &a.leases[i], &r, NULL, &err);
    }
  }
  AWAIT(read_int(f, "SELECT finished FROM rounds WHERE round = 0"), "round 0 is not finished") continue;
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.version = 0; /* it claims that r1.0's step made these weights */
  pthread_mutex_unlock(&f->trainer.lock);
  register_trainer_as(f, WORKER_FASTEST);
  struct json *run = wait_held(f, "r1", "");
  const char *error = json_string(json_get(run, "error"), NULL);
  if (!strstr(error, "replaying round r1.0") || !strstr(error, "the kernels of trainer are not batch-invariant"))
    fail_msg("%s", error);
  assert_int_equal(read_int(f, "SELECT count(*) FROM versions"), 2);
  json_free(run);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(agreement_is_exactly_zero),
      CASE(a_difference_is_shown_in_figures),
      CASE(a_nan_is_shown_and_counted),
      CASE(kernels_that_promise_nothing_are_named),
      CASE(kernels_that_only_began_a_sample_are_named_too),
      CASE(an_engine_of_others_is_named),
      CASE(a_replay_that_reaches_other_weights_names_the_kernels),
  };
  return cmocka_run_group_tests_name("coordinator/exactness", tests, NULL, NULL);
}

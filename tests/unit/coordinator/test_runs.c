/* Whole runs over real HTTP with a fake trainer and a fake server. What would break: rounds do not open or close, a
 * step has the wrong members or denominator, an inexact round is called exact, a run does not survive a restart, a
 * zombie announces a version, a run hangs instead of pausing with a sentence. */
#include <math.h>
#include <stdlib.h>

#include "tests/unit/coordinator/fake_server.h"

static const struct json *history_at(const struct json *run, size_t i) { return json_at(json_get(run, "history"), i); }

static void a_grpo_run_goes_through_its_rounds(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  register_server(f, &s, "gen-1");
  report_ready(f, &s);
  post_run(f, GRPO(3, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  fake_digest(&digest, "r1", 3);
  digest_hex(hex, &digest);
  assert_string_equal(json_string(json_get(run, "weights_digest"), NULL), hex);
  assert_int_equal(get_int(run, "version", NULL), 3);
  assert_int_equal(json_length(json_get(run, "history")), 3);
  const struct json *last = history_at(run, 2);
  assert_string_equal(json_string(json_get(last, "digest"), NULL), hex); /* the weights after the round */
  assert_int_equal(get_int(last, "version", NULL), 2);
  assert_int_equal(get_int(last, "groups", NULL), 3);
  assert_int_equal(get_int(last, "tokens", NULL), 36);
  assert_true(json_bool(json_get(last, "exact")));
  assert_true(json_number(json_get(last, "reward_mean")) == 0.5);
  assert_true(json_number(json_get(last, "completion_tokens_mean")) == 3);
  assert_true(json_number(json_get(last, "grad_norm")) == 0.5);
  assert_int_equal(get_int(run, "totals", "sampled_tokens"), 108);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 108);
  assert_int_equal(get_int(run, "totals", "logprob_unequal"), 0);
  assert_int_equal(get_int(run, "totals", "stale_results_trained_on"), 0);
  assert_int_equal(f->trainer.steps, 3);
  assert_true(f->trainer.last_denominator == 36); /* tokens */
  assert_int_equal(f->trainer.last_pushes, 1);
  json_free(run);
}

static void rollouts_and_timeline_can_be_read(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct json *answer;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  json_free(serve_run(f, &s, "r1", "completed"));
  assert_int_equal(call(f, "GET", "/v1/runs/r1/rollouts?round=0&limit=5", NULL, &answer), 200);
  const struct json *rollouts = json_get(answer, "rollouts");
  assert_int_equal(json_length(rollouts), 5);
  const struct json *first = json_at(rollouts, 0);
  assert_string_equal(json_string(json_get(first, "text"), NULL), "#0");
  assert_string_equal(json_string(json_get(first, "prompt"), NULL), "0+0=");
  assert_int_equal(json_length(json_get(first, "token_ids")), 3);
  assert_true(json_number(json_get(first, "reward")) == 1);
  assert_true(json_number(json_get(json_at(rollouts, 1), "reward")) == 0);
  assert_true(json_number(json_get(first, "advantage")) > 0.9);
  json_free(answer);
  assert_int_equal(call(f, "GET", "/v1/runs/r1/timeline", NULL, &answer), 200);
  const struct json *round = json_at(json_get(answer, "rounds"), 0);
  assert_string_equal(json_string(json_get(round, "state"), NULL), "done");
  assert_true(get_int(round, "opened_ms", NULL) <= get_int(round, "generated_ms", NULL));
  assert_true(get_int(round, "first_sealed_ms", NULL) <= get_int(round, "submitted_ms", NULL));
  assert_true(get_int(round, "step_begun_ms", NULL) <= get_int(round, "published_ms", NULL));
  assert_int_equal(get_int(json_at(json_get(round, "workers"), 0), "samples", NULL), 12);
  json_free(answer);
}

static void a_differing_logprob_makes_the_round_inexact(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.wrong_logprobs = true;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_false(json_bool(json_get(history_at(run, 0), "exact")));
  assert_int_equal(get_int(run, "totals", "logprob_unequal"), 12);
  assert_true(json_number(json_get(json_get(run, "totals"), "logprob_max_abs_diff")) > 0);
  json_free(run);
}

/* All samples of a group alike: no advantage, nothing to learn from. */
static void a_round_without_gradient_is_a_skipped_step(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "},\"filter\":{\"zero_advantage\":\"shrink\"}"));
  for (int done = 0; done < 3;) {
    poll_leases(f, &s, 64, &a);
    for (size_t i = 0; i < a.lease_count; i++, done++) {
      struct lease_result r = make_result(f, &s, &a.leases[i]);
      for (int k = 0; k < a.leases[i].sample_count; k++) make_sample(f, &r.samples[k], &a.leases[i], k, true);
      assert_int_equal(put_result(f, &a.leases[i], &r, NULL, &err), RC_OK);
    }
  }
  struct json *run = wait_state(f, "r1", "completed");
  assert_int_equal(get_int(history_at(run, 0), "filtered", NULL), 3);
  assert_int_equal(get_int(history_at(run, 0), "groups", NULL), 0);
  assert_int_equal(f->trainer.batches, 0);
  assert_int_equal(f->trainer.steps, 1);
  assert_int_equal(f->trainer.last_groups, 0);
  json_free(run);
}

static void a_round_with_evaluations_trains_only_on_its_own_groups(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(3,
                   "},\"evaluation\":{\"path\":\"train.jsonl\",\"every_rounds\":2,\"samples\":2,\"problems\":4,"
                   "\"temperature\":0}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  const struct json *evaluations = json_get(run, "evaluations");
  assert_int_equal(json_length(evaluations), 2); /* rounds 0 and 2 */
  assert_int_equal(get_int(json_at(evaluations, 0), "problems", NULL), 4);
  assert_int_equal(get_int(json_at(evaluations, 0), "samples", NULL), 8);
  assert_true(json_number(json_get(json_at(evaluations, 0), "accuracy")) == 0.5);
  assert_int_equal(get_int(history_at(run, 0), "tokens", NULL), 36);
  assert_int_equal(f->trainer.last_groups, 3);
  json_free(run);
}

static void an_evaluate_run_trains_nothing(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f,
           "{\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_per_round\":0,"
           "\"samples_per_group\":2,"
           "\"sampling\":{\"temperature\":0,\"max_new_tokens\":8},"
           "\"training\":{\"objective\":\"evaluate\"}}");
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "result", "problems"), 10);
  assert_int_equal(get_int(run, "result", "samples"), 20);
  assert_true(json_number(json_get(json_get(run, "result"), "accuracy")) == 0.5);
  assert_int_equal(f->trainer.steps, 0);
  json_free(run);
}

static void a_supervised_run_needs_no_servers(void **state) {
  struct fixture *f = *state;
  post_run(f,
           "{\"rounds\":4,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":2,"
           "\"samples_per_group\":3,\"training\":{\"objective\":\"cross_entropy\"}}");
  struct json *run = wait_state(f, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 4);
  assert_int_equal(get_int(history_at(run, 0), "groups", NULL), 2);
  assert_int_equal(get_int(history_at(run, 0), "tokens", NULL), 12); /* 6 completions of a digit and the end */
  assert_int_equal(get_int(run, "totals", "leases_granted"), 0);
  json_free(run);
}

/* Posts r1, which runs until it is stopped, and r2, whose dataset is sound when it is posted and bad when its turn
 * comes. */
static void post_one_that_goes_bad_behind_another(struct fixture *f) {
  write_data(f, "bad.jsonl", "{\"prompt\":\"1+1=\",\"completion\":\"2\"}\n");
  post_run(f,
           "{\"rounds\":1000000,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  post_run(f,
           "{\"rounds\":1,\"dataset\":{\"path\":\"bad.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  json_free(wait_state(f, "r1", "running"));
  write_data(f, "bad.jsonl", "{\"prompt\":1}\n");
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
}

static void a_dataset_that_went_bad_pauses_the_run_until_it_is_mended(void **state) {
  struct fixture *f = *state;
  struct json *answer;
  post_one_that_goes_bad_behind_another(f);
  json_free(wait_held(f, "r2", "line 1"));
  assert_int_equal(call(f, "POST", "/v1/runs/r2/resume", NULL, NULL), 200);
  json_free(wait_held(f, "r2", "line 1")); /* the file is still bad */
  write_data(f, "bad.jsonl", "{\"prompt\":\"1+1=\",\"completion\":\"2\"}\n");
  assert_int_equal(call(f, "POST", "/v1/runs/r2/resume", NULL, &answer), 200);
  assert_string_equal(json_string(json_get(answer, "state"), NULL), "starting");
  json_free(answer);
  struct json *run = wait_state(f, "r2", "completed");
  assert_int_equal(json_type_of(json_get(run, "error")), JSON_NULL);
  json_free(run);
}

static void a_run_paused_by_trouble_can_be_stopped_and_the_next_one_runs(void **state) {
  struct fixture *f = *state;
  struct json *answer;
  post_one_that_goes_bad_behind_another(f);
  post_run(f,
           "{\"rounds\":1,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  json_free(wait_held(f, "r2", "stop it")); /* it was never opened, and r3 waits for it */
  json_free(wait_state(f, "r3", "queued"));
  assert_int_equal(call(f, "POST", "/v1/runs/r2/stop", NULL, &answer), 200);
  assert_string_equal(json_string(json_get(answer, "state"), NULL), "stopped");
  json_free(answer);
  json_free(wait_state(f, "r3", "completed"));
}

static void impossible_configurations_are_refused(void **state) {
  struct fixture *f = *state;
  struct json *answer;
  const struct {
    const char *body;
    int status;
  } cases[] = {
      {"{}", 422},
      {"{\"dataset\":{\"path\":\"missing.jsonl\"}}", 422},
      {"{\"dataset\":{\"path\":\"../data/train.jsonl\"}}", 422},
      {"{\"dataset\":{\"path\":\"/etc/passwd\"}}", 422},
      {"{\"dataset\":{\"path\":\"train.jsonl\"},\"surprise\":1}", 422},
      {"{\"dataset\":{\"path\":\"train.jsonl\"},\"mode\":\"inflight\",\"update\":\"minibatch\"}", 422},
      {"{\"dataset\":{\"path\":\"train.jsonl\"},\"rounds\":0}", 422},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(call(f, "POST", "/v1/runs", cases[i].body, &answer), cases[i].status);
    assert_non_null(json_get(json_get(answer, "error"), "field"));
    json_free(answer);
  }
}

static void a_run_is_paused_resumed_and_stopped(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct json *answer;
  struct err err;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(5, "}"));
  poll_leases(f, &s, 4, &a);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, &answer), 200);
  assert_string_equal(json_string(json_get(answer, "state"), NULL), "paused");
  json_free(answer);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK); /* what was leased finishes */
  assert_int_equal(poll_once(f, &s, 64, &a, &err), RC_OK);
  assert_int_equal(a.lease_count, 0);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  poll_leases(f, &s, 4, &a);
  r = make_result(f, &s, &a.leases[0]);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  json_free(wait_state(f, "r1", "stopped"));
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_CONFLICT); /* the stop has made it void */
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 409);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  assert_int_equal(call(f, "POST", "/v1/runs/r9/stop", NULL, NULL), 404);
}

static void runs_wait_for_each_other(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  post_run(f, GRPO(1, "}"));
  poll_leases(f, &s, 4, &a);
  struct json *second = get_run(f, "r2");
  assert_string_equal(json_string(json_get(second, "state"), NULL), "queued");
  json_free(second);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  json_free(serve_run(f, &s, "r2", "completed"));
}

/* Serves round 0 and stops; returns when the step is under way. */
static void until_stepping(struct fixture *f, struct fake_server *s) {
  struct lease leases[3];
  f->trainer.slow_steps = true;
  register_server(f, s, "gen-1");
  post_run(f, GRPO(2, "}"));
  collect_leases(f, s, leases, 3);
  for (int i = 0; i < 3; i++) answer_lease(f, s, &leases[i]);
  AWAIT(fake_trainer_steps(&f->trainer), "no step was submitted") continue;
}

static enum rc announce(struct fixture *f, const char *step, int64_t version, uint64_t fence, int64_t digest_of_version,
                        struct err *err) {
  struct version_announce m = {.run = "r1",
                               .step_id = step,
                               .worker_id = f->trainer_is.worker_id,
                               .epoch = f->trainer_is.epoch,
                               .fence = fence,
                               .version = version,
                               .grad_norm = 0.75, /* what the fake's step says itself is 0.5 and 0.25 */
                               .lr = 0.125};
  fake_digest(&m.digest, "r1", digest_of_version);
  return coordinator_announce_version(&f->client, &m, DEADLINE_MS, err);
}

static void versions_are_announced_once_and_by_the_right_trainer(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  until_stepping(f, &s);
  uint64_t fence = f->trainer_is.fence;
  assert_int_equal(announce(f, "r1.0", 1, fence + 1, 1, &err), RC_CONFLICT);
  assert_int_equal(announce(f, "r1.0", 2, fence, 2, &err), RC_CONFLICT); /* not the next */
  assert_int_equal(announce(f, "r1.1", 1, fence, 1, &err), RC_CONFLICT); /* another round */
  assert_int_equal(announce(f, "r7.0", 1, fence, 1, &err), RC_INVALID);
  assert_int_equal(announce(f, "r1.0", 1, fence, 1, &err), RC_OK);
  assert_int_equal(announce(f, "r1.0", 1, fence, 1, &err), RC_OK);       /* a repeat */
  assert_int_equal(announce(f, "r1.0", 1, fence, 9, &err), RC_CONFLICT); /* other weights under the same number */
  struct json *run = get_run(f, "r1");
  assert_int_equal(get_int(run, "version", NULL), 1);
  assert_int_equal(get_int(run, "round", NULL), 1); /* the next round opens before the step's times come */
  json_free(run);
  fake_trainer_finish_steps(&f->trainer);
  json_free(serve_run(f, &s, "r1", "completed"));
}

static void a_stop_in_the_middle_of_a_step_waits_for_its_version(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct json *answer;
  until_stepping(f, &s);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, &answer), 200);
  assert_string_equal(json_string(json_get(answer, "state"), NULL), "stopping");
  json_free(answer);
  fake_trainer_finish_steps(&f->trainer);
  struct json *run = wait_state(f, "r1", "stopped");
  assert_int_equal(get_int(run, "version", NULL), 1);
  assert_int_equal(get_int(run, "round", NULL), 0);
  json_free(run);
}

static void a_run_survives_a_restart_of_the_coordinator(void **state) {
  struct fixture *f = *state;
  struct fake_server s, before;
  struct lease_answer a;
  struct err err;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(2, "}"));
  poll_leases(f, &s, 4, &a);
  before = s;
  struct lease l = a.leases[0];
  struct lease_result late = make_result(f, &s, &l);
  uint64_t epoch = s.is.epoch;
  coordinator_restart(f);
  assert_int_equal(f->trainer_is.epoch, epoch + 1);
  assert_int_equal(put_result(f, &l, &late, NULL, &err), RC_CONFLICT); /* it carries the old epoch */
  assert_int_equal(poll_once(f, &before, 4, &a, &err), RC_CONFLICT);
  register_server(f, &s, "gen-1");
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(get_int(run, "totals", "leases_lost"), 1);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72);
  json_free(run);
}

static void a_restart_in_the_middle_of_a_step_finds_the_version(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  coordinator_down(f);
  fake_trainer_finish_steps(&f->trainer);
  coordinator_up(f);
  register_trainer(f);
  register_server(f, &s, "gen-1");
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(f->trainer.steps, 2); /* none was taken twice */
  json_free(run);
}

/* The trainer starts again from version 0: the first round is replayed, the second one goes on. */
static void a_trainer_that_lost_rounds_is_brought_back_by_replay(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  fake_trainer_finish_steps(&f->trainer);
  fake_trainer_forget(&f->trainer, false);
  const int batches = fake_trainer_batches(&f->trainer), steps = fake_trainer_steps(&f->trainer);
  register_trainer(f);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72); /* what is replayed counts once */
  assert_int_equal(f->trainer.steps, steps + 2);                  /* round 0 again, then round 1 */
  assert_true(f->trainer.batches > batches);
  assert_int_equal(f->trainer.last_pushes, 0);
  json_free(run);
}

static void a_trainer_with_other_weights_pauses_the_run_and_the_right_ones_go_on(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  until_stepping(f, &s);
  fake_trainer_finish_steps(&f->trainer);
  poll_leases(f, &s, 4, &a); /* of round 1, at version 1 */
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  fake_trainer_forget(&f->trainer, true);
  register_trainer(f);
  json_free(wait_held(f, "r1", "other weights"));
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK); /* what was leased counts */
  assert_int_equal(poll_once(f, &s, 4, &a, &err), RC_OK);
  assert_false(a.current.has); /* servers are not told to fetch weights that may be lost */
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  json_free(wait_held(f, "r1", "other weights"));
  fake_trainer_forget(&f->trainer, false);
  register_trainer(f);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72);
  json_free(run);
}

static void a_run_paused_by_trouble_stays_paused_after_a_restart(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  fake_trainer_finish_steps(&f->trainer);
  fake_trainer_forget(&f->trainer, true);
  register_trainer(f);
  json_free(wait_held(f, "r1", "other weights"));
  coordinator_down(f);
  fake_trainer_forget(&f->trainer, false);
  coordinator_up(f);
  register_trainer(f);
  const int opens = fake_trainer_opens(&f->trainer);
  driver_has_looked(f);
  json_free(wait_held(f, "r1", "other weights"));
  assert_int_equal(fake_trainer_opens(&f->trainer), opens); /* nothing was tried */
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  register_server(f, &s, "gen-1");
  json_free(serve_run(f, &s, "r1", "completed"));
}

/* The round's gradient is gone, the version is not: its batches are sent again, and no figure counts twice. */
static void a_trainer_that_lost_its_gradients_is_sent_them_again(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.version = 0; /* before the step */
  f->trainer.step_id[0] = 0;
  int sent = f->trainer.batches;
  for (int i = 0; i < FAKE_BATCHES; i++) f->trainer.batch[i].id[0] = 0;
  pthread_mutex_unlock(&f->trainer.lock);
  fake_trainer_finish_steps(&f->trainer);
  register_trainer(f);
  struct json *run = serve_run(f, &s, "r1", "completed");
  const int64_t second = read_int(f, "SELECT count(*) FROM batches WHERE round = 1");
  assert_int_equal(f->trainer.batches, 2 * sent + second); /* round 0 twice, round 1 once */
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72);
  assert_true(f->trainer.last_denominator == 36);
  json_free(run);
}

static void a_step_that_was_durable_before_the_trainer_was_lost_counts(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.step_id[0] = 0; /* version 1 is held, its job forgotten */
  f->trainer.refuse_step = true;
  pthread_mutex_unlock(&f->trainer.lock);
  fake_trainer_finish_steps(&f->trainer);
  register_trainer(f);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(json_type_of(json_get(history_at(run, 0), "grad_norm")), JSON_NULL); /* lost */
  json_free(run);
}

/* It was killed between its announcement and the question of how the step went. */
static void a_version_that_was_announced_keeps_its_steps_figures_when_the_trainer_is_lost(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  until_stepping(f, &s);
  assert_int_equal(announce(f, "r1.0", 1, f->trainer_is.fence, 1, &err), RC_OK);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.step_id[0] = 0; /* its job is forgotten */
  pthread_mutex_unlock(&f->trainer.lock);
  fake_trainer_finish_steps(&f->trainer);
  register_trainer(f);
  struct json *run = serve_run(f, &s, "r1", "completed");
  const struct json *first = history_at(run, 0), *second = history_at(run, 1);
  assert_true(json_number(json_get(first, "grad_norm")) == 0.75 && json_number(json_get(first, "lr")) == 0.125);
  assert_true(json_number(json_get(second, "grad_norm")) == 0.5 && json_number(json_get(second, "lr")) == 0.25);
  assert_int_equal(read_int(f, "SELECT step_us FROM rounds WHERE round = 0"), 0); /* lost */
  assert_int_equal(read_int(f, "SELECT step_us FROM rounds WHERE round = 1"), 1000);
  json_free(run);
}

/* It waits for longer than a run that is to stop waits for its step. */
static void a_run_waits_for_a_trainer_that_stays_away_and_goes_on_with_it(void **state) {
  struct fixture *f = *state;
  f->options.worker_ttl_ms = 10000;
  coordinator_restart(f);
  post_run(f,
           "{\"rounds\":2000,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  json_free(wait_state(f, "r1", "running"));
  time_passes(f, 10001); /* without a heartbeat */
  wait_waiting(f, "r1", "no trainer is registered");
  time_passes(f, 1600);
  wait_waiting(f, "r1", "no trainer is registered");
  register_trainer(f);
  wait_waiting(f, "r1", NULL);
  assert_int_equal(read_int(f, "SELECT count(*) FROM events WHERE type = 'waiting'"),
                   2); /* the waiting began and ended */
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
}

static void a_run_that_is_stopped_in_a_step_does_not_wait_for_a_lost_trainer_for_ever(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping(f, &s);
  fake_trainer_stop(&f->trainer);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  json_free(wait_state(f, "r1", "stopped")); /* after trainer_lost_ms */
}

/* The step is found failed for want of room and waits; then there is room, and the run goes on to its end. */
static void until_there_is_room(struct fixture *f, struct fake_server *s) {
  fake_trainer_finish_steps(&f->trainer);
  wait_waiting(f, "r1", "No space left on device");
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'storage'"), 1);
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.disk_full = false;
  pthread_mutex_unlock(&f->trainer.lock);
  struct json *run = serve_run(f, s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72); /* nothing was lost, nothing counts twice */
  json_free(run);
}

static void a_step_that_finds_the_disk_full_stays_pending_until_there_is_room(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.disk_full = true;
  until_stepping(f, &s);
  until_there_is_room(f, &s);
}

static void a_run_that_waits_for_room_can_be_stopped(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.disk_full = true;
  until_stepping(f, &s);
  fake_trainer_finish_steps(&f->trainer);
  wait_waiting(f, "r1", "No space left on device");
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  json_free(wait_state(f, "r1", "stopped"));
}

/* ---- in flight ---- */

static int batches_sent(struct fixture *f) {
  pthread_mutex_lock(&f->trainer.lock);
  const int sent = f->trainer.batches;
  pthread_mutex_unlock(&f->trainer.lock);
  return sent;
}

/* Samples for two steps are in, and the first of these is under way. */
static int until_stepping_in_flight(struct fixture *f, struct fake_server *s) {
  struct lease leases[6];
  f->trainer.slow_steps = f->trainer.slow_batches = true;
  register_server(f, s, "gen-1");
  post_run(f, GRPO(2, "},\"mode\":\"inflight\",\"samples_ahead\":24"));
  collect_leases(f, s, leases, 6);
  for (int i = 0; i < 6; i++) answer_lease(f, s, &leases[i]);
  fake_trainer_finish_batches(&f->trainer);
  AWAIT(fake_trainer_steps(&f->trainer), "no step was submitted") continue;
  return batches_sent(f);
}

/* One batch more than the first step's. */
static void until_more_is_sent(struct fixture *f) {
  AWAIT(batches_sent(f) > read_int(f, "SELECT count(*) FROM batches WHERE round = 0"),
        "no batch of the next step was sent")
  continue;
}

static void in_flight_the_next_groups_are_sent_with_the_step(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  until_stepping_in_flight(f, &s);
  until_more_is_sent(f);
  assert_int_equal(read_int(f, "SELECT max(version) FROM versions"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches WHERE round = 1"), 0); /* it comes with the round */
  const int64_t groups = read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 1");
  assert_true(groups > 0); /* of three, one has no signal */
  assert_int_equal(announce(f, "r1.0", 1, f->trainer_is.fence, 1, &err), RC_OK);
  assert_int_equal(read_int(f, "SELECT groups FROM batches WHERE round = 1 AND number = 0"), groups);
  assert_int_equal(read_int(f, "SELECT finished FROM rounds WHERE round = 0"), 0);
  fake_trainer_finish_steps(&f->trainer);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  for (size_t i = 0; i < 2; i++)
    assert_true(json_number(json_get(history_at(run, i), "grad_norm")) == (i ? 0.5 : 0.75));
  assert_int_equal(batches_sent(f), read_int(f, "SELECT count(*) FROM batches")); /* each once */
  json_free(run);
}

/* Nobody knows what became of it: it is sent once more, and is the same batch. */
static void in_flight_what_was_sent_ahead_is_sent_again_after_trouble(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.disk_full = true;
  until_stepping_in_flight(f, &s);
  until_more_is_sent(f);
  until_there_is_room(f, &s);
}

/* Another message of the same step could differ, by the servers that it names, and would be refused. */
static void in_flight_a_step_is_submitted_once_when_the_run_is_stopped(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  until_stepping_in_flight(f, &s);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  fake_trainer_finish_steps(&f->trainer);
  json_free(wait_state(f, "r1", "stopped"));
  assert_int_equal(fake_trainer_steps(&f->trainer), 1);
}

/* It is found failed although nobody stands by, and then tried again as in other modes. */
static void in_flight_a_step_that_finds_the_disk_full_stays_pending_until_there_is_room(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->trainer.disk_full = true;
  until_stepping_in_flight(f, &s);
  until_there_is_room(f, &s);
}

static void a_trainer_that_does_not_know_the_epoch_yet_is_asked_again(void **state) {
  struct fixture *f = *state;
  pthread_mutex_lock(&f->trainer.lock);
  f->trainer.strange = 3;
  pthread_mutex_unlock(&f->trainer.lock);
  post_run(f,
           "{\"rounds\":1,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  json_free(wait_state(f, "r1", "completed"));
}

/* As a browser asks that had events up to this one, whatever the page's address says of those that are past. */
static void check_events_go_on_behind(const struct fixture *f, long seen) {
  struct http_answer answer = {0};
  struct err err;
  char url[160], header[64], first[32];
  const char *headers[] = {header, NULL};
  const struct http_call c = {.method = "GET", .url = url, .headers = headers, .deadline_ms = DEADLINE_MS};
  snprintf(url, sizeof url, "%s/v1/runs/r1/events?past=0", f->url);
  snprintf(header, sizeof header, "Last-Event-ID: %ld", seen);
  snprintf(first, sizeof first, "id: %ld\n", seen + 1);
  assert_int_equal(http_client_call(f->http, &c, &answer, &err), RC_OK);
  assert_int_equal(answer.status, 200);
  assert_ptr_equal(strstr(answer.body.data, "id: "), strstr(answer.body.data, first));
  assert_non_null(strstr(answer.body.data, first));
  assert_non_null(strstr(answer.body.data, "\"completed\""));
  http_answer_free(&answer);
  static const char *const wrong[] = {"x", "-1", "1x", "9007199254740992", "99999999999999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    snprintf(header, sizeof header, "Last-Event-ID: %s", wrong[i]);
    assert_int_equal(http_client_call(f->http, &c, &answer, &err), RC_OK);
    assert_int_equal(answer.status, 422);
    assert_non_null(strstr(answer.body.data, "\"field\":\"Last-Event-ID\""));
    http_answer_free(&answer);
  }
}

static void events_report_every_state_and_round(void **state) {
  struct fixture *f = *state;
  struct http_answer answer = {0};
  struct err err;
  char url[160];
  post_run(f,
           "{\"rounds\":2,\"dataset\":{\"path\":\"warm.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,"
           "\"samples_per_group\":1,\"training\":{\"objective\":\"cross_entropy\"}}");
  snprintf(url, sizeof url, "%s/v1/runs/r1/events", f->url);
  const struct http_call c = {.method = "GET", .url = url, .deadline_ms = DEADLINE_MS};
  assert_int_equal(http_client_call(f->http, &c, &answer, &err), RC_OK); /* the stream ends with the run */
  assert_int_equal(answer.status, 200);
  const char *queued = strstr(answer.body.data, "\"queued\""), *round = strstr(answer.body.data, "event: round"),
             *completed = strstr(answer.body.data, "\"completed\"");
  assert_non_null(queued);
  assert_non_null(round);
  assert_non_null(completed);
  assert_true(queued < round && round < completed);
  assert_non_null(strstr(round + 1, "event: round"));
  const long second = strtol(strstr(strstr(answer.body.data, "id: ") + 1, "id: ") + 4, NULL, 10);
  http_answer_free(&answer);
  snprintf(url, sizeof url, "%s/v1/runs/r1/events?after=1000000", f->url);
  assert_int_equal(http_client_call(f->http, &c, &answer, &err), RC_OK);
  assert_null(strstr(answer.body.data, "event:")); /* no event is sent twice */
  http_answer_free(&answer);
  check_events_go_on_behind(f, second);
  assert_int_equal(call(f, "GET", "/v1/runs/r9/events", NULL, NULL), 404);
}

static void so_many_runs_queue_and_one_that_is_stopped_makes_room(void **state) {
  struct fixture *f = *state;
  post_run(f, GRPO(1, "}"));
  json_free(wait_state(f, "r1", "running"));
  for (int i = 0; i < LIMIT_QUEUED_RUNS; i++) post_run(f, GRPO(1, "}"));
  assert_int_equal(call(f, "POST", "/v1/runs", GRPO(1, "}"), NULL), 429);
  assert_int_equal(call(f, "POST", "/v1/runs/r7/stop", "{}", NULL), 200);
  post_run(f, GRPO(1, "}"));
  assert_int_equal(call(f, "POST", "/v1/runs", GRPO(1, "}"), NULL), 429);
}

static void two_orders_of_completion_give_the_same_groups(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  struct digest digests[2][3];
  for (int order = 0; order < 2; order++) {
    struct lease leases[3];
    struct lease_result results[3];
    int n = 0;
    char run[16];
    snprintf(run, sizeof run, "r%d", order + 1);
    register_server(f, &s, "gen-1");
    post_run(f, GRPO(1, "}"));
    while (n < 3) {
      poll_leases(f, &s, 64, &a);
      for (size_t i = 0; i < a.lease_count; i++) leases[n++] = a.leases[i];
    }
    for (int i = 0; i < 3; i++) {
      int at = order ? 2 - i : i;
      results[at] = make_result(f, &s, &leases[at]);
      assert_int_equal(put_result(f, &leases[at], &results[at], NULL, &err), RC_OK);
    }
    json_free(wait_state(f, run, "completed"));
    struct store *store;
    struct rows q;
    bool row;
    assert_int_equal(readers_take(core_readers(f->core), &store, &err), RC_OK);
    assert_int_equal(
        store_query(store, &q, &err,
                    "SELECT group_ordinal, digest FROM samples WHERE run = ?1 AND sample = 0 ORDER BY group_ordinal",
                    BINDS(b_int(order + 1))),
        RC_OK);
    for (int i = 0; i < 3; i++) {
      assert_int_equal(rows_next(&q, &row, &err), RC_OK);
      assert_true(row && rows_digest(&q, 1, &digests[order][i]));
    }
    rows_end(&q);
    readers_give(core_readers(f->core), store);
  }
  assert_memory_equal(digests[0], digests[1], sizeof digests[0]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_grpo_run_goes_through_its_rounds),
      CASE(rollouts_and_timeline_can_be_read),
      CASE(a_differing_logprob_makes_the_round_inexact),
      CASE(a_round_without_gradient_is_a_skipped_step),
      CASE(a_round_with_evaluations_trains_only_on_its_own_groups),
      CASE(an_evaluate_run_trains_nothing),
      CASE(a_supervised_run_needs_no_servers),
      CASE(a_dataset_that_went_bad_pauses_the_run_until_it_is_mended),
      CASE(a_run_paused_by_trouble_can_be_stopped_and_the_next_one_runs),
      CASE(impossible_configurations_are_refused),
      CASE(a_run_is_paused_resumed_and_stopped),
      CASE(runs_wait_for_each_other),
      CASE(versions_are_announced_once_and_by_the_right_trainer),
      CASE(a_stop_in_the_middle_of_a_step_waits_for_its_version),
      CASE(a_run_survives_a_restart_of_the_coordinator),
      CASE(a_restart_in_the_middle_of_a_step_finds_the_version),
      CASE(a_trainer_that_lost_rounds_is_brought_back_by_replay),
      CASE(a_trainer_with_other_weights_pauses_the_run_and_the_right_ones_go_on),
      CASE(a_run_paused_by_trouble_stays_paused_after_a_restart),
      CASE(a_trainer_that_lost_its_gradients_is_sent_them_again),
      CASE(a_step_that_was_durable_before_the_trainer_was_lost_counts),
      CASE(a_version_that_was_announced_keeps_its_steps_figures_when_the_trainer_is_lost),
      CASE(a_run_waits_for_a_trainer_that_stays_away_and_goes_on_with_it),
      CASE(a_run_that_is_stopped_in_a_step_does_not_wait_for_a_lost_trainer_for_ever),
      CASE(a_step_that_finds_the_disk_full_stays_pending_until_there_is_room),
      CASE(a_run_that_waits_for_room_can_be_stopped),
      CASE(in_flight_the_next_groups_are_sent_with_the_step),
      CASE(in_flight_what_was_sent_ahead_is_sent_again_after_trouble),
      CASE(in_flight_a_step_is_submitted_once_when_the_run_is_stopped),
      CASE(in_flight_a_step_that_finds_the_disk_full_stays_pending_until_there_is_room),
      CASE(a_trainer_that_does_not_know_the_epoch_yet_is_asked_again),
      CASE(events_report_every_state_and_round),
      CASE(so_many_runs_queue_and_one_that_is_stopped_makes_room),
      CASE(two_orders_of_completion_give_the_same_groups),
  };
  return cmocka_run_group_tests_name("coordinator/runs", tests, NULL, NULL);
}

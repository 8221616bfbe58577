/* What goes wrong around leases and runs, over real HTTP. What would break: a result without a valid fence is believed
 * (I3); the work of a server that hands back is lost or called nondeterminism; a paused run cannot end; an older
 * trainer publishes (I9); a trainer that has taken a step is asked for its batches for ever; a slow disk costs live
 * workers their leases; two coordinators open one database; a full disk loses what was acknowledged (I7); the idle time
 * of a short run is wrong; a round of a thousand samples takes far too long. */
#include <math.h>
#include <time.h>

#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/writer/core_state.h"

enum { AWAY_MS = 1200 };

static struct lease begin(struct fixture *f, struct fake_server *s, const char *config) {
  struct lease_answer a;
  post_run(f, config);
  register_server(f, s, "gen-1");
  poll_leases(f, s, 4, &a);
  return a.leases[0];
}

static void a_result_with_a_fence_that_no_lease_has_is_refused(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  struct lease l = begin(f, &s, GRPO(1, "}"));
  struct lease_result r = make_result(f, &s, &l);
  r.fence = 0;
  assert_int_equal(put_result(f, &l, &r, NULL, &err), RC_CONFLICT);
  r.fence = UINT64_MAX;
  assert_int_equal(put_result(f, &l, &r, NULL, &err), RC_CONFLICT);
}

static void abort_after(struct sample_result *s, size_t tokens) {
  s->token_ids.count = s->logprobs.count = tokens;
  s->segment_count = s->span_count = tokens ? 1 : 0;
  s->segments[0].count = s->spans[0].count = (int32_t)tokens;
  s->finish = FINISH_ABORT;
}

/* A draining server reports `abort` for every sample of a lease, also for those that have ended. */
static void samples_that_had_ended_before_a_hand_back_are_kept(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other;
  struct lease_answer a;
  struct err err = {0};
  struct lease l = begin(f, &s, GRPO(1, "}"));
  struct lease_result r = make_result(f, &s, &l);
  r.handed_back = true;
  for (int i = 0; i < 4; i++) abort_after(&r.samples[i], i < 2 ? 3 : 1);
  if (put_result(f, &l, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  register_server(f, &other, "gen-2");
  poll_leases(f, &other, 4, &a);
  assert_string_equal(a.leases[0].id, "r1.0.0.2-3"); /* 0 and 1 are done */
}

static void a_hand_back_of_fewer_tokens_keeps_the_more(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other, third;
  struct lease_answer a;
  struct err err;
  struct lease l = begin(f, &s, GRPO(1, "}"));
  struct lease_result r = make_result(f, &s, &l);
  r.handed_back = true;
  for (int i = 0; i < 4; i++) abort_after(&r.samples[i], 2);
  assert_int_equal(put_result(f, &l, &r, NULL, &err), RC_OK);
  register_server(f, &other, "gen-2");
  poll_leases(f, &other, 4, &a);
  r = make_result(f, &other, &a.leases[0]);
  r.handed_back = true;
  for (int i = 0; i < 4; i++) abort_after(&r.samples[i], 0); /* this server had not begun them */
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK);
  register_server(f, &third, "gen-3");
  poll_leases(f, &third, 4, &a);
  assert_int_equal(a.leases[0].partial_count, 4);
  assert_int_equal(a.leases[0].partials[0].token_ids.count, 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents"), 0);
}

static void a_paused_evaluation_ends_with_its_last_result(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  post_run(
      f,
      "{\"dataset\":{\"path\":\"train.jsonl\"},\"verify_samples\":false,\"groups_per_round\":2,\"samples_per_group\":2,"
      "\"sampling\":{\"temperature\":0,\"max_new_tokens\":8},\"training\":{\"objective\":\"evaluate\"}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  for (size_t i = 0; i < a.lease_count; i++) {
    struct lease_result r = make_result(f, &s, &a.leases[i]);
    assert_int_equal(put_result(f, &a.leases[i], &r, NULL, &err), RC_OK);
  }
  json_free(wait_state(f, "r1", "completed"));
}

static enum rc announce_as(struct fixture *f, const struct worker_registered *who, uint64_t fence, struct err *err) {
  const struct version_announce m = {
      .run = "r1", .step_id = "r1.0", .worker_id = who->worker_id, .epoch = who->epoch, .fence = fence, .version = 1};
  return coordinator_announce_version(&f->client, &m, DEADLINE_MS, err);
}

static void only_the_holder_of_the_trainers_place_publishes(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  struct worker_registered other;
  f->trainer.slow_steps = true;
  begin(f, &s, GRPO(1, "}"));
  const struct worker_register m = {.name = "trainer-2", .kind = WORKER_TRAINER, .url = f->trainer.url};
  assert_int_equal(coordinator_register(&f->client, &m, &other, &f->arena, DEADLINE_MS, &err), RC_OK);
  assert_int_equal(announce_as(f, &other, f->trainer_is.fence, &err), RC_CONFLICT);
  assert_string_equal(err.field, "fence");
  const struct worker_registered before = f->trainer_is;
  register_trainer(f);
  assert_true(f->trainer_is.fence > before.fence);
  assert_int_equal(announce_as(f, &f->trainer_is, before.fence, &err), RC_CONFLICT);
  assert_string_equal(err.field, "fence");
  assert_int_equal(announce_as(f, &before, before.fence, &err), RC_CONFLICT); /* an older trainer that still lives */
  assert_string_equal(err.field, "worker_id");
}

/* A trainer that comes back under the same address may be asked for the step before it is sent the batches again. */
static void a_step_that_failed_is_submitted_anew(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  post_run(f, GRPO(1, "}"));
  register_server(f, &s, "gen-1");
  json_free(wait_state(f, "r1", "running"));
  pthread_mutex_lock(&f->trainer.lock);
  snprintf(f->trainer.step_id, sizeof f->trainer.step_id, "r1.0");
  f->trainer.failed_step = true;
  pthread_mutex_unlock(&f->trainer.lock);
  json_free(serve_run(f, &s, "r1", "completed"));
  assert_int_equal(f->trainer.steps, 1);
}

static void trainer_becomes(struct fixture *f, const char *run, int64_t version, const char *step, int round_steps) {
  pthread_mutex_lock(&f->trainer.lock);
  snprintf(f->trainer.run, sizeof f->trainer.run, "%s", run);
  snprintf(f->trainer.step_id, sizeof f->trainer.step_id, "%s", step);
  f->trainer.version = version;
  f->trainer.round_steps = round_steps;
  pthread_mutex_unlock(&f->trainer.lock);
}

/* A trainer took the round's step and was lost before it told; another one had its place for a while and was to compute
 * the round again, but did not; then the first one comes back.  It has no batches any more, and needs none. */
static void a_trainer_that_has_taken_the_step_is_asked_for_no_batch_of_it(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  f->trainer.slow_steps = true;
  post_run(f, GRPO(2, "}"));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, 3);
  for (int i = 0; i < 3; i++) answer_lease(f, &s, &leases[i]);
  AWAIT(fake_trainer_steps(&f->trainer) == 1, "the step is not submitted") a_moment_passes(f);
  fake_trainer_forget(&f->trainer, false);
  trainer_becomes(f, "", 0, "", 1); /* it refuses batches */
  register_trainer(f);
  json_free(wait_held(f, "r1", "expected 1, got 0"));
  assert_true(read_int(f, "SELECT jobs_undone FROM rounds WHERE round = 0") > 0);
  const int batches = fake_trainer_batches(&f->trainer);
  trainer_becomes(f, "r1", 1, "r1.0", 0);
  fake_trainer_finish_steps(&f->trainer);
  register_trainer(f);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  AWAIT(read_int(f, "SELECT max(version) FROM versions") == 1, "version 1 is not current") a_moment_passes(f);
  assert_int_equal(fake_trainer_batches(&f->trainer), batches);
  assert_int_equal(read_int(f, "SELECT jobs_undone FROM rounds WHERE round = 0"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches WHERE round = 0 AND done = 0"), 0);
  assert_int_equal(read_int(f, "SELECT trained_tokens FROM rounds WHERE round = 0"), 3 * 4 * 3);
  json_free(serve_run(f, &s, "r1", "completed"));
}

/* The writer is away while it carries out this command; what follows is another transaction. */
static enum rc away_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)c, (void)err;
  time_leaps(*(struct fixture **)cmd->message, AWAY_MS);
  return RC_OK;
}

static void nothing_expires_while_the_writer_is_away(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  f->options.worker_ttl_ms = f->options.lease_ttl_ms = AWAY_MS / 2;
  f->clock_stands = true;
  coordinator_restart(f);
  struct lease l = begin(f, &s, GRPO(1, "}"));
  struct lease_result r = make_result(f, &s, &l);
  struct command *away = command_new(away_execute, sizeof f);
  memcpy(away->message, &f, sizeof f);
  assert_int_equal(core_call(f->core, away, &err), RC_OK);
  time_passes(f, 0); /* it looks at the time before anybody could report */
  if (put_result(f, &l, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  report_ready(f, &s);
}

static void a_database_has_one_coordinator(void **state) {
  struct fixture *f = *state;
  struct core *second = NULL;
  struct err err = {0};
  assert_int_equal(core_create(&second, &f->options, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "another coordinator"));
}

static enum rc full_execute(struct core *c, struct command *cmd, struct err *err) {
  int64_t pages = 0;
  char sql[64];
  (void)cmd;
  enum rc rc = store_int(c->store, &pages, err, "PRAGMA page_count", NO_BINDS);
  snprintf(sql, sizeof sql, "PRAGMA max_page_count=%lld", (long long)pages + 2);
  return rc == RC_OK ? store_script(c->store, sql, err) : rc;
}

/* SQLite itself reports that it is full, as on a full disk. */
static void a_full_disk_ends_the_coordinator_and_keeps_what_was_acknowledged(void **state) {
  struct fixture *f = *state;
  struct err err;
  char config[4096], name[100];
  int acknowledged = 0, status = 201;
  memset(name, 'n', sizeof name);
  name[99] = 0;
  coordinator_down(f);
  coordinator_up(f); /* no trainer: runs stay queued */
  assert_int_equal(core_call(f->core, command_new(full_execute, 0), &err), RC_OK);
  snprintf(config, sizeof config, "{\"name\":\"%s\",\"dataset\":{\"path\":\"train.jsonl\"}}", name);
  for (int i = 0; i < 60 && status == 201; i++) {
    status = call(f, "POST", "/v1/runs", config, NULL);
    acknowledged += status == 201;
  }
  assert_int_equal(status, 503);
  assert_true(core_broken(f->core));
  coordinator_down(f);
  coordinator_up(f);
  struct json *answer = NULL;
  assert_int_equal(call(f, "GET", "/v1/runs?limit=1000", NULL, &answer), 200);
  assert_int_equal(json_length(json_get(answer, "runs")), acknowledged);
  json_free(answer);
}

static void beat(struct fixture *f, const struct fake_server *s, int64_t busy_slot_us) {
  struct err err;
  struct worker_heartbeat_answer answer;
  const struct worker_heartbeat m = {.epoch = s->is.epoch, .ready = true, .busy_slot_us = busy_slot_us};
  assert_int_equal(coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err),
                   RC_OK);
}

/* The window is the run's own wall time, although the heartbeats come before its begin and after its end. */
static void idle_time_of_a_short_run_is_over_its_wall_time(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  register_server(f, &s, "gen-1");
  beat(f, &s, 0);
  f->clock_stands = true;
  post_run(f, GRPO(1, "}"));
  poll_leases(f, &s, 64, &a);
  time_passes(f, 400);
  for (size_t i = 0; i < a.lease_count; i++) {
    struct lease_result r = make_result(f, &s, &a.leases[i]);
    assert_int_equal(put_result(f, &a.leases[i], &r, NULL, &err), RC_OK);
  }
  json_free(wait_state(f, "r1", "completed"));
  time_passes(f, 300); /* does not belong to the run */
  beat(f, &s, 64 * 200000);
  struct json *run = get_run(f, "r1");
  assert_int_equal(get_int(run, "totals", "rl_wall_ms"), 400);
  const struct json *ratio = json_get(json_get(run, "totals"), "generation_idle_ratio");
  if (json_type_of(ratio) == JSON_NULL) fail_msg("no idle time was recorded");
  if (fabs(json_number(ratio) - 0.5) > 1e-9) fail_msg("idle %g, expected 200 of 400 ms", json_number(ratio));
  json_free(run);
}

static void more_workers_than_its_flag_allows_are_refused(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct worker_registered is;
  struct err err = {0};
  const struct worker_register one_more = {
      .name = "gen-3", .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = 64};
  f->options.workers_max = 3;
  coordinator_restart(f);
  register_server(f, &s, "gen-1");
  register_server(f, &s, "gen-2");
  assert_int_equal(coordinator_register(&f->client, &one_more, &is, &f->arena, DEADLINE_MS, &err), RC_FULL);
  assert_non_null(strstr(err.message, "3 workers are registered already"));
  register_server(f, &s, "gen-2"); /* it replaces its earlier incarnation */
}

/* What was leased goes on, and with the last of it the run completes: nobody else holds its configuration by then. */
static void an_evaluation_that_trouble_has_paused_ends_with_what_was_leased(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  enum { PROBLEMS = 10 };
  struct lease leases[PROBLEMS];
  post_run(f,
           "{\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"groups_per_round\":0,"
           "\"samples_per_group\":2,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},"
           "\"training\":{\"objective\":\"evaluate\"}}");
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, PROBLEMS);
  fake_trainer_forget(&f->trainer, true);
  register_trainer(f);
  json_free(wait_held(f, "r1", "digest"));
  for (int i = 0; i < PROBLEMS; i++) answer_lease(f, &s, &leases[i]);
  json_free(wait_state(f, "r1", "completed"));
}

/* A trainer that comes back after it was lost with a step takes the step's batches again, though the user has paused
 * the run meanwhile. */
static void a_paused_supervised_step_is_taken_again_with_its_batches(void **state) {
  struct fixture *f = *state;
  f->trainer.slow_steps = true;
  post_run(f,
           "{\"rounds\":3,\"seed\":3,\"dataset\":{\"path\":\"warm.jsonl\",\"shuffle\":false},\"groups_per_round\":3,"
           "\"samples_per_group\":2,\"training\":{\"objective\":\"cross_entropy\"}}");
  AWAIT(fake_trainer_steps(&f->trainer) == 1, "no step") a_moment_passes(f);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  fake_trainer_forget(&f->trainer, false);
  fake_trainer_finish_steps(&f->trainer);
  register_trainer(f);
  AWAIT(read_int(f, "SELECT max(version) FROM versions") == 1, "the step was not taken") a_moment_passes(f);
  char order[FAKE_ORDER];
  fake_trainer_order(&f->trainer, order);
  const char *const step = strstr(order, "step");
  assert_non_null(step);
  assert_non_null(strstr(step, "b0[0,1,2] step[0,1,2]"));
  struct json *run = get_run(f, "r1");
  assert_string_equal(json_string(json_get(run, "state"), NULL), "paused");
  assert_int_equal(json_type_of(json_get(run, "error")), JSON_NULL);
  json_free(run);
}

static void wait_waits(struct fixture *f, const char *what) {
  char sql[128];
  snprintf(sql, sizeof sql, "SELECT count(*) FROM runs WHERE waiting_for LIKE '%s%%'", what);
  AWAIT(read_int(f, sql) == 1, "the run does not wait for: %s", what) time_passes(f, 100);
}

static void a_run_says_who_is_missing(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err = {0};
  assert_int_equal(coordinator_leave(&f->client, f->trainer_is.worker_id, DEADLINE_MS, &err), RC_OK);
  post_run(f, GRPO(1, "}"));
  wait_waits(f, "no trainer is registered");
  register_trainer(f);
  wait_waits(f, "no generation-server is registered");
  register_server(f, &s, "gen-1"); /* which has loaded nothing */
  wait_waits(f, "none of the 1 registered generation-servers has the weights of version 0");
  json_free(serve_run(f, &s, "r1", "completed"));
  assert_true(read_int(f, "SELECT waiting_for IS NULL FROM runs"));
}

/* In processor time, so that a busy machine fails nothing. */
static void a_round_of_a_thousand_samples_is_quick(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  f->options.batch_tokens = 65536;
  coordinator_restart(f);
  register_server(f, &s, "gen-1");
  const clock_t begun = clock();
  post_run(f,
           "{\"rounds\":2,\"dataset\":{\"path\":\"train.jsonl\"},\"verify_samples\":false,\"groups_per_round\":64,"
           "\"samples_per_group\":16,\"sampling\":{\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}");
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "totals", "sampled_tokens"), 2 * 64 * 16 * 3);
  json_free(run);
  assert_true((clock() - begun) / CLOCKS_PER_SEC < 8);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_result_with_a_fence_that_no_lease_has_is_refused),
      CASE(samples_that_had_ended_before_a_hand_back_are_kept),
      CASE(a_hand_back_of_fewer_tokens_keeps_the_more),
      CASE(a_paused_evaluation_ends_with_its_last_result),
      CASE(an_evaluation_that_trouble_has_paused_ends_with_what_was_leased),
      CASE(a_paused_supervised_step_is_taken_again_with_its_batches),
      CASE(only_the_holder_of_the_trainers_place_publishes),
      CASE(a_step_that_failed_is_submitted_anew),
      CASE(a_trainer_that_has_taken_the_step_is_asked_for_no_batch_of_it),
      CASE(nothing_expires_while_the_writer_is_away),
      CASE(a_database_has_one_coordinator),
      CASE(a_full_disk_ends_the_coordinator_and_keeps_what_was_acknowledged),
      CASE(idle_time_of_a_short_run_is_over_its_wall_time),
      CASE(more_workers_than_its_flag_allows_are_refused),
      CASE(a_run_says_who_is_missing),
      CASE(a_round_of_a_thousand_samples_is_quick),
  };
  return cmocka_run_group_tests_name("coordinator/trouble", tests, NULL, NULL);
}

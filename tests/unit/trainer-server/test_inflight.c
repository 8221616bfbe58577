/* A run with update "inflight": samples bring the behaviour log-probabilities of the versions that sampled them, the
 * trainer answers with its own, a version is announced as soon as it is durable and pushed while the next one is made,
 * and a replay of the record reaches the recorded digests. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/trainer-server/peers.h"

enum { ROUNDS = 3, GROUPS = 2, SERVERS = 2 };

static struct arena arena;

static struct open_run the_run(const char *name) {
  struct open_run run = run_request(name);
  run.training.update = UPDATE_INFLIGHT;
  run.training.objective = "reinforce";
  run.training.clip_high = 4;
  run.training.normalization = "samples";
  return run;
}

/* What some earlier versions might have recorded. */
static void behave(struct batch_group *groups, int count, uint32_t seed) {
  uint32_t state = seed * 7919 + 3;
  for (int g = 0; g < count; g++) {
    for (size_t i = 0; i < groups[g].sample_count; i++) {
      struct batch_sample *s = &groups[g].samples[i];
      s->behaviour.count = wire_segments_trained(s->segments, s->segment_count);
      s->behaviour.items = arena_alloc(&arena, s->behaviour.count, sizeof *s->behaviour.items);
      for (size_t k = 0; k < s->behaviour.count; k++)
        s->behaviour.items[k] = -0.03125f * (float)(64 + mix(&state) % 96);
    }
  }
}

static struct submit_step samples_step(const char *run, const char *id, int64_t version,
                                       const struct batch_group *groups, size_t count) {
  struct submit_step m = step_request(run, id, version, groups, count, &arena);
  m.denominator = 0;
  for (size_t g = 0; g < count; g++) m.denominator += (double)groups[g].sample_count;
  return m;
}

/* ---- behaviour ---- */

static void expect_batch(struct rig *g, const char *run, struct batch_group *group, enum rc rc, const char *field) {
  struct err err = {0};
  struct buf json = BUF_INIT;
  const struct submit_batch m = {
      .batch_id = "b", .run = run, .epoch = 3, .fence = 5, .groups = group, .group_count = 1};
  submit_batch_encode(&m, &json);
  expect(g, "POST", "/v1/submit-batch", json.data, rc == RC_OK ? 202 : 422, rc == RC_OK ? "\"b\"" : field);
  buf_free(&json);
  assert_rc(rc, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  if (rc != RC_OK) assert_string_equal(err.field, field);
}

static void behaviour_goes_with_inflight_alone(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  const struct open_run strict = run_request("r1"), inflight = the_run("r2");
  struct batch_group group = group_make(&arena, "r2.0.0", 3, 5);
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &strict, &opened);
  behave(&group, 1, 1);
  expect_batch(&g, "r1", &group, RC_INVALID, "groups[0].samples[0].behaviour");
  rig_open(&g, &inflight, &opened);
  for (int i = 0; i < 3; i++) group.samples[i].behaviour.count = 0;
  expect_batch(&g, "r2", &group, RC_INVALID, "groups[0].samples[0].behaviour");
  behave(&group, 1, 1);
  expect_batch(&g, "r2", &group, RC_OK, NULL);
  rig_end(&g);
}

/* The same samples under the same weights: strict, and inflight with two different records. */
static void own_log_probabilities_do_not_depend_on_the_record(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  const struct open_run runs[] = {run_request("r1"), the_run("r2"), the_run("r3")};
  struct batch_status status[3];
  rig_make(&g, "");
  rig_start(&g);
  for (uint32_t k = 0; k < 3; k++) {
    struct batch_group group = group_make(&arena, "r.0.0", 5, 6);
    struct open_run run = runs[k];
    run.start.from = START_MODEL;
    rig_open(&g, &run, &opened);
    if (k > 0) behave(&group, 1, k);
    rig_batch(&g, runs[k].run, "b", 0, &group, 1, &status[k], &arena);
    assert_int_equal(status[k].state, JOB_DONE);
    assert_true(digest_equal(&status[k].logprobs_sha256, &status[0].logprobs_sha256));
  }
  const double n = (double)status[0].stats.tokens;
  assert_true(status[0].stats.ratio_sum == n && status[0].stats.kl_new_old == 0);
  assert_true(status[1].stats.ratio_sum != n && status[1].stats.kl_new_old > 0 &&
              status[1].stats.difference_new_old > 0);
  assert_true(status[1].stats.ratio_sum != status[2].stats.ratio_sum);
  assert_true(status[1].stats.ratio_sum * status[1].stats.ratio_sum < n * status[1].stats.ratio_squares); /* ESS < 1 */
  rig_end(&g);
}

/* ---- announced first ---- */

struct pool {
  struct rig g;
  struct fake_coordinator coordinator;
  struct fake_generation servers[SERVERS];
  struct push_target targets[SERVERS];
  int64_t version;
};

static void pool_begin(struct pool *p) {
  static const char *const names[SERVERS] = {"w1", "w2"};
  struct open_run_answer opened;
  const struct open_run run = the_run("r1");
  memset(p, 0, sizeof *p);
  fake_coordinator_start(&p->coordinator);
  rig_make(&p->g, p->coordinator.url);
  rig_start(&p->g);
  publisher_set_worker(p->g.publisher, "w9");
  rig_open(&p->g, &run, &opened);
  for (int i = 0; i < SERVERS; i++) {
    fake_generation_start(&p->servers[i], p->g.model_dir, false);
    p->targets[i] = (struct push_target){.worker_id = names[i], .url = p->servers[i].url};
  }
}

static void pool_end(struct pool *p) {
  rig_end(&p->g);
  for (int i = 0; i < SERVERS; i++) fake_generation_stop(&p->servers[i]);
  fake_coordinator_stop(&p->coordinator);
}

/* A step of one group, which ends although its pushes may not. */
static struct step_status pool_step(struct pool *p) {
  struct batch_status batch;
  struct step_status step;
  char batch_id[32], id[32];
  struct batch_group group = group_make(&arena, "g", 3, (uint32_t)p->version + 70);
  behave(&group, 1, (uint32_t)p->version + 1);
  snprintf(batch_id, sizeof batch_id, "r1.%d.b0", (int)p->version);
  snprintf(id, sizeof id, "r1.%d", (int)p->version);
  rig_batch(&p->g, "r1", batch_id, p->version, &group, 1, &batch, &arena);
  if (batch.state != JOB_DONE) fail_msg("%s: %s", batch_id, batch.error.message);
  struct submit_step m = samples_step("r1", id, p->version, &group, 1);
  m.announce_first = true;
  m.push_to = p->targets;
  m.push_count = SERVERS;
  m.stage_timeout_ms = WAIT_MS;
  rig_step(&p->g, &m, &step, &arena);
  if (step.state != JOB_DONE) fail_msg("%s: %s", id, step.error.message);
  assert_int_equal(step.version, ++p->version);
  assert_int_equal(step.push_count, 0);
  return step;
}

static int begun(struct fake_generation *s) {
  pthread_mutex_lock(&s->counter);
  const int n = s->begun;
  pthread_mutex_unlock(&s->counter);
  return n;
}

static void await_begun(struct fake_generation *s, int count) {
  int n = 0;
  AWAIT(n >= count, "push %d does not begin", count) n = begun(s);
  assert_int_equal(n, count);
}

/* Waits until a server has staged `version`, its push number `count`. */
static void await_staged(struct fake_generation *s, int count, int64_t version, const struct digest *digest) {
  int pushes = 0;
  AWAIT(pushes >= count, "push %d does not end", count) {
    pthread_mutex_lock(&s->lock);
    pushes = s->pushes;
    pthread_mutex_unlock(&s->lock);
  }
  assert_int_equal(pushes, count);
  if (s->pushed[count - 1] != version)
    fail_msg("push %d of %d: version %d, expected %d; begun %d", count, pushes, (int)s->pushed[count - 1], (int)version,
             begun(s));
  assert_true(digest_equal(&s->digest, digest));
}

static void a_push_that_hangs_delays_no_step_and_no_other_server(void **state) {
  (void)state;
  struct pool p;
  struct step_status step;
  pool_begin(&p);
  struct fake_generation *slow = &p.servers[0], *quick = &p.servers[1];
  pthread_mutex_lock(&slow->lock);
  for (int v = 1; v <= 3; v++) {
    step = pool_step(&p);
    if (v == 1) await_begun(slow, 1);
    await_staged(quick, v, v, &step.digest);
    assert_string_equal(quick->announced, "true");
    pthread_mutex_lock(&p.coordinator.lock);
    assert_true(p.coordinator.version == v && p.coordinator.announcements == v && p.coordinator.push_count == 0);
    assert_true(digest_equal(&p.coordinator.digest, &step.digest));
    pthread_mutex_unlock(&p.coordinator.lock);
  }
  expect(&p.g, "GET", "/v1/weights/3", NULL, 200, "");
  assert_int_equal(begun(slow), 1);
  pthread_mutex_unlock(&slow->lock);
  await_staged(slow, 2, 3, &step.digest); /* version 2 is skipped */
  assert_int_equal(slow->pushed[0], 1);
  expect(&p.g, "GET", "/metrics", NULL, 200, "leasehold_trainer_pushes_skipped_total 1\n");
  pool_end(&p);
}

/* Both rounds hang, with a version each: the others wait as one, the newest. */
static void two_older_versions_at_most_are_being_pushed(void **state) {
  (void)state;
  struct pool p;
  struct step_status step;
  pool_begin(&p);
  pthread_mutex_lock(&p.servers[0].lock);
  pool_step(&p);
  await_begun(&p.servers[0], 1);
  await_begun(&p.servers[1], 1);
  int pushes = 0;
  AWAIT(pushes == 1, "version 1 does not reach %s", p.targets[1].worker_id) {
    pthread_mutex_lock(&p.servers[1].lock);
    pushes = p.servers[1].pushes;
    pthread_mutex_unlock(&p.servers[1].lock);
  }
  pthread_mutex_lock(&p.servers[1].lock);
  pool_step(&p);
  await_begun(&p.servers[1], 2);
  for (int v = 3; v <= 6; v++) step = pool_step(&p);
  assert_true(begun(&p.servers[0]) == 1 && begun(&p.servers[1]) == 2);
  pthread_mutex_unlock(&p.servers[0].lock);
  pthread_mutex_unlock(&p.servers[1].lock);
  await_staged(&p.servers[0], 2, 6, &step.digest);
  await_staged(&p.servers[1], 3, 6, &step.digest);
  assert_true(p.servers[0].pushed[0] == 1 && p.servers[1].pushed[0] == 1 && p.servers[1].pushed[1] == 2);
  pool_end(&p);
}

static void pushes_are_told_with_a_later_step(void **state) {
  (void)state;
  struct pool p;
  pool_begin(&p);
  const struct step_status first = pool_step(&p);
  assert_true(first.push_us == 0);
  size_t pushes = 0;
  for (size_t i = 0; i < first.interval_count; i++) pushes += first.intervals[i].cause == CAUSE_PUSH;
  assert_int_equal(pushes, 1); /* the announcement */
  for (int i = 0; i < SERVERS; i++) await_staged(&p.servers[i], 1, 1, &first.digest);
  int64_t told_us = 0;
  for (int tries = 0; told_us == 0 && tries < 20; tries++) {
    const struct step_status later = pool_step(&p);
    told_us = later.push_us;
    int64_t sum_us = 0;
    for (size_t i = 0; i + 1 < later.interval_count; i++) /* the last one is the announcement */
      if (later.intervals[i].cause == CAUSE_PUSH) sum_us += later.intervals[i].end_us - later.intervals[i].begin_us;
    assert_int_equal(sum_us, told_us);
  }
  assert_true(told_us > 0);
  pool_end(&p);
}

/* The servers are not told that it was accepted: they stage it, and wait for the coordinator's word. */
static void a_version_that_was_not_accepted_is_pushed_as_such(void **state) {
  (void)state;
  struct pool p;
  pool_begin(&p);
  pthread_mutex_lock(&p.coordinator.lock);
  p.coordinator.refuse_announcements = 100;
  pthread_mutex_unlock(&p.coordinator.lock);
  const struct step_status step = pool_step(&p);
  for (int i = 0; i < SERVERS; i++) {
    await_staged(&p.servers[i], 1, 1, &step.digest);
    assert_string_equal(p.servers[i].announced, "");
  }
  pool_end(&p);
}

static void only_inflight_announces_first(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct step_status status;
  const struct open_run run = run_request("r1");
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &opened);
  struct submit_step m = step_request("r1", "r1.0", 0, NULL, 0, &arena);
  m.announce_first = true;
  rig_step(&g, &m, &status, &arena);
  assert_int_equal(status.state, JOB_FAILED);
  assert_true(status.error.rc == RC_CONFLICT && strcmp(status.error.field, "announce_first") == 0);
  rig_end(&g);
}

/* ---- a record ---- */

static struct batch_group recorded[ROUNDS][GROUPS];
static int last_round = ROUNDS - 1;

static void record(void) {
  for (int v = 0; v < ROUNDS; v++) {
    groups_make(&arena, recorded[v], GROUPS, (uint32_t)v + 40);
    behave(recorded[v], GROUPS, (uint32_t)v + 9);
  }
}

static void play_batch(struct rig *g, int v) {
  struct batch_status batch;
  char id[32];
  snprintf(id, sizeof id, "r1.%d.b0", v);
  rig_batch(g, "r1", id, v, recorded[v], GROUPS, &batch, &arena);
  if (batch.state != JOB_DONE) fail_msg("%s: %s", id, batch.error.message);
}

static struct submit_step play_request(int v) {
  char id[32];
  snprintf(id, sizeof id, "r1.%d", v);
  struct submit_step m = samples_step("r1", arena_strdup(&arena, id), v, recorded[v], GROUPS);
  m.announce_first = true;
  m.last = v == last_round;
  return m;
}

static struct step_status play_step(struct rig *g, int v) {
  struct step_status step;
  const struct submit_step m = play_request(v);
  rig_step(g, &m, &step, &arena);
  if (step.state != JOB_DONE) fail_msg("%s: %s", m.step_id, step.error.message);
  return step;
}

static struct digest play(struct rig *g, int v) {
  play_batch(g, v);
  return play_step(g, v).digest;
}

/* ---- checkpoints beside the engine ---- */

static void expect_latest(const struct rig *g, const char *version) {
  char path[PATH + 32];
  struct buf text = BUF_INIT;
  struct err err = {0};
  snprintf(path, sizeof path, "%s/latest", g->state_dir);
  assert_rc(RC_OK, file_read(&text, path, 64, &err), err);
  assert_string_equal(text.data, version);
  buf_free(&text);
}

static int64_t checkpoints_took(const struct step_status *s) {
  int64_t us = 0;
  for (size_t i = 0; i < s->interval_count; i++)
    if (s->intervals[i].cause == CAUSE_CHECKPOINT) us += s->intervals[i].end_us - s->intervals[i].begin_us;
  return us;
}

static bool lean; /* the versions, masters and moments lie in files */

static void rig_play_begin(struct rig *g) {
  struct open_run_answer opened;
  const struct open_run run = the_run("r1");
  rig_make(g, "");
  g->options.lean = g->options.optimizer_mapped = lean;
  rig_start(g);
  rig_open(g, &run, &opened);
}

/* The digests of an undisturbed run; what is done beside the engine is told with the next step, and the last one is
 * written at once. */
static void play_all(struct digest *straight) {
  struct rig g;
  record();
  rig_play_begin(&g);
  for (int v = 0; v < ROUNDS; v++) {
    play_batch(&g, v);
    const struct step_status step = play_step(&g, v);
    assert_int_equal(checkpoints_took(&step), step.checkpoint_us);
    assert_true(v == 0 || step.checkpoint_us > 0);
    straight[v] = step.digest;
  }
  expect_latest(&g, "r1/v3\n");
  rig_end(&g);
}

/* Where `latest` is written first: a pipe holds the writing up until somebody reads it, and then cannot be synced. */
static void latest_blocked(const struct rig *g, char path[PATH + 32]) {
  snprintf(path, PATH + 32, "%s/latest.tmp", g->state_dir);
  assert_int_equal(mkfifo(path, 0600), 0);
}

static void gradients_do_not_wait_for_a_checkpoint(void) {
  struct rig g;
  struct err err = {0};
  struct step_status step;
  struct digest straight[ROUNDS];
  char path[PATH + 32];
  play_all(straight);
  rig_play_begin(&g);
  latest_blocked(&g, path);
  const struct digest first = play(&g, 0);
  assert_true(digest_equal(&first, &straight[0]));
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":1");
  play_batch(&g, 1);
  expect_latest(&g, "r1/v0\n");
  const struct submit_step m = play_request(1);
  assert_rc(RC_OK, trainer_submit_step(&g.client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_step_status(&g.client, m.step_id, 200, &step, &arena, WAIT_MS, &err), err);
  assert_true(step.state == JOB_QUEUED || step.state == JOB_RUNNING);
  const int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  assert_true(reader >= 0);
  assert_rc(RC_OK, trainer_step_status(&g.client, m.step_id, WAIT_MS / 2, &step, &arena, WAIT_MS, &err), err);
  close(reader);
  assert_true(step.state == JOB_DONE && digest_equal(&step.digest, &straight[1]));
  assert_true(step.checkpoint_us >= 100000 && step.checkpoint_us == checkpoints_took(&step)); /* the engine stood */
  rig_restart(&g);
  expect_latest(&g, "r1/v2\n");
  rig_end(&g);
}

static void gradients_do_not_wait_for_a_checkpoint_and_a_step_does(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    lean = k == 1;
    gradients_do_not_wait_for_a_checkpoint();
  }
  lean = false;
}

/* It fails the next step, as often as that is submitted, and no sum is lost by it. */
static void a_checkpoint_that_cannot_be_written_fails_the_next_step(void **state) {
  (void)state;
  struct rig g;
  struct step_status step;
  struct digest straight[ROUNDS];
  char path[PATH + 32];
  play_all(straight);
  rig_play_begin(&g);
  snprintf(path, sizeof path, "%s/latest.tmp", g.state_dir);
  assert_int_equal(mkdir(path, 0700), 0);
  play(&g, 0);
  play_batch(&g, 1);
  const struct submit_step m = play_request(1);
  for (int i = 0; i < 2; i++) {
    rig_step(&g, &m, &step, &arena);
    assert_true(step.state == JOB_FAILED && step.error.rc == RC_IO && strstr(step.error.message, "latest.tmp"));
    expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":1");
  }
  assert_int_equal(rmdir(path), 0);
  const struct digest digests[] = {play_step(&g, 1).digest, play(&g, 2)};
  for (int v = 1; v < ROUNDS; v++) assert_true(digest_equal(&digests[v - 1], &straight[v]));
  expect_latest(&g, "r1/v3\n");
  rig_end(&g);
}

/* The trainer ends with it, goes back to the checkpoint before, and is fed the record. */
static void a_checkpoint_that_was_never_written_is_replayed(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct digest straight[ROUNDS];
  struct open_run run = the_run("r1");
  char path[PATH + 32];
  play_all(straight);
  rig_play_begin(&g);
  snprintf(path, sizeof path, "%s/latest.tmp", g.state_dir);
  assert_int_equal(mkdir(path, 0700), 0);
  play(&g, 0);
  play_batch(&g, 1);
  rig_stop(&g);
  assert_int_equal(rmdir(path), 0);
  rig_start(&g);
  run.current_version = 1;
  rig_open(&g, &run, &opened);
  assert_true(opened.version == 0 && opened.replaying);
  for (int v = 0; v < ROUNDS; v++) {
    const struct digest digest = play(&g, v);
    assert_true(digest_equal(&digest, &straight[v]));
  }
  rig_end(&g);
}

/* ---- replay ---- */

/* The trainer comes back from version 2's checkpoint, is fed the record, and ends where it was; with another record of
 * one group's behaviour it does not. */
static void a_replay_of_the_record_reaches_the_recorded_digests(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct open_run run = the_run("r1");
  struct digest straight[ROUNDS];
  run.training.checkpoint_every = 2;
  record();
  last_round = ROUNDS;
  for (int other = 0; other < 2; other++) {
    rig_make(&g, "");
    rig_start(&g);
    rig_open(&g, &run, &opened);
    for (int v = 0; v < ROUNDS; v++) {
      const struct digest digest = play(&g, v);
      if (other) assert_true(digest_equal(&digest, &straight[v]));
      straight[v] = digest;
    }
    rig_stop(&g);
    rig_start(&g);
    run.current_version = ROUNDS;
    rig_open(&g, &run, &opened);
    assert_true(opened.version == 2 && opened.replaying);
    run.current_version = 0;
    if (other) behave(&recorded[ROUNDS - 1][1], 1, 99);
    const struct digest again = play(&g, 2);
    assert_int_equal(digest_equal(&again, &straight[2]), !other);
    rig_end(&g);
  }
  last_round = ROUNDS - 1;
}

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(behaviour_goes_with_inflight_alone),
      cmocka_unit_test(own_log_probabilities_do_not_depend_on_the_record),
      cmocka_unit_test(a_push_that_hangs_delays_no_step_and_no_other_server),
      cmocka_unit_test(two_older_versions_at_most_are_being_pushed),
      cmocka_unit_test(pushes_are_told_with_a_later_step),
      cmocka_unit_test(a_version_that_was_not_accepted_is_pushed_as_such),
      cmocka_unit_test(only_inflight_announces_first),
      cmocka_unit_test(gradients_do_not_wait_for_a_checkpoint_and_a_step_does),
      cmocka_unit_test(a_checkpoint_that_cannot_be_written_fails_the_next_step),
      cmocka_unit_test(a_checkpoint_that_was_never_written_is_replayed),
      cmocka_unit_test(a_replay_of_the_record_reaches_the_recorded_digests),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/inflight", tests, NULL, tear_down);
}

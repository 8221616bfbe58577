/* Recovery is replay: a trainer that comes back from an older version says so, takes the logged rounds again like any
 * others, reaches the recorded digests bit for bit, and keeps what it replays to itself. */
#include "tests/unit/trainer-server/peers.h"

enum { ROUNDS = 5, GROUPS = 2 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];
static struct digest initial, straight[ROUNDS]; /* of version 0, and of what each round makes */

static struct open_run the_run(int checkpoint_every) {
  struct open_run run = run_request("r1");
  run.training.checkpoint_every = checkpoint_every;
  run.training.kl_coefficient = 0.5; /* a frozen reference must come back as well */
  run.training.schedule = "cosine";
  run.training.total_steps = 2 * ROUNDS;
  return run;
}

/* The run without any trouble: what the coordinator has on record. */
static int set_up(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  const struct open_run run = the_run(1);
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &answer);
  assert_true(answer.version == 0 && !answer.replaying);
  initial = answer.digest;
  rounds_make(&arena, ROUNDS, GROUPS, groups, 40);
  for (int v = 0; v < ROUNDS; v++) straight[v] = rig_round(&g, "r1", v, groups[v], GROUPS);
  rig_end(&g);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

/* One round, which must make the recorded version. */
static void play(struct rig *g, int v) {
  const struct digest digest = rig_round(g, "r1", v, groups[v], GROUPS);
  if (!digest_equal(&digest, &straight[v])) fail_msg("round %d made another version than was recorded", v);
}

static void open_at(struct rig *g, struct open_run *run, int64_t recorded, int64_t version, bool replaying) {
  struct open_run_answer answer;
  run->current_version = recorded;
  rig_open(g, run, &answer);
  if (answer.version != version || answer.replaying != replaying)
    fail_msg("recorded %d: expected version %d, %s, got %d, %s", (int)recorded, (int)version,
             replaying ? "replaying" : "ready", (int)answer.version, answer.replaying ? "replaying" : "ready");
  assert_true(digest_equal(&answer.digest, version ? &straight[version - 1] : &initial));
}

static void expect_replaying(struct rig *g, int from, int at, int to) {
  char text[96];
  snprintf(text, sizeof text, "\"state\":\"replaying\",\"replay\":{\"from\":%d,\"at\":%d,\"to\":%d}", from, at, to);
  expect(g, "GET", "/v1/model", NULL, 200, text);
  snprintf(text, sizeof text, "run r1 is being replayed: version %d is reached, %d is recorded", at, to);
  expect(g, "GET", "/readyz", NULL, 503, text);
  expect(g, "GET", "/metrics", NULL, 200, "leasehold_trainer_replaying 1\n");
}

static void expect_ready(struct rig *g) {
  expect(g, "GET", "/v1/model", NULL, 200, "\"state\":\"ready\",\"replay\":null");
  expect(g, "GET", "/readyz", NULL, 200, "ready");
  expect(g, "GET", "/metrics", NULL, 200, "leasehold_trainer_replaying 0\n");
}

static bool has_version(const struct rig *g, int version) {
  char path[PATH + 64];
  snprintf(path, sizeof path, "%s/r1/v%d/trainer_state.json", g->state_dir, version);
  return file_exists(path);
}

/* From the last checkpoint on; the replay itself is interrupted once. Checkpoints follow checkpoint_every, and one more
 * is written where the replay ends. */
static void an_older_checkpoint_is_replayed(void **state) {
  (void)state;
  struct rig g;
  struct open_run run = the_run(3);
  rig_make(&g, "");
  g.options.keep_checkpoints = 10;
  rig_start(&g);
  open_at(&g, &run, 0, 0, false);
  for (int v = 0; v < 2; v++) play(&g, v);
  assert_false(has_version(&g, 2));
  rig_restart(&g);
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":0");
  expect_ready(&g); /* nobody has said yet what is recorded */
  open_at(&g, &run, 2, 0, true);
  expect_replaying(&g, 0, 0, 2);
  open_at(&g, &run, 2, 0, true); /* the same again changes nothing, nor does an older word */
  open_at(&g, &run, 1, 0, true);
  expect_replaying(&g, 0, 0, 2);
  play(&g, 0);
  expect_replaying(&g, 0, 1, 2);
  struct http_answer held = call_raw(&g, "GET", "/v1/weights/1?run=r1", NULL, 0);
  assert_int_equal(held.status, 200);
  http_answer_free(&held);
  expect(&g, "GET", "/v1/weights/2?run=r1", NULL, 503, "version 2 is being replayed, 1 is reached");
  expect(&g, "GET", "/v1/weights/3?run=r1", NULL, 404, "not_found");
  held = call_raw(&g, "GET", "/v1/weights/0?run=r1", NULL, 0); /* the reference of its KL term */
  assert_int_equal(held.status, 200);
  http_answer_free(&held);
  rig_restart(&g);
  open_at(&g, &run, 2, 0, true);
  for (int v = 0; v < 2; v++) play(&g, v);
  expect_ready(&g);
  assert_true(has_version(&g, 2) && !has_version(&g, 1));
  for (int v = 2; v < ROUNDS; v++) play(&g, v);
  assert_true(has_version(&g, 3) && !has_version(&g, 4) && !has_version(&g, 5));
  rig_restart(&g);
  open_at(&g, &run, 5, 3, true);
  expect_replaying(&g, 3, 3, 5);
  play(&g, 3);
  play(&g, 4);
  expect_ready(&g);
  assert_true(has_version(&g, 5));
  rig_end(&g);
}

/* A trainer that holds what is recorded, or the version after it, whose announcement was lost, has nothing to replay;
 * a repeated opening with a newer version begins or prolongs it. */
static void only_what_is_missing_is_replayed(void **state) {
  (void)state;
  struct rig g;
  struct open_run run = the_run(1);
  rig_make(&g, "");
  rig_start(&g);
  open_at(&g, &run, 0, 0, false);
  play(&g, 0);
  play(&g, 1);
  rig_restart(&g);
  open_at(&g, &run, 1, 2, false);
  open_at(&g, &run, 2, 2, false);
  expect_ready(&g);
  open_at(&g, &run, 3, 2, true);
  open_at(&g, &run, 4, 2, true);
  expect_replaying(&g, 2, 2, 4);
  play(&g, 2);
  open_at(&g, &run, 5, 3, true);
  expect_replaying(&g, 2, 3, 5);
  run.current_version = 9; /* a conflicting opening has no say */
  run.training.lr *= 2;
  struct open_run_answer answer;
  struct err err = {0};
  assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err), err);
  expect_replaying(&g, 2, 3, 5);
  play(&g, 3);
  play(&g, 4);
  expect_ready(&g);
  struct open_run other = run_request("r2"); /* another run begins without the old one's debts */
  rig_open(&g, &other, &answer);
  assert_true(answer.version == 0 && !answer.replaying);
  expect_ready(&g);
  rig_end(&g);
}

/* The state folder is lost: the run is opened like a first time, from the model folder, and replayed from version 0.
 * Nothing of it is pushed or announced until a new version is made. */
static void a_lost_state_folder_is_replayed_in_silence(void **state) {
  (void)state;
  struct fake_coordinator coordinator;
  struct fake_generation server;
  struct rig g;
  struct err err = {0};
  struct open_run run = the_run(1);
  fake_coordinator_start(&coordinator);
  rig_make(&g, coordinator.url);
  rig_start(&g);
  publisher_set_worker(g.publisher, "w1");
  fake_generation_start(&server, g.model_dir, false);
  open_at(&g, &run, 0, 0, false);
  for (int v = 0; v < 3; v++) play(&g, v);
  rig_stop(&g);
  assert_rc(RC_OK, file_remove_tree(g.state_dir, &err), err);
  rig_start(&g);
  publisher_set_worker(g.publisher, "w1");
  pthread_mutex_lock(&coordinator.lock);
  const int announced = coordinator.announcements;
  pthread_mutex_unlock(&coordinator.lock);
  assert_int_equal(announced, 3);
  open_at(&g, &run, 3, 0, true);
  struct push_target target = {.worker_id = "w1", .url = server.url};
  for (int v = 0; v < ROUNDS; v++) {
    struct batch_status batch;
    struct step_status step;
    char id[32];
    snprintf(id, sizeof id, "r1.%d.b0", v);
    rig_batch(&g, "r1", id, v, groups[v], GROUPS, &batch, &arena);
    assert_int_equal(batch.state, JOB_DONE);
    snprintf(id, sizeof id, "r1.%d", v);
    struct submit_step m = step_request("r1", id, v, groups[v], GROUPS, &arena);
    m.push_to = &target;
    m.push_count = 1;
    rig_step(&g, &m, &step, &arena);
    assert_int_equal(step.state, JOB_DONE);
    assert_true(digest_equal(&step.digest, &straight[v]) && step.grad_norm > 0 && step.lr > 0);
    const bool replayed = v < 3;
    assert_int_equal(step.push_count, replayed ? 0 : 1);
    assert_true(replayed ? step.push_us == 0 : step.pushes[0].staged);
    pthread_mutex_lock(&coordinator.lock);
    assert_int_equal(coordinator.announcements, announced + (replayed ? 0 : v - 2));
    assert_true(replayed || coordinator.version == v + 1);
    pthread_mutex_unlock(&coordinator.lock);
    pthread_mutex_lock(&server.lock);
    assert_int_equal(server.pushes, replayed ? 0 : v - 2);
    pthread_mutex_unlock(&server.lock);
    rig_step(&g, &m, &step, &arena); /* sent again: answered, not taken again */
    assert_true(step.state == JOB_DONE && step.version == v + 1);
    if (v < 2)
      expect_replaying(&g, 0, v + 1, 3);
    else
      expect_ready(&g);
  }
  rig_end(&g);
  fake_generation_stop(&server);
  fake_coordinator_stop(&coordinator);
}

static void flip_byte(const struct rig *g, const char *name) {
  char path[PATH + 64];
  struct buf bytes = BUF_INIT;
  struct err err = {0};
  snprintf(path, sizeof path, "%s/%s", g->state_dir, name);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  bytes.data[bytes.len - 100] ^= 1;
  assert_rc(RC_OK, file_write_atomic(path, bytes.data, bytes.len, &err), err);
  buf_free(&bytes);
}

/* The newest checkpoint is damaged: the one before is taken, and the replay makes up for the rest; a damaged reference
 * is nothing that an older version could make up for. */
static void a_damaged_checkpoint_is_made_up_for(void **state) {
  (void)state;
  struct rig g;
  struct err err = {0};
  struct open_run run = the_run(1);
  rig_make(&g, "");
  rig_start(&g);
  open_at(&g, &run, 0, 0, false);
  for (int v = 0; v < 4; v++) play(&g, v);
  rig_stop(&g);
  flip_byte(&g, "r1/v4/optimizer.safetensors");
  rig_start(&g);
  assert_false(has_version(&g, 4)); /* it was of no use, and must not be taken for an older one later */
  char path[PATH + 64];
  struct buf latest = BUF_INIT;
  snprintf(path, sizeof path, "%s/latest", g.state_dir);
  assert_rc(RC_OK, file_read(&latest, path, 100, &err), err);
  assert_string_equal(latest.data, "r1/v3\n");
  buf_free(&latest);
  open_at(&g, &run, 4, 3, true);
  play(&g, 3);
  expect_ready(&g);
  play(&g, 4);
  rig_stop(&g);
  flip_byte(&g, "r1/v0/model.safetensors");
  assert_rc(RC_CORRUPT, rig_try_start(&g, &err), err);
  assert_non_null(strstr(err.message, "the frozen reference of run r1: "));
  assert_non_null(strstr(err.message, "r1/v0"));
  rig_end(&g);
}

/* What an older run of the same name left behind is never taken for this one's: neither when the newest checkpoint of
 * this one is damaged, nor when `latest` is gone. */
static void an_older_run_of_the_same_name_leaves_nothing(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct open_run run = the_run(1), other = run_request("r2"), again = the_run(1);
  char path[PATH + 64];
  rig_make(&g, "");
  g.options.keep_checkpoints = 10;
  rig_start(&g);
  open_at(&g, &run, 0, 0, false);
  for (int v = 0; v < 4; v++) play(&g, v);
  rig_open(&g, &other, &answer);
  again.training.lr *= 2;
  rig_open(&g, &again, &answer);
  assert_true(answer.version == 0 && has_version(&g, 0));
  for (int v = 1; v <= 4; v++) assert_false(has_version(&g, v));
  const struct digest first = rig_round(&g, "r1", 0, groups[0], GROUPS);
  rig_stop(&g);
  snprintf(path, sizeof path, "%s/latest", g.state_dir);
  assert_int_equal(remove(path), 0);
  rig_start(&g); /* as if for the first time, from the model folder; the run is opened and replayed */
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":null,\"version\":0");
  again.current_version = 1;
  rig_open(&g, &again, &answer);
  assert_true(answer.version == 0 && answer.replaying && digest_equal(&answer.digest, &initial));
  assert_false(has_version(&g, 1));
  const struct digest other_start = rig_round(&g, "r1", 0, groups[0], GROUPS);
  assert_false(digest_equal(&other_start, &first)); /* it had not begun with the model folder's weights */
  rig_end(&g);
}

/* A run that evaluates has one version, and nothing to replay. */
static void an_evaluating_run_is_not_replayed(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct err err = {0};
  struct open_run run = run_request("r1");
  run.training.objective = "evaluate";
  run.current_version = 1;
  rig_make(&g, "");
  rig_start(&g);
  assert_rc(RC_INVALID, trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "current_version");
  run.current_version = 0;
  rig_open(&g, &run, &answer);
  assert_false(answer.replaying);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_older_checkpoint_is_replayed),
      cmocka_unit_test(only_what_is_missing_is_replayed),
      cmocka_unit_test(a_lost_state_folder_is_replayed_in_silence),
      cmocka_unit_test(a_damaged_checkpoint_is_made_up_for),
      cmocka_unit_test(an_older_run_of_the_same_name_leaves_nothing),
      cmocka_unit_test(an_evaluating_run_is_not_replayed),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/replay", tests, set_up, tear_down);
}

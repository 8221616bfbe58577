/* The whole trainer-server over HTTP, with a faked coordinator and faked generation-servers: what it takes, refuses,
 * makes durable, pushes, announces and serves. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "services/trainer-server/engine/engine.h"
#include "tests/unit/trainer-server/peers.h"

/* Opening is idempotent by run; another configuration, an older epoch or fence, or what this trainer cannot do are
 * refused. */
static void opening_a_run(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer first, again;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  rig_make(&g, "");
  rig_start(&g);
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":null,\"version\":0");
  struct open_run m = run_request("r1");
  rig_open(&g, &m, &first);
  assert_int_equal(first.version, 0);
  m.epoch = 4; /* the coordinator restarted */
  m.fence = 6;
  rig_open(&g, &m, &again);
  assert_true(again.version == 0 && digest_equal(&again.digest, &first.digest));
  m.epoch = 3;
  assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "epoch");
  m.epoch = 4;
  m.fence = 5;
  assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "fence");
  m.fence = 6;
  m.training.lr = 0.02;
  assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  m.run = "r2";
  m.training.chunk_tokens = CHUNK + 1;
  assert_rc(RC_INVALID, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "training.chunk_tokens");
  m.training.chunk_tokens = 1;
  assert_rc(RC_INVALID, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  m.training.chunk_tokens = 24;
  m.training.schedule = "sometimes";
  assert_rc(RC_INVALID, trainer_open_run(&g.client, &m, &again, &arena, WAIT_MS, &err), err);
  m.training.schedule = "linear";
  rig_open(&g, &m, &again); /* another run: same weights, version 0 again */
  assert_true(again.version == 0 && digest_equal(&again.digest, &first.digest));
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r2\",\"version\":0");
  arena_free(&arena);
  rig_end(&g);
}

/* A run that evaluates takes neither batches nor steps, and needs no chunks of this trainer's size. */
static void evaluating_runs_take_no_batches(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[1];
  struct batch_status batch;
  struct step_status step;
  rig_make(&g, "");
  rig_start(&g);
  struct open_run m = run_request("r1");
  m.training.objective = "evaluate";
  m.training.temperature = 0;
  m.training.chunk_tokens = 4096;
  rig_open(&g, &m, &answer);
  groups_make(&arena, groups, 1, 1);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 1, &batch, &arena);
  assert_int_equal(batch.state, JOB_FAILED);
  assert_int_equal(batch.error.rc, RC_CONFLICT);
  const struct submit_step s = step_request("r1", "r1.0", 0, groups, 0, &arena);
  rig_step(&g, &s, &step, &arena);
  assert_int_equal(step.state, JOB_FAILED);
  expect(&g, "GET", "/v1/model", NULL, 200, "\"version\":0");
  arena_free(&arena);
  rig_end(&g);
}

/* As a person would send it. */
static void expect_json(struct rig *g, const struct submit_batch *m, int status, const char *part) {
  struct buf body = BUF_INIT;
  submit_batch_encode(m, &body);
  expect(g, "POST", "/v1/submit-batch", body.data, status, part);
  buf_free(&body);
}

/* A batch is computed once: a repeat finds it, also under a newer epoch; other content is refused, and so are other
 * versions, runs, stale epochs and fences. */
static void batches_are_idempotent_and_guarded(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[2];
  struct batch_status first, again;
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  groups_make(&arena, groups, 2, 1);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &first, &arena);
  assert_int_equal(first.state, JOB_DONE);
  assert_int_equal(first.sample_count, 8);
  assert_int_equal(first.stats.tokens, (int64_t)trained_tokens(groups, 2));
  assert_false(first.stats.poisoned);
  for (size_t i = 0; i < 8; i++) {
    const struct batch_sample *s = &groups[i / 4].samples[i % 4];
    assert_string_equal(first.samples[i].id, s->id);
    assert_int_equal(first.samples[i].logprobs.count, s->segments[0].count);
    assert_true(first.samples[i].logprobs.items[0] < 0);
  }
  struct digest digest;
  logprobs_digest(&digest, first.samples, first.sample_count);
  assert_true(digest_equal(&digest, &first.logprobs_sha256));
  assert_rc(RC_OK, trainer_batch_status(&g.client, "r1.0.b0", 0, false, &again, &arena, WAIT_MS, &err), err);
  assert_true(again.state == JOB_DONE && again.sample_count == 0 && digest_equal(&digest, &again.logprobs_sha256));
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &again, &arena);
  assert_true(again.state == JOB_DONE &&
              again.stats.compute_us == first.stats.compute_us); /* the very same computation */
  struct submit_batch m = {
      .batch_id = "r1.0.b0", .run = "r1", .epoch = 3, .fence = 5, .version = 0, .groups = groups, .group_count = 2};
  m.epoch = 9;
  m.fence = 9;
  assert_rc(RC_OK, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  expect_json(&g, &m, 202, "\"state\":\"done\""); /* the same content in the other form */
  groups[1].samples[0].advantage += 0.5f;
  expect_json(&g, &m, 409, "exists with other content");
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  groups[1].samples[0].advantage -= 0.5f;
  m.epoch = 8;
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "epoch");
  m.epoch = 9;
  m.fence = 8;
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "fence");
  m.fence = 9;
  m.batch_id = "r1.0.b1";
  m.version = 1;
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "version");
  m.version = 0;
  m.run = "r2";
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "run");
  m.run = "r1"; /* a new id for groups that are in the sums: the job fails */
  assert_rc(RC_OK, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g.client, "r1.0.b1", 5000, true, &again, &arena, WAIT_MS, &err), err);
  assert_true(again.state == JOB_FAILED && again.error.rc == RC_CONFLICT);
  arena_free(&arena);
  rig_end(&g);
}

/* One bad sample refuses the whole batch with the field's path before anything is accumulated; corrected, the same id
 * goes through. */
static void a_bad_sample_refuses_the_batch_and_leaves_no_trace(void **state) {
  (void)state;
  struct rig g, clean;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[3];
  rig_make(&g, "");
  rig_start(&g);
  rig_make(&clean, "");
  rig_start(&clean);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  rig_open(&clean, &run, &answer);
  groups_make(&arena, groups, 3, 2);
  struct json_i32s *tokens = &groups[2].samples[1].tokens;
  const int32_t kept = tokens->items[0];
  tokens->items[0] = VOCABULARY;
  const struct submit_batch m = {
      .batch_id = "r1.0.b0", .run = "r1", .epoch = 3, .fence = 5, .version = 0, .groups = groups, .group_count = 3};
  assert_rc(RC_INVALID, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "groups[2].samples[1].tokens");
  expect(&g, "GET", "/v1/batches/r1.0.b0", NULL, 404, "not_found");
  tokens->items[0] = kept;
  const struct digest repaired = rig_round(&g, "r1", 0, groups, 3), plain = rig_round(&clean, "r1", 0, groups, 3);
  assert_true(digest_equal(&repaired, &plain));
  arena_free(&arena);
  rig_end(&g);
  rig_end(&clean);
}

/* A step takes exactly the groups that were accumulated: more, fewer or others fail it, and the right list, under the
 * same id, succeeds. */
static void a_step_names_exactly_its_groups(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[3];
  struct batch_status batch;
  struct step_status step;
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  groups_make(&arena, groups, 3, 3);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &batch, &arena);
  for (int wrong = 0; wrong < 4; wrong++) {
    static const size_t counts[] = {1, 3, 2, 0};
    struct submit_step m = step_request("r1", "r1.0", 0, groups, counts[wrong], &arena);
    if (wrong == 2) m.groups[1] = groups[2].id;
    rig_step(&g, &m, &step, &arena);
    assert_int_equal(step.state, JOB_FAILED);
    assert_int_equal(step.error.rc, RC_CONFLICT);
    assert_string_equal(step.error.field, "groups");
  }
  expect(&g, "GET", "/v1/model", NULL, 200, "\"version\":0");
  struct submit_step m = step_request("r1", "r1.0", 0, groups, 2, &arena);
  m.groups[0] = groups[1].id; /* in any order */
  m.groups[1] = groups[0].id;
  rig_step(&g, &m, &step, &arena);
  assert_int_equal(step.state, JOB_DONE);
  assert_int_equal(step.version, 1);
  assert_true(step.grad_norm > 0 && step.lr == 0.01 && !step.skipped);
  rig_step(&g, &m, &step, &arena); /* the repeat does not step again */
  assert_int_equal(step.version, 1);
  m.denominator += 1;
  assert_rc(RC_CONFLICT, trainer_submit_step(&g.client, &m, WAIT_MS, &err), err);
  m = step_request("r1", "r1.x", 0, groups, 2, &arena);
  assert_rc(RC_CONFLICT, trainer_submit_step(&g.client, &m, WAIT_MS, &err),
            err); /* another step from a version that is gone */
  assert_string_equal(err.field, "version");
  arena_free(&arena);
  rig_end(&g);
}

static atomic_bool status_waits;

static enum rc waiting_status(const struct ops *ops, struct err *err) {
  (void)ops, (void)err;
  AWAIT(!atomic_load(&status_waits), "the engine is not let go") continue;
  return RC_OK;
}

/* The engine looks at the device after a job that failed, and waits there until status_waits is cleared. */
static void hold_engine(struct rig *g, const struct batch_group *groups, struct arena *arena) {
  const struct submit_step none = step_request("r1", "r1.none", 0, groups, 1, arena);
  struct err err = {0};
  atomic_store(&status_waits, true);
  ((struct engine *)(void *)g->trainer)->ops->status = waiting_status; /* the engine waits for jobs */
  assert_rc(RC_OK, trainer_submit_step(&g->client, &none, WAIT_MS, &err), err);
}

/* Behind a step that was submitted, and under no version beyond; if the step fails, it does. */
static void a_batch_of_the_next_version_waits_behind_the_step(void **state) {
  struct rig *g = *state;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[3];
  struct batch_status batch;
  const struct open_run run = run_request("r1");
  rig_open(g, &run, &answer);
  groups_make(&arena, groups, 3, 3);
  struct submit_batch ahead = {
      .batch_id = "r1.1.b0", .run = "r1", .epoch = 3, .fence = 5, .version = 1, .groups = &groups[2], .group_count = 1};
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g->client, &ahead, WAIT_MS, &err), err);
  assert_string_equal(err.field, "version");
  for (int good = 0; good < 2; good++) {
    if (good) rig_batch(g, "r1", "r1.0.b0", 0, groups, 2, &batch, &arena);
    hold_engine(g, groups, &arena);
    const struct submit_step step = step_request("r1", "r1.0", 0, groups, 2, &arena);
    assert_rc(RC_OK, trainer_submit_step(&g->client, &step, WAIT_MS, &err), err);
    ahead.version = 2;
    assert_rc(RC_CONFLICT, trainer_submit_batch(&g->client, &ahead, WAIT_MS, &err), err);
    ahead.version = 1;
    assert_rc(RC_OK, trainer_submit_batch(&g->client, &ahead, WAIT_MS, &err), err);
    atomic_store(&status_waits, false);
    assert_rc(RC_OK, trainer_batch_status(&g->client, "r1.1.b0", WAIT_MS / 2, true, &batch, &arena, WAIT_MS, &err),
              err);
    assert_int_equal(batch.state, good ? JOB_DONE : JOB_FAILED);
    if (!good) assert_string_equal(batch.error.field, "version");
  }
  expect(g, "GET", "/v1/model", NULL, 200, "\"version\":1");
  arena_free(&arena);
}

/* A version is durable, then staged by the servers that answer with the digest of their own memory, then announced;
 * superseded versions are not served. */
static int heartbeats_of(struct fake_coordinator *c) {
  pthread_mutex_lock(&c->lock);
  const int beats = c->heartbeats;
  pthread_mutex_unlock(&c->lock);
  return beats;
}

static bool is_back(struct fake_coordinator *c, int beats_before) {
  pthread_mutex_lock(&c->lock);
  const bool back = c->registrations == 2 && c->heartbeats > beats_before + 1;
  pthread_mutex_unlock(&c->lock);
  return back;
}

static void a_version_is_durable_pushed_announced_and_served(void **state) {
  (void)state;
  struct fake_coordinator coordinator;
  struct fake_generation good, liar;
  struct rig g;
  struct open_run_answer opened;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[2];
  struct batch_status batch;
  struct step_status step;
  struct buf bytes = BUF_INIT;
  struct heartbeat *heartbeat;
  fake_coordinator_start(&coordinator);
  rig_make(&g, coordinator.url);
  rig_start(&g);
  fake_generation_start(&good, g.model_dir, false);
  fake_generation_start(&liar, g.model_dir, true);
  const struct heartbeat_options tie = {
      .coordinator_url = coordinator.url, .name = "trainer", .advertise_url = g.url};
  assert_rc(RC_OK, heartbeat_start(&heartbeat, &tie, trainer_board(g.trainer), g.publisher, &err), err);
  AWAIT(heartbeats_of(&coordinator) > 0, "no heartbeat came") continue;
  const struct open_run run = run_request("r1"); /* epoch 3, fence 5: what registration brought */
  rig_open(&g, &run, &opened);
  groups_make(&arena, groups, 2, 4);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &batch, &arena);
  struct submit_step m = step_request("r1", "r1.0", 0, groups, 2, &arena);
  struct push_target targets[] = {{.worker_id = "w7", .url = good.url},
                                  {.worker_id = "w8", .url = liar.url},
                                  {.worker_id = "w9", .url = "http://127.0.0.1:1"}};
  m.push_to = targets;
  m.push_count = 3;
  pthread_mutex_lock(&coordinator.lock);
  coordinator.refuse_announcements = 2; /* it is tried again */
  pthread_mutex_unlock(&coordinator.lock);
  rig_step(&g, &m, &step, &arena);
  assert_int_equal(step.state, JOB_DONE);
  assert_false(digest_equal(&step.digest, &opened.digest));

  assert_int_equal(step.push_count, 3);
  assert_string_equal(step.pushes[0].worker_id, "w7");
  assert_true(step.pushes[0].staged && digest_equal(&step.pushes[0].digest, &step.digest) && !step.pushes[0].error);
  assert_false(step.pushes[1].staged);
  assert_non_null(strstr(step.pushes[1].error, "digests differ"));
  assert_false(step.pushes[2].staged);
  assert_non_null(step.pushes[2].error);
  pthread_mutex_lock(&good.lock);
  assert_true(good.pushes == 1 && digest_equal(&good.digest, &step.digest));
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, &step.digest);
  assert_string_equal(good.header, hex);
  assert_string_equal(good.run, "r1");
  assert_string_equal(good.version, "1");
  assert_string_equal(good.epoch, "3");
  pthread_mutex_unlock(&good.lock);

  pthread_mutex_lock(&coordinator.lock);
  assert_int_equal(coordinator.announcements, 1);
  assert_string_equal(coordinator.run, "r1");
  assert_string_equal(coordinator.step_id, "r1.0");
  assert_string_equal(coordinator.worker_id, "w1");
  assert_true(coordinator.announced_epoch == 3 && coordinator.announced_fence == 5);
  assert_true(coordinator.version == 1 && digest_equal(&coordinator.digest, &step.digest));
  assert_true(coordinator.push_count == 3 && coordinator.staged == 1);
  pthread_mutex_unlock(&coordinator.lock);

  char path[PATH + 64];
  snprintf(path, sizeof path, "%s/r1/v1/optimizer.safetensors", g.state_dir);
  assert_true(file_exists(path));
  snprintf(path, sizeof path, "%s/latest", g.state_dir);
  assert_rc(RC_OK, file_read(&bytes, path, 100, &err), err);
  assert_string_equal(bytes.data, "r1/v1\n");

  struct http_answer pulled = call_raw(&g, "GET", "/v1/weights/1?run=r1", NULL, 0);
  assert_int_equal(pulled.status, 200);
  assert_string_equal(pulled.digest_header, hex);
  snprintf(path, sizeof path, "%s/r1/v1/model.safetensors", g.state_dir);
  buf_clear(&bytes);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  assert_true(pulled.body.len == bytes.len && memcmp(pulled.body.data, bytes.data, bytes.len) == 0);
  http_answer_free(&pulled);
  expect(&g, "GET", "/v1/weights/0?run=r1", NULL, 409, "\"field\":\"version\"");
  expect(&g, "GET", "/v1/weights/2?run=r1", NULL, 404, "\"field\":\"version\"");
  expect(&g, "GET", "/v1/weights/1?run=r2", NULL, 404, "\"field\":\"run\"");
  expect(&g, "GET", "/v1/weights/-1?run=r1", NULL, 422, "version number");
  expect(&g, "GET", "/v1/weights/1x", NULL, 422, "version number");
  expect(&g, "GET", "/v1/weights/99999999999999999999", NULL, 422, "version number");

  pthread_mutex_lock(&coordinator.lock); /* forgotten: it registers again, with the digest that it holds now */
  coordinator.forget = true;
  const int beats = coordinator.heartbeats;
  pthread_mutex_unlock(&coordinator.lock);
  AWAIT(is_back(&coordinator, beats), "it does not register again") continue;
  heartbeat_stop(heartbeat);
  pthread_mutex_lock(&coordinator.lock);
  assert_int_equal(coordinator.registrations, 2);
  assert_true(digest_equal(&coordinator.loaded, &step.digest));
  pthread_mutex_unlock(&coordinator.lock);
  buf_free(&bytes);
  arena_free(&arena);
  rig_end(&g);
  fake_generation_stop(&good);
  fake_generation_stop(&liar);
  fake_coordinator_stop(&coordinator);
}

/* The same groups give the same weights in whatever order and batches they come, with whatever threads; one other
 * advantage gives others. */
static void the_order_of_groups_leaves_no_trace(void **state) {
  (void)state;
  enum { GROUPS = 5, WAYS = 4 };
  static const int order[WAYS][GROUPS] = {{0, 1, 2, 3, 4}, {4, 2, 0, 1, 3}, {3, 4, 1, 0, 2}, {0, 1, 2, 3, 4}};
  static const int cuts[WAYS][GROUPS] = {{5}, {1, 2, 2}, {1, 1, 1, 1, 1}, {5}};
  struct digest digests[WAYS];
  for (int way = 0; way < WAYS; way++) {
    struct rig g;
    struct open_run_answer answer;
    struct arena arena = ARENA_INIT;
    struct batch_group groups[GROUPS], shuffled[GROUPS];
    struct batch_status batch;
    struct step_status step;
    rig_make(&g, "");
    g.options.threads = way == 1 ? 3 : 1;
    rig_start(&g);
    const struct open_run run = run_request("r1");
    rig_open(&g, &run, &answer);
    groups_make(&arena, groups, GROUPS, 5);
    if (way == 3) groups[2].samples[1].advantage += 0.25f;
    for (int i = 0; i < GROUPS; i++) shuffled[i] = groups[order[way][i]];
    for (int b = 0, at = 0; b < GROUPS && cuts[way][b]; at += cuts[way][b++]) {
      char id[32];
      snprintf(id, sizeof id, "r1.0.b%d", b);
      rig_batch(&g, "r1", id, 0, shuffled + at, (size_t)cuts[way][b], &batch, &arena);
      assert_int_equal(batch.state, JOB_DONE);
    }
    const struct submit_step m = step_request("r1", "r1.0", 0, groups, GROUPS, &arena);
    rig_step(&g, &m, &step, &arena);
    assert_int_equal(step.state, JOB_DONE);
    digests[way] = step.digest;
    arena_free(&arena);
    rig_end(&g);
  }
  assert_true(digest_equal(&digests[0], &digests[1]) && digest_equal(&digests[0], &digests[2]));
  assert_false(digest_equal(&digests[0], &digests[3]));
}

/* A learning rate of 0 and a step without groups change no weight and still make a version. */
static void steps_that_change_nothing_still_make_versions(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[2];
  struct step_status step;
  rig_make(&g, "");
  rig_start(&g);
  struct open_run run = run_request("r1");
  run.training.lr = 0;
  rig_open(&g, &run, &opened);
  groups_make(&arena, groups, 2, 6);
  const struct digest same = rig_round(&g, "r1", 0, groups, 2);
  assert_true(digest_equal(&same, &opened.digest));
  const struct submit_step m = step_request("r1", "r1.1", 1, groups, 0, &arena);
  rig_step(&g, &m, &step, &arena);
  assert_true(step.state == JOB_DONE && step.skipped && step.version == 2 && step.push_count == 0);
  assert_true(digest_equal(&step.digest, &opened.digest));
  arena_free(&arena);
  rig_end(&g);
}

/* Restarted from its state folder the trainer is where it was: version, digest, the last step (known as done), and
 * every later digest as without the restart; with a frozen reference and a schedule, which have to come back too. */
static void a_restart_changes_nothing(void **state) {
  (void)state;
  enum { ROUNDS = 4 };
  struct digest straight[ROUNDS], restarted[ROUNDS];
  for (int with = 0; with < 2; with++) {
    struct rig g;
    struct open_run_answer answer;
    struct arena arena = ARENA_INIT;
    struct batch_group groups[3];
    struct err err = {0};
    rig_make(&g, "");
    rig_start(&g);
    struct open_run run = run_request("r1");
    run.training.kl_coefficient = 0.5;
    run.training.schedule = "cosine";
    run.training.warmup_steps = 1;
    run.training.total_steps = 6;
    rig_open(&g, &run, &answer);
    for (int v = 0; v < ROUNDS; v++) {
      groups_make(&arena, groups, 3, (uint32_t)v + 20);
      (with ? restarted : straight)[v] = rig_round(&g, "r1", v, groups, 3);
      if (!with || v == 0) continue;
      struct step_status step;
      char id[32];
      rig_stop(&g);
      g.options.threads = v;
      rig_start(&g);
      rig_open(&g, &run, &answer); /* idempotent: where the trainer is */
      assert_true(answer.version == v + 1 && digest_equal(&answer.digest, &restarted[v]));
      snprintf(id, sizeof id, "r1.%d", v);
      struct submit_step m =
          step_request("r1", id, v, groups, 3, &arena); /* sent again by a coordinator that heard nothing */
      rig_step(&g, &m, &step, &arena);
      assert_true(step.state == JOB_DONE && step.version == v + 1 && digest_equal(&step.digest, &restarted[v]) &&
                  step.grad_norm > 0);
      m.denominator += 1;
      assert_rc(RC_CONFLICT, trainer_submit_step(&g.client, &m, WAIT_MS, &err), err);
      run.training.lr *= 2; /* another run of the same name */
      struct open_run_answer other;
      assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &run, &other, &arena, WAIT_MS, &err), err);
      run.training.lr /= 2;
      run.epoch = 2; /* older than what it has taken since it came back */
      assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &run, &other, &arena, WAIT_MS, &err), err);
      run.epoch = 3;
    }
    arena_free(&arena);
    rig_end(&g);
  }
  for (int v = 0; v < ROUNDS; v++) assert_true(digest_equal(&straight[v], &restarted[v]));
  assert_false(digest_equal(&straight[0], &straight[1]));
}

/* checkpoint_every: in between nothing is written, the last round always is, and a restart is at the last one
 * written. */
static void checkpoints_are_written_when_due(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[1];
  struct step_status step;
  rig_make(&g, "");
  rig_start(&g);
  struct open_run run = run_request("r1");
  run.training.checkpoint_every = 2;
  rig_open(&g, &run, &answer);
  groups_make(&arena, groups, 1, 8);
  rig_round(&g, "r1", 0, groups, 1);
  rig_round(&g, "r1", 1, groups, 1);
  rig_round(&g, "r1", 2, groups, 1);
  rig_stop(&g);
  rig_start(&g);
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":2");
  struct submit_step m = step_request("r1", "r1.2", 2, groups, 0, &arena);
  m.last = true;
  rig_step(&g, &m, &step, &arena);
  assert_true(step.state == JOB_DONE && step.checkpoint_us > 0);
  rig_stop(&g);
  rig_start(&g);
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":3");
  arena_free(&arena);
  rig_end(&g);
}

/* A step whose checkpoint cannot be written makes no version and is not lost: nothing else is taken, and the same
 * step, sent again, gives what it would have given. */
static void a_step_that_cannot_be_made_durable_is_finished_later(void **state) {
  (void)state;
  struct rig g, clean;
  struct open_run_answer opened;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[2];
  struct batch_status batch;
  struct step_status step;
  char run_dir[PATH + 64], away[PATH + 64];
  rig_make(&g, "");
  rig_start(&g);
  rig_make(&clean, "");
  rig_start(&clean);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &opened);
  rig_open(&clean, &run, &opened);
  groups_make(&arena, groups, 2, 9);
  const struct digest want = rig_round(&clean, "r1", 0, groups, 2);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &batch, &arena);
  snprintf(run_dir, sizeof run_dir, "%s/r1", g.state_dir);
  snprintf(away, sizeof away, "%s/away", g.state_dir);
  assert_int_equal(rename(run_dir, away), 0);
  write_text(g.state_dir, "r1", "in the way");
  const struct submit_step m = step_request("r1", "r1.0", 0, groups, 2, &arena);
  for (int i = 0; i < 2; i++) {
    rig_step(&g, &m, &step, &arena);
    assert_int_equal(step.state, JOB_FAILED);
    assert_int_equal(step.error.rc, RC_IO);
  }
  char text[DIGEST_HEX_MAX + 64], hex[DIGEST_HEX_MAX];
  digest_hex(hex, &opened.digest);
  snprintf(text, sizeof text, "\"version\":0,\"digest\":\"%s\"", hex);
  expect(&g, "GET", "/v1/model", NULL, 200, text);
  groups[0].id = "r1.0.7";
  rig_batch(&g, "r1", "r1.0.b1", 0, groups, 1, &batch, &arena);
  assert_true(batch.state == JOB_FAILED && strstr(batch.error.message, "not durable"));
  const struct submit_step other = step_request("r1", "r1.x", 0, groups, 0, &arena);
  rig_step(&g, &other, &step, &arena);
  assert_true(step.state == JOB_FAILED && step.error.rc == RC_CONFLICT);
  assert_int_equal(remove(run_dir), 0);
  assert_int_equal(rename(away, run_dir), 0);
  rig_step(&g, &m, &step, &arena);
  assert_int_equal(step.state, JOB_DONE);
  assert_true(digest_equal(&step.digest, &want));
  arena_free(&arena);
  rig_end(&g);
  rig_end(&clean);
}

/* No file may grow beyond so many bytes; RLIM_INFINITY: all may. */
static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* It would stand in its own way when the step is tried again. */
static void a_checkpoint_that_finds_the_disk_full_leaves_nothing_behind(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[1];
  struct batch_status batch;
  struct step_status step;
  char partial[PATH + 64];
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &opened);
  groups_make(&arena, groups, 1, 9);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 1, &batch, &arena);
  const struct submit_step m = step_request("r1", "r1.0", 0, groups, 1, &arena);
  signal(SIGXFSZ, SIG_IGN);
  limit_files(20000); /* the weights have room, the optimizer has not */
  rig_step(&g, &m, &step, &arena);
  limit_files(RLIM_INFINITY);
  assert_true(step.state == JOB_FAILED && step.error.rc == RC_IO && strstr(step.error.message, "optimizer"));
  snprintf(partial, sizeof partial, "%s/r1/.partial-v1", g.state_dir);
  assert_false(file_exists(partial));
  rig_step(&g, &m, &step, &arena);
  assert_int_equal(step.state, JOB_DONE);
  arena_free(&arena);
  rig_end(&g);
}

/* A failed opening ends the old run and starts none; the trainer goes on to the next opening. */
static void a_failed_opening_leaves_no_run(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[1];
  rig_make(&g, "");
  rig_start(&g);
  struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  write_text(g.state_dir, "r2", "in the way");
  run.run = "r2";
  assert_rc(RC_IO, trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err), err);
  groups_make(&arena, groups, 1, 1);
  const struct submit_batch m = {
      .batch_id = "r1.0.b0", .run = "r1", .epoch = 3, .fence = 5, .groups = groups, .group_count = 1};
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  char path[PATH + 64];
  snprintf(path, sizeof path, "%s/r2", g.state_dir);
  assert_int_equal(remove(path), 0);
  rig_open(&g, &run, &answer);
  rig_round(&g, "r2", 0, groups, 1);
  arena_free(&arena);
  rig_end(&g);
}

/* What no handler may take: each malformed body is refused with 422 (or 413), and the server goes on. */
static void malformed_bodies_are_refused(void **state) {
  (void)state;
  static const char *const paths[] = {"/v1/runs", "/v1/submit-batch", "/v1/submit-step"};
  static const char *const bodies[] = {"",
                                       "{",
                                       "[]",
                                       "null",
                                       "{}",
                                       "{\"run\":1}",
                                       "{\"run\":\"r1\",\"run\":\"r1\"}",
                                       "{\"surprise\":true}",
                                       "\xff\xfe",
                                       "{\"run\":\"../x\"}"};
  struct rig g;
  struct open_run_answer answer;
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  for (size_t p = 0; p < 3; p++) {
    for (size_t b = 0; b < sizeof bodies / sizeof bodies[0]; b++) {
      struct http_answer a = call_raw(&g, "POST", paths[p], bodies[b], strlen(bodies[b]));
      if (a.status != 422) fail_msg("POST %s %s: expected 422, got %d", paths[p], bodies[b], a.status);
      assert_non_null(strstr(a.body.data, "{\"error\":{\"code\":\"invalid\",\"message\":\""));
      http_answer_free(&a);
    }
  }
  struct arena arena = ARENA_INIT; /* a real body, cut everywhere */
  struct batch_group groups[1];
  struct buf whole = BUF_INIT;
  groups_make(&arena, groups, 1, 1);
  submit_batch_encode(
      &(struct submit_batch){
          .batch_id = "r1.0.b0", .run = "r1", .epoch = 3, .fence = 5, .groups = groups, .group_count = 1},
      &whole);
  for (size_t len = 0; len < whole.len; len += 1 + whole.len / 40) {
    struct http_answer a = call_raw(&g, "POST", "/v1/submit-batch", whole.data, len);
    assert_int_equal(a.status, 422);
    http_answer_free(&a);
  }
  char *deep = malloc(4001);
  memset(deep, '[', 4000);
  deep[4000] = 0;
  expect(&g, "POST", "/v1/submit-batch", deep, 422, "\"code\":\"invalid\"");
  free(deep);
  char *large = malloc(LIMIT_BODY_BYTES + 1);
  memset(large, ' ', LIMIT_BODY_BYTES + 1);
  buf_clear(&whole); /* and as tensors */
  const struct submit_batch m = {
      .batch_id = "r1.0.b0", .run = "r1", .epoch = 3, .fence = 5, .groups = groups, .group_count = 1};
  struct err err = {0};
  assert_rc(RC_OK, submit_batch_encode_tensors(&m, &whole, &err), err);
  for (size_t len = 0; len < whole.len; len += 1 + whole.len / 40) {
    struct http_answer cut = call_typed(&g, "POST", "/v1/submit-batch", "application/octet-stream", whole.data, len);
    assert_int_equal(cut.status, 422);
    http_answer_free(&cut);
  }
  struct http_answer a = call_raw(&g, "POST", "/v1/submit-step", large, LIMIT_BODY_BYTES + 1);
  assert_int_equal(a.status, 413);
  http_answer_free(&a);
  free(large);
  expect(&g, "GET", "/v1/batches/r1.0.b0?wait_ms=x", NULL, 422, "wait_ms");
  expect(&g, "GET", "/v1/batches/r1.0.b0?wait_ms=60001", NULL, 422, "wait_ms");
  rig_round(&g, "r1", 0, groups, 1); /* as good as new */
  buf_free(&whole);
  arena_free(&arena);
  rig_end(&g);
}

/* Model files, and nothing else of the folder; sizes, health and metrics. */
static void the_model_is_served(void **state) {
  (void)state;
  struct rig g;
  rig_make(&g, "");
  write_text(g.model_dir, "secret.txt", "secret");
  rig_start(&g);
  struct http_answer a = call_raw(&g, "GET", "/v1/model/files/config.json", NULL, 0);
  assert_true(a.status == 200 && a.body.len == strlen(tiny_config) &&
              memcmp(a.body.data, tiny_config, a.body.len) == 0);
  http_answer_free(&a);
  expect(&g, "GET", "/v1/model/files/tokenizer.json", NULL, 200, tiny_tokenizer);
  expect(&g, "GET", "/v1/model/files/generation_config.json", NULL, 404, "not_found");
  expect(&g, "GET", "/v1/model/files/secret.txt", NULL, 404, "not_found");
  expect(&g, "GET", "/v1/model/files/..%2Fmodel%2Fconfig.json", NULL, 404, "not_found");
  expect(&g, "GET", "/v1/model/files/model.safetensors", NULL, 404, "not_found");
  expect(&g, "GET", "/v1/model", NULL, 200,
         "\"layers\":2,\"hidden\":16,\"heads\":2,\"kv_heads\":1,\"head_dim\":8,\"ffn\":32,\"experts\":0,\"experts_per_"
         "token\":0,\"expert_ffn\":0,\"vocabulary\":48,\"positions_max\":32,\"tied\":true");
  expect(&g, "GET", "/v1/model", NULL, 200, "\"files\":[\"config.json\",\"tokenizer.json\"]");
  write_text(g.model_dir, "chat_template.jinja", "{{ messages }}");
  expect(&g, "GET", "/v1/model/files/chat_template.jinja", NULL, 200, "{{ messages }}");
  expect(&g, "GET", "/v1/model", NULL, 200, "\"files\":[\"chat_template.jinja\",\"config.json\",\"tokenizer.json\"]");
  expect(&g, "GET", "/healthz", NULL, 200, "ok");
  expect(&g, "GET", "/readyz", NULL, 200, "ready");
  expect(&g, "GET", "/metrics", NULL, 200, "leasehold_trainer_version 0");
  expect(&g, "GET", "/v1/nowhere", NULL, 404, "not_found");
  rig_end(&g);
}

/* Starting is refused, with the reason, when there are no weights and no seed, or when the state folder is damaged. */
static void starting_refuses_what_it_cannot_stand_for(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct err err = {0};
  rig_make(&g, "");
  g.options.random_init_seed = -1;
  assert_rc(RC_NOT_FOUND, rig_try_start(&g, &err), err);
  assert_non_null(strstr(err.message, "--random-init"));
  g.options.random_init_seed = 7;
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  rig_stop(&g);
  write_text(g.state_dir, "latest", "r2/v5\n"); /* a run without a single version */
  assert_rc(RC_CORRUPT, rig_try_start(&g, &err), err);
  assert_non_null(strstr(err.message, "no checkpoint of run r2 is whole"));
  write_text(g.state_dir, "latest", "r1\n");
  assert_rc(RC_CORRUPT, rig_try_start(&g, &err), err);
  write_text(g.state_dir, "latest", "r1/v0\n");
  rig_start(&g);
  rig_end(&g);
}

/* Stopping with work queued and pollers waiting ends soon, and frees everything. */
static void stopping_with_work_in_hand(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  for (int b = 0; b < 20; b++) {
    char id[64], group[64];
    struct batch_group groups[1];
    snprintf(id, sizeof id, "r1.0.b%d", b);
    snprintf(group, sizeof group, "r1.0.%d", b);
    groups[0] = group_make(&arena, group, 64, (uint32_t)b);
    const struct submit_batch m = {
        .batch_id = id, .run = "r1", .epoch = 3, .fence = 5, .groups = groups, .group_count = 1};
    assert_rc(RC_OK, trainer_submit_batch(&g.client, &m, WAIT_MS, &err), err);
  }
  const int64_t begun = clock_monotonic_ms();
  rig_stop(&g);
  assert_true(clock_monotonic_ms() - begun < 5000);
  rig_start(&g); /* nothing of it was durable */
  expect(&g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\",\"version\":0");
  arena_free(&arena);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(opening_a_run),
      cmocka_unit_test(evaluating_runs_take_no_batches),
      cmocka_unit_test(batches_are_idempotent_and_guarded),
      cmocka_unit_test(a_bad_sample_refuses_the_batch_and_leaves_no_trace),
      cmocka_unit_test(a_step_names_exactly_its_groups),
      cmocka_unit_test_setup_teardown(a_batch_of_the_next_version_waits_behind_the_step, rig_set_up, rig_tear_down),
      cmocka_unit_test(a_version_is_durable_pushed_announced_and_served),
      cmocka_unit_test(the_order_of_groups_leaves_no_trace),
      cmocka_unit_test(steps_that_change_nothing_still_make_versions),
      cmocka_unit_test(a_restart_changes_nothing),
      cmocka_unit_test(checkpoints_are_written_when_due),
      cmocka_unit_test(a_step_that_cannot_be_made_durable_is_finished_later),
      cmocka_unit_test(a_checkpoint_that_finds_the_disk_full_leaves_nothing_behind),
      cmocka_unit_test(a_failed_opening_leaves_no_run),
      cmocka_unit_test(malformed_bodies_are_refused),
      cmocka_unit_test(the_model_is_served),
      cmocka_unit_test(starting_refuses_what_it_cannot_stand_for),
      cmocka_unit_test(stopping_with_work_in_hand),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/server", tests, NULL, NULL);
}

/* A preprocessor beside a coordinator and a trainer, both faked over real HTTP: its results are the bits that the
 * trainer would compute itself, and what it cannot compute, has lost or leaves behind goes back. */
#include "tests/unit/trainer-server/support.h"

#include "common/wire/passes.h"
#include "tests/unit/base/await.h"
#include "services/trainer-server/engine/gradient_unit.h"
#include "services/trainer-server/preprocess/pass_intervals.h"
#include "services/trainer-server/preprocess/pass_memory.h"
#include "services/trainer-server/preprocess/preprocessor.h"

enum { PASSES = 8 };

/* What became of a pass. */
struct ended {
  int results; /* that came, also those that were refused */
  bool handed_back;
  char refused[WIRE_REFUSED_BYTES + 1], worker_id[LIMIT_NAME_MAX];
  uint64_t epoch, fence;
  struct digest weights;
  float logprobs[512];
  size_t counts[32], samples;
};

struct fake {
  struct http_server *server;
  char url[64];
  pthread_mutex_t lock; /* guards all below */
  uint64_t epoch;
  int registrations, polls, left, pulls, heartbeats;
  bool refuse_results;              /* with 503 */
  bool lose;                        /* heartbeats are answered that all passes are lost */
  bool named;                       /* a heartbeat has named a pass */
  int64_t cause_us[CAUSE_COUNT];    /* by heartbeats */
  struct pass passes[PASSES];
  bool granted[PASSES];
  size_t pass_count;
  struct ended ended[PASSES];
  struct buf weights; /* the file of version 0 */
  char left_as[LIMIT_NAME_MAX];
};

static struct arena arena;

static void reply(struct http_request *r, enum rc rc, const struct err *err, struct buf *body) {
  if (rc == RC_OK) {
    http_reply_json(r, 200, body);
    return;
  }
  buf_free(body);
  http_fail(r, err);
}

static void fake_register(struct http_request *r, void *context) {
  struct fake *f = context;
  const struct json *body;
  struct worker_register m;
  struct err err = {0};
  struct buf out = BUF_INIT;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = worker_register_decode(&m, body, http_arena(r), &err);
  if (rc == RC_OK && (m.kind != WORKER_PREPROCESS || m.slots != 0 || m.identity || strcmp(m.name, "pre-1") != 0))
    rc = err_set(&err, RC_INVALID, "kind", "expected a preprocessor");
  if (rc == RC_OK) {
    char id[32];
    pthread_mutex_lock(&f->lock);
    snprintf(id, sizeof id, "w%d", ++f->registrations);
    const struct worker_registered answer = {
        .worker_id = id, .epoch = f->epoch, .heartbeat_ms = 20, .worker_ttl_ms = 1000};
    worker_registered_encode(&answer, &out);
    pthread_mutex_unlock(&f->lock);
  }
  reply(r, rc, &err, &out);
}

/* Lock held. */
static enum rc known(const struct fake *f, struct http_request *r, uint64_t epoch, struct err *err) {
  char id[32];
  snprintf(id, sizeof id, "w%d", f->registrations);
  if (epoch != f->epoch) return err_set(err, RC_CONFLICT, "epoch", "another epoch");
  return strcmp(http_param(r, "id"), id) == 0 ? RC_OK : err_set(err, RC_NOT_FOUND, "id", "unknown worker");
}

static void fake_heartbeat(struct http_request *r, void *context) {
  struct fake *f = context;
  const struct json *body;
  struct worker_heartbeat m;
  struct err err = {0};
  struct buf out = BUF_INIT;
  const char *lost[PASSES];
  struct worker_heartbeat_answer answer = {.lost = lost, .run_active = true};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = worker_heartbeat_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&f->lock);
  if (rc == RC_OK) rc = known(f, r, m.epoch, &err);
  if (rc == RC_OK) {
    f->heartbeats++;
    f->named |= m.lease_count > 0;
    for (size_t i = 0; i < m.interval_count; i++)
      f->cause_us[m.intervals[i].cause] += m.intervals[i].end_us - m.intervals[i].begin_us;
    for (size_t i = 0; f->lose && i < m.lease_count; i++) lost[answer.lost_count++] = m.leases[i].id;
    answer.epoch = f->epoch;
    worker_heartbeat_answer_encode(&answer, &out);
  }
  pthread_mutex_unlock(&f->lock);
  reply(r, rc, &err, &out);
}

static void fake_leave(struct http_request *r, void *context) {
  struct fake *f = context;
  pthread_mutex_lock(&f->lock);
  f->left++;
  snprintf(f->left_as, sizeof f->left_as, "%s", http_param(r, "id"));
  pthread_mutex_unlock(&f->lock);
  http_reply_text(r, 200, "{}");
}

static void fake_passes(struct http_request *r, void *context) {
  struct fake *f = context;
  const struct json *body;
  struct pass_request m;
  struct pass passes[PASSES];
  struct pass_answer answer = {.passes = passes};
  struct err err = {0};
  struct buf out = BUF_INIT;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = pass_request_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&f->lock);
  if (rc == RC_OK) rc = known(f, r, m.epoch, &err);
  f->polls++;
  for (size_t i = 0; rc == RC_OK && i < f->pass_count && answer.pass_count < (size_t)m.groups_max; i++) {
    if (f->granted[i]) continue;
    f->granted[i] = true;
    passes[answer.pass_count++] = f->passes[i];
  }
  answer.epoch = f->epoch;
  pass_answer_encode(&answer, &out);
  pthread_mutex_unlock(&f->lock);
  reply(r, rc, &err, &out);
}

static void note(struct ended *e, const struct pass_result *m) {
  size_t at = 0;
  e->results++;
  e->handed_back = m->handed_back;
  snprintf(e->refused, sizeof e->refused, "%s", m->refused ? m->refused : "");
  snprintf(e->worker_id, sizeof e->worker_id, "%s", m->worker_id);
  e->epoch = m->epoch;
  e->fence = m->fence;
  e->weights = m->weights_digest;
  e->samples = m->sample_count;
  for (size_t i = 0; i < m->sample_count; i++) {
    const struct json_f32s *logprobs = &m->samples[i].logprobs;
    e->counts[i] = logprobs->count;
    assert_true(at + logprobs->count <= 512);
    if (logprobs->count) memcpy(e->logprobs + at, logprobs->items, logprobs->count * sizeof(float));
    at += logprobs->count;
  }
}

static void fake_result(struct http_request *r, void *context) {
  struct fake *f = context;
  struct pass_result m;
  struct err err = {0};
  struct buf out = BUF_INIT;
  size_t len;
  const char *bytes = http_body(r, &len);
  enum rc rc = pass_result_decode(&m, bytes, len, http_arena(r), &err);
  pthread_mutex_lock(&f->lock);
  for (size_t i = 0; rc == RC_OK && i < f->pass_count; i++)
    if (strcmp(f->passes[i].group.id, http_param(r, "id")) == 0) note(&f->ended[i], &m);
  if (rc == RC_OK && f->refuse_results) rc = err_set(&err, RC_UNAVAILABLE, NULL, "not now");
  pthread_mutex_unlock(&f->lock);
  lease_result_answer_encode(&(struct lease_result_answer){0}, &out);
  reply(r, rc, &err, &out);
}

static void fake_weights(struct http_request *r, void *context) {
  struct fake *f = context;
  struct buf copy = BUF_INIT;
  pthread_mutex_lock(&f->lock);
  f->pulls++;
  buf_append(&copy, f->weights.data, f->weights.len);
  pthread_mutex_unlock(&f->lock);
  http_reply(r, 200, "application/octet-stream", &copy);
}

static void fake_start(struct fake *f) {
  static const struct http_route routes[] = {
      {.method = "POST", .path = "/v1/workers", .handler = fake_register},
      {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = fake_heartbeat},
      {.method = "POST", .path = "/v1/workers/{id}/passes", .handler = fake_passes},
      {.method = "DELETE", .path = "/v1/workers/{id}", .handler = fake_leave},
      {.method = "PUT", .path = "/v1/passes/{id}/result", .handler = fake_result},
      {.method = "GET", .path = "/v1/weights/{version}", .handler = fake_weights},
  };
  struct err err = {0};
  memset(f, 0, sizeof *f);
  pthread_mutex_init(&f->lock, NULL);
  f->epoch = 3;
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = routes, .route_count = 6, .context = f};
  assert_rc(RC_OK, http_server_start(&f->server, &options, &err), err);
  snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", http_server_port(f->server));
}

/* ---- one test's things ---- */

struct rig_of_passes {
  char dir[PATH], model_dir[PATH + 16];
  struct fake f;
  struct parts parts; /* the trainer's */
  struct learner *learner;
  struct digest digest;
  struct trainer_options options;
  struct preprocessor *p;
};

static void weights_file(struct rig_of_passes *x, struct buf *out) {
  struct err err = {0};
  assert_rc(RC_OK, weights_to_safetensors(out, &x->digest, x->parts.weights, NULL, "leasehold.digest", &err), err);
}

static void rig_of_passes_make(struct rig_of_passes *x, int threads) {
  struct err err = {0};
  memset(x, 0, sizeof *x);
  folder_make(x->dir);
  snprintf(x->model_dir, sizeof x->model_dir, "%s/model", x->dir);
  fake_start(&x->f);
  parts_make(&x->parts, x->model_dir);
  assert_rc(RC_OK, learner_create(&x->learner, x->parts.model, &(struct learner_options){.chunk_tokens = CHUNK}, &err),
            err);
  weights_file(x, &x->f.weights);
  x->options = (struct trainer_options){
      .model_dir = x->model_dir, .threads = threads, .chunk_tokens = 2 * CHUNK, .random_init_seed = -1};
}

static void begin(struct rig_of_passes *x) {
  struct err err = {0};
  assert_rc(RC_OK, preprocessor_create(&x->p, &x->options, &err), err);
  const struct preprocessor_tie tie = {
      .coordinator_url = x->f.url, .name = "pre-1", .advertise_url = "http://127.0.0.1:9"};
  assert_rc(RC_OK, preprocessor_start(x->p, &tie, &err), err);
}

static void rig_of_passes_end(struct rig_of_passes *x) {
  preprocessor_destroy(x->p);
  http_server_stop(x->f.server, 1000);
  learner_free(x->learner);
  parts_free(&x->parts);
  buf_free(&x->f.weights);
  folder_remove(x->dir);
  arena_free(&arena);
}

static struct pass *offer(struct rig_of_passes *x, const char *id, int samples, uint32_t seed) {
  pthread_mutex_lock(&x->f.lock);
  struct pass *pass = &x->f.passes[x->f.pass_count];
  *pass = (struct pass){.run = "r7",
                        .fence = 40 + (uint64_t)x->f.pass_count,
                        .weights_digest = x->digest,
                        .weights_from = x->f.url,
                        .chunk_tokens = CHUNK,
                        .temperature = 0.8f,
                        .group = group_make(&arena, id, samples, seed)};
  x->f.granted[x->f.pass_count++] = true; /* until it is let go */
  pthread_mutex_unlock(&x->f.lock);
  return pass;
}

static void let_go(struct rig_of_passes *x) {
  pthread_mutex_lock(&x->f.lock);
  for (size_t i = 0; i < x->f.pass_count; i++) x->f.granted[i] = x->f.ended[i].results > 0;
  pthread_mutex_unlock(&x->f.lock);
}

static bool true_now(struct rig_of_passes *x, const bool *flag) {
  pthread_mutex_lock(&x->f.lock);
  const bool yes = *flag;
  pthread_mutex_unlock(&x->f.lock);
  return yes;
}

static int now(struct rig_of_passes *x, const int *number) {
  pthread_mutex_lock(&x->f.lock);
  const int value = *number;
  pthread_mutex_unlock(&x->f.lock);
  return value;
}

static void set(struct rig_of_passes *x, bool *flag, bool value) {
  pthread_mutex_lock(&x->f.lock);
  *flag = value;
  pthread_mutex_unlock(&x->f.lock);
}

static bool all_ended(struct rig_of_passes *x) {
  bool all = true;
  pthread_mutex_lock(&x->f.lock);
  for (size_t i = 0; i < x->f.pass_count; i++) all &= x->f.ended[i].results > 0;
  pthread_mutex_unlock(&x->f.lock);
  return all;
}

/* The result is what the trainer's learner gives for the group, bit for bit. */
static void expect_computed(struct rig_of_passes *x, int i) {
  const struct pass *pass = &x->f.passes[i];
  const struct ended *e = &x->f.ended[i];
  const struct unit_policies policies = {.current = x->parts.weights};
  struct unit unit;
  struct err err = {0};
  size_t at = 0;
  if (e->handed_back) fail_msg("pass %d was handed back: %s", i, e->refused);
  assert_true(e->fence == pass->fence && e->epoch == x->f.epoch);
  assert_true(digest_equal(&e->weights, &x->digest));
  assert_rc(RC_OK, unit_prepare(&unit, x->parts.model, &policies, &pass->group, &arena, &err), err);
  assert_rc(RC_OK,
            learner_logprobs(x->learner, x->parts.weights, unit.samples, unit.count, 0.8f, unit.logprob, NULL, &err),
            err);
  assert_int_equal(e->samples, pass->group.sample_count);
  for (size_t k = 0; k < e->samples; k++) {
    const struct json_f32s *want = &unit.results[k].logprobs;
    assert_int_equal(e->counts[k], want->count);
    if (want->count) assert_memory_equal(e->logprobs + at, want->items, want->count * sizeof(float));
    at += want->count;
  }
  assert_true(at > 0);
}

/* ---- the tests ---- */

static void results_are_the_trainers_own_bits(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads += 2) {
    struct rig_of_passes x;
    rig_of_passes_make(&x, threads);
    for (uint32_t i = 0; i < 5; i++) {
      char id[32];
      snprintf(id, sizeof id, "r7.12.%u", i);
      struct pass *pass = offer(&x, id, i == 3 ? 20 : 4, 10 + i); /* several chunks */
      if (i == 1) pass->group.samples[1].segments[0].loss_mask = false;
    }
    let_go(&x);
    begin(&x);
    AWAIT(all_ended(&x), "some pass was not answered") continue;
    for (int i = 0; i < 5; i++) {
      expect_computed(&x, i);
      assert_int_equal(x.f.ended[i].results, 1);
      assert_string_equal(x.f.ended[i].worker_id, "w1");
    }
    const int heartbeats = now(&x, &x.f.heartbeats);
    AWAIT(now(&x, &x.f.heartbeats) > heartbeats + 1, "no heartbeats") continue; /* the second was filled after all
                                                                                 * that */
    pthread_mutex_lock(&x.f.lock);
    assert_int_equal(x.f.pulls, 1);
    assert_true(x.f.cause_us[CAUSE_LOGPROB] > 0 && x.f.cause_us[CAUSE_LOAD] > 0);
    pthread_mutex_unlock(&x.f.lock);
    AWAIT(now(&x, &x.f.polls) > 2, "it has stopped asking") continue;
    rig_of_passes_end(&x);
  }
}

/* What can never be computed says why, and the passes beside it are computed. */
static void what_can_never_be_computed_is_refused(void **state) {
  (void)state;
  struct rig_of_passes x;
  rig_of_passes_make(&x, 2);
  offer(&x, "r7.12.0", 4, 1)->chunk_tokens = 2 * CHUNK + 1;
  offer(&x, "r7.12.1", 4, 2)->group.samples[2].tokens.items[1] = VOCABULARY;
  offer(&x, "r7.12.2", 4, 3)->chunk_tokens = 6; /* no sample fits */
  offer(&x, "r7.12.3", 4, 4);
  let_go(&x);
  begin(&x);
  AWAIT(all_ended(&x), "some pass was not answered") continue;
  static const char *const reasons[] = {"--chunk-tokens", "vocabulary", "chunk_tokens 6"};
  for (int i = 0; i < 3; i++) {
    assert_true(x.f.ended[i].handed_back && x.f.ended[i].samples == 0);
    if (!strstr(x.f.ended[i].refused, reasons[i])) fail_msg("%s: %s", reasons[i], x.f.ended[i].refused);
  }
  expect_computed(&x, 3);
  rig_of_passes_end(&x);
}

/* One bit of the weights on the way: nothing is computed with them, and the pass could be computed later. */
static void other_weights_compute_nothing(void **state) {
  (void)state;
  struct rig_of_passes x;
  rig_of_passes_make(&x, 1);
  offer(&x, "r7.12.0", 4, 1);
  x.f.weights.data[x.f.weights.len - 1] ^= 1;
  let_go(&x);
  begin(&x);
  AWAIT(all_ended(&x), "some pass was not answered") continue;
  assert_true(x.f.ended[0].handed_back);
  assert_string_equal(x.f.ended[0].refused, "");
  pthread_mutex_lock(&x.f.lock);
  x.f.weights.data[x.f.weights.len - 1] ^= 1;
  x.f.ended[0] = (struct ended){0};
  x.f.granted[0] = false;
  pthread_mutex_unlock(&x.f.lock);
  AWAIT(all_ended(&x), "some pass was not answered") continue; /* after a pause */
  expect_computed(&x, 0);
  rig_of_passes_end(&x);
}

/* Another run: its version 0 is pulled in place of the one before. */
static void another_version_0_is_pulled_in_its_place(void **state) {
  (void)state;
  struct rig_of_passes x;
  struct buf other = BUF_INIT;
  rig_of_passes_make(&x, 2);
  offer(&x, "r7.12.0", 4, 1);
  let_go(&x);
  begin(&x);
  AWAIT(all_ended(&x), "some pass was not answered") continue;
  expect_computed(&x, 0);
  masters_random(x.parts.model, x.parts.masters, 21, NULL);
  weights_from_masters(x.parts.weights, x.parts.masters);
  weights_file(&x, &other);
  pthread_mutex_lock(&x.f.lock);
  buf_free(&x.f.weights);
  x.f.weights = other;
  pthread_mutex_unlock(&x.f.lock);
  offer(&x, "r8.0.0", 4, 2);
  let_go(&x);
  AWAIT(all_ended(&x), "some pass was not answered") continue;
  expect_computed(&x, 1);
  assert_int_equal(now(&x, &x.f.pulls), 2);
  rig_of_passes_end(&x);
}

/* A coordinator that comes back has a new epoch: this worker registers again, and drops what it held. */
static void a_new_epoch_begins_anew(void **state) {
  (void)state;
  struct rig_of_passes x;
  rig_of_passes_make(&x, 1);
  offer(&x, "r7.12.0", 4, 1);
  set(&x, &x.f.refuse_results, true);
  let_go(&x);
  begin(&x);
  AWAIT(now(&x, &x.f.ended[0].results) >= 2, "it gave up") continue; /* it goes on trying */
  pthread_mutex_lock(&x.f.lock);
  x.f.epoch = 4;
  x.f.refuse_results = false;
  x.f.ended[0] = (struct ended){0};
  x.f.passes[0].fence = 77;
  pthread_mutex_unlock(&x.f.lock);
  AWAIT(now(&x, &x.f.registrations) == 2, "it did not register again") continue;
  let_go(&x);
  AWAIT(now(&x, &x.f.ended[0].results) > 0 && x.f.ended[0].epoch == 4, "nothing came under the new epoch") continue;
  expect_computed(&x, 0);
  assert_string_equal(x.f.ended[0].worker_id, "w2");
  assert_int_equal(now(&x, &x.f.pulls), 1); /* the weights are the same */
  rig_of_passes_end(&x);
}

/* A pass that was given to another worker is not answered any more, and the next one is computed. */
static void a_lost_pass_is_dropped(void **state) {
  (void)state;
  struct rig_of_passes x;
  rig_of_passes_make(&x, 1);
  offer(&x, "r7.12.0", 4, 1);
  set(&x, &x.f.refuse_results, true);
  let_go(&x);
  begin(&x);
  AWAIT(now(&x, &x.f.ended[0].results) > 0 && true_now(&x, &x.f.named), "no heartbeat named the pass") continue;
  const int polls = now(&x, &x.f.polls);
  set(&x, &x.f.lose, true);
  AWAIT(now(&x, &x.f.polls) > polls, "the lost pass is not dropped") continue; /* it asks for others */
  set(&x, &x.f.lose, false);
  set(&x, &x.f.refuse_results, false);
  const int results = now(&x, &x.f.ended[0].results);
  offer(&x, "r7.12.1", 4, 2);
  let_go(&x);
  AWAIT(now(&x, &x.f.ended[1].results) > 0, "no result came") continue;
  expect_computed(&x, 1);
  assert_int_equal(now(&x, &x.f.ended[0].results), results);
  assert_int_equal(now(&x, &x.f.registrations), 1);
  rig_of_passes_end(&x);
}

static void it_leaves_what_it_holds_to_others(void **state) {
  (void)state;
  struct rig_of_passes x;
  rig_of_passes_make(&x, 1);
  offer(&x, "r7.12.0", 4, 1);
  set(&x, &x.f.refuse_results, true);
  let_go(&x);
  begin(&x);
  AWAIT(now(&x, &x.f.ended[0].results) > 0, "no result came") continue;
  preprocessor_stop(x.p);
  assert_int_equal(x.f.left, 1);
  assert_string_equal(x.f.left_as, "w1");
  rig_of_passes_end(&x);
  assert_int_equal(x.f.left, 1);
}

/* Weights, a forward pass and a file: nothing that training needs; and less than that is refused. */
static void it_plans_for_forward_passes_alone(void **state) {
  (void)state;
  struct rig_of_passes x;
  struct memory_plan plan;
  struct preprocessor *p;
  struct err err = {0};
  rig_of_passes_make(&x, 1);
  pass_memory_plan(&plan, x.parts.model, &x.options);
  const struct learner_options forward = {.chunk_tokens = 2 * CHUNK, .forward_only = true};
  const size_t expected = weights_bytes(x.parts.model, false) + model_file_bytes(x.parts.model) +
                          learner_memory(x.parts.model, &forward).scratch + x.parts.ops->scratch_bytes +
                          model_rope_bytes(x.parts.model);
  assert_int_equal(memory_plan_total(&plan), expected);
  x.options.memory_max = (int64_t)expected - 1;
  assert_int_equal(preprocessor_create(&p, &x.options, &err), RC_NO_MEMORY);
  assert_non_null(strstr(err.message, "the preprocessor needs"));
  assert_string_equal(err.field, "memory-max");
  rig_of_passes_end(&x);
}

static int64_t told(struct pass_intervals *p, int64_t now_us, int64_t sums[CAUSE_COUNT], size_t *count) {
  struct interval *items;
  int64_t at = -1;
  memset(sums, 0, CAUSE_COUNT * sizeof *sums);
  pass_intervals_tell(p, &items, count, now_us, 1000000, &arena);
  for (size_t i = 0; i < *count; i++) {
    assert_true(items[i].end_us > items[i].begin_us && (at < 0 || items[i].begin_us == at));
    at = items[i].end_us;
    sums[items[i].cause] += items[i].end_us - items[i].begin_us;
  }
  return at;
}

/* What a heartbeat without an answer told is told again with what came since; what was answered is not. */
static void time_is_told_until_it_is_heard(void **state) {
  (void)state;
  static struct pass_intervals p;
  int64_t sums[CAUSE_COUNT];
  size_t count;
  pass_intervals_init(&p, 100);
  pass_intervals_set_active(&p, true, 150);
  pass_intervals_turn(&p, CAUSE_LOAD, 200);
  assert_int_equal(told(&p, 260, sums, &count), 1000260);
  assert_true(sums[CAUSE_IDLE] == 50 && sums[CAUSE_STARVED] == 50 && sums[CAUSE_LOAD] == 60);
  pass_intervals_turn(&p, CAUSE_LOGPROB, 300);
  told(&p, 400, sums, &count);
  assert_true(sums[CAUSE_IDLE] == 50 && sums[CAUSE_LOAD] == 100 && sums[CAUSE_LOGPROB] == 100);
  pass_intervals_told(&p);
  told(&p, 450, sums, &count);
  assert_true(count == 1 && sums[CAUSE_LOGPROB] == 50);
  pass_intervals_told(&p);
  /* an absent coordinator: the list stays bounded, and no time is lost */
  for (int i = 0; i < 3000; i++) {
    pass_intervals_turn(&p, i % 2 ? CAUSE_LOGPROB : CAUSE_IDLE, 460 + 10 * i);
    if (i % 100 == 0) told(&p, 465 + 10 * i, sums, &count);
  }
  told(&p, 40000, sums, &count);
  assert_true(count <= LIMIT_INTERVALS);
  pass_intervals_told(&p);
  int64_t rest[CAUSE_COUNT];
  told(&p, 40000, rest, &count);
  int64_t sum = 0;
  for (int c = 0; c < CAUSE_COUNT; c++) sum += sums[c] + rest[c];
  assert_int_equal(sum, 40000 - 450);
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_are_the_trainers_own_bits),
      cmocka_unit_test(what_can_never_be_computed_is_refused),
      cmocka_unit_test(other_weights_compute_nothing),
      cmocka_unit_test(another_version_0_is_pulled_in_its_place),
      cmocka_unit_test(a_new_epoch_begins_anew),
      cmocka_unit_test(a_lost_pass_is_dropped),
      cmocka_unit_test(it_leaves_what_it_holds_to_others),
      cmocka_unit_test(it_plans_for_forward_passes_alone),
      cmocka_unit_test(time_is_told_until_it_is_heard),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A whole coordinator (writer, driver, HTTP) in the test's process, with a fake trainer behind real HTTP and fake
 * generation-servers played by the test. Convention: the log-probability of token t is -(t + 1) / 1024, for samplers
 * and trainer alike; the weights of version v of run r have the digest of "r/v". */
#ifndef LEASEHOLD_TESTS_SERVICE_FIXTURE_H
#define LEASEHOLD_TESTS_SERVICE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/client/coordinator_client.h"
#include "services/coordinator/driver/driver.h"
#include "services/coordinator/api/routes.h"
#include "services/coordinator/rounds/tick.h"

enum { EOS = 256, DEADLINE_MS = 20000 };

static inline float fake_logprob(int32_t token) { return -(float)(token + 1) / 1024; }
static inline void fake_digest(struct digest *out, const char *run, int64_t version) {
  char text[160];
  snprintf(text, sizeof text, "%s/%lld", run, (long long)version);
  digest_of(out, text, strlen(text));
}

/* ---- the fake trainer ---- */

struct fake_trainer {
  struct http_server *server;
  char url[64];
  pthread_mutex_t lock; /* guards all below */
  char run[32];
  int64_t version;
  bool wrong_logprobs;    /* a little off in the first token of every sample */
  bool nan_logprobs;      /* none for it, as of a poisoned batch */
  atomic_bool slow_steps; /* steps stay queued until this is cleared */
  bool other_weights;     /* version 0 is of other weights than the first time */
  bool refuse_step;       /* the next submit-step is answered 409, as of a version that is superseded */
  bool failed_step;       /* step_id is remembered as failed, until it is submitted again */
  bool refuse_run;        /* check-run is answered 422 */
  int32_t context_max;    /* and else with this; 0: 512 */
  struct run_start start; /* of the last opening; its run is not kept */
  bool disk_full;         /* steps fail for want of room until this is cleared */
  bool full_then;         /* when the step was submitted */
  int strange;            /* so many openings are refused: this trainer has not heard of the epoch */
  int64_t compute_us;     /* that every batch is said to have taken */
  int opens, batches, steps;
  int last_groups;
  double last_denominator;
  char step_id[64];
  size_t last_pushes;
  struct {
    char id[64];
    struct buf answer;
  } batch[256];
};

static __attribute__((unused)) void reply_buf(struct http_request *r, int status, struct buf *b) {
  http_reply_json(r, status, b);
}

static __attribute__((unused)) void fake_file(struct http_request *r, void *context) {
  char path[200];
  (void)context;
  snprintf(path, sizeof path, "deploy/demo/model/%s", http_param(r, "name"));
  http_reply_file(r, "application/json", path);
}

static __attribute__((unused)) void fake_check_run(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct check_run m;
  struct err err;
  struct buf out = BUF_INIT;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = check_run_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&t->lock);
  if (rc == RC_OK && t->refuse_run)
    rc = err_set(&err, RC_INVALID, "training.chunk_tokens", "more than the trainer takes");
  const struct check_run_answer answer = {.context_max = t->context_max ? t->context_max : 512};
  pthread_mutex_unlock(&t->lock);
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  check_run_answer_encode(&answer, &out);
  reply_buf(r, 200, &out);
}

static __attribute__((unused)) void fake_open(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct open_run m;
  struct err err;
  struct buf out = BUF_INIT;
  if (http_body_json(r, &body, &err) != RC_OK || open_run_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&t->lock);
  if (t->strange > 0) {
    t->strange--;
    pthread_mutex_unlock(&t->lock);
    err_set(&err, RC_CONFLICT, "epoch", "this trainer is not yet registered under it");
    http_fail(r, &err);
    return;
  }
  t->opens++;
  t->start = m.start;
  if (strcmp(t->run, m.run) != 0) {
    snprintf(t->run, sizeof t->run, "%s", m.run);
    t->version = 0;
  }
  struct open_run_answer answer = {.run = t->run, .version = t->version};
  fake_digest(&answer.digest, t->other_weights ? "other" : t->run, t->version);
  open_run_answer_encode(&answer, &out);
  pthread_mutex_unlock(&t->lock);
  reply_buf(r, 200, &out);
}

/* Log-probabilities of the tokens under a loss mask. */
static __attribute__((unused)) struct json_f32s fake_logprobs(const struct batch_sample *in, struct arena *arena) {
  struct json_f32s out = {.items = arena_alloc(arena, in->tokens.count, sizeof *out.items)};
  for (size_t g = 0; g < in->segment_count; g++) {
    const struct sample_segment *s = &in->segments[g];
    for (int32_t k = s->start; s->loss_mask && k < s->start + s->count; k++)
      out.items[out.count++] = fake_logprob(in->tokens.items[in->prompt_length + k]);
  }
  return out;
}

/* Answers are computed when the batch arrives, and kept as text. */
static __attribute__((unused)) void fake_submit(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct submit_batch m;
  struct err err;
  if (http_body_json(r, &body, &err) != RC_OK || submit_batch_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&t->lock);
  struct batch_status s = {.batch_id = m.batch_id, .state = JOB_DONE};
  s.samples = arena_alloc(http_arena(r), 4096, sizeof *s.samples);
  for (size_t g = 0; g < m.group_count; g++) {
    for (size_t i = 0; i < m.groups[g].sample_count; i++) {
      const struct batch_sample *in = &m.groups[g].samples[i];
      const struct json_f32s lp = fake_logprobs(in, http_arena(r));
      if (t->wrong_logprobs) lp.items[0] = lp.items[0] * (1 + 1e-6f);
      if (t->nan_logprobs) lp.items[0] = NAN;
      s.samples[s.sample_count++] = (struct sample_logprobs){.id = in->id, .logprobs = lp};
      s.stats.tokens += (int64_t)lp.count;
    }
    t->last_groups++;
  }
  s.stats.samples = (int64_t)s.sample_count;
  logprobs_digest(&s.logprobs_sha256, s.samples, s.sample_count);
  s.stats.loss = 1;
  s.stats.compute_us = t->compute_us;
  int at = t->batches++ % 256;
  snprintf(t->batch[at].id, sizeof t->batch[at].id, "%s", m.batch_id);
  buf_free(&t->batch[at].answer);
  batch_status_encode(&s, &t->batch[at].answer);
  pthread_mutex_unlock(&t->lock);
  http_reply_text(r, 202, "{}");
}

static __attribute__((unused)) void fake_batch(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  struct buf out = BUF_INIT;
  struct err err;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < 256; i++) {
    if (strcmp(t->batch[i].id, http_param(r, "id")) == 0 && t->batch[i].id[0]) {
      buf_clear(&out);
      buf_append(&out, t->batch[i].answer.data, t->batch[i].answer.len);
    }
  }
  pthread_mutex_unlock(&t->lock);
  if (out.len) {
    reply_buf(r, 200, &out);
    return;
  }
  err_set(&err, RC_NOT_FOUND, "id", "no such batch");
  http_fail(r, &err);
}

static __attribute__((unused)) void fake_step(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct submit_step m;
  struct err err;
  if (http_body_json(r, &body, &err) != RC_OK || submit_step_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&t->lock);
  bool refuse = t->refuse_step;
  t->refuse_step = false;
  if (refuse) {
    pthread_mutex_unlock(&t->lock);
    err_set(&err, RC_CONFLICT, "version", "superseded");
    http_fail(r, &err);
    return;
  }
  t->steps++;
  t->failed_step = t->full_then = t->disk_full;
  t->version = m.version + !t->failed_step;
  t->last_groups = (int)m.group_count;
  t->last_denominator = m.denominator;
  t->last_pushes = m.push_count;
  snprintf(t->step_id, sizeof t->step_id, "%s", m.step_id);
  pthread_mutex_unlock(&t->lock);
  http_reply_text(r, 202, "{}");
}

static __attribute__((unused)) void fake_step_status(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  struct buf out = BUF_INIT;
  struct err err;
  pthread_mutex_lock(&t->lock);
  bool known = strcmp(t->step_id, http_param(r, "id")) == 0;
  struct step_status s = {.step_id = t->step_id,
                          .state = t->slow_steps ? JOB_RUNNING : JOB_DONE,
                          .version = t->version,
                          .grad_norm = 0.5,
                          .lr = 0.25,
                          .step_us = 1000};
  fake_digest(&s.digest, t->run, t->version);
  if (t->failed_step) {
    s.state = JOB_FAILED;
    if (t->full_then)
      err_set(&s.error, RC_IO, NULL, "writing optimizer.safetensors: No space left on device");
    else
      err_set(&s.error, RC_CONFLICT, NULL, "the step names groups that were not accumulated");
  }
  if (known) step_status_encode(&s, &out);
  bool slow = t->slow_steps;
  pthread_mutex_unlock(&t->lock);
  if (slow) clock_sleep_ms(5);
  if (known) {
    reply_buf(r, 200, &out);
    return;
  }
  err_set(&err, RC_NOT_FOUND, "id", "no such step");
  http_fail(r, &err);
}

static const struct http_route fake_routes[] = {
    {.method = "GET", .path = "/v1/model/files/{name}", .handler = fake_file},
    {.method = "POST", .path = "/v1/check-run", .handler = fake_check_run},
    {.method = "POST", .path = "/v1/runs", .handler = fake_open},
    {.method = "POST", .path = "/v1/submit-batch", .handler = fake_submit},
    {.method = "GET", .path = "/v1/batches/{id}", .handler = fake_batch},
    {.method = "POST", .path = "/v1/submit-step", .handler = fake_step},
    {.method = "GET", .path = "/v1/steps/{id}", .handler = fake_step_status},
};

/* ---- the coordinator and its callers ---- */

struct fixture {
  char dir[64], db[96], data[96], url[64];
  struct core *core;
  struct driver *driver;
  struct http_server *server;
  struct fake_trainer trainer;
  struct http_client *http;
  struct coordinator_client client;
  struct arena arena; /* of answers; freed with the fixture */
  struct worker_registered trainer_is;
  struct core_options options;
};

/* A fake generation-server. */
struct fake_server {
  struct worker_registered is;
  bool has_loaded;
  struct digest loaded;
};

static __attribute__((unused)) void coordinator_up(struct fixture *f) {
  struct err err = {0};
  const struct driver_options driver = {.trainer_lost_ms = 1500};
  f->options.db_path = f->db;
  f->options.data_dir = f->data;
  if (core_create(&f->core, &f->options, &err) != RC_OK || core_start(f->core, &err) != RC_OK ||
      driver_start(&f->driver, f->core, &driver, &err) != RC_OK)
    fail_msg("%s", err.message);
  const struct http_server_options options = {.bind_address = "127.0.0.1",
                                              .threads = 2,
                                              .routes = coordinator_routes,
                                              .route_count = coordinator_route_count,
                                              .context = f->core};
  if (http_server_start(&f->server, &options, &err) != RC_OK) fail_msg("%s", err.message);
  snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", http_server_port(f->server));
  f->client = (struct coordinator_client){.http = f->http, .base_url = f->url};
}

static __attribute__((unused)) void coordinator_down(struct fixture *f) {
  driver_stop(f->driver);
  core_stop(f->core);
  http_server_stop(f->server, 500);
  driver_destroy(f->driver);
  core_destroy(f->core);
  f->core = NULL;
}

static __attribute__((unused)) void register_trainer_as(struct fixture *f, enum worker_exactness exactness) {
  struct err err = {0};
  const struct worker_register m = {
      .name = "trainer", .kind = WORKER_TRAINER, .url = f->trainer.url, .exactness = exactness};
  if (coordinator_register(&f->client, &m, &f->trainer_is, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

static __attribute__((unused)) void register_trainer(struct fixture *f) { register_trainer_as(f, WORKER_INVARIANT); }

static __attribute__((unused)) void register_server_as(struct fixture *f, struct fake_server *s, const char *name,
                                                       enum worker_exactness exactness) {
  struct err err = {0};
  const struct worker_register m = {
      .name = name, .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = 64, .exactness = exactness};
  *s = (struct fake_server){0};
  if (coordinator_register(&f->client, &m, &s->is, &f->arena, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
}

static __attribute__((unused)) void register_server(struct fixture *f, struct fake_server *s, const char *name) {
  register_server_as(f, s, name, WORKER_INVARIANT);
}

/* Says that it is ready: versions are pushed to it from now on. */
static __attribute__((unused)) void report_ready(struct fixture *f, const struct fake_server *s) {
  struct err err = {0};
  const struct worker_heartbeat m = {
      .epoch = s->is.epoch, .ready = true, .has_loaded = s->has_loaded, .loaded_digest = s->loaded};
  struct worker_heartbeat_answer answer;
  if (coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

static __attribute__((unused)) void write_data(struct fixture *f, const char *name, const char *text) {
  char path[160];
  struct err err;
  snprintf(path, sizeof path, "%s/%s", f->data, name);
  if (file_write_atomic(path, text, strlen(text), &err) != RC_OK) fail_msg("%s", err.message);
}

static __attribute__((unused)) int fixture_setup(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  struct err err = {0};
  struct buf text = BUF_INIT;
  log_init("test", LOG_ERROR);
  snprintf(f->dir, sizeof f->dir, "/tmp/coordinator-test-XXXXXX");
  if (!mkdtemp(f->dir)) return 1;
  snprintf(f->db, sizeof f->db, "%s/db.sqlite", f->dir);
  snprintf(f->data, sizeof f->data, "%s/data", f->dir);
  if (file_make_dirs(f->data, &err) != RC_OK) return 1;
  for (int i = 0; i < 10; i++) buf_printf(&text, "{\"prompt\":\"%d+0=\",\"answer\":\"%d\"}\n", i, i);
  write_data(f, "train.jsonl", text.data);
  buf_clear(&text);
  for (int i = 0; i < 10; i++) buf_printf(&text, "{\"prompt\":\"%d+0=\",\"completion\":\"%d\"}\n", i, i);
  write_data(f, "warm.jsonl", text.data);
  buf_free(&text);
  pthread_mutex_init(&f->trainer.lock, NULL);
  const struct http_server_options options = {.bind_address = "127.0.0.1",
                                              .threads = 2,
                                              .routes = fake_routes,
                                              .route_count = sizeof fake_routes / sizeof fake_routes[0],
                                              .context = &f->trainer};
  if (http_server_start(&f->trainer.server, &options, &err) != RC_OK ||
      http_client_create(&f->http, NULL, NULL, &err) != RC_OK)
    return 1;
  snprintf(f->trainer.url, sizeof f->trainer.url, "http://127.0.0.1:%d", http_server_port(f->trainer.server));
  f->options =
      (struct core_options){.callbacks = &tick_callbacks, .lease_ttl_ms = 60000, .heartbeat_ms = 1000,
                            .worker_ttl_ms = 60000, .batch_tokens = 64};
  coordinator_up(f);
  register_trainer(f);
  *state = f;
  return 0;
}

static __attribute__((unused)) int fixture_teardown(void **state) {
  struct fixture *f = *state;
  if (f->core) coordinator_down(f);
  if (f->trainer.server) http_server_stop(f->trainer.server, 500);
  http_client_destroy(f->http);
  for (int i = 0; i < 256; i++) buf_free(&f->trainer.batch[i].answer);
  arena_free(&f->arena);
  int rc = file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
  free(f);
  return rc;
}

/* A plain call; the body is parsed. The caller frees *out. */
static __attribute__((unused)) int call(struct fixture *f, const char *method, const char *path, const char *body,
                                        struct json **out) {
  char url[256];
  struct http_answer answer = {0};
  struct err err = {0};
  snprintf(url, sizeof url, "%s%s", f->url, path);
  const struct http_call c = {
      .method = method, .url = url, .body = body, .body_len = body ? strlen(body) : 0, .deadline_ms = DEADLINE_MS};
  if (http_client_call(f->http, &c, &answer, &err) != RC_OK) fail_msg("%s %s: %s", method, path, err.message);
  int status = answer.status;
  if (out && json_parse(out, answer.body.data, answer.body.len, 0, &err) != RC_OK)
    fail_msg("%s %s: %s", method, path, err.message);
  http_answer_free(&answer);
  return status;
}

static __attribute__((unused)) void post_run(struct fixture *f, const char *config) {
  struct json *answer = NULL;
  int status = call(f, "POST", "/v1/runs", config, &answer);
  if (status != 201)
    fail_msg("the run was answered %d: %s", status, json_string(json_get(json_get(answer, "error"), "message"), NULL));
  json_free(answer);
}

static __attribute__((unused)) struct json *get_run(struct fixture *f, const char *run) {
  char path[64];
  struct json *answer = NULL;
  snprintf(path, sizeof path, "/v1/runs/%s", run);
  assert_int_equal(call(f, "GET", path, NULL, &answer), 200);
  return answer;
}

/* Waits until the run is in the state; the run's JSON, to be freed. */
static __attribute__((unused)) struct json *wait_state(struct fixture *f, const char *run, const char *wanted) {
  int64_t until_ms = clock_monotonic_ms() + DEADLINE_MS;
  for (;;) {
    struct json *r = get_run(f, run);
    const char *now = json_string(json_get(r, "state"), NULL);
    if (strcmp(now, wanted) == 0) return r;
    const struct json *error = json_get(r, "error");
    const bool held = strcmp(now, "paused") == 0 && json_type_of(error) == JSON_STRING;
    if (clock_monotonic_ms() > until_ms || held) {
      fail_msg("run %s is %s, not %s (%s)", run, now, wanted,
               error && json_type_of(error) == JSON_STRING ? json_string(error, NULL) : "");
    }
    json_free(r);
    clock_sleep_ms(5);
  }
}

static __attribute__((unused)) int64_t get_int(const struct json *object, const char *a, const char *b) {
  const struct json *v = json_get(object, a);
  if (b) v = json_get(v, b);
  return json_type_of(v) == JSON_INT ? json_int(v) : (int64_t)json_number(v);
}

/* Waits until trouble has paused the run; its JSON, to be freed. */
static __attribute__((unused)) struct json *wait_held(struct fixture *f, const char *run, const char *why) {
  struct json *r = wait_state(f, run, "paused");
  const struct json *error = json_get(r, "error");
  if (json_type_of(error) != JSON_STRING || !strstr(json_string(error, NULL), why))
    fail_msg("run %s is paused without saying '%s'", run, why);
  return r;
}

/* Waits until the run, running, says that it waits for something of which `part` is told; NULL: for nothing. */
static __attribute__((unused)) void wait_waiting(struct fixture *f, const char *run, const char *part) {
  const int64_t until_ms = clock_monotonic_ms() + DEADLINE_MS;
  for (bool found = false; !found;) {
    struct json *r = get_run(f, run);
    const struct json *what = json_get(r, "waiting_for");
    found = json_type_of(what) == JSON_STRING ? part && strstr(json_string(what, NULL), part) : !part;
    if (strcmp(json_string(json_get(r, "state"), NULL), "running") != 0) fail_msg("run %s does not run", run);
    json_free(r);
    if (clock_monotonic_ms() > until_ms) fail_msg("run %s does not wait for %s", run, part ? part : "nothing");
    clock_sleep_ms(5);
  }
}

/* A number from the database, read as everybody may. */
static __attribute__((unused)) int64_t read_int(struct fixture *f, const char *sql) {
  struct store *store;
  struct err err = {0};
  int64_t n = -1;
  if (readers_take(core_readers(f->core), &store, &err) != RC_OK || store_int(store, &n, &err, sql, NO_BINDS) != RC_OK)
    fail_msg("%s: %s", sql, err.message);
  readers_give(core_readers(f->core), store);
  return n;
}

/* One poll; loads what it is told to. */
static __attribute__((unused)) enum rc poll_once(struct fixture *f, struct fake_server *s, int slots, int wait_ms,
                                                 struct lease_answer *out, struct err *err) {
  const struct lease_request m = {.epoch = s->is.epoch,
                                  .slots_free = slots,
                                  .wait_ms = wait_ms,
                                  .has_loaded = s->has_loaded,
                                  .loaded_digest = s->loaded};
  enum rc rc = coordinator_leases(&f->client, s->is.worker_id, &m, out, &f->arena, wait_ms + DEADLINE_MS, err);
  if (rc == RC_OK && out->current.has) {
    s->has_loaded = true;
    s->loaded = out->current.digest;
  }
  return rc;
}

/* Polls until there are leases. */
static __attribute__((unused)) void poll_leases(struct fixture *f, struct fake_server *s, int slots,
                                                struct lease_answer *out) {
  struct err err = {0};
  int64_t until_ms = clock_monotonic_ms() + DEADLINE_MS;
  do {
    if (poll_once(f, s, slots, 100, out, &err) != RC_OK) fail_msg("%s", err.message);
    if (clock_monotonic_ms() > until_ms) fail_msg("no leases came");
  } while (out->lease_count == 0);
}

/* "#<digit>" and the end: right for even samples of a prompt "<digit>+0=". */
static __attribute__((unused)) void make_sample(struct fixture *f, struct sample_result *out, const struct lease *l,
                                                int index, bool right) {
  int32_t digit = l->prompt_ids.items[0];
  int32_t *ids = arena_alloc(&f->arena, 3, sizeof *ids);
  float *lp = arena_alloc(&f->arena, 3, sizeof *lp);
  ids[0] = '#';
  ids[1] = right ? digit : '0' + (digit - '0' + 1) % 10;
  ids[2] = EOS;
  for (int i = 0; i < 3; i++) lp[i] = fake_logprob(ids[i]);
  struct sample_segment *segment = arena_alloc(&f->arena, 1, sizeof *segment);
  struct version_span *span = arena_alloc(&f->arena, 1, sizeof *span);
  *segment = (struct sample_segment){0, 3, true};
  *span = (struct version_span){l->version_min, 0, 3};
  *out = (struct sample_result){.sample = l->sample_first + index,
                                .token_ids = {ids, 3},
                                .logprobs = {lp, 3},
                                .finish = FINISH_STOP,
                                .segments = segment,
                                .segment_count = 1,
                                .spans = span,
                                .span_count = 1};
}

static __attribute__((unused)) struct lease_result make_result(struct fixture *f, const struct fake_server *s,
                                                               const struct lease *l) {
  struct lease_result r = {.worker_id = s->is.worker_id,
                           .epoch = s->is.epoch,
                           .fence = l->fence,
                           .loaded_digest = s->loaded,
                           .sample_count = (size_t)l->sample_count};
  r.samples = arena_alloc(&f->arena, (size_t)l->sample_count, sizeof *r.samples);
  for (int i = 0; i < l->sample_count; i++) make_sample(f, &r.samples[i], l, i, (l->sample_first + i) % 2 == 0);
  return r;
}

static __attribute__((unused)) enum rc put_result(struct fixture *f, const struct lease *l,
                                                  const struct lease_result *r, bool *repeated, struct err *err) {
  struct lease_result_answer answer = {0};
  enum rc rc = coordinator_put_result(&f->client, l->id, r, &answer, &f->arena, DEADLINE_MS, err);
  if (repeated) *repeated = answer.repeated;
  return rc;
}

/* Serves leases until the run has ended. */
static __attribute__((unused)) struct json *serve_run(struct fixture *f, struct fake_server *s, const char *run,
                                                      const char *wanted) {
  int64_t until_ms = clock_monotonic_ms() + DEADLINE_MS;
  struct err err = {0};
  for (;;) {
    struct lease_answer a;
    struct json *r = get_run(f, run);
    if (strcmp(json_string(json_get(r, "state"), NULL), wanted) == 0) return r;
    const struct json *error = json_get(r, "error");
    if (clock_monotonic_ms() > until_ms)
      fail_msg("run %s is %s, not %s: %s", run, json_string(json_get(r, "state"), NULL), wanted,
               json_type_of(error) == JSON_STRING ? json_string(error, NULL) : "no error");
    json_free(r);
    if (poll_once(f, s, 64, 20, &a, &err) != RC_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < a.lease_count; i++) {
      struct lease_result result = make_result(f, s, &a.leases[i]);
      if (put_result(f, &a.leases[i], &result, NULL, &err) != RC_OK) fail_msg("%s", err.message);
    }
  }
}

#define GRPO(rounds, more)                                                                                             \
  "{\"rounds\":" #rounds                                                                                               \
  ",\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"groups_per_round\":3,\"samples_per_group\":" \
  "4,"                                                                                                                 \
  "\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"" more "}"

#endif

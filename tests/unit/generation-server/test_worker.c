/* A generation-server under a coordinator: both the coordinator and the trainer are played by one HTTP server in this
 * program, whose script each test sets. It starts with nothing: the model's files and weights come from the trainer
 * that the coordinator's word names. */
#include <pthread.h>

#include "common/http/server.h"
#include "tests/unit/generation-server/server_test.h"

enum { RESULTS_MAX = 8, LEASE_TOKENS = 10 };

static struct {
  pthread_mutex_t mutex; /* guards everything below */
  struct http_server *http;
  char url[64];
  uint64_t epoch;
  int registrations, heartbeats, polls, pulls;
  bool draining_seen, ready_seen;
  struct version_bytes versions[2];
  struct current_version current;
  bool lease_due; /* the next poll under the current digest gets the lease */
  int32_t lease_tokens, lease_samples;
  int64_t lease_lag; /* versions beyond the current one for which the lease is valid too */
  enum lease_kv lease_kv;
  int partial_tokens; /* of sample 1, from an earlier holder */
  int refuse_results; /* so many answers 503 first */
  bool refuse_until_draining; /* 503, until a heartbeat has said that the server drains */
  int refused_digest_polls;
  const char *lost;    /* lease id that the next heartbeats name */
  size_t lost_of;      /* only while they tell of so many leases; 0: always */
  uint64_t more_fence; /* of the lease: above 3 */
  struct {
    char id[LIMIT_NAME_MAX];
    struct lease_result result;
    struct arena arena;
  } results[RESULTS_MAX];
  int result_count;
  int leaves, results_at_leave;
} play;

static void lock(void) { pthread_mutex_lock(&play.mutex); }
static void unlock(void) { pthread_mutex_unlock(&play.mutex); }

static bool stale(struct http_request *r, uint64_t epoch) {
  struct err err;
  if (epoch == play.epoch) return false;
  err_set(&err, RC_CONFLICT, "epoch", "epoch %llu is stale", (unsigned long long)epoch);
  http_fail(r, &err);
  return true;
}

static void on_register(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  char id[16];
  lock();
  snprintf(id, sizeof id, "w%d", ++play.registrations);
  const struct worker_registered m = {.worker_id = id, .epoch = play.epoch, .heartbeat_ms = 50, .worker_ttl_ms = 1000};
  worker_registered_encode(&m, &body);
  unlock();
  http_reply_json(r, 200, &body);
}

static void on_heartbeat(struct http_request *r, void *context) {
  (void)context;
  const struct json *json;
  struct worker_heartbeat m;
  struct err err;
  if (http_body_json(r, &json, &err) != RC_OK || worker_heartbeat_decode(&m, json, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  struct buf body = BUF_INIT;
  lock();
  if (stale(r, m.epoch)) {
    unlock();
    return;
  }
  play.heartbeats++;
  play.draining_seen |= m.draining;
  play.ready_seen |= m.ready;
  const struct worker_heartbeat_answer answer = {
      .epoch = play.epoch,
      .lost = &play.lost,
      .lost_count = play.lost && (!play.lost_of || play.lost_of == m.lease_count),
      .current = play.current};
  worker_heartbeat_answer_encode(&answer, &body);
  unlock();
  http_reply_json(r, 200, &body);
}

static const int32_t PROMPT[] = {5, 6, 7, 8, 9};
static const int32_t PARTIAL[] = {11, 12, 13, 14};
static const float PARTIAL_LOGPROBS[] = {-1, -2, -3, -4};

static void on_poll(struct http_request *r, void *context) {
  (void)context;
  const struct json *json;
  struct lease_request m;
  struct err err;
  if (http_body_json(r, &json, &err) != RC_OK || lease_request_decode(&m, json, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  struct buf body = BUF_INIT;
  lock();
  if (stale(r, m.epoch)) {
    unlock();
    return;
  }
  play.polls++;
  const bool loaded = m.has_loaded && play.current.has && digest_equal(&m.loaded_digest, &play.current.digest);
  struct lease lease = {.id = "r1.0.2.0-2",
                        .fence = 3 + play.more_fence,
                        .run = "r1",
                        .group = "r1.0.2",
                        .purpose = LEASE_TRAINING,
                        .round = 0,
                        .group_ordinal = 2,
                        .sample_first = 0,
                        .sample_count = play.lease_samples,
                        .version_min = play.current.version,
                        .version_max = play.current.version + play.lease_lag,
                        .kv = play.lease_kv,
                        .weights_digest = play.current.digest,
                        .temperature = 1,
                        .max_new_tokens = play.lease_tokens,
                        .ignore_eos = true,
                        .seed = 99,
                        .ttl_ms = 5000,
                        .prompt_ids = {(int32_t *)(uintptr_t)PROMPT, 5}};
  struct partial_sample partial = {.sample = 1,
                                   .token_ids = {(int32_t *)(uintptr_t)PARTIAL, (size_t)play.partial_tokens},
                                   .logprobs = {(float *)(uintptr_t)PARTIAL_LOGPROBS, (size_t)play.partial_tokens}};
  lease.partials = &partial;
  lease.partial_count = play.partial_tokens > 0;
  struct lease_answer answer = {.epoch = play.epoch, .current = play.current};
  if (!loaded) play.refused_digest_polls++;
  if (loaded && play.lease_due) {
    answer.leases = &lease;
    answer.lease_count = 1;
    play.lease_due = false;
  }
  lease_answer_encode(&answer, &body);
  unlock();
  http_reply_json(r, 200, &body); /* a real coordinator would wait; the server must not spin when this one does not */
}

static void on_result(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  struct err err;
  size_t len;
  const char *bytes = http_body(r, &len);
  lock();
  const bool early = play.refuse_until_draining && !play.draining_seen;
  if (early || play.refuse_results > 0) {
    play.refuse_results -= !early;
    unlock();
    err_set(&err, RC_UNAVAILABLE, NULL, "not now");
    http_fail(r, &err);
    return;
  }
  const int i = play.result_count;
  const char *kept = i < RESULTS_MAX ? arena_strndup(&play.results[i].arena, bytes, len) : NULL;
  const enum rc rc =
      kept ? lease_result_decode_tensors(&play.results[i].result, kept, len, &play.results[i].arena, &err)
           : err_set(&err, RC_FULL, NULL, "too many results");
  if (rc == RC_OK) snprintf(play.results[play.result_count++].id, LIMIT_NAME_MAX, "%s", http_param(r, "id"));
  unlock();
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  const struct lease_result_answer answer = {.repeated = false};
  lease_result_answer_encode(&answer, &body);
  http_reply_json(r, 200, &body);
}

static void on_file(struct http_request *r, void *context) {
  (void)context;
  char path[256];
  snprintf(path, sizeof path, MODEL_DIR "/%s", http_param(r, "name"));
  http_reply_file(r, "application/json", path);
}

static void on_weights(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  const int version = atoi(http_param(r, "version"));
  lock();
  play.pulls++;
  const struct version_bytes *v = &play.versions[version % 2];
  buf_append(&body, v->bytes.data, v->bytes.len);
  unlock();
  http_reply(r, 200, "application/octet-stream", &body);
}

static void on_leave(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  lock();
  play.results_at_leave = play.result_count;
  play.leaves++;
  unlock();
  buf_puts(&body, "{}");
  http_reply_json(r, 200, &body);
}

static const struct http_route ROUTES[] = {
    {.method = "POST", .path = "/v1/workers", .handler = on_register},
    {.method = "DELETE", .path = "/v1/workers/{id}", .handler = on_leave},
    {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = on_heartbeat},
    {.method = "POST", .path = "/v1/workers/{id}/leases", .handler = on_poll},
    {.method = "PUT", .path = "/v1/leases/{id}/result", .handler = on_result},
    {.method = "GET", .path = "/v1/model/files/{name}", .handler = on_file},
    {.method = "GET", .path = "/v1/weights/{version}", .handler = on_weights},
};

static int setup(void **state) {
  (void)state;
  struct err err = {0};
  memset(&play, 0, sizeof play);
  pthread_mutex_init(&play.mutex, NULL);
  play.epoch = 4;
  play.lease_tokens = LEASE_TOKENS;
  play.lease_samples = 3;
  for (int i = 0; i < 2; i++) make_version(&play.versions[i], (uint64_t)(50 + i));
  const struct http_server_options o = {
      .bind_address = "127.0.0.1", .routes = ROUTES, .route_count = sizeof ROUTES / sizeof ROUTES[0]};
  if (http_server_start(&play.http, &o, &err) != RC_OK) fail_msg("%s", err.message);
  snprintf(play.url, sizeof play.url, "http://127.0.0.1:%d", http_server_port(play.http));
  return 0;
}

static int teardown(void **state) {
  (void)state;
  http_server_stop(play.http, 500);
  for (int i = 0; i < 2; i++) buf_free(&play.versions[i].bytes);
  for (int i = 0; i < play.result_count; i++) arena_free(&play.results[i].arena);
  pthread_mutex_destroy(&play.mutex);
  return 0;
}

static void announce(int64_t version) {
  lock();
  play.current = (struct current_version){.has = true,
                                          .run = "r1",
                                          .version = version,
                                          .digest = play.versions[version % 2].digest,
                                          .trainer_url = play.url};
  unlock();
}

static int read_count(const int *n) {
  lock();
  const int count = *n;
  unlock();
  return count;
}

static void wait_count(const int *n, int least, const char *what) {
  AWAIT(read_count(n) >= least, "%s: %d, fewer than %d", what, read_count(n), least) continue;
}

static struct server *start_worker_server(void) {
  const struct server_options options = server_options_of("", play.url);
  return start_server(&options);
}

/* Grants the lease as it stands and has the engine rest within it, so that what comes next meets a lease that is
 * sampled: after so many tokens at least and before its last.  A lease that ended while this thread stood still is
 * granted anew.  The engine goes on by engine_resume; returns the index of this lease's result. */
static int pause_within_a_lease(struct server *s, int64_t tokens) {
  struct engine *e = engine_of(s);
  for (int i = 0; i < RESULTS_MAX / 2; i++) {
    struct engine_counters first, n;
    lock();
    const int result = play.result_count;
    const int64_t drawn = (int64_t)play.lease_samples * play.lease_tokens - play.partial_tokens;
    play.lease_due = true;
    unlock();
    engine_read_counters(e, &first);
    AWAIT((engine_read_counters(e, &n), n.tokens_sampled - first.tokens_sampled >= tokens), "no tokens") continue;
    assert_int_equal(engine_pause(e, ENGINE_PAUSE_KEEP), RC_OK);
    AWAIT(engine_paused(e), "it does not rest") continue;
    engine_read_counters(e, &n);
    if (n.tokens_sampled - first.tokens_sampled < drawn) return result;
    assert_int_equal(engine_resume(e), RC_OK);
    wait_count(&play.result_count, result + 1, "results");
  }
  fail_msg("%d leases ended before the engine could rest", RESULTS_MAX / 2);
  return 0;
}

static void starts_without_a_trainer_and_serves_leases_once_there_is_one(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  wait_count(&play.heartbeats, 2, "heartbeats");
  assert_int_equal(status_of(s, "GET", "/healthz", NULL), 200);
  assert_int_equal(status_of(s, "GET", "/readyz", NULL), 503);
  assert_int_equal(status_of(s, "GET", "/v1/model", NULL), 503);
  assert_int_equal(status_of(s, "POST", "/v1/generate", "{\"input_ids\":[1]}"), 503);
  assert_int_equal(status_of(s, "POST", "/v1/push-weights?run=r1&version=0&epoch=4", "x"), 503);
  lock();
  play.lease_due = true;
  play.refuse_results = 2; /* the result is posted again until it is taken */
  unlock();
  announce(0);
  wait_count(&play.result_count, 1, "results");
  assert_int_equal(status_of(s, "GET", "/readyz", NULL), 200);
  lock();
  const struct lease_result *r = &play.results[0].result;
  assert_string_equal(play.results[0].id, "r1.0.2.0-2");
  assert_string_equal(r->worker_id, "w1");
  assert_int_equal(r->epoch, 4);
  assert_int_equal(r->fence, 3);
  assert_false(r->handed_back);
  assert_true(digest_equal(&r->loaded_digest, &play.versions[0].digest));
  assert_int_equal(r->sample_count, 3);
  for (int i = 0; i < 3; i++) {
    const struct sample_result *one = &r->samples[i];
    assert_int_equal(one->sample, i);
    assert_true(one->token_ids.count >= 1 && one->token_ids.count <= LEASE_TOKENS);
    assert_int_equal(one->finish, FINISH_LENGTH); /* the lease names no stop ids */
    assert_int_equal(one->segment_count, 1);
    assert_true(one->segments[0].loss_mask);
    assert_int_equal(one->span_count, 1);
    assert_int_equal(one->spans[0].version, 0);
  }
  assert_int_equal(play.pulls, 1);
  assert_true(play.polls < 200); /* no spinning while weights were on their way */
  unlock();
  wait_count(&play.heartbeats, 5, "heartbeats");
  lock();
  assert_true(play.ready_seen);
  unlock();
  server_stop(s);
  assert_int_equal(play.leaves, 1);
}

/* A push is staged only; the word activates it, without another transfer. */
static void a_push_waits_for_the_word(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  struct policy active;
  int status;
  announce(0);
  wait_for_version(s, 0);
  char header[128];
  const char *const headers[] = {header, NULL};
  snprintf(header, sizeof header, "X-Leasehold-Digest: %s", play.versions[1].hex);
  const struct buf *bytes = &play.versions[1].bytes;
  free(call_with(s, "POST", "/v1/push-weights?run=r1&version=1&epoch=3", bytes->data, bytes->len, headers, &status));
  assert_int_equal(status, 409); /* a coordinator from before */
  char *answer =
      call_with(s, "POST", "/v1/push-weights?run=r1&version=1&epoch=4", bytes->data, bytes->len, headers, &status);
  assert_int_equal(status, 200);
  assert_says(answer, play.versions[1].hex);
  free(answer);
  wait_count(&play.heartbeats, read_count(&play.heartbeats) + 3, "heartbeats");
  engine_policy(engine_of(s), &active);
  assert_int_equal(active.version, 0);
  announce(1);
  wait_for_version(s, 1);
  lock();
  assert_int_equal(play.pulls, 1);
  play.lease_due = true;
  unlock();
  wait_count(&play.result_count, 1, "results");
  assert_true(digest_equal(&play.results[0].result.loaded_digest, &play.versions[1].digest));
  server_stop(s);
}

static int push_changes(struct server *s, const struct version_bytes *base, const struct version_bytes *to,
                        const struct buf *changes) {
  char header[128], path[160];
  const char *const headers[] = {header, NULL};
  int status;
  snprintf(header, sizeof header, "X-Leasehold-Digest: %s", to->hex);
  snprintf(path, sizeof path, "/v1/push-weights?run=r1&version=1&epoch=4&base=%s", base->hex);
  free(call_with(s, "POST", path, changes->data, changes->len, headers, &status));
  return status;
}

/* Changes of a version that is staged are made in its place; damaged ones cost it, never the version that decodes. */
static void changes_of_a_staged_version_are_taken(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  struct version_bytes next, third;
  struct buf changes = BUF_INIT, more = BUF_INIT;
  struct policy active;
  char header[128];
  const char *const headers[] = {header, NULL};
  int status;
  make_version_from(&next, 51, 40, &play.versions[1], &changes);
  make_version_from(&third, 51, 30, &next, &more);
  announce(0);
  wait_for_version(s, 0);
  snprintf(header, sizeof header, "X-Leasehold-Digest: %s", play.versions[1].hex);
  const struct buf *bytes = &play.versions[1].bytes;
  for (int damaged = 0; damaged < 2; damaged++) {
    free(call_with(s, "POST", "/v1/push-weights?run=r1&version=1&epoch=4", bytes->data, bytes->len, headers, &status));
    assert_int_equal(status, 200);
    changes.data[changes.len - 1] ^= (char)damaged;
    assert_int_equal(push_changes(s, &play.versions[1], &next, &changes), damaged ? 422 : 200);
    assert_int_equal(push_changes(s, &play.versions[1], &next, &changes), 409); /* no longer staged */
    assert_int_equal(push_changes(s, &next, &third, &more), damaged ? 409 : 200);
    assert_true(engine_policy(engine_of(s), &active) && digest_equal(&active.digest, &play.versions[0].digest));
  }
  lock();
  play.lease_due = true; /* version 0 decodes as before: its leases are taken */
  unlock();
  wait_count(&play.result_count, 1, "results");
  assert_true(digest_equal(&play.results[0].result.loaded_digest, &play.versions[0].digest));
  server_stop(s);
  buf_free(&next.bytes);
  buf_free(&third.bytes);
  buf_free(&changes);
  buf_free(&more);
}

static void a_late_joiner_pulls(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(0);
  wait_for_version(s, 0);
  announce(1);
  wait_for_version(s, 1);
  assert_int_equal(play.pulls, 2);
  server_stop(s);
}

/* The weights that arrive are not those that were announced: never activated. */
static void weights_with_another_digest_are_not_activated(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  struct policy active;
  announce(0);
  wait_for_version(s, 0);
  lock();
  play.current.version = 3;                                    /* odd: serves versions[1] ... */
  memset(&play.current.digest, 7, sizeof play.current.digest); /* ... which is not what this says */
  unlock();
  wait_count(&play.pulls, 3, "pulls");
  engine_policy(engine_of(s), &active);
  assert_int_equal(active.version, 0);
  server_stop(s);
}

static void draining_hands_leases_back(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  play.lease_samples = 200;
  play.lease_tokens = 120;
  announce(0);
  wait_for_version(s, 0);
  const int result = pause_within_a_lease(s, 3);
  lock();
  play.refuse_until_draining = true; /* handing back takes its time, and the coordinator is told meanwhile */
  unlock();
  server_stop(s);
  assert_int_equal(play.result_count, result + 1);
  wait_count(&play.leaves, 1, "leaves");               /* whose answer was not waited for long */
  assert_int_equal(play.results_at_leave, result + 1); /* it left when all was handed back */
  assert_true(play.draining_seen);
  const struct lease_result *r = &play.results[result].result;
  assert_true(r->handed_back);
  assert_int_equal(r->sample_count, 200);
  int aborted = 0;
  for (size_t i = 0; i < r->sample_count; i++) aborted += r->samples[i].finish == FINISH_ABORT;
  assert_true(aborted > 0);
}

/* A coordinator that was started again refuses the old epoch: the server registers anew, and posts nothing of
 * before. */
static void a_new_epoch_is_followed(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(0);
  wait_for_version(s, 0);
  lock();
  play.epoch = 5;
  unlock();
  wait_count(&play.registrations, 2, "registrations");
  lock();
  play.lease_due = true;
  unlock();
  wait_count(&play.result_count, 1, "results");
  assert_int_equal(play.results[0].result.epoch, 5);
  assert_string_equal(play.results[0].result.worker_id, "w2");
  server_stop(s);
}

static void a_lost_lease_is_dropped(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  lock();
  play.refuse_results = 1000000; /* it stays held, being posted */
  play.lease_due = true;
  unlock();
  announce(0);
  wait_for_version(s, 0);
  AWAIT(leases_held(s->leases) == 1, "the lease is not held") continue;
  lock();
  play.lost = "r1.0.2.0-2";
  unlock();
  AWAIT(leases_held(s->leases) == 0, "the lease is still held") continue;
  assert_int_equal(play.result_count, 0);
  server_stop(s);
}

/* Its samples were granted to the same server again before it heard of the loss: the new lease stays. */
static void of_two_leases_of_an_id_the_older_is_the_lost_one(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  lock();
  play.refuse_results = 1000000;
  play.lease_due = true;
  unlock();
  announce(0);
  wait_for_version(s, 0);
  AWAIT(leases_held(s->leases) == 1, "the lease is not held") continue;
  lock();
  play.more_fence = 1;
  play.lease_due = true;
  unlock();
  AWAIT(leases_held(s->leases) == 2, "the second lease is not held") continue;
  lock();
  play.lost_of = 2;
  play.lost = "r1.0.2.0-2";
  unlock();
  AWAIT(leases_held(s->leases) == 1, "none is lost") continue;
  lock();
  play.refuse_results = 0;
  unlock();
  wait_count(&play.result_count, 1, "results");
  assert_int_equal(play.results[0].result.fence, 4);
  server_stop(s);
}

static void a_lost_lease_is_not_decoded_any_more(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  struct engine_counters n = {0};
  lock();
  play.lease_samples = 500;
  play.lease_tokens = 120;
  unlock();
  announce(0);
  wait_for_version(s, 0);
  const int result = pause_within_a_lease(s, 1);
  lock();
  play.lost = "r1.0.2.0-2";
  unlock();
  AWAIT(leases_held(s->leases) == 0, "it is still held") continue;
  engine_read_counters(engine_of(s), &n);
  const int64_t drawn = n.tokens_sampled;
  assert_int_equal(engine_resume(engine_of(s)), RC_OK);
  AWAIT((engine_read_counters(engine_of(s), &n), n.slots_busy == 0 && n.samples_waiting == 0), "%lld and %lld are left",
        (long long)n.slots_busy, (long long)n.samples_waiting) continue;
  assert_int_equal(n.tokens_sampled, drawn);
  assert_int_equal(play.result_count, result);
  server_stop(s);
}

/* Longer than the model's context: it goes back at once and says why, so that it comes to somebody else. */
static void a_lease_that_can_never_run_here_goes_back_with_the_reason(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  lock();
  play.lease_tokens = 100000;
  play.lease_due = true;
  unlock();
  announce(0);
  wait_count(&play.result_count, 1, "results");
  lock();
  const struct lease_result *r = &play.results[0].result;
  assert_true(r->handed_back);
  assert_non_null(r->refused);
  assert_non_null(strstr(r->refused, "exceed this server's context"));
  assert_int_equal(r->fence, 3);
  assert_true(digest_equal(&r->loaded_digest, &play.versions[0].digest));
  assert_int_equal(r->sample_count, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(r->samples[i].sample, i);
    assert_int_equal(r->samples[i].token_ids.count, 0);
    assert_int_equal(r->samples[i].finish, FINISH_ABORT);
  }
  play.lease_tokens = LEASE_TOKENS;
  play.lease_due = true;
  unlock();
  wait_count(&play.result_count, 2, "results"); /* it was not counted against the slots */
  lock();
  assert_null(play.results[1].result.refused);
  unlock();
  server_stop(s);
}

static void tokens_of_an_earlier_holder_are_continued_not_sampled_again(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  struct engine_counters n;
  lock();
  play.partial_tokens = 4;
  play.lease_due = true;
  unlock();
  announce(0);
  wait_count(&play.result_count, 1, "results");
  assert_int_equal(leases_tokens_resumed(s->leases), 4);
  engine_read_counters(engine_of(s), &n);
  assert_int_equal(n.tokens_sampled, 3 * LEASE_TOKENS - 4);
  lock();
  const struct sample_result *one = &play.results[0].result.samples[1];
  assert_int_equal(one->token_ids.count, LEASE_TOKENS);
  assert_memory_equal(one->token_ids.items, PARTIAL, sizeof PARTIAL);
  assert_memory_equal(one->logprobs.items, PARTIAL_LOGPROBS, sizeof PARTIAL_LOGPROBS);
  assert_int_equal(one->span_count, 1);
  assert_int_equal(one->spans[0].count, LEASE_TOKENS);
  unlock();
  char *text = call_with(s, "GET", "/metrics", NULL, 0, NULL, &(int){0});
  assert_non_null(strstr(text, "leasehold_generation_tokens_resumed_total 4"));
  free(text);
  server_stop(s);
}

/* A step that changed nothing makes a new version of the same weights: no transfer, and leases of the new version are
 * served. */
static void the_same_weights_under_a_new_version_need_no_transfer(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(0);
  wait_for_version(s, 0);
  announce(2);
  wait_for_version(s, 2);
  assert_int_equal(play.pulls, 1);
  lock();
  play.lease_due = true;
  unlock();
  wait_count(&play.result_count, 1, "results");
  assert_int_equal(play.results[0].result.samples[0].spans[0].version, 2);
  server_stop(s);
}

/* Polls and heartbeats overtake each other, so one older word is nothing; an earlier run that was resumed keeps being
 * named. */
static void an_earlier_run_that_is_resumed_is_followed(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(1);
  wait_for_version(s, 1);
  const struct current_version older = {
      .has = true, .run = "r0", .version = 0, .digest = play.versions[0].digest, .trainer_url = play.url};
  staging_follow_current(s->staging, &older); /* overtaken */
  wait_count(&play.heartbeats, read_count(&play.heartbeats) + 3, "heartbeats");
  struct policy active;
  engine_policy(engine_of(s), &active);
  assert_int_equal(active.version, 1);
  lock();
  play.current = older;
  unlock();
  wait_for_version(s, 0);
  server_stop(s);
}

/* Stages a version of run r1 whose announcement the coordinator has accepted. */
static void push_announced(struct server *s, int64_t version, int expected) {
  char path[96], header[128];
  const struct version_bytes *v = &play.versions[version % 2];
  const char *const headers[] = {header, NULL};
  int status;
  snprintf(path, sizeof path, "/v1/push-weights?run=r1&version=%lld&epoch=4&announced=true", (long long)version);
  snprintf(header, sizeof header, "X-Leasehold-Digest: %s", v->hex);
  free(call_with(s, "POST", path, v->bytes.data, v->bytes.len, headers, &status));
  assert_int_equal(status, expected);
}

/* The coordinator has taken the version already: nothing more is waited for, and an older one is refused. */
static void an_announced_push_needs_no_word(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(0);
  wait_for_version(s, 0);
  lock();
  play.current.has = false; /* it says nothing more */
  unlock();
  push_announced(s, 5, 200);
  wait_for_version(s, 5);
  push_announced(s, 4, 409);
  assert_true(is_active(s, 5));
  server_stop(s);
}

/* Versions are announced faster than their weights come: a server takes what it gets, and does not pull what is being
 * pushed. */
static void announced_versions_are_followed_though_newer_ones_are_current(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  announce(0);
  wait_for_version(s, 0);
  lock();
  play.current.has = false;
  unlock();
  push_announced(s, 1, 200);
  wait_for_version(s, 1);
  const int pulls = read_count(&play.pulls);
  lock();
  play.current.has = true;
  play.current.version = 3;
  memset(&play.current.digest, 7, sizeof play.current.digest);
  unlock();
  wait_count(&play.heartbeats, read_count(&play.heartbeats) + 3, "heartbeats");
  push_announced(s, 2, 200);
  wait_for_version(s, 2);
  wait_count(&play.heartbeats, read_count(&play.heartbeats) + 3, "heartbeats");
  assert_true(is_active(s, 2));
  assert_int_equal(read_count(&play.pulls), pulls);
  server_stop(s);
}

/* A lease of several versions tells as much before the first push. */
static void a_run_of_leases_for_several_versions_pushes_them(void **state) {
  (void)state;
  struct server *s = start_worker_server();
  lock();
  play.lease_lag = 3;
  play.lease_due = true;
  unlock();
  announce(0);
  wait_count(&play.result_count, 1, "results");
  lock();
  play.current.version = 1;
  memset(&play.current.digest, 7, sizeof play.current.digest);
  unlock();
  wait_count(&play.heartbeats, read_count(&play.heartbeats) + 4, "heartbeats");
  assert_int_equal(read_count(&play.pulls), 1);
  push_announced(s, 1, 200);
  wait_for_version(s, 1);
  server_stop(s);
}

static int metric_of(struct server *s, const char *name) {
  char *text = call_with(s, "GET", "/metrics", NULL, 0, NULL, &(int){0}), line[128];
  snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(text, line);
  assert_non_null(at);
  const int value = atoi(at + strlen(line));
  free(text);
  return value;
}

/* Versions come faster than keys and values can be computed again: the second waits until the samples have drawn a
 * token under the first, or else they would never get one. */
static void a_version_waits_for_samples_that_compute_again(void **state) {
  (void)state;
  struct server_options options = server_options_of("", play.url);
  options.model.slots = 32;
  options.model.prefill_chunk = 1;
  struct server *s = start_server(&options);
  lock();
  play.lease_samples = 200;
  play.lease_tokens = 110;
  play.lease_lag = 2;
  play.lease_kv = LEASE_KV_RECOMPUTE;
  unlock();
  announce(0);
  wait_for_version(s, 0);
  const int result = pause_within_a_lease(s, 32 * 50);
  const int before = metric_of(s, "leasehold_generation_recompute_seconds_count");
  lock();
  play.current.has = false; /* the pushes say what is current */
  unlock();
  push_announced(s, 1, 200);
  wait_for_version(s, 1);
  push_announced(s, 2, 200);
  assert_int_equal(engine_resume(engine_of(s)), RC_OK);
  wait_for_version(s, 2);
  wait_count(&play.result_count, result + 1, "results");
  assert_int_equal(metric_of(s, "leasehold_generation_recompute_seconds_count"), before + 2);
  lock();
  const struct lease_result *r = &play.results[result].result;
  int ran_under[3] = {0};
  for (size_t i = 0; i < r->sample_count; i++) {
    assert_int_equal(r->samples[i].spans[0].version, 0);
    for (size_t k = 0; k < r->samples[i].span_count; k++) {
      assert_true(r->samples[i].spans[k].fresh);
      ran_under[r->samples[i].spans[k].version]++;
    }
  }
  assert_true(ran_under[1] >= 32); /* every sample that was in a slot */
  unlock();
  server_stop(s);
}

/* A lease that is valid for the next version goes on under it, and its result says which tokens are whose. */
static void a_lease_of_two_versions_crosses_a_swap(void **state) {
  (void)state;
  for (int recompute = 0; recompute <= 1; recompute++) {
    struct server *s = start_worker_server();
    struct engine_counters n = {0};
    lock();
    play.lease_samples = 200;
    play.lease_tokens = 100;
    play.partial_tokens = 4; /* one is ahead of the others, so that never all end in one step */
    play.lease_lag = 1;
    play.lease_kv = recompute ? LEASE_KV_RECOMPUTE : LEASE_KV_KEEP;
    unlock();
    announce(0);
    wait_for_version(s, 0);
    const int result = pause_within_a_lease(s, 100);
    push_announced(s, 1, 200);
    announce(1); /* said before its first push has come it would be pulled */
    wait_for_version(s, 1);
    assert_int_equal(engine_resume(engine_of(s)), RC_OK);
    wait_count(&play.result_count, result + 1, "results");
    lock();
    const struct lease_result *r = &play.results[result].result;
    assert_false(r->handed_back);
    assert_true(digest_equal(&r->loaded_digest, &play.versions[1].digest));
    int crossed = 0, kept = 0;
    for (size_t i = 0; i < r->sample_count; i++) {
      const struct sample_result *one = &r->samples[i];
      assert_true(one->spans[0].fresh);
      crossed += one->span_count > 1;
      for (size_t k = 0; k < one->span_count; k++) kept += !one->spans[k].fresh;
    }
    assert_true(crossed > 0);
    assert_true(recompute ? kept == 0 : kept > 0);
    unlock();
    engine_read_counters(engine_of(s), &n);
    assert_int_equal(n.pauses, 1);
    assert_int_equal(read_count(&play.pulls), 1 + recompute); /* version 0's: version 1 was being pushed */
    assert_true(recompute ? n.recomputed > 0 : n.recomputed == 0);
    char *text = call_with(s, "GET", "/metrics", NULL, 0, NULL, &(int){0});
    assert_says(text, "# TYPE leasehold_generation_activation_pause_steps histogram");
    assert_says(text, recompute ? "leasehold_generation_recompute_seconds_count 1"
                                : "leasehold_generation_recompute_seconds_count 0");
    free(text);
    server_stop(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(starts_without_a_trainer_and_serves_leases_once_there_is_one, setup, teardown),
      cmocka_unit_test_setup_teardown(a_push_waits_for_the_word, setup, teardown),
      cmocka_unit_test_setup_teardown(changes_of_a_staged_version_are_taken, setup, teardown),
      cmocka_unit_test_setup_teardown(a_late_joiner_pulls, setup, teardown),
      cmocka_unit_test_setup_teardown(weights_with_another_digest_are_not_activated, setup, teardown),
      cmocka_unit_test_setup_teardown(draining_hands_leases_back, setup, teardown),
      cmocka_unit_test_setup_teardown(a_new_epoch_is_followed, setup, teardown),
      cmocka_unit_test_setup_teardown(a_lost_lease_is_dropped, setup, teardown),
      cmocka_unit_test_setup_teardown(of_two_leases_of_an_id_the_older_is_the_lost_one, setup, teardown),
      cmocka_unit_test_setup_teardown(a_lost_lease_is_not_decoded_any_more, setup, teardown),
      cmocka_unit_test_setup_teardown(a_lease_that_can_never_run_here_goes_back_with_the_reason, setup, teardown),
      cmocka_unit_test_setup_teardown(tokens_of_an_earlier_holder_are_continued_not_sampled_again, setup, teardown),
      cmocka_unit_test_setup_teardown(an_earlier_run_that_is_resumed_is_followed, setup, teardown),
      cmocka_unit_test_setup_teardown(an_announced_push_needs_no_word, setup, teardown),
      cmocka_unit_test_setup_teardown(announced_versions_are_followed_though_newer_ones_are_current, setup, teardown),
      cmocka_unit_test_setup_teardown(a_run_of_leases_for_several_versions_pushes_them, setup, teardown),
      cmocka_unit_test_setup_teardown(a_lease_of_two_versions_crosses_a_swap, setup, teardown),
      cmocka_unit_test_setup_teardown(a_version_waits_for_samples_that_compute_again, setup, teardown),
      cmocka_unit_test_setup_teardown(the_same_weights_under_a_new_version_need_no_transfer, setup, teardown),
  };
  return cmocka_run_group_tests_name("generation worker", tests, NULL, NULL);
}

/* Pushes and announces durable versions, one at a time.  Next hops of a version: generation-server/api/route_push_weights.c
 * and coordinator/api/route_versions.c. */
#include "services/trainer-server/publish/publisher.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/client/coordinator_client.h"
#include "common/client/generation_client.h"
#include "services/trainer-server/publish/pool_fabric.h"

enum {
  PUBLISH_QUEUE = 64,
  POLL_MS = 200,
  ANNOUNCE_MS = 10000,
  ANNOUNCE_TRIES = 5,
  ANNOUNCE_PAUSE_MS = 100,
  PAUSE_TICK_MS = 50
};

/* A durable version that waits for the publisher's thread. */
struct queued_version {
  struct job *step;
  struct weights_blob *blob;
};

struct publisher {
  struct board *board;
  struct jobs *jobs;
  const char *coordinator_url, *token;
  struct queue *queue;
  struct pool_fabric *pool;
  struct metric *metric_by_fabric, *metric_by_http, *metric_seconds;
  pthread_t thread;
  atomic_bool stopping;
  pthread_mutex_t lock; /* guards worker_id */
  char worker_id[LIMIT_NAME_MAX];
};

struct push {
  pthread_t thread;
  struct publisher *publisher;
  const struct push_target *target;
  const struct weights_blob *blob;
  struct push_broadcast seat; /* token NULL: by HTTP alone */
  uint64_t epoch;
  int64_t until_ms;
  struct push_report *report;
  enum rc broadcast; /* its outcome */
  struct err err;
  bool started;
};

/* One exchange; after it the report says whether the server has the version. */
static enum rc push_by(struct push *p, enum push_way way, struct err *err) {
  const struct weights_blob *b = p->blob;
  const struct pushed_version version = {b->run, b->version, p->epoch, b->digest};
  const bool by_fabric = way == PUSH_FABRIC;
  const int64_t left_ms = p->until_ms - clock_monotonic_ms();
  struct http_client *http = NULL;
  struct arena arena = ARENA_INIT;
  struct push_answer answer;
  if (left_ms <= 0) return err_set(err, RC_TIMEOUT, NULL, "no time is left for staging");
  enum rc rc = http_client_create(&http, p->publisher->token,
                                  by_fabric ? pool_fabric_over(p->publisher->pool) : &p->publisher->stopping, err);
  const struct generation_client client = {.http = http, .base_url = p->target->url};
  if (rc == RC_OK && by_fabric)
    rc = generation_push_by_broadcast(&client, &version, &p->seat, &answer, &arena, p->seat.wait_ms, err);
  else if (rc == RC_OK)
    rc = generation_push_weights(&client, &version, b->bytes.data, b->bytes.len, &answer, &arena, left_ms, err);
  if (rc == RC_OK) {
    p->report->staged = answer.staged && digest_equal(&answer.digest, &b->digest);
    p->report->digest = answer.digest;
    p->report->way = p->report->staged ? way : PUSH_NONE;
    if (!p->report->staged)
      rc = err_set(err, RC_CORRUPT, NULL, "the server staged other bytes than were sent: the digests differ");
  }
  arena_free(&arena);
  http_client_destroy(http);
  return rc;
}

static void *push_main(void *context) {
  struct push *p = context;
  if (p->seat.token) {
    p->broadcast = push_by(p, PUSH_FABRIC, &p->err);
    if (p->broadcast == RC_OK) return NULL;
    pool_fabric_refused(p->publisher->pool);
    log_info("version %" PRId64 " did not reach %s by the fabric: %s", p->blob->version, p->target->worker_id,
             p->err.message);
  }
  push_by(p, PUSH_HTTP, &p->err);
  return NULL;
}

/* Reports the outcome of every push, and tells the fabric which of its members were reached. */
static void pushes_judge(struct publisher *p, struct job *job, const struct push *pushes, size_t n, bool broadcast) {
  struct step_status *out = &job->out.step;
  struct pool_outcome *outcomes = arena_alloc(&job->arena, n + 1, sizeof *outcomes);
  size_t ways[PUSH_FABRIC + 1] = {0};
  for (size_t i = 0; i < n; i++) {
    struct push_report *r = &out->pushes[i];
    ways[r->way]++;
    if (outcomes)
      outcomes[i] = (struct pool_outcome){.worker_id = r->worker_id,
                                          .member = pushes[i].seat.token != NULL,
                                          .broadcast = pushes[i].broadcast,
                                          .staged = r->staged};
    if (r->staged) continue;
    r->error = arena_strdup(&job->arena, pushes[i].err.message);
    log_warn("push of version %" PRId64 " to %s failed: %s", out->version, r->worker_id, pushes[i].err.message);
  }
  if (broadcast) pool_fabric_end(p->pool, outcomes, outcomes ? n : 0);
  metric_add(p->metric_by_fabric, (double)ways[PUSH_FABRIC]);
  metric_add(p->metric_by_http, (double)ways[PUSH_HTTP]);
  if (broadcast)
    log_info("version %" PRId64 " reached %zu servers by the fabric and %zu by HTTP, and did not reach %zu",
             out->version, ways[PUSH_FABRIC], ways[PUSH_HTTP], ways[PUSH_NONE]);
}

/* One thread per server; each push has a deadline, so the joins end.  A server without a report is one that must
 * pull. */
static enum rc push_all(struct publisher *p, struct job *job, const struct weights_blob *blob, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  size_t n = in->push_count;
  const int64_t until_ms = clock_monotonic_ms() + in->stage_timeout_ms;
  struct push *pushes = arena_alloc(&job->arena, n + 1, sizeof *pushes);
  struct push_broadcast *seats = arena_alloc(&job->arena, n + 1, sizeof *seats);
  out->pushes = arena_alloc(&job->arena, n + 1, sizeof *out->pushes);
  if (!pushes || !seats || !out->pushes)
    return err_set(err, RC_NO_MEMORY, NULL, "pushing to %zu servers was refused memory", n);
  out->push_count = n;
  const bool broadcast = pool_fabric_begin(p->pool, in->push_to, n, blob->bytes.len, in->stage_timeout_ms, seats);
  for (size_t i = 0; i < n; i++) {
    out->pushes[i] = (struct push_report){.worker_id = in->push_to[i].worker_id};
    pushes[i] = (struct push){.publisher = p,
                              .target = &in->push_to[i],
                              .blob = blob,
                              .seat = seats[i],
                              .epoch = in->epoch,
                              .until_ms = until_ms,
                              .report = &out->pushes[i],
                              .broadcast = RC_UNAVAILABLE};
    pushes[i].started = pthread_create(&pushes[i].thread, NULL, push_main, &pushes[i]) == 0;
    if (!pushes[i].started) err_set(&pushes[i].err, RC_NO_MEMORY, NULL, "no thread could be started for the push");
  }
  struct err lost;
  if (broadcast && pool_fabric_carry(p->pool, blob->bytes.data, blob->bytes.len, &lost) != RC_OK)
    log_warn("version %" PRId64 " was not broadcast: %s", blob->version, lost.message);
  for (size_t i = 0; i < n; i++) {
    if (pushes[i].started) pthread_join(pushes[i].thread, NULL);
  }
  pushes_judge(p, job, pushes, n, broadcast);
  return RC_OK;
}

/* Cut short when the publisher stops. */
static void pause_ms(const struct publisher *p, int64_t ms) {
  for (int64_t slept = 0; slept < ms && !atomic_load(&p->stopping); slept += PAUSE_TICK_MS)
    clock_sleep_ms(PAUSE_TICK_MS);
}

/* The coordinator may also learn the version by polling the step: giving up here loses nothing. */
static void announce(struct publisher *p, const struct job *job) {
  const struct step_status *step = &job->out.step;
  if (!p->coordinator_url || !p->coordinator_url[0]) return;
  struct http_client *http = NULL;
  struct err err = {0};
  char worker_id[LIMIT_NAME_MAX];
  if (http_client_create(&http, p->token, &p->stopping, &err) != RC_OK) return;
  struct coordinator_client client = {.http = http, .base_url = p->coordinator_url};
  enum rc rc = RC_UNAVAILABLE;
  for (int attempt = 0; attempt < ANNOUNCE_TRIES && !atomic_load(&p->stopping); attempt++) {
    struct board_view v;
    board_view(p->board, &v);
    pthread_mutex_lock(&p->lock);
    snprintf(worker_id, sizeof worker_id, "%s", p->worker_id);
    pthread_mutex_unlock(&p->lock);
    struct version_announce m = {.run = job->in.step.run,
                                 .step_id = job->id,
                                 .worker_id = worker_id,
                                 .epoch = v.epoch,
                                 .fence = v.fence,
                                 .version = step->version,
                                 .digest = step->digest,
                                 .pushes = step->pushes,
                                 .push_count = step->push_count};
    rc = coordinator_announce_version(&client, &m, ANNOUNCE_MS, &err);
    if (rc != RC_UNAVAILABLE && rc != RC_TIMEOUT && rc != RC_FULL) break;
    if (attempt + 1 < ANNOUNCE_TRIES) pause_ms(p, ANNOUNCE_PAUSE_MS << attempt);
  }
  if (rc != RC_OK)
    log_warn("version %" PRId64 " of %s could not be announced: %s", step->version, job->in.step.run, err.message);
  http_client_destroy(http);
}

/* Beside the engine's stretches, which have room for it: see timeline_take. */
static void push_note(struct publisher *p, struct step_status *out, int64_t begun_us, int64_t ended_us) {
  const int64_t offset_us = clock_wall_offset_us();
  metric_add(p->metric_seconds, (double)(ended_us - begun_us) * 1e-6);
  if (!out->intervals) return;
  out->intervals[out->interval_count++] = (struct interval){CAUSE_PUSH, begun_us + offset_us, ended_us + offset_us};
}

/* The step was taken and its version is durable: nothing that goes wrong here makes it a failed one.  The bytes go before the
 * announcement, which lets the coordinator begin the next round. */
static void publish(struct publisher *p, struct queued_version *version) {
  struct job *job = version->step;
  struct err err = {0};
  const int64_t begun_us = clock_monotonic_us();
  if (push_all(p, job, version->blob, &err) != RC_OK)
    log_warn("version %" PRId64 " was not pushed: %s", version->blob->version, err.message);
  job->out.step.push_us = clock_monotonic_us() - begun_us;
  weights_blob_release(version->blob);
  announce(p, job);
  push_note(p, &job->out.step, begun_us, clock_monotonic_us());
  jobs_finish(p->jobs, job, NULL);
  free(version);
}

static void *publisher_main(void *context) {
  struct publisher *p = context;
  void *item;
  for (;;) {
    enum rc rc = queue_pop(p->queue, &item, POLL_MS);
    if (rc == RC_OK)
      publish(p, item);
    else if (rc == RC_UNAVAILABLE)
      return NULL;
  }
}

static struct metric *count_by(const char *labels) {
  return metrics_register(METRIC_COUNTER, "leasehold_trainer_pushes_total", labels,
                          "Servers that a version was pushed to, by the way that it went.");
}

enum rc publisher_create(struct publisher **out, struct board *board, struct jobs *jobs, const char *coordinator_url,
                         const char *token, struct fabric *fabric, struct err *err) {
  struct publisher *p = calloc(1, sizeof *p);
  if (!p) return err_set(err, RC_NO_MEMORY, NULL, "the publisher's state was refused memory");
  p->board = board;
  p->jobs = jobs;
  p->coordinator_url = coordinator_url;
  p->token = token;
  pthread_mutex_init(&p->lock, NULL);
  p->metric_by_fabric = count_by("way=\"fabric\"");
  p->metric_by_http = count_by("way=\"http\"");
  p->metric_seconds = metrics_register(METRIC_COUNTER, "leasehold_trainer_seconds_total", "cause=\"push\"",
                                       "Time of the engine by cause; push: of the publisher, beside it");
  enum rc rc = pool_fabric_create(&p->pool, fabric, err);
  if (rc == RC_OK) rc = queue_create(&p->queue, PUBLISH_QUEUE, err);
  if (rc == RC_OK && pthread_create(&p->thread, NULL, publisher_main, p) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the publisher's thread could not be started");
  if (rc != RC_OK) {
    pool_fabric_destroy(p->pool);
    queue_destroy(p->queue);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return rc;
  }
  *out = p;
  return RC_OK;
}

void publisher_destroy(struct publisher *p) {
  if (!p) return;
  atomic_store(&p->stopping, true);
  pool_fabric_stop(p->pool);
  queue_close(p->queue);
  pthread_join(p->thread, NULL);
  pool_fabric_destroy(p->pool);
  queue_destroy(p->queue);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

void publisher_submit(struct publisher *p, struct job *step, struct weights_blob *blob) {
  struct queued_version *version = malloc(sizeof *version);
  struct err err;
  enum rc rc = version ? RC_OK : err_set(&err, RC_NO_MEMORY, NULL, "its place in the queue was refused memory");
  if (rc == RC_OK) {
    *version = (struct queued_version){.step = step, .blob = blob};
    rc = queue_push(p->queue, version);
    if (rc != RC_OK) err_set(&err, rc, NULL, "the publisher takes no more versions");
  }
  if (rc == RC_OK) return;
  log_warn("version %" PRId64 " is neither pushed nor announced, the answer to its step tells of it: %s", blob->version,
           err.message);
  free(version);
  weights_blob_release(blob);
  jobs_finish(p->jobs, step, NULL);
}

void publisher_set_worker(struct publisher *p, const char *worker_id) {
  pthread_mutex_lock(&p->lock);
  snprintf(p->worker_id, sizeof p->worker_id, "%s", worker_id);
  pthread_mutex_unlock(&p->lock);
}

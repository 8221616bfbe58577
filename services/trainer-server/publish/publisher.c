/* Pushes and announces durable versions, one at a time.  Next hops of a version: push.c, or background.c, and
 * coordinator/api/route_versions.c. */
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
#include "services/trainer-server/publish/background.h"
#include "services/trainer-server/publish/push.h"

_Static_assert(BACKGROUND_FIGURES + 1 <= PUBLISHER_INTERVALS, "a step's answer has room for them");

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
  const char *coordinator_url;
  struct http_client *coordinator; /* the thread's: its connection stays open from version to version */
  struct queue *queue;
  struct pusher pusher;
  struct background *background;
  struct metric *metric_seconds;
  pthread_t thread;
  atomic_bool stopping;
  pthread_mutex_t lock; /* guards worker_id */
  char worker_id[LIMIT_NAME_MAX];
};

/* Cut short when the publisher stops. */
static void pause_ms(const struct publisher *p, int64_t ms) {
  for (int64_t slept = 0; slept < ms && !atomic_load(&p->stopping); slept += PAUSE_TICK_MS)
    clock_sleep_ms(PAUSE_TICK_MS);
}

/* Whether the coordinator has accepted the version.  It may also learn it by polling the step: giving up here loses
 * nothing. */
static bool announce(struct publisher *p, const struct job *job) {
  const struct step_status *step = &job->out.step;
  if (!p->coordinator_url || !p->coordinator_url[0]) return false;
  struct err err = {0};
  char worker_id[LIMIT_NAME_MAX];
  struct coordinator_client client = {.http = p->coordinator, .base_url = p->coordinator_url};
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
                                 .grad_norm = step->grad_norm,
                                 .lr = step->lr,
                                 .skipped = step->skipped,
                                 .pushes = step->pushes,
                                 .push_count = step->push_count};
    rc = coordinator_announce_version(&client, &m, ANNOUNCE_MS, &err);
    if (rc != RC_UNAVAILABLE && rc != RC_TIMEOUT && rc != RC_FULL) break;
    if (attempt + 1 < ANNOUNCE_TRIES) pause_ms(p, ANNOUNCE_PAUSE_MS << attempt);
  }
  if (rc != RC_OK)
    log_warn("version %" PRId64 " of %s could not be announced: %s", step->version, job->in.step.run, err.message);
  return rc == RC_OK;
}

/* Beside the engine's stretches, which have room for it: see timeline_take. */
static void push_note(struct publisher *p, struct step_status *out, int64_t begun_us, int64_t ended_us) {
  const int64_t offset_us = clock_wall_offset_us();
  metric_add(p->metric_seconds, (double)(ended_us - begun_us) * 1e-6);
  if (!out->intervals) return;
  out->intervals[out->interval_count++] = (struct interval){CAUSE_PUSH, begun_us + offset_us, ended_us + offset_us};
}

/* The bytes go before the announcement, which lets the coordinator begin the next round. */
static void push_and_announce(struct publisher *p, struct job *job, struct weights_blob *blob) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  const struct push_round round = {.blob = blob,
                                   .targets = in->push_to,
                                   .count = in->push_count,
                                   .epoch = in->epoch,
                                   .stage_timeout_ms = in->stage_timeout_ms};
  struct err err = {0};
  const int64_t begun_us = clock_monotonic_us();
  if (push_to_all(&p->pusher, &round, &out->pushes, &job->arena, &err) == RC_OK)
    out->push_count = in->push_count;
  else
    log_warn("version %" PRId64 " was not pushed: %s", blob->version, err.message);
  out->push_us = clock_monotonic_us() - begun_us;
  weights_blob_release(blob);
  announce(p, job);
}

/* The step was taken and its version is durable: nothing that goes wrong here makes the step fail. */
static void publish(struct publisher *p, struct queued_version *version) {
  struct job *job = version->step;
  const int64_t begun_us = clock_monotonic_us();
  log_context_restore(&job->log);
  log_context_number(LOG_VERSION, version->blob->version);
  if (job->in.step.announce_first)
    background_push(p->background, &job->in.step, announce(p, job), version->blob);
  else
    push_and_announce(p, job, version->blob);
  push_note(p, &job->out.step, begun_us, clock_monotonic_us());
  jobs_finish(p->jobs, job, NULL);
  log_context_clear();
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

static void publisher_free(struct publisher *p) {
  background_destroy(p->background);
  pusher_free(&p->pusher);
  http_client_destroy(p->coordinator);
  queue_destroy(p->queue);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

enum rc publisher_create(struct publisher **out, struct board *board, struct jobs *jobs, const char *coordinator_url,
                         const struct http_access *access, struct fabric *fabric, struct err *err) {
  struct publisher *p = calloc(1, sizeof *p);
  if (!p) return err_set(err, RC_NO_MEMORY, NULL, "the publisher's state was refused memory");
  p->board = board;
  p->jobs = jobs;
  p->coordinator_url = coordinator_url;
  pthread_mutex_init(&p->lock, NULL);
  p->metric_seconds = metrics_register(METRIC_COUNTER, "leasehold_trainer_seconds_total", "cause=\"push\"",
                                       "Time of the engine by cause; push: of the publisher, beside it");
  enum rc rc = http_client_create_for(&p->coordinator, access, &p->stopping, err);
  if (rc == RC_OK) rc = pusher_init(&p->pusher, access, &p->stopping, &board->changes, fabric, err);
  if (rc == RC_OK) rc = background_create(&p->background, &p->pusher, err);
  if (rc == RC_OK) rc = queue_create(&p->queue, PUBLISH_QUEUE, err);
  if (rc == RC_OK && pthread_create(&p->thread, NULL, publisher_main, p) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the publisher's thread could not be started");
  if (rc != RC_OK) {
    publisher_free(p);
    return rc;
  }
  *out = p;
  return RC_OK;
}

void publisher_destroy(struct publisher *p) {
  if (!p) return;
  atomic_store(&p->stopping, true);
  pool_fabric_stop(p->pusher.pool);
  queue_close(p->queue);
  pthread_join(p->thread, NULL);
  publisher_free(p);
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
  log_warn("version %" PRId64
           " is neither pushed nor announced; the answer to its step tells the coordinator of it: %s",
           blob->version, err.message);
  free(version);
  weights_blob_release(blob);
  jobs_finish(p->jobs, step, NULL);
}

void publisher_take_pushes(struct publisher *p, const char *run, struct step_status *out) {
  const int64_t offset_us = clock_wall_offset_us();
  struct background_figures figures;
  background_take(p->background, run, &figures);
  out->push_us = figures.push_us;
  for (size_t i = 0; out->intervals && i < figures.count; i++)
    out->intervals[out->interval_count++] = (struct interval){
        CAUSE_PUSH, figures.items[i].begin_us + offset_us, figures.items[i].end_us + offset_us};
}

void publisher_set_worker(struct publisher *p, const char *worker_id) {
  pthread_mutex_lock(&p->lock);
  snprintf(p->worker_id, sizeof p->worker_id, "%s", worker_id);
  pthread_mutex_unlock(&p->lock);
}

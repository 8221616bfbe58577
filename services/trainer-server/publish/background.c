/* Keeps the newest version until every server's push of it has begun, and runs the rounds. */
#include "services/trainer-server/publish/background.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"

enum { WAIT_MS = 1000 };

/* A version and the servers that it is to go to, copied. */
struct offer {
  struct weights_blob *blob; /* NULL: none, or every push of it has begun */
  struct arena arena;
  struct push_target *targets; /* [count] */
  bool *begun;                 /* [count] */
  size_t count;
  uint64_t epoch;
  bool accepted;
  int64_t stage_timeout_ms;
  struct log_context log; /* of the step that made the version */
};

struct round {
  struct background *background;
  pthread_t thread;
  struct arena arena;
  struct weights_blob *blob;   /* NULL: none is running */
  struct push_target *targets; /* [count] */
  bool *busy;                  /* [count] not ended yet; guarded by the background's lock */
  size_t count;
  uint64_t epoch;
  bool accepted;
  int64_t stage_timeout_ms;
  struct log_context log;
};

struct background {
  struct pusher *pusher;
  struct metric *metric_skipped, *metric_seconds;
  pthread_mutex_t lock; /* guards all below; a round's targets and blob are its thread's while it runs */
  pthread_cond_t changed;
  bool stopping;
  int threads;
  struct offer newest;
  struct round rounds[BACKGROUND_ROUNDS];
  char run[LIMIT_NAME_MAX]; /* of the figures */
  struct background_figures figures;
};

/* ---- the newest version ---- */

static void offer_drop(struct offer *o) {
  if (o->blob) weights_blob_push_end(o->blob);
  arena_free(&o->arena);
  *o = (struct offer){.arena = ARENA_INIT};
}

static enum rc targets_copy(struct push_target **out, const struct push_target *from, size_t count,
                            struct arena *arena) {
  struct push_target *to = arena_alloc(arena, count + 1, sizeof *to);
  for (size_t i = 0; to && i < count; i++) {
    to[i] = from[i];
    to[i].worker_id = arena_strdup(arena, from[i].worker_id);
    to[i].url = arena_strdup(arena, from[i].url);
    to[i].push_token = from[i].push_token ? arena_strdup(arena, from[i].push_token) : NULL;
    if (!to[i].worker_id || !to[i].url || (from[i].push_token && !to[i].push_token)) return RC_NO_MEMORY;
  }
  *out = to;
  return to ? RC_OK : RC_NO_MEMORY;
}

static enum rc offer_fill(struct offer *o, const struct submit_step *step, bool accepted, struct weights_blob *blob) {
  *o = (struct offer){.arena = ARENA_INIT,
                      .count = step->push_count,
                      .epoch = step->epoch,
                      .accepted = accepted,
                      .stage_timeout_ms = step->stage_timeout_ms};
  log_context_save(&o->log);
  o->begun = arena_alloc(&o->arena, o->count + 1, sizeof *o->begun);
  if (!o->begun || targets_copy(&o->targets, step->push_to, o->count, &o->arena) != RC_OK) return RC_NO_MEMORY;
  weights_blob_push_begin(blob);
  o->blob = blob;
  return RC_OK;
}

void background_push(struct background *b, const struct submit_step *step, bool accepted, struct weights_blob *blob) {
  struct offer offer;
  if (offer_fill(&offer, step, accepted, blob) != RC_OK) {
    log_warn("version %" PRId64 " is not pushed: its %zu servers were refused memory", blob->version, step->push_count);
    offer_drop(&offer);
  } else {
    pthread_mutex_lock(&b->lock);
    size_t skipped = 0;
    for (size_t i = 0; b->newest.blob && i < b->newest.count; i++) skipped += !b->newest.begun[i];
    metric_add(b->metric_skipped, (double)skipped);
    offer_drop(&b->newest);
    b->newest = offer;
    if (offer.count == 0) offer_drop(&b->newest);
    if (strcmp(b->run, blob->run) != 0) {
      snprintf(b->run, sizeof b->run, "%s", blob->run);
      b->figures = (struct background_figures){0};
    }
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
  }
  weights_blob_release(blob);
}

/* ---- rounds ---- */

static bool server_is_busy(const struct background *b, const char *worker_id) {
  for (int r = 0; r < BACKGROUND_ROUNDS; r++) {
    const struct round *round = &b->rounds[r];
    for (size_t i = 0; round->blob && i < round->count; i++)
      if (round->busy[i] && strcmp(round->targets[i].worker_id, worker_id) == 0) return true;
  }
  return false;
}

/* With the lock held: whether there is something to push.  Servers that are busy stay for a later round. */
static bool round_begin(struct background *b, struct round *r) {
  struct offer *o = &b->newest;
  size_t count = 0, left = 0;
  if (!o->blob) return false;
  arena_free(&r->arena);
  r->arena = (struct arena)ARENA_INIT;
  size_t *chosen = arena_alloc(&r->arena, o->count + 1, sizeof *chosen);
  struct push_target *targets = arena_alloc(&r->arena, o->count + 1, sizeof *targets);
  r->busy = arena_alloc(&r->arena, o->count + 1, sizeof *r->busy);
  if (!chosen || !targets || !r->busy) return false; /* again when something changes */
  for (size_t i = 0; i < o->count; i++) {
    if (o->begun[i]) continue;
    if (server_is_busy(b, o->targets[i].worker_id)) {
      left++;
      continue;
    }
    chosen[count] = i;
    targets[count++] = o->targets[i];
  }
  if (count == 0 || targets_copy(&r->targets, targets, count, &r->arena) != RC_OK) return false;
  for (size_t i = 0; i < count; i++) o->begun[chosen[i]] = r->busy[i] = true;
  r->count = count;
  r->blob = o->blob;
  r->epoch = o->epoch;
  r->accepted = o->accepted;
  r->stage_timeout_ms = o->stage_timeout_ms;
  r->log = o->log;
  weights_blob_push_begin(r->blob);
  if (left == 0) offer_drop(o);
  return true;
}

static void push_ended(void *context, size_t target) {
  struct round *r = context;
  struct background *b = r->background;
  pthread_mutex_lock(&b->lock);
  r->busy[target] = false;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
}

/* With the lock held. */
static void figures_add(struct background *b, int64_t begun_us, int64_t ended_us) {
  struct background_figures *f = &b->figures;
  metric_add(b->metric_seconds, (double)(ended_us - begun_us) * 1e-6);
  f->push_us += ended_us - begun_us;
  if (f->count == BACKGROUND_FIGURES) memmove(f->items, f->items + 1, --f->count * sizeof *f->items);
  f->items[f->count++] = (struct interval){CAUSE_PUSH, begun_us, ended_us};
}

static void round_run(struct round *r) {
  const struct push_round round = {.blob = r->blob,
                                   .targets = r->targets,
                                   .count = r->count,
                                   .epoch = r->epoch,
                                   .announced = r->accepted,
                                   .stage_timeout_ms = r->stage_timeout_ms,
                                   .ended = push_ended,
                                   .context = r};
  struct push_report *reports;
  struct err err = {0};
  if (push_to_all(r->background->pusher, &round, &reports, &r->arena, &err) != RC_OK)
    log_warn("version %" PRId64 " was not pushed: %s", r->blob->version, err.message);
}

static void *round_main(void *context) {
  struct round *r = context;
  struct background *b = r->background;
  pthread_mutex_lock(&b->lock);
  while (!b->stopping) {
    const struct timespec until = clock_deadline_in(WAIT_MS);
    if (!round_begin(b, r)) {
      pthread_cond_timedwait(&b->changed, &b->lock, &until);
      continue;
    }
    pthread_mutex_unlock(&b->lock);
    const int64_t begun_us = clock_monotonic_us();
    log_context_restore(&r->log);
    round_run(r);
    log_context_clear();
    pthread_mutex_lock(&b->lock);
    if (strcmp(b->run, r->blob->run) == 0) figures_add(b, begun_us, clock_monotonic_us());
    weights_blob_push_end(r->blob);
    r->blob = NULL;
    pthread_cond_broadcast(&b->changed);
  }
  pthread_mutex_unlock(&b->lock);
  return NULL;
}

void background_take(struct background *b, const char *run, struct background_figures *out) {
  *out = (struct background_figures){0};
  pthread_mutex_lock(&b->lock);
  if (strcmp(b->run, run) == 0) {
    *out = b->figures;
    b->figures = (struct background_figures){0};
  }
  pthread_mutex_unlock(&b->lock);
}

/* ---- beginning and end ---- */

enum rc background_create(struct background **out, struct pusher *pusher, struct err *err) {
  struct background *b = calloc(1, sizeof *b);
  if (!b) return err_set(err, RC_NO_MEMORY, NULL, "the state of pushes in the background was refused memory");
  b->pusher = pusher;
  b->newest.arena = (struct arena)ARENA_INIT;
  b->metric_skipped = metrics_register(METRIC_COUNTER, "leasehold_trainer_pushes_skipped_total", "",
                                       "Pushes of a version to a server that a newer version came before");
  b->metric_seconds = metrics_register(METRIC_COUNTER, "leasehold_trainer_seconds_total", "cause=\"push\"",
                                       "Time of the engine by cause; push: of the publisher, beside it");
  pthread_mutex_init(&b->lock, NULL);
  cond_init(&b->changed);
  for (int i = 0; i < BACKGROUND_ROUNDS; i++) {
    struct round *r = &b->rounds[i];
    *r = (struct round){.background = b, .arena = ARENA_INIT};
    if (pthread_create(&r->thread, NULL, round_main, r) != 0) {
      background_destroy(b);
      return err_set(err, RC_NO_MEMORY, NULL, "a thread for pushes in the background could not be started");
    }
    b->threads++;
  }
  *out = b;
  return RC_OK;
}

void background_destroy(struct background *b) {
  if (!b) return;
  pthread_mutex_lock(&b->lock);
  b->stopping = true;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
  for (int i = 0; i < b->threads; i++) pthread_join(b->rounds[i].thread, NULL);
  for (int i = 0; i < BACKGROUND_ROUNDS; i++) arena_free(&b->rounds[i].arena);
  offer_drop(&b->newest);
  pthread_cond_destroy(&b->changed);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

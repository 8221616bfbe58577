/* See driver.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "services/coordinator/driver/driver_state.h"
#include "services/coordinator/store/ids.h"

enum { IDLE_MS = 200, TICK_MS = 50 };

/* ---- looking ---- */

enum rc driver_read_trainer(struct store *s, struct trainer_target *out, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct trainer_target){0};
  enum rc rc = store_query(s, &q, err,
                           "SELECT id, url, epoch, fence, name, exactness FROM workers WHERE live = 1 AND kind = ?1 "
                           "AND holder = 1",
                           BINDS(b_int(WORKER_TRAINER)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct trainer_target){.found = true,
                                   .worker = rows_int(&q, 0),
                                   .epoch = (uint64_t)rows_int(&q, 2),
                                   .fence = (uint64_t)rows_int(&q, 3),
                                   .fastest = rows_int(&q, 5) == WORKER_FASTEST};
    snprintf(out->name, sizeof out->name, "%s", rows_text(&q, 4, NULL));
    snprintf(out->url, sizeof out->url, "%s", rows_text(&q, 1, NULL));
  }
  rows_end(&q);
  return rc;
}

enum rc driver_trainer_now(struct driver *d, struct trainer_target *out, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(core_readers(d->core), &s, err);
  if (rc != RC_OK) return rc;
  rc = driver_read_trainer(s, out, err);
  readers_give(core_readers(d->core), s);
  return rc;
}

bool driver_run_over(struct driver *d, int64_t run) {
  struct store *s;
  int64_t state = RUN_FAILED;
  if (readers_take(core_readers(d->core), &s, NULL) != RC_OK) return false;
  store_int(s, &state, NULL, "SELECT state FROM runs WHERE id = ?1", BINDS(b_int(run)));
  readers_give(core_readers(d->core), s);
  return state != RUN_STARTING && state != RUN_RUNNING && state != RUN_PAUSED && state != RUN_STOPPING;
}

/* The run that was begun, else the oldest that waits. */
static enum rc read_run(struct store *s, struct active_run *a, struct err *err) {
  struct rows q;
  enum rc rc = store_query(
      s, &q, err,
      "SELECT id, state, rounds, config, error IS NOT NULL, waiting_for FROM runs WHERE state IN (?1, ?2, ?3, ?4, ?5) "
      "ORDER BY state = ?1, id LIMIT 1",
      BINDS(b_int(RUN_QUEUED), b_int(RUN_STARTING), b_int(RUN_RUNNING), b_int(RUN_PAUSED), b_int(RUN_STOPPING)));
  if (rc == RC_OK) rc = rows_next(&q, &a->found, err);
  if (rc == RC_OK && a->found) {
    a->run = rows_int(&q, 0);
    a->state = (enum run_state)rows_int(&q, 1);
    a->rounds = rows_int(&q, 2);
    a->held = a->state == RUN_PAUSED && rows_int(&q, 4) != 0;
    snprintf(a->waiting_for, sizeof a->waiting_for, "%s", rows_text(&q, 5, NULL));
    a->config = strdup(rows_text(&q, 3, NULL));
    if (!a->config) rc = err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  rows_end(&q);
  return rc;
}

static enum rc read_progress(struct store *s, struct active_run *a, struct err *err) {
  struct rows q;
  enum rc rc = store_query(s, &q, err, "SELECT version, digest FROM versions WHERE run = ?1 AND state = 1",
                           BINDS(b_int(a->run)));
  if (rc == RC_OK) rc = rows_next(&q, &a->has_version, err);
  if (rc == RC_OK && a->has_version) {
    a->version = rows_int(&q, 0);
    rows_digest(&q, 1, &a->digest);
  }
  rows_end(&q);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT round, version, state FROM rounds WHERE run = ?1 ORDER BY round DESC LIMIT 1",
                   BINDS(b_int(a->run)));
  if (rc == RC_OK) rc = rows_next(&q, &a->has_round, err);
  if (rc == RC_OK && a->has_round) {
    a->round = rows_int(&q, 0);
    a->round_version = rows_int(&q, 1);
    a->round_state = (enum round_state)rows_int(&q, 2);
  }
  rows_end(&q);
  if (rc == RC_OK && a->has_round)
    rc = store_int(s, &a->undone, err, "SELECT count(*) FROM batches WHERE run = ?1 AND round = ?2 AND done = 0",
                   BINDS(b_int(a->run), b_int(a->round)));
  a->unfinished = -1;
  if (rc == RC_OK) {
    rc = store_int(
        s, &a->unfinished, err,
        "SELECT round FROM rounds INDEXED BY rounds_unfinished WHERE run = ?1 AND finished = 0 AND state = ?2 ORDER BY "
        "round LIMIT 1",
        BINDS(b_int(a->run), b_int(ROUND_DONE)));
    if (rc == RC_NOT_FOUND) rc = RC_OK;
  }
  return rc;
}

static enum rc look(struct driver *d, struct active_run *a, struct err *err) {
  struct store *s;
  *a = (struct active_run){0};
  enum rc rc = readers_take(core_readers(d->core), &s, err);
  if (rc != RC_OK) return rc;
  rc = driver_read_trainer(s, &d->trainer, err);
  if (rc == RC_OK) rc = read_run(s, a, err);
  if (rc == RC_OK && a->found) rc = read_progress(s, a, err);
  readers_give(core_readers(d->core), s);
  return rc;
}

/* ---- working ---- */

/* Are batches of the round to be sent, or waited for? */
static bool trains(const struct driver *d, const struct active_run *a) {
  const struct run_config *config = &d->context->config;
  if (!a->has_round) return false;
  if (a->state == RUN_PAUSED && run_is_supervised(config)) return false;
  if (a->round_state == ROUND_OPEN) return config->mode == MODE_PIPELINED;
  return a->round_state == ROUND_TRAINING || (a->round_state == ROUND_STEPPING && a->undone > 0);
}

static enum rc work(struct driver *d, const struct active_run *a, bool *progress, struct err *err) {
  *progress = !a->held;
  if (a->held) return RC_OK; /* until it is resumed */
  if (!d->trainer.found) {
    *progress = false;
    if (a->state == RUN_QUEUED) return RC_OK;
    return err_set(err, RC_UNAVAILABLE, NULL, "no trainer is registered");
  }
  if (!d->context || d->context->run != a->run || d->verified_trainer != d->trainer.worker)
    return driver_open(d, a, err);
  if (a->unfinished >= 0) return driver_step(d, a, a->unfinished, err);
  if (trains(d, a)) return driver_train(d, a, progress, err);
  if (a->has_round && a->round_state == ROUND_STEPPING) return driver_step(d, a, a->round, err);
  *progress = false;
  return RC_OK;
}

static void context_forget(struct driver *d) {
  run_context_release(d->context);
  d->context = NULL;
  d->verified_trainer = 0;
}

void driver_forget_run(struct driver *d) {
  collector_reset(d->collector);
  d->stream.run = 0;
  context_forget(d);
}

/* Returns whether there may be more to do at once. */
static bool driver_turn(struct driver *d) {
  struct active_run a;
  struct err err = {0};
  bool progress = false;
  d->groups_wanted = 1;
  d->retry_ms = 0;
  enum rc rc = look(d, &a, &err);
  if (rc == RC_OK && (!a.found || (d->context && d->context->run != a.run))) driver_forget_run(d);
  if (rc == RC_OK && a.found) {
    rc = work(d, &a, &progress, &err);
    if (rc == RC_OK)
      driver_trouble_over(d, &a);
    else if (!atomic_load(&d->stopping) && !driver_run_over(d, a.run))
      d->retry_ms = driver_trouble(d, &a, rc, &err);
  }
  free(a.config);
  return rc == RC_OK && progress;
}

static void wait_for_kick(struct driver *d, int64_t ms) {
  struct timespec deadline = clock_deadline_in(ms);
  pthread_mutex_lock(&d->lock);
  d->waking = d->groups_wanted;
  while (!d->kicked && d->sealed < d->waking && pthread_cond_timedwait(&d->wake, &d->lock, &deadline) == 0) continue;
  d->kicked = false;
  d->sealed = 0;
  pthread_mutex_unlock(&d->lock);
}

/* Kicks do not shorten it: trouble is not over sooner for them. */
static void pause_ms(const struct driver *d, int64_t ms) {
  const int64_t until_ms = core_monotonic_ms(d->core) + ms;
  while (core_monotonic_ms(d->core) < until_ms && !atomic_load(&d->stopping)) clock_sleep_ms(TICK_MS);
}

static void kick(void *context, int sealed) {
  struct driver *d = context;
  pthread_mutex_lock(&d->lock);
  d->sealed += sealed;
  if (sealed == 0) d->kicked = true;
  if (d->kicked || d->sealed >= d->waking) pthread_cond_signal(&d->wake);
  pthread_mutex_unlock(&d->lock);
}

static void kick_for_answer(void *context) { kick(context, 0); }

static void *driver_main(void *context) {
  struct driver *d = context;
  while (!atomic_load(&d->stopping)) {
    if (driver_turn(d)) continue;
    if (d->retry_ms)
      pause_ms(d, d->retry_ms);
    else
      wait_for_kick(d, IDLE_MS);
  }
  return NULL;
}

enum rc driver_start(struct driver **out, struct core *core, const struct driver_options *options, struct err *err) {
  struct driver *d = calloc(1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the driver's state was refused memory");
  d->core = core;
  d->options = *options;
  pthread_mutex_init(&d->lock, NULL);
  cond_init(&d->wake);
  enum rc rc = http_client_create(&d->http, options->token, &d->stopping, err);
  if (rc == RC_OK) rc = collector_start(&d->collector, core, options->token, kick_for_answer, d, err);
  if (rc == RC_OK) core_set_kick(core, kick, d);
  if (rc == RC_OK && pthread_create(&d->thread, NULL, driver_main, d) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the driver's thread could not be started");
  if (rc != RC_OK) {
    core_set_kick(core, NULL, NULL);
    collector_stop(d->collector);
    http_client_destroy(d->http);
    free(d);
    return rc;
  }
  *out = d;
  return RC_OK;
}

void driver_stop(struct driver *d) {
  if (!d) return;
  atomic_store(&d->stopping, true);
  kick(d, 0);
  pthread_join(d->thread, NULL);
  collector_stop(d->collector);
  context_forget(d);
}

void driver_destroy(struct driver *d) {
  if (!d) return;
  http_client_destroy(d->http);
  pthread_cond_destroy(&d->wake);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

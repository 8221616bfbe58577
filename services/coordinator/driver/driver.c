/* The driver's thread: looks at the database, takes the next step, waits for a kick or until trouble may be over. */
#include "services/coordinator/driver/driver.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "services/coordinator/driver/late_check.h"
#include "services/coordinator/driver/next.h"
#include "services/coordinator/driver/record.h"
#include "services/coordinator/driver/start.h"
#include "services/coordinator/driver/step.h"
#include "services/coordinator/driver/train.h"
#include "services/coordinator/driver/trouble.h"
#include "services/coordinator/run/round_work.h"
#include "services/coordinator/store/ids.h"

enum { IDLE_MS = 200, TICK_MS = 50, LOST_MS = 120000 };

/* ---- working ---- */

/* In flight, when a version has been published: the next step's groups go to the trainer, which waits for them, before
 * the times of the step that made the version are asked for. */
static enum rc train_ahead(struct driver *d, const struct active_run *a, struct err *err) {
  struct active_run next = *a;
  int64_t round = 0;
  next.unfinished = -1;
  if (a->unfinished < 0 || d->context->config.mode != MODE_INFLIGHT) return RC_OK;
  if (next_work(&next, true, &d->context->config, &round) != NEXT_TRAIN) return RC_OK;
  round_work(d->context, next.round, -1);
  return train_round(d, &next, err);
}

/* In flight, when it has just been submitted: the next step's groups follow it. */
static enum rc take_step(struct driver *d, const struct active_run *a, int64_t round, bool *over, struct err *err) {
  struct sent_step *s = &d->stepping;
  const enum rc rc = step_round(d, a, round, over, err);
  if (rc != RC_OK || s->run != a->run || s->round != round || s->followed) return rc;
  s->followed = true;
  train_ahead_of_version(d, a);
  return RC_OK;
}

/* The next step on the run.  *progress: it may have left more to do at once; after train_round, kicks tell. */
static enum rc work(struct driver *d, const struct active_run *a, bool *progress, struct err *err) {
  const bool opened = d->context && d->context->run == a->run && d->verified_trainer == d->trainer.worker;
  int64_t round = 0;
  const enum next_work next = next_work(a, d->trainer.found, opened ? &d->context->config : NULL, &round);
  *progress = next == NEXT_START;
  log_context_id(id_run(a->run).text);
  switch (next) {
    case NEXT_NOTHING: break;
    case NEXT_NO_TRAINER: return err_set(err, RC_UNAVAILABLE, NULL, "no trainer is registered");
    case NEXT_START: return start_run(d, a, err);
    case NEXT_TRAIN: round_work(d->context, a->round, -1); return train_round(d, a, err);
    case NEXT_STEP: {
      const enum rc rc = train_ahead(d, a, err);
      if (rc != RC_OK) return rc;
      round_work(d->context, round, -1);
      return take_step(d, a, round, progress, err);
    }
  }
  return RC_OK;
}

/* Returns whether there may be more to do at once. */
static bool driver_turn(struct driver *d) {
  struct active_run a;
  struct err err = {0};
  bool progress = false;
  const int64_t begun_ms = core_monotonic_ms(d->core);
  d->groups_wanted = 1;
  d->retry_ms = 0;
  enum rc rc = look_read(driver_readers(d), &d->trainer, &a, &err);
  if (rc == RC_OK && (!a.found || (d->context && d->context->run != a.run))) driver_forget_run(d);
  if (rc == RC_OK && a.found) {
    rc = work(d, &a, &progress, &err);
    if (rc == RC_OK)
      trouble_over(d, &a);
    else if (!atomic_load(&d->stopping) && (!d->trainer.found || !look_run_over(driver_readers(d), a.run)))
      d->retry_ms = trouble_meet(d, &a, begun_ms, rc, &err);
    if (rc != RC_OK) driver_drop_ahead(d); /* the trainer may have failed it with the step */
  }
  look_free(&a);
  log_context_clear();
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

/* Kicks do not shorten it: they do not end the trouble. */
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
  if (d->replay) {
    d->replay_rc = record_replay(d, d->replay, &d->replay_err);
    atomic_store(&d->replay_over, true);
    return NULL;
  }
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
  d->trainer_lost_ms = options->trainer_lost_ms ? options->trainer_lost_ms : LOST_MS;
  d->replay = options->replay && options->replay[0] ? options->replay : NULL;
  pthread_mutex_init(&d->lock, NULL);
  cond_init(&d->wake);
  enum rc rc = http_client_create_for(&d->http, core_options(core)->access, &d->stopping, err);
  if (rc == RC_OK) rc = batch_answers_start(&d->answers, core, kick_for_answer, d, err);
  if (rc == RC_OK && !d->replay) rc = late_check_start(&d->late_check, core, err);
  if (rc == RC_OK) core_set_kick(core, kick, d);
  if (rc == RC_OK && pthread_create(&d->thread, NULL, driver_main, d) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the driver's thread could not be started");
  if (rc != RC_OK) {
    core_set_kick(core, NULL, NULL);
    late_check_stop(d->late_check);
    batch_answers_stop(d->answers);
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
  late_check_stop(d->late_check);
  batch_answers_stop(d->answers);
  run_context_release(d->context);
}

bool driver_replay_over(struct driver *d, enum rc *rc, struct err *err) {
  if (!atomic_load(&d->replay_over)) return false;
  *rc = d->replay_rc;
  *err = d->replay_err;
  return true;
}

void driver_destroy(struct driver *d) {
  if (!d) return;
  http_client_destroy(d->http);
  pthread_cond_destroy(&d->wake);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

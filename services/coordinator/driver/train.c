/* Sends a round's batches and inner steps while the trainer has room, and begins the step after the last one. */
#include "services/coordinator/driver/train.h"

#include <inttypes.h>
#include <limits.h>

#include "common/base/log.h"
#include "services/coordinator/driver/next.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/writer/core.h"

/* ---- sending ---- */

/* The job, if it was sent ahead of its round: then the caller's. */
static struct batch *take_ahead(struct driver *d, const struct active_run *a, const struct round_job *job) {
  struct batch *b = d->ahead;
  if (b && b->run == a->run && b->round == a->round && b->trainer_worker == d->trainer.worker && !job->inner &&
      b->number == job->number) {
    d->ahead = NULL;
    return b;
  }
  driver_drop_ahead(d);
  return NULL;
}

static enum rc send_job(struct driver *d, const struct active_run *a, const struct round_job *job, bool stored_before,
                        struct err *err) {
  const struct round_place place = {.round = a->round, .version = a->round_version};
  struct trainer_job made = {.batch = take_ahead(d, a, job)};
  enum rc rc = RC_OK;
  if (!made.batch)
    rc = trainer_job_send(&made, driver_readers(d), d->context, &d->trainer, &place, job, stored_before, d->http, err);
  if (rc == RC_OK) rc = batch_answers_add(d->answers, &made, err);
  if (rc == RC_OK) d->sent.newest = *job;
  if (rc == RC_OK)
    log_debug("%s %" PRId64 " is with the trainer", job->inner ? "inner step" : "batch",
              job->inner ? job->step : job->number);
  return rc;
}

/* ---- the pass ---- */

/* Batches of another round, or that were sent to another incarnation of the trainer, are no longer waited for. */
static void sent_begin(struct driver *d, const struct active_run *a) {
  const struct sent_batches *s = &d->sent;
  if (s->run == a->run && s->round == a->round && s->trainer == d->trainer.worker) return;
  driver_drop_sent(d);
  d->sent = (struct sent_batches){.run = a->run,
                                  .round = a->round,
                                  .trainer = d->trainer.worker,
                                  .first = a->round > d->newest_round,
                                  .newest = round_job_none()};
  if (d->sent.first) d->newest_round = a->round;
}

/* Sends the next job: one that is stored and was not sent since the start, or one that can be planned.  Nothing of a
 * round that opened since the start was sent before, though its first batch may be stored (rounds/publish.c). */
static enum rc send_next(struct driver *d, const struct active_run *a, struct next_job *next, struct err *err) {
  if (!next->stored) {
    const enum rc rc = next_job_plan(d->core, next, err);
    if (rc == RC_CONFLICT) return RC_OK; /* the writer has planned them, or one was dropped: look again */
    if (rc != RC_OK) return rc;
  }
  fault_die(COORDINATOR_FAULT_DIE_AFTER_PLAN, a->round);
  return send_job(d, a, &next->job, next->stored && !d->sent.first, err);
}

enum rc train_round(struct driver *d, const struct active_run *a, struct err *err) {
  struct next_job next = {.found = true};
  sent_begin(d, a);
  enum rc rc = batch_answers_failure(d->answers, err);
  while (rc == RC_OK && next.found) {
    rc = next_job_find(&next, driver_readers(d), d->context, a, &d->sent.newest, batch_answers_at_trainer(d->answers),
                       core_options(d->core)->batch_tokens, core_wall_us(d->core) / 1000, err);
    if (rc == RC_OK && next.found) rc = send_next(d, a, &next, err);
  }
  if (rc == RC_OK) d->groups_wanted = next.groups_wanted;
  core_await_groups(d->core, rc == RC_OK ? next.groups_wanted : INT_MAX, batch_answers_at_trainer(d->answers) == 0);
  if (rc != RC_OK) {
    d->sent.run = 0; /* the next pass asks for all batches again */
    return rc;
  }
  if (batch_answers_pending(d->answers)) return RC_OK;
  /* no batch is left whose answer would begin it: there was none, or the last group was filtered */
  return next_step_begin(d->core, a, &d->context->config, err);
}

void train_ahead_of_version(struct driver *d, const struct active_run *a) {
  const struct round_place place = {.round = a->round + 1, .version = a->round_version + 1};
  struct trainer_job made = {0};
  struct round_job job;
  struct err err = {0};
  bool planned = false;
  driver_drop_ahead(d);
  enum rc rc = round_planned_ahead(driver_readers(d), a->run, place.round, &planned, &job, &err);
  if (rc == RC_OK && planned)
    rc = trainer_job_send(&made, driver_readers(d), d->context, &d->trainer, &place, &job, false, d->http, &err);
  d->ahead = made.batch;
  if (rc != RC_OK) log_debug("the batch behind the step waits for its version: %s", err.message);
  if (d->ahead) log_debug("batch %" PRId64 " is with the trainer, behind the step", job.number);
}

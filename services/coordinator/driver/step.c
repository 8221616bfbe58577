/* Submits a round's step to the trainer, waits for the version, and has the writer publish it and store the step's
 * times. */
#include "services/coordinator/driver/step.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/driver/inner_step.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/records/kept_versions.h"
#include "services/coordinator/rounds/publish.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"

/* ---- the command ---- */

struct step_done_message {
  int64_t run, round, rounds;
  bool answered; /* false: the trainer was lost after it had announced the version, and with it how long the step
                  * took */
  int64_t version;
  struct digest digest;
  double grad_norm, lr;
  bool skipped;
  int64_t step_us, checkpoint_us, push_us;
  struct push_report *pushes;
  size_t push_count;
  int64_t trainer_worker;
  int64_t oldest_checkpoint; /* 0: not known, or only version 0's */
  struct json_i32s checkpoints;
  struct interval *intervals;
  size_t interval_count;
};

/* How long it took, and what the round is in the end. */
static enum rc note_times(struct core *c, const struct step_done_message *m, struct err *err) {
  struct buf text = BUF_INIT;
  bool found = false;
  enum rc rc = store_exec(c->store, err,
                          "UPDATE rounds SET step_us = ?3 + (SELECT coalesce(sum(step_us), 0) FROM inner_steps WHERE "
                          "run = ?1 AND round = ?2), checkpoint_us = ?4, push_us = ?5, finished = 1 WHERE run = ?1 AND "
                          "round = ?2",
                          BINDS(b_int(m->run), b_int(m->round), b_int(m->step_us), b_int(m->checkpoint_us),
                                b_int(m->push_us)));
  if (rc == RC_OK) rc = intervals_store(c, m->run, m->round, m->trainer_worker, m->intervals, m->interval_count, err);
  if (rc == RC_OK) rc = round_text(c->store, m->run, m->round, &text, &found, err);
  if (rc == RC_OK && found) return journal_event(c, m->run, "round", &text, false, err);
  buf_free(&text);
  return rc;
}

static enum rc step_done_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct step_done_message *m = cmd->message;
  const struct announced_version p = {.run = m->run,
                                .round = m->round,
                                .version = m->version,
                                .digest = m->digest,
                                .grad_norm = m->grad_norm,
                                .lr = m->lr,
                                .skipped = m->skipped,
                                .pushes = m->pushes,
                                .push_count = m->push_count};
  enum run_state state = RUN_QUEUED;
  int64_t finished = 0;
  bool refused = false;
  enum rc rc = m->answered ? publish_version(c, &p, &refused, err) : RC_OK;
  if (rc == RC_OK && refused) { /* the incident is kept; the driver gets the error */
    cmd->refused = true;
    cmd->err = *err;
    return RC_OK;
  }
  if (rc == RC_OK)
    rc = store_int(c->store, &finished, err, "SELECT finished FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(m->run), b_int(m->round)));
  if (rc == RC_OK && !finished) rc = note_times(c, m, err);
  if (rc == RC_OK && c->context && c->context->run == m->run) {
    rc = kept_versions_store(c->store, &c->context->config, m->run, &m->checkpoints, err);
    if (rc == RC_OK) rc = retention_mark(c->store, m->run, c->context->config.keep_rounds, m->oldest_checkpoint, err);
  }
  if (rc == RC_OK) rc = run_state_of(c->store, m->run, &state, err);
  if (rc != RC_OK || state == RUN_STOPPED || state == RUN_FAILED || state == RUN_COMPLETED) return rc;
  if (state == RUN_STOPPING) return run_end(c, m->run, RUN_STOPPED, NULL, err);
  return m->round + 1 < m->rounds ? RC_OK : round_run_complete(c, m->run, err);
}

static enum rc copy_lists(struct step_done_message *m, const struct step_status *status, struct arena *arena,
                          struct err *err) {
  m->pushes = arena_alloc(arena, status->push_count + 1, sizeof *m->pushes);
  if (!m->pushes) return err_set(err, RC_NO_MEMORY, NULL, "a step's pushes were refused memory");
  for (size_t i = 0; i < status->push_count; i++) {
    const struct push_report *from = &status->pushes[i];
    m->pushes[i] = (struct push_report){.worker_id = arena_strdup(arena, from->worker_id),
                                        .staged = from->staged,
                                        .way = from->way,
                                        .digest = from->digest,
                                        .error = from->error ? arena_strdup(arena, from->error) : NULL};
    if (!m->pushes[i].worker_id) return err_set(err, RC_NO_MEMORY, NULL, "a step's pushes were refused memory");
  }
  m->push_count = status->push_count;
  m->checkpoints.items = arena_alloc(arena, status->checkpoints.count + 1, sizeof *m->checkpoints.items);
  if (!m->checkpoints.items) return err_set(err, RC_NO_MEMORY, NULL, "a step's checkpoints were refused memory");
  for (size_t i = 0; i < status->checkpoints.count; i++) m->checkpoints.items[i] = status->checkpoints.items[i];
  m->checkpoints.count = status->checkpoints.count;
  m->interval_count = status->interval_count;
  return intervals_copy(&m->intervals, status->intervals, status->interval_count, arena, err);
}

enum rc step_store(struct core *c, const struct active_run *a, int64_t trainer, int64_t round,
                   const struct step_status *status, struct err *err) {
  struct command *cmd = command_new(step_done_execute, sizeof(struct step_done_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct step_done_message *m = cmd->message;
  *m = (struct step_done_message){.run = a->run,
                                  .round = round,
                                  .rounds = a->rounds,
                                  .answered = status != NULL,
                                  .trainer_worker = trainer};
  enum rc rc = RC_OK;
  if (status) {
    m->version = status->version;
    m->digest = status->digest;
    m->grad_norm = status->grad_norm;
    m->lr = status->lr;
    m->skipped = status->skipped;
    m->step_us = status->step_us;
    m->checkpoint_us = status->checkpoint_us;
    m->push_us = status->push_us;
    m->oldest_checkpoint = status->oldest_checkpoint;
    rc = copy_lists(m, status, &cmd->arena, err);
  }
  if (rc == RC_OK) return core_call(c, cmd, err);
  command_free(cmd);
  return rc;
}

/* ---- the message ---- */

/* A server shares the trainer's fabric when both registered one of the same name and kind: then its weights may come by
 * broadcast, and the trainer's communicator is of all such servers.  Agents of foreign engines pull. */
static enum rc read_targets(struct store *s, struct submit_step *m, int64_t trainer, int64_t workers_max,
                            struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  m->push_to = arena_alloc(arena, (size_t)workers_max, sizeof *m->push_to);
  if (!m->push_to) return err_set(err, RC_NO_MEMORY, NULL, "a step's targets were refused memory");
  enum rc rc = store_query(
      s, &q, err,
      "SELECT id, url, (fabric, fabric_kind) = (SELECT fabric, fabric_kind FROM workers WHERE id = ?3), fabric_place, "
      "push_token FROM workers WHERE live = 1 AND kind = ?1 AND ready = 1 AND draining = 0 AND exactness <> ?4 ORDER "
      "BY id LIMIT ?2",
      BINDS(b_int(WORKER_GENERATION), b_int(workers_max), b_int(trainer), b_int(WORKER_FOREIGN)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    struct push_target *to = &m->push_to[m->push_count++];
    *to = (struct push_target){.worker_id = arena_strdup(arena, id_worker(rows_int(&q, 0)).text),
                               .url = arena_strdup(arena, rows_text(&q, 1, NULL)),
                               .shares_fabric = rows_int(&q, 2) == 1,
                               .fabric_place = rows_int(&q, 3)};
    const char *token = rows_text(&q, 4, NULL);
    if (*token) to->push_token = arena_strdup(arena, token);
    if (!to->worker_id || !to->url || (*token && !to->push_token))
      rc = err_set(err, RC_NO_MEMORY, NULL, "a step's targets were refused memory");
  }
  rows_end(&q);
  return rc;
}

/* Of the groups that no inner step has taken; sums of integers, so the difference is exact. */
static enum rc read_denominator(struct store *s, struct submit_step *m, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT version, denominator - (SELECT coalesce(sum(denominator), 0) FROM inner_steps WHERE "
                           "run = ?1 AND round = ?2), (SELECT count(*) FROM inner_steps WHERE run = ?1 AND round = ?2) "
                           "FROM rounds WHERE run = ?1 AND round = ?2",
                           BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    m->version = rows_int(&q, 0);
    m->denominator = rows_real(&q, 1);
    m->after_steps = (int32_t)rows_int(&q, 2);
  }
  rows_end(&q);
  return rc;
}

enum rc step_message(struct core *c, const struct run_context *x, const struct trainer_target *trainer, int64_t round,
                     struct submit_step *m, struct arena *arena, struct err *err) {
  struct readers *readers = core_readers(c);
  const struct run_config *config = &x->config;
  const int64_t run = x->run;
  struct store *s;
  *m = (struct submit_step){.step_id = arena_strdup(arena, id_round(run, round).text),
                            .run = arena_strdup(arena, id_run(run).text),
                            .epoch = trainer->epoch,
                            .fence = trainer->fence,
                            .last = round == config->rounds - 1,
                            .announce_first = config->mode == MODE_INFLIGHT, /* sampling does not wait for the push */
                            .stage_timeout_ms = config->stage_timeout_ms,
                            .checkpoint = kept_versions_wanted(config, round + 1),
                            .keep_last = config->keep_last};
  if (!m->step_id || !m->run) return err_set(err, RC_NO_MEMORY, NULL, "a step was refused memory");
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = read_denominator(s, m, run, round, err);
  if (rc == RC_OK) rc = step_groups(s, m, run, round, arena, err);
  if (rc == RC_OK) rc = kept_versions_stay(s, config, run, &m->keep_versions, arena, err);
  if (rc == RC_OK && run_publishes(config, round))
    rc = read_targets(s, m, trainer->worker, core_options(c)->workers_max, arena, err);
  readers_give(readers, s);
  return rc;
}

/* ---- waiting ---- */

static enum rc step_await(struct driver *d, const struct active_run *a, int64_t round, const char *step_id,
                          struct err *err) {
  struct trainer_client t = driver_trainer(d);
  for (;;) {
    struct arena arena = ARENA_INIT;
    struct step_status status = {0};
    enum rc rc = trainer_step_status(&t, step_id, POLL_MS, &status, &arena, POLL_MS + CALL_MS, err);
    bool done = rc == RC_OK && status.state == JOB_DONE;
    if (rc == RC_OK && status.state == JOB_FAILED) rc = step_failed(&status, step_id, false, err);
    if (done) rc = step_store(d->core, a, d->trainer.worker, round, &status, err);
    arena_free(&arena);
    if (rc != RC_OK || done) return rc;
    if (atomic_load(&d->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
    if (look_run_over(driver_readers(d), a->run))
      return err_set(err, RC_CONFLICT, "run", "run %s is over", id_run(a->run).text);
  }
}

/* The trainer may have made the version durable before it was lost, and have forgotten the step's figures.  Then it
 * holds that version. */
static enum rc step_held(struct driver *d, const struct active_run *a, int64_t round, const struct submit_step *m,
                         struct arena *arena, struct err *err) {
  struct trainer_client t = driver_trainer(d);
  struct open_run_answer answer;
  struct err ignored;
  const struct open_run open = {.run = m->run,
                                .epoch = m->epoch,
                                .fence = m->fence,
                                .seed = d->context->config.seed,
                                .current_version = a->version,
                                .training = d->context->config.training};
  if (trainer_open_run(&t, &open, &answer, arena, CALL_MS, &ignored) != RC_OK || answer.version != m->version + 1)
    return RC_CONFLICT; /* err says what the step was refused for */
  const struct step_status status = {.step_id = m->step_id,
                                     .state = JOB_DONE,
                                     .version = answer.version,
                                     .digest = answer.digest,
                                     .grad_norm = NAN,
                                     .lr = NAN};
  log_info("step %s had been taken before the trainer was lost", m->step_id);
  return step_store(d->core, a, d->trainer.worker, round, &status, err);
}

static bool step_was_sent(const struct driver *d, const struct active_run *a, int64_t round) {
  const struct sent_step *s = &d->stepping;
  return s->run == a->run && s->round == round && s->trainer == d->trainer.worker;
}

/* All batches of the round were sent to this trainer since the start, so the step behind them was not submitted
 * before. */
static bool step_is_new(const struct driver *d, const struct active_run *a, int64_t round) {
  const struct sent_batches *s = &d->sent;
  return s->first && s->run == a->run && s->round == round && s->trainer == d->trainer.worker &&
         !step_was_sent(d, a, round) && d->trouble_since_ms == 0;
}

/* A step whose version is published is only asked for: only the time that it took is missing. */
static enum rc step_submit(struct driver *d, const struct active_run *a, int64_t round, const struct submit_step *m,
                           struct arena *arena, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  struct step_status status;
  if (a->unfinished >= 0) return trainer_step_status(&t, m->step_id, 0, &status, arena, CALL_MS, err);
  if (step_is_new(d, a, round)) return trainer_submit_step(&t, m, SUBMIT_MS, err);
  return step_submit_once(&t, m, &status, arena, err);
}

/* Not the last one's: the run ends with it.  In trouble the driver stands by, so that the trouble is known to last. */
static bool step_is_left_alone(const struct driver *d, const struct active_run *a, int64_t round) {
  return d->context->config.mode == MODE_INFLIGHT && a->unfinished < 0 && round + 1 < a->rounds &&
         a->state == RUN_RUNNING && d->trouble_since_ms == 0;
}

/* A step that is left alone: it is asked for when the driver is woken, by its publication or by something else. */
static enum rc step_ask(struct driver *d, const struct active_run *a, int64_t round, bool *over, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  const struct id_text id = id_round(a->run, round);
  struct arena arena = ARENA_INIT;
  struct step_status status = {0};
  enum rc rc = trainer_step_status(&t, id.text, 0, &status, &arena, CALL_MS, err);
  *over = rc != RC_OK || status.state == JOB_DONE || status.state == JOB_FAILED;
  if (*over) d->stepping.run = 0;
  if (rc == RC_OK && status.state == JOB_FAILED) rc = step_failed(&status, id.text, false, err);
  if (rc == RC_OK && status.state == JOB_DONE) rc = step_store(d->core, a, d->trainer.worker, round, &status, err);
  arena_free(&arena);
  return rc;
}

enum rc step_round(struct driver *d, const struct active_run *a, int64_t round, bool *over, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct submit_step m;
  const bool left_alone = step_is_left_alone(d, a, round);
  *over = !left_alone;
  if (left_alone) d->groups_wanted = INT_MAX;
  if (left_alone && step_was_sent(d, a, round)) return step_ask(d, a, round, over, err);
  enum rc rc = step_message(d->core, d->context, &d->trainer, round, &m, &arena, err);
  if (rc != RC_OK) goto out;
  rc = step_submit(d, a, round, &m, &arena, err);
  if (rc == RC_OK && left_alone)
    d->stepping = (struct sent_step){.run = a->run, .round = round, .trainer = d->trainer.worker};
  else if (rc == RC_OK)
    rc = step_await(d, a, round, m.step_id, err);
  else if (rc == RC_NOT_FOUND && a->unfinished == round)
    rc = step_store(d->core, a, d->trainer.worker, round, NULL, err);
  else if (rc == RC_CONFLICT)
    rc = step_held(d, a, round, &m, &arena, err);
out:
  arena_free(&arena);
  return rc;
}

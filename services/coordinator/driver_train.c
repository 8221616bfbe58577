/* A round in training: plan its batches once, submit them in order, wait, compare, then begin the step.  See
 * driver.h.
 *
 *   groups sealed --plan--> batch numbers --submitted--> at the trainer --done--> figures of the round --all done--> round `stepping`
 *
 * Every arrow is a command, so that a restart goes on where it was; what was submitted before is asked for first. */
#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/coordinator/batch_build.h"
#include "services/coordinator/batching.h"
#include "services/coordinator/core_state.h"
#include "services/coordinator/driver_internal.h"
#include "services/coordinator/ids.h"
#include "services/coordinator/round.h"

enum { AHEAD = 4 }; /* batches at the trainer at once: enough that it never waits for the next */

/* ---- commands ---- */

struct plan_message {
  int64_t run, round;
  int groups, batches;
  int64_t *ordinals, *tokens;
  int32_t *batch_of;
};

static enum rc plan_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct plan_message *m = cmd->message;
  enum rc rc = RC_OK;
  for (int b = 0; b < m->batches && rc == RC_OK; b++) {
    int64_t groups = 0, tokens = 0;
    for (int i = 0; i < m->groups; i++) {
      if (m->batch_of[i] != b) continue;
      groups++;
      tokens += m->tokens[i];
    }
    rc = store_exec(c->store, err,
                    "INSERT INTO batches (run, round, number, groups, tokens) VALUES (?1, ?2, ?3, ?4, ?5)",
                    BINDS(b_int(m->run), b_int(m->round), b_int(b), b_int(groups), b_int(tokens)));
  }
  for (int i = 0; i < m->groups && rc == RC_OK; i++) {
    rc = store_exec(c->store, err, "UPDATE groups SET batch = ?4 WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(m->run), b_int(m->round), b_int(m->ordinals[i]), b_int(m->batch_of[i])));
  }
  return rc;
}

struct batch_message {
  int64_t run, round, number;
  struct batch_stats stats;
  struct logprob_difference difference;
};

static enum rc submitted_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct batch_message *m = cmd->message;
  enum rc rc = store_exec(
      c->store, err,
      "UPDATE batches SET submitted_ms = coalesce(submitted_ms, ?4) WHERE run = ?1 AND round = ?2 AND number = ?3",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(c->wall_ms)));
  if (rc == RC_OK) {
    rc = store_exec(
        c->store, err, "UPDATE groups SET state = ?4 WHERE run = ?1 AND round = ?2 AND batch = ?3 AND state = ?5",
        BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(GROUP_SUBMITTED), b_int(GROUP_SEALED)));
  }
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET submitted_ms = coalesce(submitted_ms, ?3) WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_int(c->wall_ms)));
  return rc;
}

static enum rc done_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct batch_message *m = cmd->message;
  enum rc rc = store_exec(
      c->store, err,
      "UPDATE batches SET done = 1, done_ms = ?4, loss = ?5, entropy_sum = ?6, trained_tokens = ?7, compute_us = ?8, "
      "poisoned = ?9, logprob_max_abs_diff = ?10, logprob_unequal = ?11"
      " WHERE run = ?1 AND round = ?2 AND number = ?3 AND done = 0",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(c->wall_ms), b_real(m->stats.loss),
            b_real(m->stats.entropy_sum), b_int(m->stats.tokens), b_int(m->stats.compute_us + m->stats.logprob_us),
            b_int(m->stats.poisoned), b_real(m->difference.max_abs), b_int(m->difference.unequal)));
  if (rc != RC_OK || store_changes(c->store) == 0) return rc; /* a repeat */
  if (m->difference.unequal)
    log_warn("batch %s: %" PRId64 " log-probabilities differ from the sampler's",
             id_batch(m->run, m->round, m->number).text, m->difference.unequal);
  return store_exec(c->store, err,
                    "UPDATE rounds SET loss_sum = loss_sum + coalesce(?3, 0), entropy_sum = entropy_sum + coalesce(?4, "
                    "0), trained_tokens = trained_tokens + ?5, compute_us = compute_us + ?6,"
                    " logprob_max_abs_diff = max(logprob_max_abs_diff, coalesce(?7, 9e999)), logprob_unequal = "
                    "logprob_unequal + ?8, exact = exact AND ?8 = 0 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_real(m->stats.loss), b_real(m->stats.entropy_sum),
                          b_int(m->stats.tokens), b_int(m->stats.compute_us + m->stats.logprob_us),
                          b_real(m->difference.max_abs), b_int(m->difference.unequal)));
}

struct step_begin_message {
  int64_t run, round;
  bool by_tokens;
};

/* The denominator: trained tokens, or samples, of the round's member groups. */
static enum rc step_begin_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct step_begin_message *m = cmd->message;
  int64_t left = 0;
  enum rc rc =
      store_int(c->store, &left, err, "SELECT count(*) FROM batches WHERE run = ?1 AND round = ?2 AND done = 0",
                BINDS(b_int(m->run), b_int(m->round)));
  if (rc == RC_OK && left)
    rc = err_set(err, RC_CONFLICT, NULL, "%" PRId64 " batches of round %s are not done", left,
                 id_round(m->run, m->round).text);
  if (rc == RC_OK) rc = round_move(c, m->run, m->round, ROUND_STEPPING, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET trained_ms = ?3, step_begun_ms = ?3, submitted_ms = coalesce(submitted_ms, ?3), "
                    "denominator = CASE WHEN ?4 THEN trained_tokens ELSE"
                    " (SELECT coalesce(sum(sample_count), 0) FROM groups WHERE run = ?1 AND round = ?2 AND batch IS "
                    "NOT NULL) END WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_int(c->wall_ms), b_int(m->by_tokens)));
  }
  return rc;
}

static enum rc call_batch(struct driver *d, command_execute execute, const struct batch_message *m, struct err *err) {
  struct command *cmd = command_new(execute, sizeof *m);
  if (cmd) *(struct batch_message *)cmd->message = *m;
  return core_call(d->core, cmd, err);
}

/* ---- planning ---- */

static enum rc plan_read(struct driver *d, struct plan_message *m, struct arena *arena, bool *planned,
                         struct err *err) {
  struct readers *readers = core_readers(d->core);
  struct store *s;
  struct rows q = {0};
  bool row;
  int64_t count = 0, batches = 0;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(s, &batches, err, "SELECT count(*) FROM batches WHERE run = ?1 AND round = ?2",
                 BINDS(b_int(m->run), b_int(m->round)));
  *planned = batches > 0;
  if (rc == RC_OK)
    rc = store_int(s, &count, err, "SELECT count(*) FROM groups WHERE run = ?1 AND round = ?2 AND state = ?3",
                   BINDS(b_int(m->run), b_int(m->round), b_int(GROUP_SEALED)));
  m->ordinals = arena_alloc(arena, (size_t)count + 1, sizeof *m->ordinals);
  m->tokens = arena_alloc(arena, (size_t)count + 1, sizeof *m->tokens);
  m->batch_of = arena_alloc(arena, (size_t)count + 1, sizeof *m->batch_of);
  if (rc == RC_OK && (!m->ordinals || !m->tokens || !m->batch_of))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a plan of %" PRId64 " groups was refused memory", count);
  if (rc == RC_OK) {
    rc = store_query(s, &q, err,
                     "SELECT ordinal, tokens + sample_count * length(prompt_ids) / 4 FROM groups WHERE run = ?1 AND "
                     "round = ?2 AND state = ?3 ORDER BY ordinal",
                     BINDS(b_int(m->run), b_int(m->round), b_int(GROUP_SEALED)));
  }
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && m->groups < count) {
    m->ordinals[m->groups] = rows_int(&q, 0);
    m->tokens[m->groups] = run_is_supervised(&d->context->config)
                               ? dataset_unit_tokens(d->context, m->round, rows_int(&q, 0))
                               : rows_int(&q, 1);
    m->groups++;
  }
  rows_end(&q);
  readers_give(readers, s);
  return rc;
}

static enum rc plan_round(struct driver *d, int64_t run, int64_t round, struct err *err) {
  struct command *cmd = command_new(plan_execute, sizeof(struct plan_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct plan_message *m = cmd->message;
  bool planned = false;
  *m = (struct plan_message){.run = run, .round = round};
  enum rc rc = plan_read(d, m, &cmd->arena, &planned, err);
  if (rc != RC_OK || planned || m->groups == 0) {
    command_free(cmd);
    return rc;
  }
  m->batches = batching_plan(m->tokens, m->groups, core_options(d->core)->batch_tokens, m->batch_of);
  return core_call(d->core, cmd, err);
}

/* ---- batches ---- */

struct batch_work {
  int64_t number;
  bool done, submitted; /* as the database has it */
  bool sent;            /* to this incarnation of the trainer */
  struct arena arena;
  struct built_batch built;
};

static enum rc batches_read(struct driver *d, int64_t run, int64_t round, struct batch_work **out, int *count,
                            struct arena *arena, struct err *err) {
  struct readers *readers = core_readers(d->core);
  struct store *s;
  struct rows q = {0};
  bool row;
  int64_t n = 0;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(s, &n, err, "SELECT count(*) FROM batches WHERE run = ?1 AND round = ?2",
                 BINDS(b_int(run), b_int(round)));
  *out = arena_alloc(arena, (size_t)n + 1, sizeof **out);
  if (rc == RC_OK && !*out) rc = err_set(err, RC_NO_MEMORY, NULL, "the batches of a round were refused memory");
  if (rc == RC_OK)
    rc = store_query(
        s, &q, err,
        "SELECT number, done, submitted_ms IS NOT NULL FROM batches WHERE run = ?1 AND round = ?2 ORDER BY number",
        BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && *count < n) {
    (*out)[(*count)++] =
        (struct batch_work){.number = rows_int(&q, 0), .done = rows_int(&q, 1) != 0, .submitted = rows_int(&q, 2) != 0};
  }
  rows_end(&q);
  readers_give(readers, s);
  return rc;
}

static enum rc batch_build(struct driver *d, int64_t run, int64_t round, int64_t version, struct batch_work *b,
                           struct err *err) {
  struct readers *readers = core_readers(d->core);
  struct store *s;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  if (run_is_supervised(&d->context->config))
    rc = batch_from_dataset(&b->built, s, d->context, round, b->number, &b->arena, err);
  else
    rc = batch_from_rollouts(&b->built, s, run, round, b->number, &b->arena, err);
  readers_give(readers, s);
  struct submit_batch *m = &b->built.message;
  m->batch_id = arena_strdup(&b->arena, id_batch(run, round, b->number).text);
  m->run = arena_strdup(&b->arena, id_run(run).text);
  m->epoch = d->trainer.epoch;
  m->fence = d->trainer.fence;
  m->version = version;
  if (rc == RC_OK && (!m->batch_id || !m->run)) rc = err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  return rc;
}

/* What was submitted in an earlier life is asked for before it is sent again: its body carried another epoch. */
static enum rc batch_send(struct driver *d, int64_t run, int64_t round, int64_t version, struct batch_work *b,
                          struct err *err) {
  struct trainer_client t = driver_trainer(d);
  const struct batch_message m = {.run = run, .round = round, .number = b->number};
  bool submitted = b->submitted;
  enum rc rc = batch_build(d, run, round, version, b, err);
  if (rc == RC_OK) rc = call_batch(d, submitted_execute, &m, err);
  if (rc == RC_OK && submitted) {
    struct arena arena = ARENA_INIT;
    struct batch_status status;
    rc = trainer_batch_status(&t, b->built.message.batch_id, 0, &status, &arena, CALL_MS, err);
    arena_free(&arena);
    if (rc == RC_OK) {
      b->sent = true;
      return RC_OK;
    }
    if (rc == RC_NOT_FOUND) rc = RC_OK;
  }
  if (rc == RC_OK) rc = trainer_submit_batch(&t, &b->built.message, SUBMIT_MS, err);
  b->sent = rc == RC_OK;
  b->submitted = true;
  return rc;
}

static enum rc batch_await(struct driver *d, int64_t run, int64_t round, struct batch_work *b, struct err *err) {
  struct trainer_client t = driver_trainer(d);
  for (;;) {
    struct arena arena = ARENA_INIT;
    struct batch_status status = {0};
    struct batch_message m = {.run = run, .round = round, .number = b->number};
    enum rc rc = trainer_batch_status(&t, b->built.message.batch_id, POLL_MS, &status, &arena, POLL_MS + CALL_MS, err);
    bool done = rc == RC_OK && status.state == JOB_DONE;
    if (rc == RC_OK && status.state == JOB_FAILED)
      rc = err_set(err, RC_CONFLICT, NULL, "the trainer failed batch %s: %.300s", b->built.message.batch_id,
                   status.error.message);
    if (done) rc = logprobs_compare(&m.difference, &b->built, &status, err);
    if (rc == RC_OK && done) {
      m.stats = status.stats;
      rc = call_batch(d, done_execute, &m, err);
    }
    arena_free(&arena);
    if (rc != RC_OK || done) return rc;
    if (atomic_load(&d->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
    if (driver_run_over(d, run)) return err_set(err, RC_CONFLICT, "run", "run %s is over", id_run(run).text);
  }
}

static enum rc train_batches(struct driver *d, const struct active_run *a, struct batch_work *batches, int count,
                             struct err *err) {
  int next = 0, at_trainer = 0;
  enum rc rc = RC_OK;
  for (int i = 0; i < count && rc == RC_OK; i++) {
    struct batch_work *b = &batches[i];
    if (b->done) continue;
    for (; next < count && at_trainer < AHEAD && rc == RC_OK; next++) {
      if (batches[next].done) continue;
      rc = batch_send(d, a->run, a->round, a->round_version, &batches[next], err);
      at_trainer++;
    }
    if (rc == RC_OK) rc = batch_await(d, a->run, a->round, b, err);
    arena_free(&b->arena);
    b->arena = (struct arena)ARENA_INIT;
    at_trainer--;
  }
  for (int i = 0; i < count; i++) arena_free(&batches[i].arena);
  return rc;
}

enum rc driver_train_batches(struct driver *d, const struct active_run *a, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct batch_work *batches = NULL;
  int count = 0;
  enum rc rc = batches_read(d, a->run, a->round, &batches, &count, &arena, err);
  if (rc == RC_OK) rc = train_batches(d, a, batches, count, err);
  arena_free(&arena);
  return rc;
}

enum rc driver_train(struct driver *d, const struct active_run *a, struct err *err) {
  enum rc rc = plan_round(d, a->run, a->round, err);
  if (rc == RC_OK) rc = driver_train_batches(d, a, err);
  if (rc != RC_OK) return rc;
  struct command *cmd = command_new(step_begin_execute, sizeof(struct step_begin_message));
  if (cmd)
    *(struct step_begin_message *)cmd->message =
        (struct step_begin_message){.run = a->run,
                                    .round = a->round,
                                    .by_tokens = strcmp(d->context->config.training.normalization, "tokens") == 0};
  return core_call(d->core, cmd, err);
}

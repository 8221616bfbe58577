/* A round in training: whole groups go to the trainer as soon as they are trainable (pipelined) or once all are
 * (sync), a few batches ahead of what it computes; the collector takes the answers.  See driver.h.
 *
 *   groups sealed (FIFO) --select under the token budget--> batch, stored --submitted--> at the trainer --> batch_answers.c
 *                                 ^                                                                          |
 *                                 +------------------- a kick for every seal and every answer ---------------+
 *
 * driver_train is a pass, not a wait: it sends what can be sent and returns; kicks bring it back.  A batch is stored
 * before it is sent, so that a restart sends the same one; what was submitted in an earlier life is asked for first.
 * Previous hop of a rollout: group_seal.c.  Next: trainer-server/route_submit_batch.c. */
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/driver/driver_state.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/rounds/round.h"

/* Batches at the trainer at once: one is computed, the next waits, so that it never waits for us.  More would cut the
 * groups that are still to come into smaller batches. */
enum { AHEAD = 2 };

/* While the trainer has work, the next batch of an open round waits for this share of the round's groups: smaller ones
 * would cost more to plan, to build and to compare than they save. */
enum { BATCHES_OF_ROUND = 16 };

/* ---- commands ---- */

struct plan_message {
  int64_t run, round, number; /* number: of the new batch */
  int groups;
  int64_t *ordinals, tokens;
};

/* The batch is submitted from now on, as far as a restart is concerned. */
static enum rc plan_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct plan_message *m = cmd->message;
  enum rc rc = store_exec(
      c->store, err,
      "INSERT INTO batches (run, round, number, groups, tokens, submitted_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(m->groups), b_int(m->tokens), b_int(c->wall_ms)));
  for (int i = 0; i < m->groups && rc == RC_OK; i++) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET batch = ?4, state = ?5 WHERE run = ?1 AND round = ?2 AND ordinal = ?3 AND state "
                    "= ?6",
                    BINDS(b_int(m->run), b_int(m->round), b_int(m->ordinals[i]), b_int(m->number),
                          b_int(GROUP_SUBMITTED), b_int(GROUP_SEALED)));
    if (rc == RC_OK && store_changes(c->store) != 1)
      rc = err_set(err, RC_CONFLICT, "state", "group %s is not sealed any more",
                   id_group(m->run, m->round, m->ordinals[i]).text);
  }
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET submitted_ms = coalesce(submitted_ms, ?3) WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_int(c->wall_ms)));
  return rc;
}

struct step_begin_message {
  int64_t run, round;
  bool by_tokens;
};

static enum rc step_begin_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct step_begin_message *m = cmd->message;
  return round_step_when_trained(c, m->run, m->round, m->by_tokens, err);
}

static enum rc step_begin(struct driver *d, const struct active_run *a, struct err *err) {
  struct command *cmd = command_new(step_begin_execute, sizeof(struct step_begin_message));
  if (cmd)
    *(struct step_begin_message *)cmd->message =
        (struct step_begin_message){.run = a->run, .round = a->round, .by_tokens = driver_by_tokens(d)};
  return core_call(d->core, cmd, err);
}

bool driver_by_tokens(const struct driver *d) {
  return strcmp(d->context->config.training.normalization, "tokens") == 0;
}

/* ---- the next batch ---- */

/* Trainable groups in FIFO order: as many as a batch could hold. */
static enum rc sealed_read(struct driver *d, struct store *s, struct plan_message *m, int64_t **tokens,
                           struct arena *arena, struct err *err) {
  const bool supervised = run_is_supervised(&d->context->config);
  const int64_t budget = core_options(d->core)->batch_tokens;
  int64_t sum = 0;
  struct rows q;
  bool row;
  m->ordinals = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof *m->ordinals);
  *tokens = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof **tokens);
  if (!m->ordinals || !*tokens) return err_set(err, RC_NO_MEMORY, NULL, "a batch's plan was refused memory");
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT ordinal, tokens + sample_count * length(prompt_ids) / 4 FROM groups INDEXED BY "
                  "groups_sealed WHERE run = ?1 AND round = ?2 AND state = 1 ORDER BY sealed_ms, ordinal LIMIT "
                  "?3",
                  BINDS(b_int(m->run), b_int(m->round), b_int(LIMIT_GROUPS_PER_ROUND)));
  while (rc == RC_OK && sum <= budget && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    int64_t *n = &(*tokens)[m->groups];
    m->ordinals[m->groups] = rows_int(&q, 0);
    *n = supervised ? dataset_unit_tokens(d->context, m->round, rows_int(&q, 0)) : rows_int(&q, 1);
    sum += *n;
    m->groups++;
  }
  rows_end(&q);
  return rc;
}

/* How many groups are worth a batch of their own?  A trainer that has nothing takes whatever there is. */
static int groups_worth_sending(struct driver *d, const struct active_run *a) {
  if (a->round_state != ROUND_OPEN || collector_at_trainer(d->collector) == 0) return 1;
  return (d->context->config.groups_per_round + BATCHES_OF_ROUND - 1) / BATCHES_OF_ROUND;
}

/* *groups 0: nothing is trainable just now, or not yet enough. */
static enum rc plan_batch(struct driver *d, const struct active_run *a, int64_t number, int *groups, struct err *err) {
  struct command *cmd = command_new(plan_execute, sizeof(struct plan_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct plan_message *m = cmd->message;
  struct store *s;
  int64_t *tokens = NULL;
  *m = (struct plan_message){.run = a->run, .round = a->round, .number = number};
  enum rc rc = readers_take(core_readers(d->core), &s, err);
  if (rc == RC_OK) {
    rc = sealed_read(d, s, m, &tokens, &cmd->arena, err);
    readers_give(core_readers(d->core), s);
  }
  if (rc == RC_OK) m->groups = batching_select(tokens, m->groups, core_options(d->core)->batch_tokens);
  const int worth = groups_worth_sending(d, a);
  *groups = rc == RC_OK && m->groups >= worth ? m->groups : 0;
  if (*groups == 0) {
    d->groups_wanted = worth - m->groups;
    command_free(cmd);
    return rc;
  }
  for (int i = 0; i < m->groups; i++) m->tokens += tokens[i];
  cmd->patient = collector_at_trainer(d->collector) > 0;
  return core_call(d->core, cmd, err);
}

/* ---- sending ---- */

enum rc driver_flight(struct driver *d, int64_t run, int64_t round, int64_t version, int64_t number,
                      struct flight **out, struct err *err) {
  struct readers *readers = core_readers(d->core);
  struct store *s = NULL;
  struct flight *f = flight_new();
  if (!f) return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  f->run = run;
  f->round = round;
  f->number = number;
  f->trainer_worker = d->trainer.worker;
  f->by_tokens = driver_by_tokens(d);
  memcpy(f->url, d->trainer.url, sizeof f->url);
  enum rc rc = readers_take(readers, &s, err);
  if (rc == RC_OK && run_is_supervised(&d->context->config))
    rc = batch_from_dataset(&f->built, s, d->context, round, number, &f->arena, err);
  else if (rc == RC_OK)
    rc = batch_from_rollouts(&f->built, s, run, round, number, &f->arena, err);
  readers_give(readers, s);
  struct submit_batch *m = &f->built.message;
  m->batch_id = arena_strdup(&f->arena, id_batch(run, round, number).text);
  m->run = arena_strdup(&f->arena, id_run(run).text);
  m->epoch = d->trainer.epoch;
  m->fence = d->trainer.fence;
  m->version = version;
  if (rc == RC_OK && (!m->batch_id || !m->run)) rc = err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  if (rc != RC_OK) {
    flight_free(f);
    return rc;
  }
  *out = f;
  return RC_OK;
}

enum rc driver_submit(struct driver *d, const struct flight *f, bool asked_first, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  if (asked_first) { /* the body that an earlier life sent carried another epoch: a repeat would conflict */
    struct arena arena = ARENA_INIT;
    struct batch_status status;
    const enum rc rc = trainer_batch_status(&t, f->built.message.batch_id, 0, false, &status, &arena, CALL_MS, err);
    arena_free(&arena);
    if (rc != RC_NOT_FOUND) return rc;
  }
  return trainer_submit_batch(&t, &f->built.message, SUBMIT_MS, err);
}

static enum rc send_batch(struct driver *d, const struct active_run *a, int64_t number, bool stored_before,
                          struct err *err) {
  struct flight *f = NULL;
  enum rc rc = driver_flight(d, a->run, a->round, a->round_version, number, &f, err);
  if (rc == RC_OK) rc = driver_submit(d, f, stored_before, err);
  if (rc != RC_OK) {
    flight_free(f);
    return rc;
  }
  d->stream.sent = number;
  collector_add(d->collector, f);
  return RC_OK;
}

/* ---- the pass ---- */

/* What was sent to another incarnation of the trainer, or of another round, is not in flight any more. */
static void stream_begin(struct driver *d, const struct active_run *a) {
  struct stream *s = &d->stream;
  if (s->run == a->run && s->round == a->round && s->trainer == d->trainer.worker) return;
  collector_reset(d->collector);
  *s = (struct stream){.run = a->run, .round = a->round, .trainer = d->trainer.worker, .sent = -1};
}

/* The round's first batch behind the last one sent that is not done, or -1; and the number of a new one. */
static enum rc batches_look(struct driver *d, int64_t *next, int64_t *fresh, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(core_readers(d->core), &s, err);
  if (rc != RC_OK) return rc;
  rc =
      store_int(s, next, err,
                "SELECT coalesce(min(number), -1) FROM batches WHERE run = ?1 AND round = ?2 AND done = 0 AND number > "
                "?3",
                BINDS(b_int(d->stream.run), b_int(d->stream.round), b_int(d->stream.sent)));
  if (rc == RC_OK)
    rc = store_int(s, fresh, err, "SELECT coalesce(max(number) + 1, 0) FROM batches WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(d->stream.run), b_int(d->stream.round)));
  readers_give(core_readers(d->core), s);
  return rc;
}

/* *sent: something was. */
static enum rc send_next(struct driver *d, const struct active_run *a, bool *sent, struct err *err) {
  int64_t next = -1, fresh = 0;
  int groups = 0;
  enum rc rc = batches_look(d, &next, &fresh, err);
  *sent = rc == RC_OK && next >= 0;
  if (*sent) return send_batch(d, a, next, true, err);
  if (rc == RC_OK && a->round_state != ROUND_STEPPING) rc = plan_batch(d, a, fresh, &groups, err);
  *sent = rc == RC_OK && groups > 0;
  if (!*sent) return rc;
  fault_die(COORDINATOR_FAULT_DIE_AFTER_PLAN, a->round);
  return send_batch(d, a, fresh, false, err);
}

enum rc driver_train(struct driver *d, const struct active_run *a, bool *progress, struct err *err) {
  bool sent = true;
  *progress = false;
  stream_begin(d, a);
  enum rc rc = collector_failure(d->collector, err);
  while (rc == RC_OK && sent && collector_at_trainer(d->collector) < AHEAD) rc = send_next(d, a, &sent, err);
  if (collector_at_trainer(d->collector) >= AHEAD) d->groups_wanted = INT_MAX;
  core_await_groups(d->core, collector_at_trainer(d->collector) == 0);
  if (rc != RC_OK) {
    d->stream.run = 0; /* the next pass begins anew */
    return rc;
  }
  if (a->round_state != ROUND_TRAINING || collector_pending(d->collector)) return RC_OK;
  return step_begin(d, a, err); /* a round without batches, or whose last group was filtered after its last batch */
}

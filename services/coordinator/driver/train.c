/* Plans the batches of a round, submits them while the trainer has room, and begins the step after the last one. */
#include "services/coordinator/driver/train.h"

#include <limits.h>

#include "services/coordinator/fault.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"

/* Batches at the trainer at once: while one is computed the next waits, so that the trainer never stands still.  With more,
 * the groups that are still to come would be cut into smaller batches. */
enum { AHEAD = 2 };

/* While the trainer has work, the next batch of an open round waits for this share of the round's groups: smaller ones
 * would cost more to plan, to build and to compare than they save. */
enum { BATCHES_OF_ROUND = 16 };

/* ---- commands ---- */

/* From this commit on, a restart takes the batch as submitted. */
static enum rc plan_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_plan(c, cmd->message, err);
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
    *(struct step_begin_message *)cmd->message = (struct step_begin_message){
        .run = a->run, .round = a->round, .by_tokens = run_counts_tokens(&d->context->config)};
  return core_call(d->core, cmd, err);
}

/* ---- the next batch ---- */

/* How many groups are worth a batch of their own.  When the trainer has nothing to do, one is enough. */
static int groups_worth_sending(struct driver *d, const struct active_run *a) {
  if (a->round_state != ROUND_OPEN || batch_answers_at_trainer(d->answers) == 0) return 1;
  return (d->context->config.groups_per_round + BATCHES_OF_ROUND - 1) / BATCHES_OF_ROUND;
}

/* *groups 0: nothing is trainable just now, or not yet enough. */
static enum rc plan_batch(struct driver *d, const struct active_run *a, int64_t number, int *groups, struct err *err) {
  struct command *cmd = command_new(plan_execute, sizeof(struct batch_plan));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct batch_plan *m = cmd->message;
  struct store *s;
  *m = (struct batch_plan){.run = a->run, .round = a->round, .number = number};
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc == RC_OK) {
    rc = batches_select(m, s, d->context, core_options(d->core)->batch_tokens, &cmd->arena, err);
    readers_give(driver_readers(d), s);
  }
  const int worth = groups_worth_sending(d, a);
  *groups = rc == RC_OK && m->groups >= worth ? m->groups : 0;
  if (*groups == 0) {
    d->groups_wanted = worth - m->groups;
    command_free(cmd);
    return rc;
  }
  cmd->patient = batch_answers_at_trainer(d->answers) > 0;
  return core_call(d->core, cmd, err);
}

/* ---- sending ---- */

static enum rc send_batch(struct driver *d, const struct active_run *a, int64_t number, bool stored_before,
                          struct err *err) {
  const struct batch_place place = {.round = a->round, .number = number, .version = a->round_version};
  struct batch *b = NULL;
  enum rc rc = batch_make(&b, driver_readers(d), d->context, &d->trainer, &place, err);
  if (rc == RC_OK) rc = batch_submit(b, d->http, stored_before, err);
  if (rc != RC_OK) {
    batch_free(b);
    return rc;
  }
  d->sent.newest = number;
  batch_answers_add(d->answers, b);
  return RC_OK;
}

/* ---- the pass ---- */

/* Batches of another round, or that were sent to another incarnation of the trainer, are no longer waited for. */
static void sent_begin(struct driver *d, const struct active_run *a) {
  const struct sent_batches *s = &d->sent;
  if (s->run == a->run && s->round == a->round && s->trainer == d->trainer.worker) return;
  driver_drop_sent(d);
  d->sent = (struct sent_batches){.run = a->run, .round = a->round, .trainer = d->trainer.worker, .newest = -1};
}

/* The round's first batch behind the last one sent that is not done, or -1; and the number of a new one. */
static enum rc batches_look(struct driver *d, int64_t *next, int64_t *fresh, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc != RC_OK) return rc;
  rc =
      store_int(s, next, err,
                "SELECT coalesce(min(number), -1) FROM batches WHERE run = ?1 AND round = ?2 AND done = 0 AND number > "
                "?3",
                BINDS(b_int(d->sent.run), b_int(d->sent.round), b_int(d->sent.newest)));
  if (rc == RC_OK)
    rc = store_int(s, fresh, err, "SELECT coalesce(max(number) + 1, 0) FROM batches WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(d->sent.run), b_int(d->sent.round)));
  readers_give(driver_readers(d), s);
  return rc;
}

/* *sent: a batch was sent. */
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

enum rc train_round(struct driver *d, const struct active_run *a, struct err *err) {
  bool sent = true;
  sent_begin(d, a);
  enum rc rc = batch_answers_failure(d->answers, err);
  while (rc == RC_OK && sent && batch_answers_at_trainer(d->answers) < AHEAD) rc = send_next(d, a, &sent, err);
  if (batch_answers_at_trainer(d->answers) >= AHEAD) d->groups_wanted = INT_MAX;
  core_await_groups(d->core, batch_answers_at_trainer(d->answers) == 0);
  if (rc != RC_OK) {
    d->sent.run = 0; /* the next pass asks for all batches again */
    return rc;
  }
  if (a->round_state != ROUND_TRAINING || batch_answers_pending(d->answers)) return RC_OK;
  return step_begin(
      d, a, err); /* no batch is left whose answer would begin it: there was none, or the last group was filtered */
}

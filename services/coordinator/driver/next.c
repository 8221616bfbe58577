/* Chooses the driver's work and the next job of a round: see next.h. */
#include "services/coordinator/driver/next.h"

#include <limits.h>

#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/round.h"

/* Batches at the trainer at once: while one is computed the next waits, so that the trainer never stands still.  With
 * more, the groups that are still to come would be cut into smaller batches. */
enum { AHEAD = 2 };

/* ---- which work ---- */

/* Are batches of the round to be sent, or waited for? */
static bool trains(const struct active_run *a, const struct run_config *config) {
  if (!a->has_round || a->round >= a->rounds) return false; /* behind the last one nothing is trained */
  const bool again = a->round_state == ROUND_STEPPING && a->undone > 0; /* a step lost its batches with its trainer */
  if (a->state == RUN_PAUSED && run_is_supervised(config)) return again;
  if (a->round_state == ROUND_OPEN) return config->mode != MODE_SYNC;
  return a->round_state == ROUND_TRAINING || again;
}

enum next_work next_work(const struct active_run *a, bool trainer, const struct run_config *config, int64_t *round) {
  if (!a->found || a->held) return NEXT_NOTHING; /* held: until it is resumed */
  if (!trainer) return NEXT_NO_TRAINER;
  if (!config) return NEXT_START;
  if (a->unfinished < 0 && trains(a, config)) return NEXT_TRAIN;
  *round = a->unfinished >= 0 ? a->unfinished : a->round;
  if (a->unfinished >= 0 || (a->has_round && a->round_state == ROUND_STEPPING)) return NEXT_STEP;
  return NEXT_NOTHING;
}

int64_t next_again(const struct active_run *a, int64_t held_version) {
  return a->has_round && a->round < a->rounds && a->round_state <= ROUND_STEPPING && held_version <= a->version
             ? a->round
             : -1;
}

int64_t next_taken(const struct active_run *a, int64_t held_version) {
  return a->has_round && a->round_state == ROUND_STEPPING && held_version == a->version + 1 ? a->round : -1;
}

/* ---- which job ---- */

/* From this commit on, a restart takes the batch as submitted. */
static enum rc plan_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_plan(c, cmd->message, err);
}

/* A batch of that number.  Nothing is found when nothing is trainable just now, or not yet enough. */
static enum rc batch_find(struct next_job *out, int64_t number, struct readers *readers, struct run_context *x,
                          const struct active_run *a, int at_trainer, int64_t batch_tokens, int64_t wall_ms,
                          struct err *err) {
  const struct batch_moment moment = {.wall_ms = wall_ms, .trainer_idle = at_trainer == 0};
  struct command *cmd = command_new(plan_execute, sizeof(struct batch_plan));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct batch_plan *m = cmd->message;
  struct store *s;
  *m = (struct batch_plan){.run = a->run, .round = a->round, .number = number};
  enum rc rc = readers_take(readers, &s, err);
  if (rc == RC_OK) {
    rc = batches_select(m, s, x, &moment, batch_tokens, &cmd->arena, err);
    readers_give(readers, s);
  }
  const int worth = batches_worth(m, &x->config, a->round_state == ROUND_OPEN, at_trainer == 0);
  out->found = rc == RC_OK && m->groups > 0 && m->groups >= worth;
  out->job = (struct round_job){.step = m->step, .number = m->number};
  if (out->found) {
    cmd->patient = at_trainer > 0;
    out->plan = cmd;
    return RC_OK;
  }
  out->groups_wanted = m->groups < worth ? worth - m->groups : INT_MAX; /* none: the step has all its groups */
  command_free(cmd);
  return rc;
}

static enum rc number_read(int64_t *out, struct readers *readers, const struct active_run *a, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = batches_number(out, s, a->run, a->round, err);
  readers_give(readers, s);
  return rc;
}

/* The writer plans batches too.  So the number of a new one is read before it is asked what is stored: whatever the
 * writer plans after that is either found, or has the number, and then the plan of this batch fails. */
enum rc next_job_find(struct next_job *out, struct readers *readers, struct run_context *x, const struct active_run *a,
                      const struct round_job *newest, int at_trainer, int64_t batch_tokens, int64_t wall_ms,
                      struct err *err) {
  *out = (struct next_job){.groups_wanted = at_trainer >= AHEAD ? INT_MAX : 1};
  if (at_trainer >= AHEAD) return RC_OK;
  int64_t number = 0;
  enum rc rc = number_read(&number, readers, a, err);
  if (rc == RC_OK) rc = round_job_next(readers, a->run, a->round, newest, true, &out->job, &out->stored, err);
  out->found = rc == RC_OK && out->stored;
  if (rc != RC_OK || out->found || a->round_state == ROUND_STEPPING) return rc;
  if (x->config.mode == MODE_INFLIGHT && a->round_state != ROUND_OPEN) return rc; /* the step has all that it takes */
  return batch_find(out, number, readers, x, a, at_trainer, batch_tokens, wall_ms, err);
}

enum rc next_job_plan(struct core *c, struct next_job *job, struct err *err) {
  struct command *cmd = job->plan;
  job->plan = NULL;
  return core_call(c, cmd, err);
}

/* ---- the step ---- */

struct step_begin_message {
  int64_t run, round;
  bool by_tokens;
};

static enum rc step_begin_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct step_begin_message *m = cmd->message;
  return round_step_when_trained(c, m->run, m->round, m->by_tokens, err);
}

enum rc next_step_begin(struct core *c, const struct active_run *a, const struct run_config *config, struct err *err) {
  if (a->round_state != ROUND_TRAINING) return RC_OK;
  struct command *cmd = command_new(step_begin_execute, sizeof(struct step_begin_message));
  if (cmd)
    *(struct step_begin_message *)cmd->message =
        (struct step_begin_message){.run = a->run, .round = a->round, .by_tokens = run_counts_tokens(config)};
  return core_call(c, cmd, err);
}

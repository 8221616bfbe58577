/* Stores what reward servers answered, and does what a deadline means. */
#include "services/coordinator/rewards/reward_answers.h"

#include <inttypes.h>
#include <stdio.h>

#include "services/coordinator/decide/states.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/rounds/group_timeout.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/journal.h"

enum { REASON_MAX = 640 };

/* The term, if the run is still the active one. */
static enum rc term_of(const struct core *c, const struct reward_message *m, const struct http_term **out,
                       struct err *err) {
  const struct reward_rule *rule = c->context && c->context->run == m->run ? &c->context->config.verifier : NULL;
  if (!rule || m->term >= rule->count || rule->terms[m->term].kind != VERIFIER_HTTP)
    return err_set(err, RC_UNAVAILABLE, NULL, "run %s is not active just now", id_run(m->run).text);
  *out = rule->terms[m->term].http;
  return RC_OK;
}

static enum rc total_add(struct core *c, const struct reward_message *m, const char *url, int64_t answered,
                         int64_t missed, struct err *err) {
  return store_exec(
      c->store, err,
      "INSERT INTO reward_servers (run, term, url, answered, missed) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT "
      "(run, term) DO UPDATE SET answered = answered + ?4, missed = missed + ?5",
      BINDS(b_int(m->run), b_int(m->term), b_text(url), b_int(answered), b_int(missed)));
}

/* *stored: how many rows were waiting for these values. */
static enum rc values_store(struct core *c, const struct reward_message *m, bool missed, int64_t *stored,
                            struct err *err) {
  const struct reward_group g = {m->run, m->round, m->group};
  enum rc rc = RC_OK;
  *stored = 0;
  for (int32_t i = 0; i < m->count && rc == RC_OK; i++) {
    const struct reward_value *v = &m->values[i];
    const struct remote_reward r = {v->sample, m->term, &v->digest, missed ? 0 : v->value, missed};
    bool one = false;
    rc = remote_rewards_store(c, &g, &r, &one, err);
    *stored += one;
  }
  return rc;
}

enum rc reward_answer_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct reward_message *m = cmd->message;
  const struct http_term *t = NULL;
  int64_t stored = 0;
  enum rc rc = term_of(c, m, &t, err);
  if (rc == RC_OK) rc = values_store(c, m, false, &stored, err);
  if (rc != RC_OK || stored == 0) return rc;
  rc = total_add(c, m, t->url, stored, 0, err);
  return rc == RC_OK ? group_seal_when_judged(c, m->run, m->round, m->group, &cmd->arena, err) : rc;
}

/* ---- too late ---- */

static enum rc count_as_zero(struct core *c, struct command *cmd, const struct reward_message *m, const char *url,
                             const char *reason, struct err *err) {
  int64_t stored = 0, counts_for = m->round;
  enum rc rc = values_store(c, m, true, &stored, err);
  if (rc != RC_OK || stored == 0) return rc;
  rc = stream_round(c, m->run, m->round, &counts_for, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET rewards_missed = rewards_missed + ?3 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(counts_for), b_int(stored)));
  if (rc == RC_OK) rc = total_add(c, m, url, 0, stored, err);
  if (rc == RC_OK)
    rc = journal_incident(c, m->run, "reward_missed", id_group(m->run, m->round, m->group).text, reason, err);
  return rc == RC_OK ? group_seal_when_judged(c, m->run, m->round, m->group, &cmd->arena, err) : rc;
}

static enum rc drop(struct core *c, struct command *cmd, const struct reward_message *m, const char *url,
                    const char *reason, struct err *err) {
  struct group_head head;
  enum rc rc = group_read(c, m->run, m->round, m->group, &head, &cmd->arena, err);
  if (rc != RC_OK || head.state != GROUP_OPEN) return rc;
  const struct group_failure why = {"reward_missed", reason};
  rc = total_add(c, m, url, 0, m->count, err);
  return rc == RC_OK ? group_fail(c, m->run, m->round, m->group, &why, err) : rc;
}

static enum rc pause_run(struct core *c, const struct reward_message *m, const char *reason, struct err *err) {
  enum run_state state = RUN_QUEUED;
  const enum rc rc = run_state_of(c->store, m->run, &state, err);
  if (rc != RC_OK || state != RUN_RUNNING) return rc; /* paused already, by this or by somebody */
  return run_hold(c, m->run, reason, err);
}

enum rc reward_loss_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct reward_message *m = cmd->message;
  const struct http_term *t = NULL;
  char reason[REASON_MAX];
  const enum rc rc = term_of(c, m, &t, err);
  if (rc != RC_OK) return rc;
  snprintf(reason, sizeof reason,
           "no reward for %" PRId32 " samples of group %s within %" PRId64 " ms or %" PRId32 " retries: %.300s",
           m->count, id_group(m->run, m->round, m->group).text, t->policy.deadline_ms, t->policy.retries,
           m->why ? m->why : t->url);
  switch (t->on_deadline) {
    case DEADLINE_ZERO: return count_as_zero(c, cmd, m, t->url, reason, err);
    case DEADLINE_DROP: return drop(c, cmd, m, t->url, reason, err);
    case DEADLINE_FAIL: break;
  }
  return pause_run(c, m, reason, err);
}

enum rc reward_clock_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct reward_clock *m = cmd->message;
  return remote_rewards_count(c, m->run, m->passed_ms, err);
}

/* ---- for people ---- */

enum rc reward_note_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct reward_note *m = cmd->message;
  int64_t before = BREAKER_CLOSED;
  enum rc rc = store_int(c->store, &before, err, "SELECT state FROM reward_servers WHERE run = ?1 AND term = ?2",
                         BINDS(b_int(m->run), b_int(m->term)));
  if (rc == RC_NOT_FOUND) rc = RC_OK;
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err,
        "INSERT INTO reward_servers (run, term, url, state, requests, failures, last_error) VALUES (?1, ?2, ?3, "
        "?4, ?5, ?6, ?7) ON CONFLICT (run, term) DO UPDATE SET state = ?4, requests = requests + ?5, failures = "
        "failures + ?6, last_error = ?7",
        BINDS(b_int(m->run), b_int(m->term), b_text(m->url), b_int(m->state), b_int(m->requests), b_int(m->failures),
              b_text(m->last_error)));
  if (rc != RC_OK || m->state != BREAKER_OPEN || before != BREAKER_CLOSED) return rc;
  return journal_incident(c, m->run, "reward_server", m->url, m->last_error ? m->last_error : "left alone for a while",
                          err);
}

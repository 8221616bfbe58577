/* Moves a run from state to state, with the event that tells of it, and clears up behind a run that ends. */
#include "services/coordinator/rounds/run_life.h"

#include <stdio.h>

#include "common/base/log.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/rounds/rounds.h"

enum rc run_state_of(struct store *s, int64_t run, enum run_state *out, struct err *err) {
  int64_t state = 0;
  enum rc rc = store_int(s, &state, err, "SELECT state FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_NOT_FOUND) return err_set(err, rc, "id", "there is no run %s", id_run(run).text);
  *out = (enum run_state)state;
  return rc;
}

static bool is_end(enum run_state s) { return s == RUN_STOPPED || s == RUN_COMPLETED || s == RUN_FAILED; }

/* A state with its reason, and the event. */
static enum rc state_write(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  enum rc rc =
      store_exec(c->store, err,
                 "UPDATE runs SET state = ?2, error = ?3, waiting_for = NULL, ended_ms = ?4, started_ms = "
                 "coalesce(started_ms, ?5) "
                 "WHERE id = ?1",
                 BINDS(b_int(run), b_int((int64_t)to), b_text(error), is_end(to) ? b_int(c->wall_ms) : b_null(),
                       to == RUN_RUNNING ? b_int(c->wall_ms) : b_null()));
  if (rc == RC_OK && is_end(to)) rc = retention_release(c->store, run, err); /* it may not have begun */
  if (rc != RC_OK) return rc;
  log_context_id(id_run(run).text);
  log_info("run %s is %s%s%s", id_run(run).text, state_name(MACHINE_RUN, (int)to), error ? ": " : "",
           error ? error : "");
  c->dispatch_due = c->kick_due = true;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_string(&w, "state", state_name(MACHINE_RUN, (int)to));
  json_kv_string(&w, "error", error);
  json_object_end(&w);
  return journal_event(c, run, "state", &text, is_end(to), err);
}

enum rc run_move(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err) {
  enum run_state from = RUN_QUEUED;
  enum rc rc = run_state_of(c->store, run, &from, err);
  if (rc == RC_OK) rc = state_check(MACHINE_RUN, (int)from, (int)to, id_run(run).text, err);
  return rc == RC_OK ? state_write(c, run, to, error, err) : rc;
}

enum rc run_hold(struct core *c, int64_t run, const char *why, struct err *err) {
  enum run_state state = RUN_QUEUED;
  char reason[ERR_MESSAGE_MAX + 100];
  enum rc rc = run_state_of(c->store, run, &state, err);
  if (rc != RC_OK) return rc;
  if (state == RUN_STOPPING) return run_end(c, run, RUN_STOPPED, why, err);
  snprintf(reason, sizeof reason,
           "%s (resume the run to try again, or stop it: it keeps the trainer from those behind it)", why);
  return state == RUN_PAUSED ? state_write(c, run, RUN_PAUSED, reason, err) : run_move(c, run, RUN_PAUSED, reason, err);
}

enum rc run_waits(struct core *c, int64_t run, const char *what, struct err *err) {
  int64_t waited = 0;
  struct buf text = BUF_INIT;
  struct json_writer w;
  enum rc rc =
      store_int(c->store, &waited, err, "SELECT waiting_for IS NOT NULL FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE runs SET waiting_for = ?2 WHERE id = ?1 AND ended_ms IS NULL",
                    BINDS(b_int(run), b_text(what)));
  if (rc != RC_OK || store_changes(c->store) == 0 || (waited != 0) == (what != NULL)) return rc;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_string(&w, "waiting_for", what);
  json_object_end(&w);
  return journal_event(c, run, "waiting", &text, false, err);
}

/* The oldest round that has groups in no step: the newest one, but for `inflight`. */
static enum rc oldest_unfinished(struct core *c, int64_t run, int64_t *out, struct err *err) {
  return store_int(
      c->store, out, err,
      "SELECT coalesce(min(round), 0) FROM (SELECT max(round) AS round FROM rounds WHERE run = ?1 UNION ALL "
      "SELECT min(round) FROM groups INDEXED BY groups_open WHERE run = ?1 AND state = " SQL_GROUP_OPEN
      " UNION ALL SELECT min(round) FROM groups INDEXED BY groups_sealed WHERE run = ?1 AND state "
      "= " SQL_GROUP_SEALED
      " UNION ALL SELECT min(round) FROM groups INDEXED BY groups_batch WHERE run = "
      "?1 AND trained_in >= (SELECT max(round) FROM rounds WHERE run = ?1))",
      BINDS(b_int(run)));
}

enum rc run_end(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err) {
  int64_t from = 0;
  enum rc rc = run_move(c, run, to, error, err);
  if (rc == RC_OK) rc = oldest_unfinished(c, run, &from, err);
  if (rc == RC_OK) rc = leases_supersede(c, run, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE samples SET state = ?2 WHERE run = ?1 AND round >= ?5 AND state IN (?3, ?4)",
                    BINDS(b_int(run), b_int(SAMPLE_VOID), b_int(SAMPLE_WAITING), b_int(SAMPLE_LEASED), b_int(from)));
  }
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET state = ?2, reason = 'the run ended' WHERE run = ?1 AND round >= ?6 AND state "
                    "IN (?3, ?4, ?5)",
                    BINDS(b_int(run), b_int(GROUP_ABANDONED), b_int(GROUP_OPEN), b_int(GROUP_SEALED),
                          b_int(GROUP_SUBMITTED), b_int(from)));
  }
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET state = ?2, groups_sealed = 0 WHERE run = ?1 AND state <> ?3 AND state <> ?2",
                    BINDS(b_int(run), b_int(ROUND_ABANDONED), b_int(ROUND_DONE)));
  }
  if (rc == RC_OK) rc = remote_rewards_forget_run(c, run, err);
  if (rc == RC_OK) slot_windows_end(c->rounds->windows, run, c->now_ms);
  if (rc == RC_OK && c->context && c->context->run == run) {
    c->ended = c->context;
    c->context = NULL;
    rounds_context_changed(c);
  }
  return rc;
}

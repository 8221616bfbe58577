/* Fails groups that have been open for too long; time in which no server could have worked does not count. */
#include "services/coordinator/rounds/group_timeout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/decide/stored.h"

enum {
  OWED_MS_MAX = 1000,  /* put on the notes at once while time counts */
  FAILED_AT_ONCE = 16, /* of one look */
  DETAIL_MAX = 200
};

/* ---- one group ---- */

enum rc group_fail(struct core *c, int64_t run, int64_t round, int64_t ordinal, const struct group_failure *why,
                   struct err *err) {
  const struct id_text id = id_group(run, round, ordinal);
  int64_t open = -1, counts_for = round;
  enum rc rc = state_check(MACHINE_GROUP, GROUP_OPEN, GROUP_FAILED, id.text, err);
  if (rc == RC_OK) rc = leases_supersede_group(c, run, round, ordinal, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE samples SET state = ?4 WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND state IN "
                    "(?5, ?6)",
                    BINDS(b_int(run), b_int(round), b_int(ordinal), b_int(SAMPLE_VOID), b_int(SAMPLE_WAITING),
                          b_int(SAMPLE_LEASED)));
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE groups SET state = ?4, reason = ?5, samples_waiting = 0, waiting_ms = NULL WHERE run = ?1 "
                    "AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(run), b_int(round), b_int(ordinal), b_int(GROUP_FAILED), b_text(why->reason)));
  if (rc == RC_OK) rc = remote_rewards_forget_group(c, &(struct reward_group){run, round, ordinal}, err);
  if (rc == RC_OK) rc = stream_round(c, run, round, &counts_for, err);
  if (rc == RC_OK)
    rc =
        store_exec(c->store, err,
                   "UPDATE rounds SET groups_open = groups_open - (round = ?2), groups_failed = groups_failed + (round "
                   "= ?3), exact = exact AND round <> ?3 WHERE run = ?1 AND round IN (?2, ?3)",
                   BINDS(b_int(run), b_int(round), b_int(counts_for)));
  waiting_forget(&c->pool->waiting);
  c->samples_due = true; /* another group may begin in its place */
  c->checks_due |= c->context->config.mode == MODE_SYNC;
  if (rc == RC_OK) rc = journal_incident(c, run, why->incident, id.text, why->reason, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &open, err, "SELECT groups_open FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  if (rc != RC_OK) return rc;
  const struct stream_group closed = {run, round, ordinal, .dropped = true};
  if (c->context->config.mode == MODE_INFLIGHT) return stream_closed(c, &closed, err);
  return open == 0 ? round_generated(c, run, round, err) : rc;
}

static enum rc fail_those_due(struct core *c, int64_t run, int64_t leased_until_ms, struct err *err) {
  struct rows q;
  bool row;
  int n = 0;
  struct {
    int64_t round, ordinal;
  } due[FAILED_AT_ONCE];
  char reason[DETAIL_MAX];
  snprintf(reason, sizeof reason, "not complete within %d ms of its first lease", c->context->config.group_timeout_ms);
  const struct group_failure why = {"group_timeout", reason};
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT round, ordinal FROM groups INDEXED BY groups_open WHERE run = ?1 AND state = " SQL_GROUP_OPEN
                  " AND samples_open > 0 AND leased_ms "
                  "<= ?2 ORDER BY round, ordinal LIMIT ?3",
                  BINDS(b_int(run), b_int(leased_until_ms), b_int(FAILED_AT_ONCE)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    due[n].round = rows_int(&q, 0);
    due[n++].ordinal = rows_int(&q, 1);
  }
  rows_end(&q);
  for (int i = 0; i < n && rc == RC_OK; i++) rc = group_fail(c, run, due[i].round, due[i].ordinal, &why, err);
  return rc;
}

/* ---- the clock ---- */

/* Between the look before and this one: how much counts against a group, and how long nobody looked (expiry_stall).
 * Before the first look, nothing counts. */
struct passed {
  int64_t since_ms, counted_ms, stalled_ms;
};

static struct passed clock_look(struct group_clock *k, const struct core *c, bool counting) {
  const int64_t passed_ms = c->wall_ms - k->at_ms;
  const int64_t uncounted_ms = expiry_uncounted(passed_ms, k->counting, CORE_LOOK_MS);
  const struct passed p = {.since_ms = k->at_ms,
                           .counted_ms = passed_ms - uncounted_ms,
                           .stalled_ms = expiry_stall(k->at_ms, c->wall_ms, CORE_LOOK_MS)};
  k->owed_ms += uncounted_ms;
  k->at_ms = c->wall_ms;
  k->counting = counting;
  return p;
}

/* Groups leased by the look before are owed all of it, and are at most as young as that look.  Those leased since
 * then were leased before nobody looked any more. */
static enum rc put_off(struct core *c, int64_t run, int64_t owed_ms, const struct passed *p, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE groups INDEXED BY groups_open SET leased_ms = CASE WHEN leased_ms <= ?4 THEN min(leased_ms "
      "+ ?2, ?3) ELSE max(leased_ms, ?4 + ?5) END WHERE run = ?1 AND state = " SQL_GROUP_OPEN " AND leased_ms NOT NULL",
      BINDS(b_int(run), b_int(owed_ms), b_int(c->wall_ms - p->counted_ms), b_int(p->since_ms), b_int(p->stalled_ms)));
}

enum rc groups_expire(struct core *c, struct err *err) {
  struct group_clock *k = &c->rounds->group_clock;
  enum run_state state = RUN_QUEUED;
  int64_t earliest_ms = 0;
  const int64_t run = c->context ? c->context->run : 0;
  enum rc rc = run ? run_state_of(c->store, run, &state, err) : RC_OK;
  if (rc != RC_OK) return rc;
  const struct passed passed = clock_look(k, c, state == RUN_RUNNING && workers_generating(c) > 0);
  const bool known = k->run == run && c->now_ms < k->due_ms && llabs(k->owed_ms) < OWED_MS_MAX;
  if (!k->counting || known) return RC_OK;
  if (k->owed_ms) rc = put_off(c, run, k->owed_ms, &passed, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &earliest_ms, err,
                   "SELECT coalesce(min(leased_ms), ?2) FROM groups INDEXED BY groups_open WHERE run = ?1 AND state "
                   "= " SQL_GROUP_OPEN " AND samples_open > 0",
                   BINDS(b_int(run), b_int(c->wall_ms)));
  if (rc != RC_OK) return rc;
  const int64_t timeout_ms = c->context->config.group_timeout_ms;
  const bool due = earliest_ms + timeout_ms <= c->wall_ms;
  if (due) rc = fail_those_due(c, run, c->wall_ms - timeout_ms, err);
  if (rc != RC_OK) return rc;
  k->run = run;
  k->owed_ms = 0;
  k->due_ms = due ? c->now_ms : c->now_ms + (earliest_ms + timeout_ms - c->wall_ms);
  return RC_OK;
}

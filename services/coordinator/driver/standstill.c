/* Finds who is missing where a run stands still: see standstill.h. */
#include "services/coordinator/driver/standstill.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/wire/worker.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/rounds/round.h"

/* Does anything of the run go on, or wait, among its samples? */
struct samples_now {
  bool waiting;             /* for a server */
  int64_t leased, unjudged; /* leases; complete groups without their rewards */
};

static enum rc samples_look(struct store *s, int64_t run, struct samples_now *out, struct err *err) {
  enum rc rc = round_samples_wait(s, run, &out->waiting, err);
  if (rc == RC_OK)
    rc = store_int(s, &out->leased, err,
                   "SELECT EXISTS (SELECT 1 FROM leases INDEXED BY leases_granted WHERE state = 0 AND run = ?1)",
                   BINDS(b_int(run)));
  if (rc == RC_OK)
    rc = store_int(s, &out->unjudged, err,
                   "SELECT EXISTS (SELECT 1 FROM groups INDEXED BY groups_open WHERE run = ?1 AND samples_open = 0 AND "
                   "rewards_open > 0 AND state = " SQL_GROUP_OPEN ")",
                   BINDS(b_int(run)));
  return rc;
}

/* What the query finds, if anything, behind what it means. */
static enum rc say_text(struct store *s, int64_t run, const char *sql, const char *means, char why[ERR_MESSAGE_MAX],
                        struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, sql, BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) snprintf(why, ERR_MESSAGE_MAX, "%s: %.900s", means, rows_text(&q, 0, NULL));
  rows_end(&q);
  return rc;
}

/* Servers that have the run's weights and take leases: all of them, and those that are not in quarantine. */
static enum rc fit_count(struct store *s, const struct active_run *a, int64_t *fit, int64_t *trusted, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT count(*), count(*) FILTER (WHERE name NOT IN (SELECT name FROM quarantines WHERE "
                           "run = ?3)) FROM workers INDEXED BY workers_live WHERE live = 1 AND kind = ?1 AND ready = 1 "
                           "AND draining = 0 AND loaded_digest = ?2",
                           BINDS(b_int(WORKER_GENERATION), b_digest(&a->digest), b_int(a->run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  *fit = row ? rows_int(&q, 0) : 0;
  *trusted = row ? rows_int(&q, 1) : 0;
  rows_end(&q);
  return rc;
}

/* A server that has another version says so itself while it loads this one; only who has it can be given a lease. */
static enum rc samplers_missing(struct store *s, const struct active_run *a, char why[ERR_MESSAGE_MAX],
                                struct err *err) {
  int64_t registered = 0, fit = 0, trusted = 0;
  enum rc rc = fit_count(s, a, &fit, &trusted, err);
  if (rc != RC_OK) return rc;
  if (fit && !trusted)
    return say_text(s, a->run, "SELECT reason FROM quarantines WHERE run = ?1 ORDER BY at_ms DESC, name LIMIT 1",
                    "only generation-servers in quarantine have the run's weights, which get no samples of it", why,
                    err);
  if (fit)
    return say_text(s, a->run,
                    "SELECT detail FROM incidents WHERE run = ?1 AND kind IN ('lease_refused', 'leases_untaken') "
                    "ORDER BY id DESC LIMIT 1",
                    "no worker takes the waiting samples", why, err);
  rc = store_int(s, &registered, err,
                 "SELECT count(*) FROM workers INDEXED BY workers_live WHERE live = 1 AND kind = ?1",
                 BINDS(b_int(WORKER_GENERATION)));
  if (rc != RC_OK) return rc;
  if (registered == 0)
    snprintf(why, ERR_MESSAGE_MAX, "no generation-server is registered");
  else
    snprintf(why, ERR_MESSAGE_MAX,
             "none of the %" PRId64
             " registered generation-servers has the weights of version %" PRId64
             ": a server that cannot get them says why in its log, for instance because it was started with another "
             "--model than the trainer's",
             registered, a->version);
  return RC_OK;
}

enum rc standstill_look(struct readers *readers, const struct active_run *a, char why[ERR_MESSAGE_MAX],
                        struct err *err) {
  struct store *s;
  struct samples_now now = {0};
  why[0] = 0;
  if (a->state != RUN_RUNNING || !a->has_version || !a->has_round || a->undone > 0) return RC_OK;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = samples_look(s, a->run, &now, err);
  if (rc == RC_OK && now.waiting && !now.leased) rc = samplers_missing(s, a, why, err);
  if (rc == RC_OK && !now.waiting && !now.leased && now.unjudged)
    rc = say_text(s, a->run,
                  "SELECT last_error FROM reward_servers WHERE run = ?1 AND last_error IS NOT NULL ORDER BY term "
                  "LIMIT 1",
                  "finished samples still lack rewards", why, err);
  readers_give(readers, s);
  return rc;
}

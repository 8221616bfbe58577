/* Makes an announced version current: the old one is superseded, its leases are void, the round is done, and the next
 * one opens; in flight the groups that wait become its first batch. */
#include "services/coordinator/rounds/publish.h"

#include <inttypes.h>
#include <stdio.h>

#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/settled.h"
#include "services/coordinator/decide/stored.h"

/* Was this version made before? */
static enum rc repeat_check(struct core *c, const struct announced_version *p, bool *repeat, bool *refused,
                            struct err *err) {
  struct rows q;
  struct digest digest = {0};
  char detail[200], a[DIGEST_HEX_MAX], b[DIGEST_HEX_MAX];
  *repeat = false;
  enum rc rc = store_query(c->store, &q, err, "SELECT digest FROM versions WHERE run = ?1 AND version = ?2",
                           BINDS(b_int(p->run), b_int(p->version)));
  if (rc == RC_OK) rc = rows_next(&q, repeat, err);
  if (rc == RC_OK && *repeat) rows_digest(&q, 0, &digest);
  rows_end(&q);
  if (rc != RC_OK || !*repeat || digest_equal(&digest, &p->digest)) return rc;
  digest_hex(a, &digest);
  digest_hex(b, &p->digest);
  snprintf(detail, sizeof detail, "version %" PRId64 " has digest %s, announced again with %s", p->version, a, b);
  rc = journal_incident(c, p->run, "nondeterminism", id_round(p->run, p->round).text, detail, err);
  if (rc == RC_OK) *refused = true;
  if (rc == RC_OK) err_set(err, RC_CONFLICT, "digest", "%s", detail);
  return rc;
}

/* A server that did not stage the version must pull it; until it is heard of again nothing is pushed to it, or every
 * round would wait for one that is gone. */
static enum rc server_unready(struct core *c, const char *worker_id, struct err *err) {
  int64_t id;
  if (id_parse_worker(&id, worker_id, err) != RC_OK) return RC_OK; /* of no incarnation that we know */
  struct live_worker *w = worker_live(c, id);
  if (w) worker_ready(c, w, false);
  return store_exec(c->store, err, "UPDATE workers SET ready = 0 WHERE id = ?1", BINDS(b_int(id)));
}

static enum rc version_insert(struct core *c, const struct announced_version *p, const struct run_config *config,
                              struct err *err) {
  struct id_text step = id_round(p->run, p->round);
  enum rc rc =
      store_exec(c->store, err, "UPDATE versions SET state = ?2 WHERE run = ?1 AND state = " SQL_VERSION_CURRENT,
                 BINDS(b_int(p->run), b_int(VERSION_SUPERSEDED)));
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "INSERT INTO versions (run, version, state, digest, published, step, created_ms) VALUES (?1, ?2, "
                    "?3, ?4, ?5, ?6, ?7)",
                    BINDS(b_int(p->run), b_int(p->version), b_int(VERSION_CURRENT), b_digest(&p->digest),
                          b_int(run_publishes(config, p->round)), b_text(step.text), b_int(c->wall_ms)));
  }
  for (size_t i = 0; i < p->push_count && rc == RC_OK; i++) {
    const struct push_report *report = &p->pushes[i];
    const bool staged = report->staged && digest_equal(&report->digest, &p->digest);
    rc = store_exec(
        c->store, err,
        "INSERT OR REPLACE INTO pushes (run, version, worker, staged, digest, error, way) VALUES (?1, ?2, ?3, ?4, ?5, "
        "?6, ?7)",
        BINDS(b_int(p->run), b_int(p->version), b_text(report->worker_id), b_int(staged), b_digest(&report->digest),
              b_text(report->error), b_int(report->way)));
    if (rc == RC_OK && !staged) rc = server_unready(c, report->worker_id, err);
  }
  return rc;
}

static enum rc round_close(struct core *c, const struct announced_version *p, struct err *err) {
  int64_t ms = 0;
  enum rc rc = batches_taken(c, p->run, p->round, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE groups SET state = ?3 WHERE run = ?1 AND trained_in = ?2 AND state = ?4",
                    BINDS(b_int(p->run), b_int(p->round), b_int(GROUP_CONSUMED), b_int(GROUP_SUBMITTED)));
  if (rc == RC_OK) /* who drew what is asked no more */
    rc = store_exec(
        c->store, err,
        "DELETE FROM handed_back WHERE run = ?1 AND EXISTS (SELECT 1 FROM groups g WHERE g.run = ?1 AND g.round = "
        "handed_back.round AND g.ordinal = handed_back.group_ordinal AND g.state NOT IN (?2, ?3, ?4))",
        BINDS(b_int(p->run), b_int(GROUP_OPEN), b_int(GROUP_SEALED), b_int(GROUP_SUBMITTED)));
  if (rc == RC_OK) rc = round_move(c, p->run, p->round, ROUND_PUBLISHING, err);
  if (rc == RC_OK) rc = round_move(c, p->run, p->round, ROUND_DONE, err);
  if (rc == RC_OK)
    rc = store_int(
        c->store, &ms, err,
        "UPDATE rounds SET digest = ?3, published_ms = ?4, stale_groups = groups_stale, grad_norm = ?5, lr = ?6, "
        "skipped = ?7 WHERE run = ?1 AND round = ?2 RETURNING published_ms - opened_ms",
        BINDS(b_int(p->run), b_int(p->round), b_digest(&p->digest), b_int(c->wall_ms), b_real(p->grad_norm),
              b_real(p->lr), b_int(p->skipped)));
  if (rc == RC_OK) metric_observe(c->rounds->m_seconds, (double)ms / 1000);
  return rc;
}

static enum rc version_check(struct core *c, const struct announced_version *p, struct err *err) {
  int64_t version = -1;
  enum rc rc =
      store_int(c->store, &version, err, "SELECT version FROM rounds WHERE run = ?1 AND round = ?2 AND state = ?3",
                BINDS(b_int(p->run), b_int(p->round), b_int(ROUND_STEPPING)));
  if (rc == RC_NOT_FOUND)
    return err_set(err, RC_CONFLICT, "step_id", "round %s is not being stepped", id_round(p->run, p->round).text);
  if (rc == RC_OK && p->version != version + 1) {
    return err_set(err, RC_CONFLICT, "version",
                   "round %s was sampled at version %" PRId64 ", so it makes version %" PRId64 ", not %" PRId64,
                   id_round(p->run, p->round).text, version, version + 1, p->version);
  }
  return rc;
}

/* The round that the version is for, with what waits for it. */
static enum rc next_round_open(struct core *c, const struct announced_version *p, struct err *err) {
  const enum rc rc = round_open(c, p->round + 1, p->version, err);
  return rc == RC_OK ? batches_open(c, p->run, p->round + 1, err) : rc;
}

enum rc publish_version(struct core *c, const struct announced_version *p, bool *refused, struct err *err) {
  enum run_state state;
  bool repeat = false;
  *refused = false;
  enum rc rc = run_state_of(c->store, p->run, &state, err);
  if (rc == RC_OK) rc = repeat_check(c, p, &repeat, refused, err);
  if (rc != RC_OK || repeat) return rc;
  if (state != RUN_RUNNING && state != RUN_PAUSED && state != RUN_STOPPING) {
    return err_set(err, RC_CONFLICT, "run", "run %s is %s and takes no versions", id_run(p->run).text,
                   state_name(MACHINE_RUN, (int)state));
  }
  if (!c->context || c->context->run != p->run)
    return err_set(err, RC_UNAVAILABLE, "run", "run %s is being restored after a restart; announce again",
                   id_run(p->run).text);
  const struct run_config *config = &c->context->config;
  rc = version_check(c, p, err);
  if (rc == RC_OK) rc = version_insert(c, p, config, err);
  if (rc == RC_OK)
    rc = config->mode == MODE_INFLIGHT ? stream_published(c, p->run, p->round, p->version, err)
                                       : leases_supersede(c, p->run, err);
  if (rc == RC_OK) rc = round_close(c, p, err);
  if (rc == RC_OK) rc = verifying_flush(c, p->run, p->round, err);
  if (rc == RC_OK) rc = settled_advance(c, p->run, p->round, err);
  if (rc == RC_OK && state != RUN_STOPPING &&
      (p->round + 1 < config->rounds || round_evaluates(config, p->round + 1)))
    rc = next_round_open(c, p, err);
  else if (rc == RC_OK)
    slot_windows_end(c->rounds->windows, p->run, c->now_ms); /* nothing more is sampled */
  if (rc == RC_OK) metric_add(c->rounds->m_rounds, 1);
  c->dispatch_due = c->kick_due = true;
  return rc;
}

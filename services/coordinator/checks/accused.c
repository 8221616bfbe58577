/* Counts, judges and quarantines workers whose samples were refused. */
#include "services/coordinator/checks/accused.h"

#include <stdio.h>
#include <string.h>

#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"

enum rc drawer_at(struct core *c, const struct drawn_token *t, int64_t *worker, struct err *err) {
  return store_int(
      c->store, worker, err,
      "SELECT coalesce((SELECT worker FROM handed_back WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND "
      "sample = ?4 AND tokens > ?5 ORDER BY tokens LIMIT 1), (SELECT worker FROM samples WHERE run = ?1 AND round = "
      "?2 AND group_ordinal = ?3 AND sample = ?4))",
      BINDS(b_int(t->run), b_int(t->round), b_int(t->group), b_int(t->sample), b_int(t->position)));
}

enum rc checked_add(struct core *c, int64_t run, int64_t round, int64_t worker, const struct checked_samples *n,
                    struct err *err) {
  return store_exec(
      c->store, err,
      "INSERT INTO checked (run, round, name, held, refused, older_tokens, older_distance, older_lags) SELECT ?1, ?2, "
      "name, ?4, ?5, ?6, ?7, ?8 FROM workers WHERE id = ?3 ON CONFLICT DO UPDATE SET held = held + excluded.held, "
      "refused = refused + excluded.refused, older_tokens = older_tokens + excluded.older_tokens, older_distance = "
      "older_distance + excluded.older_distance, older_lags = older_lags + excluded.older_lags",
      BINDS(b_int(run), b_int(round), b_int(worker), b_int(n->held), b_int(n->refused), b_int(n->older.tokens),
            b_real(n->older.distance), b_int(n->older.lags)));
}

void accused_add(struct accused *a, const char *name, const char *detail) {
  if (!a->first[0]) snprintf(a->first, sizeof a->first, "%s", detail);
  for (int i = 0; i < a->count; i++)
    if (strcmp(a->names[i], name) == 0) return;
  if (a->count < ACCUSED_MAX) a->names[a->count++] = name;
}

/* A worker that was cut off by a restart of the coordinator is still there: it registers again, for as long as a worker
 * may be silent. */
static enum rc pool_look(struct core *c, const struct accused *a, const char *name, struct checked_pool *out,
                         struct err *err) {
  const struct bind binds[] = {b_int(a->run), b_int(a->since), b_text(name)};
  *out = (struct checked_pool){0};
  enum rc rc =
      store_int(c->store, &out->others_held, err,
                "SELECT count(*) FROM checked WHERE run = ?1 AND round >= ?2 AND name <> ?3 AND held > 0", binds, 3);
  if (rc == RC_OK)
    rc = store_int(c->store, &out->others_quarantined, err,
                   "SELECT count(*) FROM quarantines WHERE run = ?1 AND round >= ?2 AND name <> ?3", binds, 3);
  if (rc == RC_OK)
    rc = store_int(
        c->store, &out->others_live, err,
        "SELECT count(DISTINCT name) FROM workers WHERE (live = 1 OR (gone_reason = " SQL_GONE_BY_START
        " AND gone_ms > ?4)) AND kind = ?2 AND name <> ?3 AND name NOT IN (SELECT name FROM quarantines WHERE run = "
        "?1)",
        BINDS(b_int(a->run), b_int(WORKER_GENERATION), b_text(name),
              b_int(c->wall_ms - core_options(c)->worker_ttl_ms)));
  return rc;
}

static enum rc quarantine(struct core *c, const struct accused *a, const char *name, struct err *err) {
  struct live_worker *w = worker_named(c, WORKER_GENERATION, name);
  char detail[ACCUSED_DETAIL_MAX + 256];
  snprintf(detail, sizeof detail, "it gets no more samples of this run; %s", a->first);
  enum rc rc = store_exec(c->store, err,
                          "INSERT INTO quarantines (run, name, round, at_ms, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
                          BINDS(b_int(a->run), b_text(name), b_int(a->round), b_int(c->wall_ms), b_text(a->first)));
  if (rc == RC_OK && w) rc = leases_lose_all(c, w->id, err);
  if (rc == RC_OK) rc = stream_take_back(c, a->run, a->round, name, err);
  return rc == RC_OK ? journal_incident(c, a->run, "worker_quarantined", name, detail, err) : rc;
}

/* The trainer is as likely at fault, or the version. */
static enum rc undecided(struct core *c, const struct accused *a, const char *name, struct err *err) {
  char why[ACCUSED_DETAIL_MAX + 512];
  if (a->undecided)
    snprintf(why, sizeof why, "%s; %s", a->undecided, a->first);
  else
    snprintf(why, sizeof why,
             "the trainer and %.100s draw different samples, and no other worker that could decide agrees with either: "
             "look at both; %s",
             name, a->first);
  const enum rc rc = store_exec(c->store, err, "DELETE FROM quarantines WHERE run = ?1 AND round >= ?2",
                                BINDS(b_int(a->run), b_int(a->since)));
  return rc == RC_OK ? run_hold(c, a->run, why, err) : rc;
}

enum rc accused_judge(struct core *c, const struct accused *a, const char *name, bool *held, struct err *err) {
  struct checked_pool pool;
  int64_t known = 0;
  enum rc rc =
      store_int(c->store, &known, err, "SELECT EXISTS (SELECT 1 FROM quarantines WHERE run = ?1 AND name = ?2)",
                BINDS(b_int(a->run), b_text(name)));
  if (rc == RC_OK && !known) rc = pool_look(c, a, name, &pool, err);
  if (rc != RC_OK || known) return rc;
  if (verdict_of_worker(&pool) == WORKER_QUARANTINED) return quarantine(c, a, name, err);
  *held = true;
  return undecided(c, a, name, err);
}

/* Keeps the registry of workers: who is live, who has gone silent, which weights they are told to hold. */
#include "services/coordinator/pool/workers.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/decide/lag.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/owners.h"
#include "services/coordinator/pool/passes.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/writer/journal.h"

enum { OTHERS_SHARE = 8 }; /* one in this many places is for other addresses and tokens than the one that has the
                            * others */

enum rc workers_forget_all(struct core *c, struct err *err) {
  enum rc rc = store_exec(c->store, err,
                          "UPDATE workers SET live = 0, ready = 0, gone_ms = ?1, gone_reason = " SQL_GONE_BY_START
                          ", push_token = NULL WHERE live = 1",
                          BINDS(b_int(c->wall_ms)));
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE runs SET leases_lost = leases_lost + (SELECT count(*) FROM leases WHERE leases.run = "
                    "runs.id AND leases.state = " SQL_LEASE_GRANTED ") WHERE ended_ms IS NULL",
                    NO_BINDS);
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE leases SET state = ?1, ended_ms = ?2 WHERE state = " SQL_LEASE_GRANTED,
                    BINDS(b_int(LEASE_EXPIRED), b_int(c->wall_ms)));
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err,
        "UPDATE samples SET state = ?1 WHERE (run, round, group_ordinal) IN (SELECT run, round, ordinal FROM "
        "groups INDEXED BY groups_open WHERE state = " SQL_GROUP_OPEN ") AND state = ?2",
        BINDS(b_int(SAMPLE_WAITING), b_int(SAMPLE_LEASED)));
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE groups INDEXED BY groups_open SET samples_waiting = samples_open, waiting_ms = ?1 WHERE "
                    "state = " SQL_GROUP_OPEN,
                    BINDS(b_int(c->wall_ms)));
  if (rc == RC_OK) rc = passes_forget_all(c, err);
  c->pool->worker_count = c->pool->generating = c->pool->preprocessing = 0;
  c->pool->held = 0;
  return rc;
}

enum rc worker_end(struct core *c, struct live_worker *w, const char *reason, struct err *err) {
  enum rc rc = w->kind == WORKER_PREPROCESS ? passes_lose_all(c, w->id, err) : leases_lose_all(c, w->id, err);
  if (rc == RC_OK) {
    rc = store_exec(
        c->store, err,
        "UPDATE workers SET live = 0, ready = 0, gone_ms = ?2, gone_reason = ?3, push_token = NULL, used = ?4 "
        "WHERE id = ?1",
        BINDS(b_int(w->id), b_int(c->wall_ms), b_text(reason), b_int(w->used || w->holder)));
  }
  if (rc != RC_OK) return rc;
  log_info("worker %s (%s) is gone: %s", id_worker(w->id).text, w->name, reason);
  worker_ready(c, w, false);
  struct live_worker *end = &c->pool->workers[c->pool->worker_count--];
  memmove(w, w + 1, (size_t)(end - w - 1) * sizeof *w); /* the order of ids stays */
  c->samples_due = c->kick_due = true;
  metric_set(c->pool->m_workers, c->pool->worker_count);
  return RC_OK;
}

enum rc workers_expire(struct core *c, struct err *err) {
  for (int i = c->pool->worker_count - 1; i >= 0; i--) {
    if (!expiry_worker_lost(c->pool->workers[i].seen_ms, c->options.worker_ttl_ms, c->now_ms)) continue;
    enum rc rc = worker_end(c, &c->pool->workers[i], "no heartbeat within its time to live", err);
    if (rc != RC_OK) return rc;
    metric_add(c->pool->m_silent, 1);
  }
  return RC_OK;
}

void workers_put_off(struct core *c, int64_t ms) {
  for (int i = 0; i < c->pool->worker_count; i++) {
    c->pool->workers[i].seen_ms += ms;
    c->pool->workers[i].progressed_ms += ms;
  }
}

bool workers_full(const struct core *c) { return c->pool->worker_count == c->options.workers_max; }

bool workers_share_full(const struct core *c, uint64_t origin) {
  const int64_t kept = c->options.workers_max / OTHERS_SHARE;
  int64_t held = 0;
  if (origin == 0) return false;
  for (int i = 0; i < c->pool->worker_count; i++) held += c->pool->workers[i].origin == origin;
  return held >= c->options.workers_max - kept;
}

struct live_worker *worker_add(struct core *c, const struct live_worker *w) {
  struct pool *p = c->pool;
  struct live_worker *added = &p->workers[p->worker_count++];
  *added = *w;
  added->ready = false;
  worker_ready(c, added, w->ready);
  metric_set(p->m_workers, p->worker_count);
  return added;
}

struct live_worker *worker_named(struct core *c, enum worker_kind kind, const char *name) {
  for (int i = 0; i < c->pool->worker_count; i++) {
    if (c->pool->workers[i].kind == kind && strcmp(c->pool->workers[i].name, name) == 0) return &c->pool->workers[i];
  }
  return NULL;
}

struct live_worker *worker_live(struct core *c, int64_t id) {
  int low = 0, high = c->pool->worker_count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (c->pool->workers[middle].id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low < c->pool->worker_count && c->pool->workers[low].id == id ? &c->pool->workers[low] : NULL;
}

enum rc worker_of(struct core *c, const struct command *cmd, const char *id, uint64_t epoch, bool alive,
                  struct live_worker **out, struct err *err) {
  int64_t number;
  enum rc rc = id_parse_worker(&number, id, err);
  if (rc == RC_OK) rc = journal_check_epoch(c, epoch, err);
  if (rc != RC_OK) return rc;
  *out = worker_live(c, number);
  if (*out && (rc = owner_check(c, cmd, *out, err)) != RC_OK) return rc;
  if (*out && alive) (*out)->seen_ms = c->now_ms;
  if (*out) return RC_OK;
  return err_set(err, RC_NOT_FOUND, "id", "worker %s is not registered (any more): register again", id);
}

enum rc worker_owner_check(struct core *c, const struct command *cmd, int64_t id, struct err *err) {
  const struct live_worker *w = worker_live(c, id);
  return w ? owner_check(c, cmd, w, err) : RC_OK;
}

void worker_ready(struct core *c, struct live_worker *w, bool ready) {
  struct pool *p = c->pool;
  const int more = w->kind == WORKER_GENERATION ? ready - w->ready : 0;
  p->generating += more;
  p->slots += (int64_t)more * w->slots;
  metric_set(p->m_slots, (double)p->slots);
  p->held += more * w->held;
  if (w->kind == WORKER_PREPROCESS) p->preprocessing += ready - w->ready;
  w->ready = ready;
}

int workers_generating(const struct core *c) { return c->pool->generating; }

enum rc current_version_now(struct core *c, struct current_version *out, struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false, published = false;
  *out = (struct current_version){0};
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT run, version, digest, published AND (SELECT error IS NULL FROM runs WHERE id = run) FROM versions WHERE "
      "state = " SQL_VERSION_CURRENT " ORDER BY run DESC LIMIT 1",
      NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row && (published = rows_int(&q, 3) != 0)) {
    out->run = arena_strdup(arena, id_run(rows_int(&q, 0)).text);
    out->version = rows_int(&q, 1);
    rows_digest(&q, 2, &out->digest);
  }
  rows_end(&q);
  if (rc != RC_OK || !published) return rc;
  rc = store_query(c->store, &q, err,
                   "SELECT url FROM workers INDEXED BY workers_holder WHERE holder = 1 ORDER BY fence DESC LIMIT 1",
                   NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) out->trainer_url = arena_strdup(arena, rows_text(&q, 0, NULL));
  rows_end(&q);
  if (rc == RC_OK && row && (!out->run || !out->trainer_url))
    return err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
  out->has = rc == RC_OK && row;
  return rc;
}

enum rc held_version(struct core *c, const struct digest *loaded, const struct current_version *current,
                     struct current_version *out, struct err *err) {
  int64_t version = -1;
  *out = *current;
  out->has = current->has && (digest_equal(loaded, &current->digest) || fault_is(COORDINATOR_FAULT_NO_VERSION_CHECK));
  if (out->has || !current->has || !c->context || c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  const int64_t oldest = lag_oldest(current->version, c->context->config.max_lag);
  const enum rc rc = store_int(c->store, &version, err,
                               "SELECT version FROM versions WHERE run = ?1 AND version BETWEEN ?2 AND ?3 AND digest = "
                               "?4 ORDER BY version DESC LIMIT 1",
                               BINDS(b_int(c->context->run), b_int(oldest), b_int(current->version), b_digest(loaded)));
  out->has = rc == RC_OK && lag_may_sample(version, current->version, c->context->config.max_lag);
  out->version = version;
  out->digest = *loaded;
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

/* Stored once a version; an older one that comes later counts as skipped, for the pool had gone on. */
enum rc version_activated(struct core *c, int64_t run, int64_t version, struct err *err) {
  struct pool *p = c->pool;
  if (p->activated_run == run && version <= p->activated) return RC_OK;
  const enum rc rc =
      store_exec(c->store, err,
                 "UPDATE versions SET activated_ms = ?3 WHERE run = ?1 AND version = ?2 AND activated_ms "
                 "IS NULL",
                 BINDS(b_int(run), b_int(version), b_int(c->wall_ms)));
  if (rc != RC_OK) return rc;
  p->activated_run = run;
  p->activated = version;
  return RC_OK;
}

/* Grants passes to preprocessors, takes their results, and gives passes of lost workers to others: see passes.h. */
#include "services/coordinator/pool/passes.h"

#include <inttypes.h>
#include <string.h>

#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"

/* ---- what is computed ---- */

enum rc pass_reference_now(struct core *c, struct pass_reference *out, struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct pass_reference){0};
  if (!c->context || !run_has_reference(&c->context->config)) return RC_OK;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT v.digest, (SELECT url FROM workers INDEXED BY workers_holder WHERE holder = 1 ORDER BY "
                  "fence DESC LIMIT 1) FROM runs r JOIN versions v ON v.run = r.id AND v.version = 0 WHERE r.id "
                  "= ?1 AND r.state IN (?2, ?3) AND r.error IS NULL",
                  BINDS(b_int(c->context->run), b_int(RUN_RUNNING), b_int(RUN_PAUSED)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row && rows_digest(&q, 0, &out->digest) && !rows_null(&q, 1)) {
    run_teacher(&c->context->config, &out->digest);
    out->run = c->context->run;
    out->weights_from = arena_strdup(arena, rows_text(&q, 1, NULL));
    out->has = out->weights_from != NULL;
    if (!out->has) rc = err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
  }
  rows_end(&q);
  return rc;
}

/* ---- granting ---- */

/* Sealed groups that may be granted to this worker, and whether the whole answer stays small. */
struct waiting_passes {
  struct granted_pass items[LIMIT_PASSES_PER_REQUEST];
  int64_t tokens[LIMIT_PASSES_PER_REQUEST];
  int count, all; /* all: those beyond the room too, as far as a share can need them */
};

enum { SHARED_AMONG_MAX = 64 }; /* more preprocessors than this share as if they were this many */

/* In the order of the optimizer steps where they go by ordinals, else in the order in which batches take groups. */
static enum rc waiting_find(struct core *c, const struct live_worker *w, const struct pass_reference *reference,
                            struct waiting_passes *out, struct err *err) {
#define WAITING_PASSES                                                                                              \
  "SELECT g.round, g.ordinal, g.sample_count, coalesce(p.fence, 0), g.tokens + g.sample_count * "                   \
  "length(g.prompt_ids) / 4 FROM groups g INDEXED BY groups_sealed LEFT JOIN passes p ON p.run = g.run AND p.round " \
  "= g.round AND p.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.state = " SQL_GROUP_SEALED                      \
  " AND g.ordinal < ?2 AND (p.state IS NULL OR (p.state = " SQL_PASS_WAITING                                        \
  " AND p.worker IS NOT ?3 AND p.first_ms > ?4)) ORDER BY g.round, "
  static const char by_sealing[] = WAITING_PASSES "g.sealed_ms, g.ordinal LIMIT ?5";
  static const char by_ordinal[] = WAITING_PASSES "g.ordinal LIMIT ?5";
#undef WAITING_PASSES
  const struct run_config *config = &c->context->config;
  const int64_t late_ms = config->training.teacher[0]
                              ? INT64_MIN
                              : c->wall_ms - run_pass_timeout_ms(config); /* the trainer has no teacher */
  const bool by_steps =
      config->mode == MODE_INFLIGHT ? config->order == ORDER_SUBMISSION : config->groups_per_step > 0;
  struct rows q;
  bool row;
  out->count = out->all = 0;
  enum rc rc = store_query(c->store, &q, err, by_steps ? by_ordinal : by_sealing,
                           BINDS(b_int(reference->run), b_int(ORDINAL_EVALUATION_FIRST), b_int(w->id),
                                 b_int(late_ms),
                                 b_int(LIMIT_PASSES_PER_REQUEST * SHARED_AMONG_MAX)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    if (out->all++ >= LIMIT_PASSES_PER_REQUEST) continue;
    out->tokens[out->count] = rows_int(&q, 4);
    out->items[out->count++] = (struct granted_pass){.round = rows_int(&q, 0),
                                                     .group = rows_int(&q, 1),
                                                     .samples = rows_int(&q, 2),
                                                     .fence = rows_int(&q, 3) + 1};
  }
  rows_end(&q);
  return rc;
}

static enum rc pass_store(struct core *c, const struct live_worker *w, int64_t run, const struct granted_pass *p,
                          struct err *err) {
  return store_exec(
      c->store, err,
      "INSERT INTO passes (run, round, group_ordinal, state, fence, worker, first_ms, deadline_ms) VALUES "
      "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE SET state = excluded.state, fence = "
      "excluded.fence, worker = excluded.worker, deadline_ms = excluded.deadline_ms",
      BINDS(b_int(run), b_int(p->round), b_int(p->group), b_int(PASS_GRANTED), b_int(p->fence), b_int(w->id),
            b_int(c->wall_ms), b_int(expiry_lease_deadline(c->now_ms, c->options.lease_ttl_ms))));
}

static enum rc held_by(struct core *c, int64_t worker, int64_t *out, struct err *err) {
  return store_int(
      c->store, out, err,
      "SELECT count(*) FROM passes p INDEXED BY passes_granted JOIN groups g ON g.run = p.run AND g.round = "
      "p.round AND g.ordinal = p.group_ordinal WHERE p.worker = ?1 AND p.state = " SQL_PASS_GRANTED
      " AND g.state = " SQL_GROUP_SEALED,
      BINDS(b_int(worker)));
}

enum rc passes_grant(struct core *c, const struct live_worker *w, const struct pass_reference *reference, int asked,
                     struct granted_pass *out, int *count, struct err *err) {
  struct waiting_passes waiting;
  int64_t held = 0, tokens = 0;
  const bool holds = digest_equal(&w->reference, &reference->digest);
  *count = 0;
  if (!holds && c->context->config.training.teacher[0]) return RC_OK; /* a teacher brings its own weights */
  enum rc rc = waiting_find(c, w, reference, &waiting, err);
  if (rc != RC_OK || waiting.count == 0) return rc;
  if (!holds) rc = held_by(c, w->id, &held, err);
  if (rc != RC_OK || held > 0) return rc; /* it learns from the one what to load */
  int n = passes_share(waiting.all, c->pool->preprocessing, asked, holds);
  if (n > waiting.count) n = waiting.count;
  for (int i = 0; i < n && rc == RC_OK && (i == 0 || tokens + waiting.tokens[i] <= c->options.batch_tokens); i++) {
    rc = pass_store(c, w, reference->run, &waiting.items[i], err);
    tokens += waiting.tokens[i];
    if (rc == RC_OK) out[(*count)++] = waiting.items[i];
  }
  metric_add(c->pool->m_passes_granted, *count);
  return rc;
}

/* ---- looking up ---- */

/* The newest is the only one: a row has the fence of its last grant. */
enum rc pass_claimed(struct store *s, const char *id, uint64_t fence, const char *worker, struct pass_row *out,
                     struct err *err) {
  struct rows q;
  bool row = false;
  int64_t run = 0, round = 0, group = 0;
  *out = (struct pass_row){0};
  enum rc rc = id_parse_group(&run, &round, &group, "pass", id, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT p.state, p.fence, coalesce(p.worker, 0), g.state = " SQL_GROUP_SEALED
                   ", p.content FROM passes p JOIN groups g ON g.run = p.run AND g.round = p.round AND g.ordinal = "
                   "p.group_ordinal WHERE p.run = ?1 AND p.round = ?2 AND p.group_ordinal = ?3",
                   BINDS(b_int(run), b_int(round), b_int(group)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct pass_row){.run = run,
                             .round = round,
                             .group = group,
                             .state = (enum pass_state)rows_int(&q, 0),
                             .fence = rows_int(&q, 1),
                             .worker = rows_int(&q, 2),
                             .sealed = rows_int(&q, 3) != 0};
    out->has_content = rows_digest(&q, 4, &out->content);
  }
  rows_end(&q);
  if (rc == RC_OK && !row) return err_set(err, RC_NOT_FOUND, "id", "there is no pass '%.100s'", id);
  if (rc == RC_OK && fence != (uint64_t)out->fence)
    return err_set(err, RC_CONFLICT, "fence", "pass %.100s has fence %" PRId64 " now, the result carries %" PRIu64, id,
                   out->fence, fence);
  if (rc == RC_OK && out->worker && strcmp(id_worker(out->worker).text, worker) != 0)
    return err_set(err, RC_FORBIDDEN, "worker_id", "pass %.100s belongs to %s, not to %.100s", id,
                   id_worker(out->worker).text, worker);
  return rc;
}

enum rc pass_stands(const struct pass_row *p, struct err *err) {
  const struct id_text id = id_group(p->run, p->round, p->group);
  if (p->state == PASS_DONE) return err_set(err, RC_CONFLICT, "id", "pass %s has its result already", id.text);
  if (p->state != PASS_GRANTED)
    return err_set(err, RC_GONE, "id", "pass %s with fence %" PRId64 " is not held by any worker any "
                                                                     "more", id.text, p->fence);
  if (p->sealed) return RC_OK;
  return err_set(err, RC_CONFLICT, "id", "pass %s is not wanted any more: its group has gone on without it", id.text);
}

/* ---- ending ---- */

#define OF_PASS " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3"

enum rc pass_accept(struct core *c, const struct pass_row *p, const struct digest *weights,
                    const struct digest *content, const float *logprobs, size_t count, struct err *err) {
  const enum rc rc =
      store_exec(c->store, err,
                 "UPDATE passes SET state = ?4, ended_ms = ?5, digest = ?6, content = ?7, logprobs = ?8" OF_PASS,
                 BINDS(b_int(p->run), b_int(p->round), b_int(p->group), b_int(PASS_DONE), b_int(c->wall_ms),
                       b_digest(weights), b_digest(content), b_blob(logprobs, count * sizeof *logprobs)));
  if (rc != RC_OK) return rc;
  c->sealed++; /* for the driver it is complete only now */
  metric_add(c->pool->m_passes_done, 1);
  return RC_OK;
}

enum rc pass_give_back(struct core *c, const struct pass_row *p, enum pass_state state, bool again, struct err *err) {
  c->passes_due = c->kick_due = true;
  return store_exec(
      c->store, err, "UPDATE passes SET state = ?4, ended_ms = ?5, worker = iif(?6, NULL, worker)" OF_PASS,
      BINDS(b_int(p->run), b_int(p->round), b_int(p->group), b_int(state), b_int(c->wall_ms), b_int(again)));
}

enum rc pass_renew(struct core *c, const char *id, int64_t fence, int64_t worker, bool *held, struct err *err) {
  int64_t run = 0, round = 0, group = 0;
  *held = false;
  if (id_parse_group(&run, &round, &group, "pass", id, NULL) != RC_OK) return RC_OK;
  const enum rc rc = store_exec(
      c->store, err,
      "UPDATE passes SET deadline_ms = ?6" OF_PASS " AND fence = ?4 AND worker = ?5 AND state = " SQL_PASS_GRANTED
      " AND EXISTS (SELECT 1 FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3 AND state = " SQL_GROUP_SEALED
      ")",
      BINDS(b_int(run), b_int(round), b_int(group), b_int(fence), b_int(worker),
            b_int(expiry_lease_deadline(c->now_ms, c->options.lease_ttl_ms))));
  *held = rc == RC_OK && store_changes(c->store) == 1;
  return rc;
}

#define GRANTED_AGAIN                                                     \
  "UPDATE passes INDEXED BY passes_granted SET state = " SQL_PASS_WAITING \
  ", worker = NULL WHERE state = " SQL_PASS_GRANTED

/* They wait for others. */
static enum rc returned(struct core *c, enum rc rc) {
  const int64_t n = rc == RC_OK ? store_changes(c->store) : 0;
  if (n > 0) c->passes_due = c->kick_due = true;
  metric_add(c->pool->m_passes_lost, (double)n);
  return rc;
}

enum rc passes_lose_all(struct core *c, int64_t worker, struct err *err) {
  return returned(c, store_exec(c->store, err, GRANTED_AGAIN " AND worker = ?1", BINDS(b_int(worker))));
}

enum rc passes_forget_all(struct core *c, struct err *err) {
  return returned(c, store_exec(c->store, err, GRANTED_AGAIN, NO_BINDS));
}

/* Only a preprocessor that is alive and does not list a pass lets it lapse: those of a lost one are lost with it. */
enum rc passes_expire(struct core *c, struct err *err) {
  if (c->pool->preprocessing == 0) return RC_OK;
  return returned(c, store_exec(c->store, err, GRANTED_AGAIN " AND deadline_ms <= ?1", BINDS(b_int(c->now_ms))));
}

enum rc passes_put_off(struct core *c, int64_t ms, struct err *err) {
  return store_exec(c->store, err,
                    "UPDATE passes INDEXED BY passes_granted SET deadline_ms = deadline_ms + ?1 WHERE state "
                    "= " SQL_PASS_GRANTED,
                    BINDS(b_int(ms)));
}

/* Keeps the rows of rewards that servers answer, and adds them up when all are there. */
#include "services/coordinator/rounds/remote_rewards.h"

#include "services/coordinator/decide/stored.h"
#include "services/coordinator/store/ids.h"

#define OF_GROUP " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3"

static enum rc rows_wait(struct core *c, const struct reward_group *g, int32_t sample, int32_t term, struct err *err) {
  return store_exec(
      c->store, err,
      "INSERT OR REPLACE INTO remote_rewards (run, round, group_ordinal, sample, term, state) VALUES (?1, "
      "?2, ?3, ?4, ?5, " SQL_REWARD_WAITING ")",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(sample), b_int(term)));
}

static enum rc open_add(struct core *c, const struct reward_group *g, int64_t n, struct err *err) {
  return store_exec(c->store, err,
                    "UPDATE groups SET rewards_open = rewards_open + ?4 WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(n)));
}

#define COUNTED "(SELECT rewards_counted_ms FROM runs WHERE id = ?1)"

enum rc remote_rewards_count(struct core *c, int64_t run, int64_t passed_ms, struct err *err) {
  return store_exec(c->store, err, "UPDATE runs SET rewards_counted_ms = rewards_counted_ms + ?2 WHERE id = ?1",
                    BINDS(b_int(run), b_int(passed_ms)));
}

enum rc remote_rewards_begin_anew(struct core *c, int64_t run, struct err *err) {
  return store_exec(c->store, err,
                    "UPDATE groups SET rewards_since_ms = " COUNTED " WHERE run = ?1 AND state = " SQL_GROUP_OPEN
                    " AND rewards_open > 0",
                    BINDS(b_int(run)));
}

enum rc remote_rewards_await(struct core *c, const struct reward_group *g, int32_t sample,
                             const struct reward_rule *rule, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; i < rule->count && rc == RC_OK; i++)
    if (rule->terms[i].kind == VERIFIER_HTTP) rc = rows_wait(c, g, sample, i, err);
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err,
                    "UPDATE groups SET rewards_open = rewards_open + ?4, rewards_since_ms = " COUNTED
                    " WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(reward_remote_terms(rule))));
}

enum rc remote_rewards_store(struct core *c, const struct reward_group *g, const struct remote_reward *r, bool *stored,
                             struct err *err) {
  enum rc rc = store_exec(c->store, err,
                          "UPDATE remote_rewards SET state = ?6, value = ?7, answered_ms = ?8" OF_GROUP
                          " AND sample = ?4 AND term = ?5 AND state = " SQL_REWARD_WAITING
                          " AND EXISTS (SELECT 1 FROM samples s WHERE s.run = ?1 AND s.round = ?2 AND s.group_ordinal "
                          "= ?3 AND s.sample = ?4 "
                          "AND s.state = " SQL_SAMPLE_DONE " AND s.digest = ?9)",
                          BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(r->sample), b_int(r->term),
                                b_int(r->missed ? REWARD_ROW_MISSED : REWARD_ROW_ANSWERED), b_real(r->value),
                                b_int(c->wall_ms), b_digest(r->digest)));
  *stored = rc == RC_OK && store_changes(c->store) == 1;
  return *stored ? open_add(c, g, -1, err) : rc;
}

enum rc remote_rewards_open(struct core *c, const struct reward_group *g, int64_t *out, struct err *err) {
  return store_int(
      c->store, out, err,
      "SELECT samples_open + rewards_open + unchecked FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
}

static enum rc detail_write(struct core *c, const struct reward_group *g, int64_t sample, struct buf *detail,
                            struct err *err) {
  if (detail->len == 0) return RC_OK;
  enum rc rc = buf_check(detail, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE samples SET detail = ?5 || iif(coalesce(detail, '') = '', '', '; ' || detail)" OF_GROUP
                    " AND sample = ?4",
                    BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(sample), b_text(detail->data)));
  buf_clear(detail);
  return rc;
}

static void detail_add(struct buf *detail, const struct reward_term *t, double value, bool missed) {
  buf_puts(detail, detail->len ? ", http " : "http ");
  buf_printf(detail, t->weight == 1 ? "%.6g" : "%.6g x %.4g", value, t->weight);
  if (missed) buf_puts(detail, " (not answered in time)");
}

enum rc remote_rewards_add(struct core *c, const struct reward_group *g, const struct reward_rule *rule,
                           double *rewards, double *values, int count, struct err *err) {
  struct rows q;
  struct buf detail = BUF_INIT;
  bool row;
  int64_t of = -1, found = 0;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT sample, term, value, state FROM remote_rewards" OF_GROUP " ORDER BY sample, term",
                           BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t sample = rows_int(&q, 0), term = rows_int(&q, 1), state = rows_int(&q, 3);
    if (sample < 0 || sample >= count || term < 0 || term >= rule->count || state == REWARD_ROW_WAITING)
      continue; /* counted below */
    if (sample != of) rc = detail_write(c, g, of, &detail, err);
    of = sample;
    rewards[sample] += rule->terms[term].weight * rows_real(&q, 2);
    if (values) values[sample * rule->count + term] = rows_real(&q, 2);
    detail_add(&detail, &rule->terms[term], rows_real(&q, 2), state == REWARD_ROW_MISSED);
    found++;
  }
  rows_end(&q);
  if (rc == RC_OK) rc = detail_write(c, g, of, &detail, err);
  buf_free(&detail);
  if (rc != RC_OK || found == (int64_t)count * reward_remote_terms(rule)) return rc;
  return err_set(err, RC_CORRUPT, NULL, "group %s has %lld of %lld rewards of servers",
                 id_group(g->run, g->round, g->ordinal).text, (long long)found,
                 (long long)count * reward_remote_terms(rule));
}

enum rc remote_rewards_forget_sample(struct core *c, const struct reward_group *g, int64_t sample, struct err *err) {
  const struct bind binds[] = {b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(sample)};
  enum rc rc =
      store_exec(c->store, err,
                 "DELETE FROM remote_rewards" OF_GROUP " AND sample = ?4 AND state = " SQL_REWARD_WAITING, binds, 4);
  if (rc == RC_OK) rc = open_add(c, g, -store_changes(c->store), err);
  return rc == RC_OK ? store_exec(c->store, err, "DELETE FROM remote_rewards" OF_GROUP " AND sample = ?4", binds, 4)
                     : rc;
}

enum rc remote_rewards_forget_group(struct core *c, const struct reward_group *g, struct err *err) {
  const enum rc rc = store_exec(c->store, err, "DELETE FROM remote_rewards" OF_GROUP " AND state = " SQL_REWARD_WAITING,
                                BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  return rc == RC_OK ? open_add(c, g, -store_changes(c->store), err) : rc;
}

enum rc remote_rewards_forget_run(struct core *c, int64_t run, struct err *err) {
  return store_exec(c->store, err,
                    "DELETE FROM remote_rewards WHERE run = ?1 AND state = " SQL_REWARD_WAITING, BINDS(b_int(run)));
}

/* Issues the groups of an `inflight` run, finds its full rounds, and drops what has become too old: see stream.h. */
#include "services/coordinator/rounds/stream.h"

#include <inttypes.h>
#include <stdio.h>

#include "services/coordinator/decide/lag.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/sample_again.h"
#include "services/coordinator/records/round_sums.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/run/run_context.h"

/* ---- where the stream stands ---- */

/* The round that is being filled, or stepped. */
struct filling {
  int64_t round, first, issued; /* first: where it begins in dataset order; issued: training groups */
  int64_t without_signal;       /* complete ones whose advantages are all zero, and which are left out */
  enum round_state state;
};

static enum rc filling_read(struct core *c, int64_t run, struct filling *out, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT round, dataset_first, groups_refilled, state, groups_filtered - groups_lagged - "
                           "groups_overflowed - groups_refused FROM rounds WHERE run = ?1 ORDER BY round DESC LIMIT 1",
                           BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row)
    *out = (struct filling){.round = rows_int(&q, 0),
                            .first = rows_int(&q, 1),
                            .issued = rows_int(&q, 2),
                            .state = (enum round_state)rows_int(&q, 3),
                            .without_signal = rows_int(&q, 4)};
  rows_end(&q);
  return rc == RC_OK && !row ? err_set(err, RC_CORRUPT, NULL, "a run in flight has no round") : rc;
}

enum rc stream_round(struct core *c, int64_t run, int64_t own, int64_t *out, struct err *err) {
  *out = own;
  if (!c->context || c->context->run != run || c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  return store_int(c->store, out, err, "SELECT max(round) FROM rounds WHERE run = ?1", BINDS(b_int(run)));
}

/* By the round's step, which may be planned ahead of the round (batches.h). */
static enum rc groups_taken(struct core *c, int64_t run, int64_t round, int64_t *out, struct err *err) {
  return store_int(c->store, out, err,
                   "SELECT count(*) FROM groups INDEXED BY groups_batch WHERE run = ?1 AND trained_in = ?2",
                   BINDS(b_int(run), b_int(round)));
}

/* ---- issuing ---- */

static enum rc groups_sealed(struct core *c, int64_t run, int64_t *out, struct err *err) {
  return store_int(c->store, out, err,
                   "SELECT count(*) FROM groups INDEXED BY groups_sealed WHERE run = ?1 AND state "
                   "= " SQL_GROUP_SEALED,
                   BINDS(b_int(run)));
}

static enum rc groups_ahead(struct core *c, int64_t run, int64_t *open, int64_t *sealed, struct err *err) {
  const enum rc rc = store_int(c->store, open, err,
                         "SELECT count(*) FROM groups INDEXED BY groups_open WHERE run = ?1 AND ordinal < ?2 AND state "
                         "= " SQL_GROUP_OPEN,
                         BINDS(b_int(run), b_int(ORDINAL_EVALUATION_FIRST)));
  return rc == RC_OK ? groups_sealed(c, run, sealed, err) : rc;
}

/* Counted once for each batch, version and dropped group: polls come far more often, and there may be thousands of
 * groups. */
static enum rc allowed_now(struct core *c, const struct filling *f, int64_t *out, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct stream_bound *bound = &c->rounds->stream;
  int64_t open = 0, sealed = 0, planned = 0, taken = 0;
  *out = bound->allowed;
  if (bound->known && bound->undone == c->undone) return RC_OK;
  enum rc rc = groups_ahead(c, c->context->run, &open, &sealed, err);
  if (rc == RC_OK) rc = groups_taken(c, c->context->run, f->round, &taken, err);
  if (rc == RC_OK) rc = groups_taken(c, c->context->run, f->round + 1, &planned, err);
  const int64_t complete = sealed + planned;
  const struct stream_state s = {.samples_ahead = config->samples_ahead,
                                 .samples = config->samples_per_group,
                                 .groups_ahead = config->drops_oldest ? open : open + complete,
                                 .groups_needed = (config->rounds - f->round) * config->groups_per_step - taken -
                                                  (config->drops_oldest ? complete : 0)};
  *bound = (struct stream_bound){.known = rc == RC_OK, .undone = c->undone, .allowed = lag_groups_allowed(&s)};
  *out = bound->allowed;
  return rc;
}

void stream_moved(struct core *c) {
  c->rounds->stream.known = false;
  c->samples_due = true;
}

enum rc stream_issue(struct core *c, int64_t slots, struct err *err) {
  enum run_state state = RUN_QUEUED;
  struct filling f = {0};
  bool waits = false;
  int64_t allowed = 0;
  if (!c->context || c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  const struct run_config *config = &c->context->config;
  enum rc rc = run_state_of(c->store, c->context->run, &state, err);
  if (rc == RC_OK && state != RUN_RUNNING) return RC_OK;
  if (rc == RC_OK) rc = round_samples_wait(c->store, c->context->run, &waits, err);
  if (rc != RC_OK || waits) return rc;
  rc = filling_read(c, c->context->run, &f, err);
  if (rc != RC_OK || f.state >= ROUND_DONE) return rc;
  rc = allowed_now(c, &f, &allowed, err);
  const int64_t servers = workers_generating(c) > 0 ? workers_generating(c) : 1;
  int64_t n = (slots * servers + config->samples_per_group - 1) / config->samples_per_group;
  if (n > allowed) n = allowed;
  if (n > ORDINAL_EVALUATION_FIRST - f.issued) n = ORDINAL_EVALUATION_FIRST - f.issued;
  for (int64_t i = 0; i < n && rc == RC_OK; i++)
    rc = round_issue(c, f.round, f.issued + i, f.first + f.issued + i, err);
  if (rc != RC_OK || n <= 0) return rc;
  c->rounds->stream.allowed -= n;
  c->samples_due = true; /* parked polls may have the rest */
  return store_exec(c->store, err,
                    "UPDATE rounds SET groups_open = groups_open + ?3, groups_refilled = groups_refilled + ?3 WHERE "
                    "run = ?1 AND round = ?2",
                    BINDS(b_int(c->context->run), b_int(f.round), b_int(n)));
}

/* ---- a full round ---- */

/* Of any round: an evaluation may take longer than the rounds that follow it. */
static enum rc evaluation_open(struct core *c, int64_t run, int64_t *out, struct err *err) {
  return store_int(c->store, out, err,
                   "SELECT count(*) FROM groups INDEXED BY groups_open WHERE run = ?1 AND ordinal >= ?2 AND state "
                   "= " SQL_GROUP_OPEN,
                   BINDS(b_int(run), b_int(ORDINAL_EVALUATION_FIRST)));
}

enum rc stream_when_full(struct core *c, int64_t run, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct filling f = {0};
  int64_t taken = 0, evaluation = 0;
  enum rc rc = filling_read(c, run, &f, err);
  if (rc != RC_OK || f.state != ROUND_OPEN) return rc;
  rc = groups_taken(c, run, f.round, &taken, err);
  if (rc != RC_OK || taken < config->groups_per_step) return rc;
  /* the run ends with its last step, and all its evaluations must be in by then */
  if (f.round == config->rounds - 1) rc = evaluation_open(c, run, &evaluation, err);
  if (rc != RC_OK || evaluation) return rc;
  rc = round_sums_means(c, run, f.round, false, err);
  if (rc == RC_OK) rc = round_move(c, run, f.round, ROUND_TRAINING, err);
  c->kick_due = true;
  return rc == RC_OK ? round_step_when_trained(c, run, f.round, run_counts_tokens(config), err) : rc;
}

/* The queue of complete groups is full: the oldest ones go.  A batch may have been chosen of them meanwhile: its plan
 * is refused, and another one is chosen (driver/train.c). */
static enum rc queue_drop(struct core *c, int64_t run, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct filling f = {0};
  int64_t sealed = 0;
  enum rc rc = groups_sealed(c, run, &sealed, err);
  const int64_t n = lag_groups_dropped(config->samples_ahead, config->samples_per_group, sealed);
  if (rc != RC_OK || n == 0) return rc;
  rc = filling_read(c, run, &f, err);
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err,
        "UPDATE groups SET state = ?2, reason = 'queue' WHERE run = ?1 AND (round, ordinal) IN (SELECT round, "
        "ordinal FROM groups INDEXED BY groups_sealed WHERE run = ?1 AND state = " SQL_GROUP_SEALED
        " ORDER BY sealed_ms, round, ordinal LIMIT ?3)",
        BINDS(b_int(run), b_int(GROUP_FILTERED), b_int(n)));
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err,
        "UPDATE rounds SET groups_filtered = groups_filtered + ?3, groups_overflowed = groups_overflowed + ?3 "
        "WHERE run = ?1 AND round = ?2",
        BINDS(b_int(run), b_int(f.round), b_int(n)));
  stream_moved(c);
  return rc;
}

enum rc stream_closed(struct core *c, const struct stream_group *g, struct err *err) {
  int64_t open = 0;
  const bool drops = c->context->config.drops_oldest;
  if (g->dropped || drops) stream_moved(c); /* what is complete is not ahead where it may be dropped */
  if (g->ordinal < ORDINAL_EVALUATION_FIRST) return drops ? queue_drop(c, g->run, err) : RC_OK;
  enum rc rc = store_int(c->store, &open, err,
                         "SELECT count(*) FROM groups INDEXED BY groups_open WHERE run = ?1 AND round = ?2 AND ordinal "
                         ">= ?3 AND state = " SQL_GROUP_OPEN,
                         BINDS(b_int(g->run), b_int(g->round), b_int(ORDINAL_EVALUATION_FIRST)));
  if (rc != RC_OK || open) return rc;
  rc = round_evaluated(c, g->run, g->round, err);
  return rc == RC_OK ? stream_when_full(c, g->run, err) : rc;
}

enum rc stream_filtered(struct core *c, int64_t run, struct err *err) {
  const struct run_config *config = &c->context->config;
  const int64_t most = lag_groups_without_signal(config->groups_per_step);
  struct filling f = {0};
  enum run_state state = RUN_QUEUED;
  int64_t sealed = 0, planned = 0, taken = 0;
  char why[320];
  enum rc rc = filling_read(c, run, &f, err);
  if (rc != RC_OK || f.without_signal == 0 || f.without_signal % most != 0) return rc;
  rc = groups_sealed(c, run, &sealed, err);
  if (rc == RC_OK) rc = groups_taken(c, run, f.round, &taken, err);
  if (rc == RC_OK) rc = groups_taken(c, run, f.round + 1, &planned, err);
  if (rc == RC_OK) rc = run_state_of(c->store, run, &state, err);
  if (rc != RC_OK || sealed + taken + planned > 0 || state != RUN_RUNNING) return rc;
  snprintf(why, sizeof why,
           "expected groups to train on, but the advantages of all %" PRId64
           " groups that were complete since step %" PRId64
           " are zero, and filter.zero_advantage leaves such groups out: see whether the verifier tells right from "
           "wrong and whether the problems are neither too easy nor too hard",
           f.without_signal, f.round);
  return run_hold(c, run, why, err);
}

/* ---- a version ---- */

/* Of groups that are not complete.  A few at a time, because each of them changes what is queried. */
static enum rc samples_found(struct core *c, int64_t run, struct bind which, const char *sql,
                             enum rc (*drop)(struct core *, int64_t, const struct again_sample *, struct err *),
                             struct err *err) {
  enum { AT_ONCE = 64 };
  struct again_sample found[AT_ONCE];
  int n;
  enum rc rc;
  do {
    struct rows q;
    bool row;
    n = 0;
    rc = store_query(c->store, &q, err, sql, BINDS(b_int(run), which));
    while (rc == RC_OK && n < AT_ONCE && (rc = rows_next(&q, &row, err)) == RC_OK && row)
      found[n++] = (struct again_sample){rows_int(&q, 0), rows_int(&q, 1), rows_int(&q, 2), rows_int(&q, 3)};
    rows_end(&q);
    for (int i = 0; i < n && rc == RC_OK; i++) rc = drop(c, run, &found[i], err);
  } while (rc == RC_OK && n == AT_ONCE);
  return rc;
}

#define OPEN_GROUPS(table)                                                                                  \
  " FROM groups g INDEXED BY groups_open CROSS JOIN " table " s ON s.run = g.run AND s.round = g.round AND " \
  "s.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.state = " SQL_GROUP_OPEN " AND "

/* Finished samples of training groups; then the beginnings of what waits again, which no lease can hold any more.  A
 * finished sample of an evaluation stays, however old it is. */
static enum rc stale_samples(struct core *c, int64_t run, int64_t oldest, struct err *err) {
  static const char finished[] = "SELECT s.round, s.group_ordinal, s.sample, s.tokens" OPEN_GROUPS(
      "samples") "g.purpose = " SQL_PURPOSE_TRAINING " AND s.version_first < ?2 AND s.state = " SQL_SAMPLE_DONE;
  static const char begun[] =
      "SELECT s.round, s.group_ordinal, s.sample, 0" OPEN_GROUPS(
          "samples") "s.state = " SQL_SAMPLE_WAITING " AND EXISTS (SELECT 1 FROM spans p WHERE p.run = s.run AND "
                     "p.round = s.round AND p.group_ordinal = s.group_ordinal AND p.sample = s.sample AND p.start = 0 "
                     "AND p.version < ?2)";
  const enum rc rc = samples_found(c, run, b_int(oldest), finished, sample_again, err);
  return rc == RC_OK ? samples_found(c, run, b_int(oldest), begun, sample_tokens_drop, err) : rc;
}

/* Complete groups that no step has taken. */
static enum rc stale_groups(struct core *c, int64_t run, int64_t round, int64_t oldest, struct err *err) {
  enum rc rc = store_exec(c->store, err,
                          "UPDATE groups INDEXED BY groups_sealed SET state = ?3, reason = 'lag' WHERE run = ?1 AND "
                          "version_first < ?2 AND state = " SQL_GROUP_SEALED,
                          BINDS(b_int(run), b_int(oldest), b_int(GROUP_FILTERED)));
  const int64_t n = rc == RC_OK ? store_changes(c->store) : 0;
  if (rc != RC_OK || n == 0) return rc;
  return store_exec(
      c->store, err,
      "UPDATE rounds SET groups_filtered = groups_filtered + ?3, groups_lagged = groups_lagged + ?3 WHERE "
      "run = ?1 AND round = ?2",
      BINDS(b_int(run), b_int(round), b_int(n)));
}

enum rc stream_published(struct core *c, int64_t run, int64_t round, int64_t version, struct err *err) {
  const int64_t oldest = lag_oldest(version, c->context->config.max_lag);
  enum rc rc = leases_outdate(c, run, version, err);
  if (rc == RC_OK) rc = stale_samples(c, run, oldest, err);
  if (rc == RC_OK) rc = stale_groups(c, run, round, oldest, err);
  waiting_forget(&c->pool->waiting);
  stream_moved(c);
  return rc;
}

/* ---- a quarantine ---- */

#define DRAWN_BY "IN (SELECT id FROM workers WHERE name = ?2)"
#define BEGUN_BY                                                                                         \
  "EXISTS (SELECT 1 FROM handed_back h WHERE h.run = s.run AND h.round = s.round AND h.group_ordinal = " \
  "s.group_ordinal "                                                                                     \
  "AND h.sample = s.sample AND h.worker " DRAWN_BY ")"

enum rc stream_take_back(struct core *c, int64_t run, int64_t round, const char *worker, struct err *err) {
  static const char finished[] = "SELECT s.round, s.group_ordinal, s.sample, s.tokens" OPEN_GROUPS(
      "samples") "g.purpose = " SQL_PURPOSE_TRAINING " AND s.state = " SQL_SAMPLE_DONE " AND (s.worker " DRAWN_BY
      " OR " BEGUN_BY ")";
  static const char begun[] =
      "SELECT s.round, s.group_ordinal, s.sample, 0" OPEN_GROUPS("samples") "s.state = " SQL_SAMPLE_WAITING
                                                                            " AND " BEGUN_BY;
  if (!c->context || c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  enum rc rc = samples_found(c, run, b_text(worker), finished, sample_again, err);
  if (rc == RC_OK) rc = samples_found(c, run, b_text(worker), begun, sample_tokens_drop, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE groups INDEXED BY groups_sealed SET state = ?3, reason = 'refused' WHERE run = ?1 AND "
                    "state = " SQL_GROUP_SEALED " AND purpose = " SQL_PURPOSE_TRAINING
                    " AND EXISTS (SELECT 1 FROM samples s WHERE s.run = "
                    "groups.run AND s.round = groups.round AND s.group_ordinal = groups.ordinal AND (s.worker " DRAWN_BY
                    " OR " BEGUN_BY "))",
                    BINDS(b_int(run), b_text(worker), b_int(GROUP_FILTERED)));
  const int64_t n = rc == RC_OK ? store_changes(c->store) : 0;
  if (rc == RC_OK && n > 0)
    rc = store_exec(
        c->store, err,
        "UPDATE rounds SET groups_filtered = groups_filtered + ?3, groups_refused = groups_refused + ?3 WHERE run = "
        "?1 AND round = ?2",
        BINDS(b_int(run), b_int(round), b_int(n)));
  waiting_forget(&c->pool->waiting);
  stream_moved(c);
  return rc;
}

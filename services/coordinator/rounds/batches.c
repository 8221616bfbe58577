/* Plans batches, stores their answers, and has them sent again after a trainer was lost. */
#include "services/coordinator/rounds/batches.h"

#include <inttypes.h>
#include <limits.h>

#include "common/base/log.h"
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/decide/membership.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/records/exactness.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/records/round_sums.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/store/ids.h"

/* ---- planning ---- */

/* Sealed groups that the next batch may take, in its order. */
struct candidates {
  struct group_place *places;
  int64_t *tokens; /* prompts included */
  int count;
};

static enum rc candidates_alloc(struct candidates *out, int most, struct arena *arena, struct err *err) {
  *out = (struct candidates){.places = arena_alloc(arena, (size_t)most, sizeof *out->places),
                             .tokens = arena_alloc(arena, (size_t)most, sizeof *out->tokens)};
  return out->places && out->tokens ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a batch's plan was refused memory");
}

/* What a selection goes by, beside the plan itself. */
struct selection {
  struct store *store;
  struct run_context *context;
  struct passes_moment passes;
  int64_t tokens_max;
  struct arena *arena;
};

static enum rc plan_groups(struct batch_plan *plan, struct candidates *c, const struct selection *by,
                           struct err *err) {
  const enum rc rc =
      batch_passes_sift(c->places, c->tokens, &c->count, by->store, by->context, &by->passes, by->arena, err);
  plan->places = c->places;
  plan->groups = rc == RC_OK ? batching_select(c->tokens, c->count, by->tokens_max) : 0;
  plan->tokens = 0;
  for (int i = 0; i < plan->groups; i++) plan->tokens += c->tokens[i];
  return rc;
}

/* As many as a batch can take; where some may wait for preprocessors, all. */
static enum rc sealed_read(struct candidates *out, const struct batch_plan *plan, const struct selection *by,
                           struct err *err) {
  struct run_context *x = by->context;
  const bool supervised = run_is_supervised(&x->config);
  const int64_t tokens_max = by->passes.preprocessors || by->passes.taught ? INT64_MAX : by->tokens_max;
  int64_t sum = 0;
  struct rows q;
  bool row;
  enum rc rc = candidates_alloc(out, LIMIT_GROUPS_PER_ROUND, by->arena, err);
  if (rc != RC_OK) return rc;
  rc = store_query(by->store, &q, err,
                   "SELECT ordinal, tokens + sample_count * length(prompt_ids) / 4 FROM groups INDEXED BY "
                   "groups_sealed WHERE run = ?1 AND round = ?2 AND state = " SQL_GROUP_SEALED
                   " ORDER BY sealed_ms, ordinal LIMIT ?3",
                   BINDS(b_int(plan->run), b_int(plan->round), b_int(LIMIT_GROUPS_PER_ROUND)));
  while (rc == RC_OK && sum <= tokens_max && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    out->places[out->count] = (struct group_place){plan->round, rows_int(&q, 0)};
    out->tokens[out->count] = supervised ? run_unit_tokens(x, plan->round, rows_int(&q, 0)) : rows_int(&q, 1);
    sum += out->tokens[out->count++];
  }
  rows_end(&q);
  return rc;
}

/* ---- planning for an inner step ---- */

static enum group_standing standing_of(enum group_state state) {
  switch (state) {
    case GROUP_OPEN: return STANDING_OPEN;
    case GROUP_SEALED: return STANDING_SEALED;
    case GROUP_SUBMITTED:
    case GROUP_CONSUMED: return STANDING_SUBMITTED;
    case GROUP_FILTERED:
    case GROUP_FAILED:
    case GROUP_EVALUATED:
    case GROUP_ABANDONED: break;
  }
  return STANDING_DROPPED;
}

/* The training groups that are in no earlier step, as far as a step of groups_per_step groups can reach. */
struct step_groups {
  enum group_standing *standing;
  struct group_place *places;
  int64_t *tokens;
  int count;
};

/* Columns: round, ordinal, tokens, state.  Ends once groups_per_step groups are reached that may be members. */
static enum rc step_groups_query(struct step_groups *out, struct store *s, const char *sql, const struct bind *binds,
                                 size_t bind_count, int most, int groups_per_step, struct arena *arena,
                                 struct err *err) {
  struct candidates all;
  struct rows q;
  bool row;
  enum rc rc = candidates_alloc(&all, most, arena, err);
  *out = (struct step_groups){.standing = arena_alloc(arena, (size_t)most, sizeof *out->standing),
                              .places = all.places,
                              .tokens = all.tokens};
  if (rc == RC_OK && !out->standing) rc = err_set(err, RC_NO_MEMORY, NULL, "a batch's plan was refused memory");
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, sql, binds, bind_count);
  for (int reached = 0; rc == RC_OK && reached < groups_per_step && out->count < most;) {
    if ((rc = rows_next(&q, &row, err)) != RC_OK || !row) break;
    out->places[out->count] = (struct group_place){rows_int(&q, 0), rows_int(&q, 1)};
    out->tokens[out->count] = rows_int(&q, 2);
    out->standing[out->count] = standing_of((enum group_state)rows_int(&q, 3));
    reached += out->standing[out->count++] != STANDING_DROPPED;
  }
  rows_end(&q);
  return rc;
}

static enum rc step_groups_read(struct step_groups *out, const struct batch_plan *plan, struct store *s,
                                int64_t ordinal, int groups_per_step, struct arena *arena, struct err *err) {
  return step_groups_query(
      out, s,
      "SELECT round, ordinal, tokens + sample_count * length(prompt_ids) / 4, state FROM groups WHERE run = ?1 "
      "AND round = ?2 AND ordinal >= ?3 AND ordinal < ?4 ORDER BY ordinal",
      BINDS(b_int(plan->run), b_int(plan->round), b_int(ordinal), b_int(ORDINAL_EVALUATION_FIRST)),
      ORDINAL_EVALUATION_FIRST, groups_per_step, arena, err);
}

/* The sealed ones of the first `end`. */
static void sealed_of(struct candidates *out, const struct step_groups *g, int end) {
  for (int i = 0; i < end; i++) {
    if (g->standing[i] != STANDING_SEALED) continue;
    out->places[out->count] = g->places[i];
    out->tokens[out->count++] = g->tokens[i];
  }
}

/* Known before the trainer answers, so that the step can be queued at once behind its batches; 0, a step that is
 * skipped, where no token is trained on.  Segments that are not trained on are in the database, those of plain samples
 * are not (api/route_results.c). */
static enum rc denominator_of(double *out, const struct batch_plan *plan, struct store *s, bool by_tokens,
                              int64_t ordinal, int64_t ordinal_end, struct err *err) {
  int64_t sum = 0;
  const enum rc rc = store_int(
      s, &sum, err,
      "SELECT iif(?5 OR trained = 0, trained, samples) FROM (SELECT sum(sample_count) AS samples, sum(tokens - "
      "coalesce((SELECT sum(count) FROM segments WHERE run = g.run AND round = g.round AND group_ordinal = g.ordinal "
      "AND loss_mask = 0), 0)) AS trained FROM groups g WHERE run = ?1 AND round = ?2 AND ordinal >= ?3 AND ordinal < "
      "?4 AND state IN (?6, ?7))",
      BINDS(b_int(plan->run), b_int(plan->round), b_int(ordinal), b_int(ordinal_end), b_int(by_tokens),
            b_int(GROUP_SEALED), b_int(GROUP_SUBMITTED)));
  *out = (double)sum;
  return rc;
}

static enum rc step_select(struct batch_plan *plan, const struct selection *by, struct err *err) {
  struct store *s = by->store;
  const struct run_config *config = &by->context->config;
  struct step_groups g;
  struct step_members m;
  struct candidates sealed;
  int64_t begin = 0;
  enum rc rc = inner_steps_look(s, plan->run, plan->round, &plan->step, &begin, err);
  if (rc == RC_OK) rc = step_groups_read(&g, plan, s, begin, config->groups_per_step, by->arena, err);
  if (rc == RC_OK) rc = candidates_alloc(&sealed, ORDINAL_EVALUATION_FIRST, by->arena, err);
  if (rc != RC_OK) return rc;
  membership_find(&m, g.standing, g.count, config->groups_per_step);
  sealed_of(&sealed, &g, m.end);
  rc = plan_groups(plan, &sealed, by, err);
  plan->missing = config->groups_per_step - m.submitted;
  plan->completes = rc == RC_OK && m.full && plan->groups == m.sealed;
  if (!plan->completes) return rc;
  plan->inner = (struct inner_step_plan){
      .step = plan->step, .groups = config->groups_per_step, .ordinal_end = g.places[m.end - 1].ordinal + 1};
  return denominator_of(&plan->inner.denominator, plan, s, run_counts_tokens(config), begin, plan->inner.ordinal_end,
                        err);
}

/* ---- planning for a step of a stream ---- */

/* Of the run's groups that are in no step, the first ones that are complete, or the first ones that were issued: then a
 * complete one waits for those before it, which may still be members (decide/membership.h). */
static enum rc stream_select(struct batch_plan *plan, const struct selection *by, struct err *err) {
  struct store *s = by->store;
  const struct run_config *config = &by->context->config;
  static const char completion[] =
      "SELECT round, ordinal, tokens + sample_count * length(prompt_ids) / 4, state FROM groups INDEXED BY "
      "groups_sealed WHERE run = ?1 AND state = " SQL_GROUP_SEALED
      " AND ordinal < ?2 AND version_first >= ?3 ORDER BY sealed_ms, round, ordinal";
  static const char submission[] =
      "SELECT round, ordinal, tokens + sample_count * length(prompt_ids) / 4, state FROM (SELECT * FROM groups INDEXED "
      "BY groups_sealed WHERE run = ?1 AND state = " SQL_GROUP_SEALED
      " UNION ALL SELECT * FROM groups INDEXED BY groups_open WHERE run = ?1 AND state = " SQL_GROUP_OPEN
      ") WHERE ordinal < ?2 AND (state = " SQL_GROUP_OPEN " OR version_first >= ?3) ORDER BY round, ordinal";
  const bool by_completion = config->order == ORDER_COMPLETION;
  struct step_groups g = {0};
  struct step_members m;
  struct candidates sealed;
  int64_t taken = 0;
  enum rc rc = store_int(s, &taken, err, "SELECT coalesce(sum(groups), 0) FROM batches WHERE run = ?1 AND round = ?2",
                         BINDS(b_int(plan->run), b_int(plan->round)));
  plan->missing = config->groups_per_step - (int)taken;
  if (rc == RC_OK && plan->missing > 0)
    rc = step_groups_query(&g, s, by_completion ? completion : submission,
                           BINDS(b_int(plan->run), b_int(ORDINAL_EVALUATION_FIRST), b_int(plan->oldest)),
                           plan->missing, plan->missing, by->arena, err);
  if (rc == RC_OK) rc = candidates_alloc(&sealed, plan->missing > 0 ? plan->missing : 1, by->arena, err);
  if (rc != RC_OK) return rc;
  membership_find(&m, g.standing, g.count, plan->missing > 0 ? plan->missing : 1);
  sealed_of(&sealed, &g, m.end);
  rc = plan_groups(plan, &sealed, by, err);
  plan->completes = plan->groups > 0 && plan->groups == plan->missing;
  return rc;
}

enum rc batches_select(struct batch_plan *plan, struct store *s, struct run_context *x,
                       const struct batch_moment *moment, int64_t tokens_max, struct arena *arena, struct err *err) {
  struct candidates sealed;
  struct selection by = {.store = s, .context = x, .tokens_max = tokens_max, .arena = arena};
  plan->step = plan->missing = 0;
  plan->completes = false;
  enum rc rc = batch_passes_look(&by.passes, s, x, moment, err);
  if (rc != RC_OK) return rc;
  if (x->config.mode == MODE_INFLIGHT) return stream_select(plan, &by, err);
  if (x->config.groups_per_step) return step_select(plan, &by, err);
  rc = sealed_read(&sealed, plan, &by, err);
  return rc == RC_OK ? plan_groups(plan, &sealed, &by, err) : rc;
}

enum rc batches_number(int64_t *out, struct store *s, int64_t run, int64_t round, struct err *err) {
  return store_int(s, out, err, "SELECT coalesce(max(number) + 1, 0) FROM batches WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
}

int batches_worth(const struct batch_plan *plan, const struct run_config *config, bool round_open, bool trainer_idle) {
  const struct batch_need need = {.trainer_idle = trainer_idle,
                                  .round_open = round_open,
                                  .completes = plan->completes,
                                  .groups_per_round = config->groups_per_round,
                                  .missing = config->groups_per_step ? plan->missing : INT_MAX};
  return batching_worth(&need);
}

/* ---- storing a plan ---- */

/* How many of the batch's groups bring what a preprocessor computed: no result is taken from now on. */
static enum rc preprocessed_note(struct core *c, const struct batch_plan *m, struct err *err) {
  int64_t any = 0;
  const enum rc rc = store_int(c->store, &any, err, "SELECT EXISTS (SELECT 1 FROM passes WHERE run = ?1)",
                               BINDS(b_int(m->run)));
  if (rc != RC_OK || !any) return rc;
  return store_exec(c->store, err,
                    "UPDATE rounds SET groups_preprocessed = groups_preprocessed + (SELECT count(*) FROM "
                    "groups g INDEXED BY groups_batch JOIN passes p ON p.run = g.run AND p.round = g.round AND "
                    "p.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.trained_in = ?2 AND g.batch = ?3 AND p.state "
                    "= " SQL_PASS_DONE ") WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_int(m->number)));
}

static enum rc batch_insert(struct core *c, const struct batch_plan *m, struct err *err) {
  return store_exec(
      c->store, err,
      "INSERT INTO batches (run, round, number, groups, tokens, submitted_ms, step) VALUES (?1, ?2, ?3, ?4, ?5, "
      "?6, ?7)",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(m->groups), b_int(m->tokens), b_int(c->wall_ms),
            b_int(m->step)));
}

static enum rc groups_submit(struct core *c, const struct batch_plan *m, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; i < m->groups && rc == RC_OK; i++) {
    rc = store_exec(
        c->store, err,
        "UPDATE groups SET trained_in = ?2, batch = ?5, state = ?6 WHERE run = ?1 AND round = ?3 AND ordinal "
        "= ?4 AND state = ?7",
        BINDS(b_int(m->run), b_int(m->round), b_int(m->places[i].round), b_int(m->places[i].ordinal), b_int(m->number),
              b_int(GROUP_SUBMITTED), b_int(GROUP_SEALED)));
    if (rc == RC_OK && store_changes(c->store) != 1)
      rc = err_set(err, RC_CONFLICT, "state", "group %s is not sealed any more",
                   id_group(m->run, m->places[i].round, m->places[i].ordinal).text);
  }
  return rc;
}

/* In its round's figures.  In flight, the round may have all its groups now. */
static enum rc plan_count(struct core *c, const struct batch_plan *m, struct err *err) {
  const struct run_config *config = c->context && c->context->run == m->run ? &c->context->config : NULL;
  const bool stream = config && config->mode == MODE_INFLIGHT, has_reference = config && run_has_reference(config);
  enum rc rc =
      store_exec(c->store, err,
                 "UPDATE rounds SET submitted_ms = coalesce(submitted_ms, ?3), jobs_undone = jobs_undone + 1, "
                 "groups_sealed = groups_sealed - ?4 * (NOT ?6), groups_trained = groups_trained + ?4 * ?6, "
                 "submitted_samples = submitted_samples + (SELECT coalesce(sum(sample_count), 0) FROM groups WHERE "
                 "run = ?1 AND trained_in = ?2 AND batch = ?5), groups_preprocessed = iif(?7, "
                 "coalesce(groups_preprocessed, 0), NULL) WHERE run = ?1 AND round = ?2",
                 BINDS(b_int(m->run), b_int(m->round), b_int(c->wall_ms), b_int(m->groups), b_int(m->number),
                       b_int(stream), b_int(has_reference)));
  if (rc == RC_OK && has_reference) rc = preprocessed_note(c, m, err);
  if (rc != RC_OK || !stream) return rc;
  stream_moved(c);
  rc = round_sums_taken(c, m->run, m->round, m->number, err);
  return rc == RC_OK ? stream_when_full(c, m->run, err) : rc;
}

enum rc batches_plan(struct core *c, const struct batch_plan *m, struct err *err) {
  const bool stream = c->context && c->context->run == m->run && c->context->config.mode == MODE_INFLIGHT;
  enum rc rc = batch_insert(c, m, err);
  if (rc == RC_OK) rc = groups_submit(c, m, err);
  if (rc == RC_OK && m->completes && !stream) rc = inner_steps_plan(c, m->run, m->round, &m->inner, err);
  return rc == RC_OK ? plan_count(c, m, err) : rc;
}

/* The run's newest round.  *takes: its groups may go into a batch now; *open: more of them are sampled.  In `sync`
 * those of an open round wait, also where a preprocessor's result completes one: their advantages may still change. */
static enum rc round_of_batches(struct core *c, int64_t *round, bool *takes, bool *open, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc =
      store_query(c->store, &q, err, "SELECT round, state FROM rounds WHERE run = ?1 ORDER BY round DESC LIMIT 1",
                  BINDS(b_int(c->context->run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  *takes = *open = false;
  if (rc == RC_OK && row) {
    const int64_t state = rows_int(&q, 1);
    *round = rows_int(&q, 0);
    *open = state == ROUND_OPEN;
    *takes = *open ? c->context->config.mode != MODE_SYNC
                   : state == ROUND_TRAINING && c->context->config.mode != MODE_INFLIGHT;
  }
  rows_end(&q);
  return rc;
}

enum rc batches_plan_sealed(struct core *c, bool trainer_idle, bool *planned, struct err *err) {
  const struct batch_moment moment = {.wall_ms = c->wall_ms, .trainer_idle = trainer_idle};
  struct arena arena = ARENA_INIT;
  bool takes, open;
  *planned = false;
  if (!c->context) return RC_OK;
  struct batch_plan plan = {.run = c->context->run};
  enum rc rc = round_of_batches(c, &plan.round, &takes, &open, err);
  if (rc == RC_OK && takes) rc = batches_number(&plan.number, c->store, plan.run, plan.round, err);
  if (rc == RC_OK && takes)
    rc = batches_select(&plan, c->store, c->context, &moment, c->options.batch_tokens, &arena, err);
  if (rc == RC_OK && plan.groups > 0 && plan.groups >= batches_worth(&plan, &c->context->config, open, trainer_idle)) {
    rc = batches_plan(c, &plan, err);
    *planned = rc == RC_OK;
  }
  arena_free(&arena);
  return rc;
}

/* ---- planning ahead ---- */

/* The groups that wait for the round; groups 0: none.  Those that a preprocessor may yet compute are left to the
 * driver, which knows whether the trainer stands still for them. */
static enum rc first_select(struct core *c, struct batch_plan *plan, struct arena *arena, struct err *err) {
  const struct batch_moment moment = {.wall_ms = c->wall_ms, .trainer_idle = false};
  plan->groups = 0;
  if (plan->round >= c->context->config.rounds) return RC_OK;
  return batches_select(plan, c->store, c->context, &moment, c->options.batch_tokens, arena, err);
}

/* What was planned ahead of the round; groups 0: nothing. */
static enum rc first_read(struct core *c, struct batch_plan *plan, struct err *err) {
  struct rows q;
  bool row = false;
  plan->groups = 0;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT count(*), sum(tokens + sample_count * length(prompt_ids) / 4) FROM groups INDEXED BY "
                  "groups_batch WHERE run = ?1 AND trained_in = ?2 AND batch = ?3",
                  BINDS(b_int(plan->run), b_int(plan->round), b_int(plan->number)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    plan->groups = (int)rows_int(&q, 0);
    plan->tokens = rows_int(&q, 1);
  }
  rows_end(&q);
  return rc;
}

/* If the step over `round` has begun, so that its groups are settled.  Groups that will be too old for the next one are
 * left out. */
static enum rc plan_ahead_of_step(struct core *c, int64_t run, int64_t round, struct err *err) {
  struct batch_plan plan = {.run = run, .round = round + 1};
  struct arena arena = ARENA_INIT;
  int64_t version = 0;
  if (!c->context || c->context->run != run || c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  enum rc rc =
      store_int(c->store, &version, err, "SELECT version FROM rounds WHERE run = ?1 AND round = ?2 AND state = ?3",
                BINDS(b_int(run), b_int(round), b_int(ROUND_STEPPING)));
  if (rc == RC_NOT_FOUND) return RC_OK;
  if (rc == RC_OK) rc = first_read(c, &plan, err);
  if (rc != RC_OK || plan.groups > 0) return rc; /* a trainer has computed the round again */
  plan.oldest = lag_oldest(version + 1, c->context->config.max_lag);
  rc = first_select(c, &plan, &arena, err);
  if (rc == RC_OK) rc = groups_submit(c, &plan, err);
  arena_free(&arena);
  return rc;
}

enum rc batches_open(struct core *c, int64_t run, int64_t round, struct err *err) {
  struct batch_plan plan = {.run = run, .round = round};
  struct arena arena = ARENA_INIT;
  if (c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  enum rc rc = first_read(c, &plan, err);
  if (rc == RC_OK && plan.groups > 0) {
    rc = batch_insert(c, &plan, err);
    return rc == RC_OK ? plan_count(c, &plan, err) : rc;
  }
  if (rc == RC_OK) rc = first_select(c, &plan, &arena, err);
  if (rc == RC_OK && plan.groups > 0) rc = batches_plan(c, &plan, err);
  arena_free(&arena);
  return rc;
}

/* ---- answers ---- */

/* How fast the trainer takes groups while it has some; the frontier is sized by it. */
static void note_drain(struct core *c, const struct batch_answer *m, int64_t groups) {
  const int64_t us = m->stats.compute_us + m->stats.logprob_us;
  if (us > 0) rate_note(&c->pool->rates.drain, (double)groups, (double)us / 1e6, c->now_ms);
  if (c->context && c->context->config.frontier == FRONTIER_GATE) c->samples_due = true; /* it may reach further now */
}

static enum rc batch_note(struct core *c, const struct batch_answer *m, struct err *err) {
  const struct batch_stats *stats = &m->stats;
  const struct mismatch *d = &m->mismatch;
  const bool lags = m->lag.tokens > 0;
  return store_exec(
      c->store, err,
      "UPDATE batches SET done = 1, done_ms = ?4, loss = ?5, entropy_sum = ?6, trained_tokens = ?7, compute_us = ?8, "
      "poisoned = ?9, logprob_us = ?10, worker = ?11, logprob_max_abs_diff = ?12, logprob_unequal = ?13, "
      "logprob_nonfinite = ?14, logprob_abs_sum = ?15, logprob_k1_sum = ?16, logprob_k3_sum = ?17, ratio_sum = ?18, "
      "ratio_squares = ?19, clipped = ?20, kl_new_old = ?21, difference_new_old = ?22, lag_min = ?23, lag_max = ?24, "
      "lag_sum = ?25, compared_tokens = ?26, kl_reference = ?27"
      " WHERE run = ?1 AND round = ?2 AND number = ?3 AND done = 0",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(c->wall_ms), b_real(stats->loss),
            b_real(stats->entropy_sum), b_int(stats->tokens), b_int(stats->compute_us + stats->logprob_us),
            b_int(stats->poisoned), b_int(stats->logprob_us), b_int(m->trainer_worker), b_real(d->max_abs),
            b_int(d->unequal), b_int(d->nonfinite), b_real(d->abs_sum), b_real(d->k1_sum), b_real(d->k3_sum),
            b_real(stats->ratio_sum), b_real(stats->ratio_squares), b_int(stats->clipped), b_real(stats->kl_new_old),
            b_real(stats->difference_new_old), lags ? b_int(m->lag.min) : b_null(), lags ? b_int(m->lag.max) : b_null(),
            lags ? b_int(m->lag.sum) : b_null(), lags ? b_int(m->lag.compared) : b_null(),
            b_real(stats->kl_reference_sum)));
}

/* The mismatch's sums are added in the batches' order, once all are done: exactness.c. */
static enum rc round_add(struct core *c, const struct batch_answer *m, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE rounds SET jobs_undone = jobs_undone - 1, loss_sum = loss_sum + coalesce(?3, 0), entropy_sum = "
      "entropy_sum + coalesce(?4, 0), trained_tokens = trained_tokens + ?5, compute_us = compute_us + ?6, logprob_us = "
      "logprob_us + ?7, logprob_max_abs_diff = max(logprob_max_abs_diff, ?8), logprob_unequal = logprob_unequal + ?9, "
      "logprob_nonfinite = logprob_nonfinite + ?10 WHERE run = ?1 AND round = ?2",
      BINDS(b_int(m->run), b_int(m->round), b_real(m->stats.loss), b_real(m->stats.entropy_sum), b_int(m->stats.tokens),
            b_int(m->stats.compute_us + m->stats.logprob_us), b_int(m->stats.logprob_us), b_real(m->mismatch.max_abs),
            b_int(m->mismatch.unequal), b_int(m->mismatch.nonfinite)));
}

/* If every kernel promises the same bits, a difference is trouble and is reported at once; else the round reports it.
 * */
static enum rc mismatch_warn(struct core *c, const struct batch_answer *m, struct err *err) {
  bool promised = true;
  if (m->mismatch.unequal == 0) return RC_OK;
  metric_add(c->rounds->m_unequal, (double)m->mismatch.unequal);
  const enum rc rc = exactness_promised(c->store, m->run, m->round, &promised, err);
  if (rc == RC_OK && promised)
    log_warn("batch %s: %" PRId64 " log-probabilities differ from the sampler's, by %.3g at most",
             id_batch(m->run, m->round, m->number).text, m->mismatch.unequal, m->mismatch.max_abs);
  return rc;
}

enum rc batches_answered(struct core *c, const struct batch_answer *m, struct err *err) {
  int64_t groups = 0;
  enum rc rc = batch_note(c, m, err);
  if (rc != RC_OK || store_changes(c->store) == 0) return rc;
  rc = round_add(c, m, err);
  if (rc == RC_OK) rc = entropies_store(c, m->run, m->entropies, m->entropy_groups, err);
  if (rc == RC_OK) rc = mismatch_warn(c, m, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &groups, err, "SELECT groups FROM batches WHERE run = ?1 AND round = ?2 AND number = ?3",
                   BINDS(b_int(m->run), b_int(m->round), b_int(m->number)));
  if (rc == RC_OK) note_drain(c, m, groups);
  if (rc == RC_OK) rc = intervals_store(c, m->run, m->round, m->trainer_worker, m->intervals, m->interval_count, err);
  if (rc == RC_OK) rc = round_step_when_trained(c, m->run, m->round, m->by_tokens, err);
  return rc == RC_OK ? plan_ahead_of_step(c, m->run, m->round, err) : rc;
}

/* ---- groups that are not summed ---- */

/* What a group's samples add to its step's figures (round_sums_taken). */
struct group_figures {
  int64_t samples, well_formed, tokens, positions, passes;
  double rewards;
};

static enum rc group_figures(struct core *c, int64_t run, const struct left_group *g, struct group_figures *out,
                             struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct group_figures){0};
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT count(*), sum(s.well_formed), sum(s.tokens), sum(s.reward), g.tokens + g.sample_count * "
                  "length(g.prompt_ids) / 4, EXISTS (SELECT 1 FROM passes p WHERE p.run = g.run AND p.round = g.round "
                  "AND p.group_ordinal = g.ordinal AND p.state = " SQL_PASS_DONE
                  ") FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = "
                  "g.ordinal WHERE g.run = ?1 AND g.round = ?2 AND g.ordinal = ?3",
                  BINDS(b_int(run), b_int(g->round), b_int(g->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row)
    *out = (struct group_figures){.samples = rows_int(&q, 0),
                                  .well_formed = rows_int(&q, 1),
                                  .tokens = rows_int(&q, 2),
                                  .rewards = rows_real(&q, 3),
                                  .positions = rows_int(&q, 4),
                                  .passes = rows_int(&q, 5)};
  rows_end(&q);
  return rc;
}

static enum rc group_leave(struct core *c, const struct leaving *l, struct left_group *g, struct err *err) {
  struct group_figures f;
  enum rc rc =
      store_exec(c->store, err,
                 "UPDATE groups SET state = ?6, reason = ?7, trained_in = NULL, batch = NULL WHERE run = ?1 AND round "
                 "= ?2 AND ordinal = ?3 AND trained_in = ?4 AND batch = ?5 AND state = ?8",
                 BINDS(b_int(l->run), b_int(g->round), b_int(g->ordinal), b_int(l->round), b_int(l->number),
                       b_int(GROUP_FILTERED), b_text(g->reason), b_int(GROUP_SUBMITTED)));
  g->left = rc == RC_OK && store_changes(c->store) == 1;
  if (!g->left) return rc;
  rc = group_figures(c, l->run, g, &f, err);
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err,
        "UPDATE batches SET groups = groups - 1, tokens = tokens - ?4 WHERE run = ?1 AND round = ?2 AND number = ?3",
        BINDS(b_int(l->run), b_int(l->round), b_int(l->number), b_int(f.positions)));
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "UPDATE rounds SET groups_trained = groups_trained - 1, groups_filtered = groups_filtered + 1, "
      "groups_refused = groups_refused + 1, submitted_samples = submitted_samples - ?3, training_samples = "
      "training_samples - ?3, training_well_formed = training_well_formed - ?4, training_tokens = "
      "training_tokens - ?5, training_rewards = training_rewards - ?6, groups_preprocessed = "
      "groups_preprocessed - ?7 WHERE run = ?1 AND round = ?2",
      BINDS(b_int(l->run), b_int(l->round), b_int(f.samples), b_int(f.well_formed), b_int(f.tokens), b_real(f.rewards),
            b_int(f.passes)));
}

enum rc batches_leave(struct core *c, const struct leaving *l, struct err *err) {
  int64_t state = 0;
  int left = 0;
  enum rc rc = store_int(c->store, &state, err, "SELECT state FROM rounds WHERE run = ?1 AND round = ?2",
                         BINDS(b_int(l->run), b_int(l->round)));
  for (int i = 0; i < l->count && rc == RC_OK; i++) {
    rc = group_leave(c, l, &l->groups[i], err);
    left += l->groups[i].left;
  }
  if (rc != RC_OK || left == 0) return rc;
  if (state == ROUND_STEPPING)
    return err_set(
        err, RC_CONFLICT, "refusals",
        "the trainer refuses %d groups of batch %s, whose step has begun with them in its sums: look at the trainer "
        "that refuses them and at the one before it",
        left, id_batch(l->run, l->round, l->number).text);
  if (state == ROUND_TRAINING) rc = round_move(c, l->run, l->round, ROUND_OPEN, err);
  stream_moved(c);
  c->kick_due = true;
  return rc;
}

/* ---- a trainer was lost ---- */

enum rc batches_again(struct core *c, int64_t run, int64_t round, struct err *err) {
  enum rc rc = store_exec(c->store, err, "UPDATE batches SET done = 0 WHERE run = ?1 AND round = ?2 AND groups > 0",
                          BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET trained_tokens = 0, loss_sum = 0, entropy_sum = 0, compute_us = 0, "
                    "logprob_us = 0, logprob_unequal = 0, logprob_nonfinite = 0, logprob_max_abs_diff = 0 WHERE run = "
                    "?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round)));
  }
  if (rc == RC_OK) rc = inner_steps_again(c, run, round, err);
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "UPDATE rounds SET jobs_undone = (SELECT count(*) FROM batches WHERE run = ?1 AND round = ?2 AND done = 0) + "
      "(SELECT count(*) FROM inner_steps WHERE run = ?1 AND round = ?2) WHERE run = ?1 AND round = ?2",
      BINDS(b_int(run), b_int(round)));
}

enum rc batches_taken(struct core *c, int64_t run, int64_t round, struct err *err) {
  const struct bind binds[] = {b_int(run), b_int(round)};
  enum rc rc = store_exec(
      c->store, err,
      "UPDATE rounds SET jobs_undone = 0, (trained_tokens, loss_sum, entropy_sum, compute_us, logprob_us, "
      "logprob_unequal, logprob_nonfinite, logprob_max_abs_diff) = (SELECT coalesce(sum(trained_tokens), 0), "
      "coalesce(sum(loss), 0), coalesce(sum(entropy_sum), 0), coalesce(sum(compute_us), 0), "
      "coalesce(sum(logprob_us), 0), coalesce(sum(logprob_unequal), 0), coalesce(sum(logprob_nonfinite), 0), "
      "coalesce(max(logprob_max_abs_diff), 0) FROM (SELECT * FROM batches WHERE run = ?1 AND round = ?2 ORDER "
      "BY number)) WHERE run = ?1 AND round = ?2 AND jobs_undone > 0",
      binds, 2);
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE batches SET done = 1 WHERE run = ?1 AND round = ?2 AND done = 0", binds, 2);
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err, "UPDATE inner_steps SET done = 1 WHERE run = ?1 AND round = ?2 AND done = 0", binds,
                    2);
}

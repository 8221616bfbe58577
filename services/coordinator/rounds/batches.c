/* Batches are planned, answered and asked for again here: see batches.h. */
#include "services/coordinator/rounds/batches.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/rounds/exactness.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/store/ids.h"

/* ---- planning ---- */

enum rc batches_select(struct batch_plan *plan, struct store *s, struct run_context *x, int64_t tokens_max,
                          struct arena *arena, struct err *err) {
  const bool supervised = run_is_supervised(&x->config);
  int64_t sum = 0;
  int found = 0;
  struct rows q;
  bool row;
  plan->ordinals = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof *plan->ordinals);
  int64_t *tokens = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof *tokens);
  if (!plan->ordinals || !tokens) return err_set(err, RC_NO_MEMORY, NULL, "a batch's plan was refused memory");
  enum rc rc = store_query(s, &q, err,
                           "SELECT ordinal, tokens + sample_count * length(prompt_ids) / 4 FROM groups INDEXED BY "
                           "groups_sealed WHERE run = ?1 AND round = ?2 AND state = " SQL_GROUP_SEALED
                           " ORDER BY sealed_ms, ordinal LIMIT ?3",
                           BINDS(b_int(plan->run), b_int(plan->round), b_int(LIMIT_GROUPS_PER_ROUND)));
  while (rc == RC_OK && sum <= tokens_max && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    plan->ordinals[found] = rows_int(&q, 0);
    tokens[found] = supervised ? run_unit_tokens(x, plan->round, rows_int(&q, 0)) : rows_int(&q, 1);
    sum += tokens[found++];
  }
  rows_end(&q);
  if (rc != RC_OK) return rc;
  plan->groups = batching_select(tokens, found, tokens_max);
  plan->tokens = 0;
  for (int i = 0; i < plan->groups; i++) plan->tokens += tokens[i];
  return RC_OK;
}

enum rc batches_plan(struct core *c, const struct batch_plan *m, struct err *err) {
  enum rc rc = store_exec(
      c->store, err,
      "INSERT INTO batches (run, round, number, groups, tokens, submitted_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(m->groups), b_int(m->tokens), b_int(c->wall_ms)));
  for (int i = 0; i < m->groups && rc == RC_OK; i++) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET batch = ?4, state = ?5 WHERE run = ?1 AND round = ?2 AND ordinal = ?3 AND state "
                    "= ?6",
                    BINDS(b_int(m->run), b_int(m->round), b_int(m->ordinals[i]), b_int(m->number),
                          b_int(GROUP_SUBMITTED), b_int(GROUP_SEALED)));
    if (rc == RC_OK && store_changes(c->store) != 1)
      rc = err_set(err, RC_CONFLICT, "state", "group %s is not sealed any more",
                   id_group(m->run, m->round, m->ordinals[i]).text);
  }
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET submitted_ms = coalesce(submitted_ms, ?3) WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(m->run), b_int(m->round), b_int(c->wall_ms)));
  return rc;
}

/* ---- answers ---- */

/* How fast the trainer takes groups while it has some: what the frontier is sized by. */
static void note_drain(struct core *c, const struct batch_answer *m, int64_t groups) {
  const int64_t us = m->stats.compute_us + m->stats.logprob_us;
  if (us > 0) rate_note(&c->pool->rates.drain, (double)groups, (double)us / 1e6, c->now_ms);
  if (c->context && c->context->config.frontier == FRONTIER_GATE) c->samples_due = true; /* it may reach further now */
}

static enum rc batch_note(struct core *c, const struct batch_answer *m, struct err *err) {
  const struct batch_stats *stats = &m->stats;
  const struct mismatch *d = &m->mismatch;
  return store_exec(
      c->store, err,
      "UPDATE batches SET done = 1, done_ms = ?4, loss = ?5, entropy_sum = ?6, trained_tokens = ?7, compute_us = ?8, "
      "poisoned = ?9, logprob_us = ?10, worker = ?11, logprob_max_abs_diff = ?12, logprob_unequal = ?13, "
      "logprob_nonfinite = ?14, logprob_abs_sum = ?15, logprob_k1_sum = ?16, logprob_k3_sum = ?17"
      " WHERE run = ?1 AND round = ?2 AND number = ?3 AND done = 0",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(c->wall_ms), b_real(stats->loss),
            b_real(stats->entropy_sum), b_int(stats->tokens), b_int(stats->compute_us + stats->logprob_us),
            b_int(stats->poisoned), b_int(stats->logprob_us), b_int(m->trainer_worker), b_real(d->max_abs),
            b_int(d->unequal), b_int(d->nonfinite), b_real(d->abs_sum), b_real(d->k1_sum), b_real(d->k3_sum)));
}

/* The mismatch's sums are added in the batches' order, once all are done: exactness.c. */
static enum rc round_add(struct core *c, const struct batch_answer *m, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE rounds SET loss_sum = loss_sum + coalesce(?3, 0), entropy_sum = entropy_sum + coalesce(?4, 0), "
      "trained_tokens = trained_tokens + ?5, compute_us = compute_us + ?6, logprob_us = logprob_us + ?7, "
      "logprob_max_abs_diff = max(logprob_max_abs_diff, ?8), logprob_unequal = logprob_unequal + ?9, "
      "logprob_nonfinite = logprob_nonfinite + ?10 WHERE run = ?1 AND round = ?2",
      BINDS(b_int(m->run), b_int(m->round), b_real(m->stats.loss), b_real(m->stats.entropy_sum), b_int(m->stats.tokens),
            b_int(m->stats.compute_us + m->stats.logprob_us), b_int(m->stats.logprob_us), b_real(m->mismatch.max_abs),
            b_int(m->mismatch.unequal), b_int(m->mismatch.nonfinite)));
}

/* Where every kernel promises the same bits a difference is trouble, told at once; else the round tells of it. */
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
  if (rc == RC_OK) rc = mismatch_warn(c, m, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &groups, err, "SELECT groups FROM batches WHERE run = ?1 AND round = ?2 AND number = ?3",
                   BINDS(b_int(m->run), b_int(m->round), b_int(m->number)));
  if (rc == RC_OK) note_drain(c, m, groups);
  if (rc == RC_OK) rc = intervals_store(c, m->run, m->round, m->trainer_worker, m->intervals, m->interval_count, err);
  return rc == RC_OK ? round_step_when_trained(c, m->run, m->round, m->by_tokens, err) : rc;
}

/* ---- a trainer was lost ---- */

enum rc batches_again(struct core *c, int64_t run, int64_t round, struct err *err) {
  enum rc rc = store_exec(c->store, err, "UPDATE batches SET done = 0 WHERE run = ?1 AND round = ?2",
                          BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET trained_tokens = 0, loss_sum = 0, entropy_sum = 0, compute_us = 0, "
                    "logprob_us = 0, logprob_unequal = 0, logprob_nonfinite = 0, logprob_max_abs_diff = 0 WHERE run = "
                    "?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round)));
  }
  return rc;
}

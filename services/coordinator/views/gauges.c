/* Sets gauges of runs by state, of what waits, of the newest run's progress and of its newest round's figures. */
#include "services/coordinator/views/gauges.h"

#include <math.h>
#include <stdio.h>

#include "common/base/metrics.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/views/run_sums.h"

static enum rc runs_by_state(struct store *s, struct err *err) {
  struct rows q;
  int64_t counts[RUN_CHECKING + 1] = {0};
  char label[64];
  bool row;
  enum rc rc = store_query(s, &q, err, "SELECT state, count(*) FROM runs GROUP BY state", NO_BINDS);
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t state = rows_int(&q, 0);
    if (state >= 0 && state <= RUN_CHECKING) counts[state] = rows_int(&q, 1);
  }
  rows_end(&q);
  for (int i = 0; rc == RC_OK && i <= RUN_CHECKING; i++) {
    snprintf(label, sizeof label, "state=\"%s\"", state_name(MACHINE_RUN, i));
    metric_set(metrics_register(METRIC_GAUGE, "leasehold_runs", label, "Runs by state"), (double)counts[i]);
  }
  return rc;
}

static double real_or_nan(const struct rows *q, bool row, int column) {
  return row && !rows_null(q, column) ? rows_real(q, column) : NAN;
}

/* Progress counts from the run's start too: one that never ends its first round has made none. */
static enum rc progress(struct store *s, int64_t ahead_ms, struct err *err) {
  struct rows q;
  struct run_sums t = {0};
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT id, started_ms, rounds, waiting_for IS NOT NULL FROM runs WHERE id = (SELECT "
                           "max(run) FROM rounds)",
                           NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) rc = run_sums_read(s, rows_int(&q, 0), &t, err);
  row = rc == RC_OK && row;
  gauge_set("leasehold_run_progress_timestamp_seconds",
            "The newest run: when it began, or published its newest version.",
            row ? (fmax(real_or_nan(&q, row, 1), (double)t.published_ms) - (double)ahead_ms) / 1000 : NAN);
  gauge_set("leasehold_run_rounds_done", "The newest run: rounds done.", row ? (double)t.done : NAN);
  gauge_set("leasehold_run_rounds_inexact", "The newest run: of these, rounds that are not exact.",
            row ? (double)t.inexact : NAN);
  gauge_set("leasehold_run_rounds_planned", "The newest run: rounds that it was asked for.", real_or_nan(&q, row, 2));
  gauge_set("leasehold_run_waiting", "The newest run: 1 while it waits for a trainer or a disk.",
            real_or_nan(&q, row, 3));
  rows_end(&q);
  return rc;
}

static enum rc newest_round(struct store *s, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT reward_mean, completion_tokens_mean, entropy_sum, trained_tokens, grad_norm, lr, "
                           "loss_sum, denominator, kl_reference, groups_trained, groups_filtered FROM rounds "
                           "WHERE run = (SELECT max(run) FROM rounds) AND state = " SQL_ROUND_DONE
                           " AND closing = 0 AND finished = 1 ORDER BY round DESC LIMIT 1",
                           NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  row = rc == RC_OK && row;
  const double tokens = real_or_nan(&q, row, 3);
  gauge_set("leasehold_round_reward_mean", "Newest done round: mean reward.", real_or_nan(&q, row, 0));
  gauge_set("leasehold_round_completion_tokens_mean", "Newest done round: mean length of a completion.",
        real_or_nan(&q, row, 1));
  gauge_set("leasehold_round_entropy_nats", "Newest done round: mean entropy of the trained tokens.",
        ratio_of(real_or_nan(&q, row, 2), tokens));
  gauge_set("leasehold_round_loss", "Newest done round: loss.",
            ratio_of(real_or_nan(&q, row, 6), real_or_nan(&q, row, 7)));
  gauge_set("leasehold_round_kl_reference", "Newest done round: KL(policy || reference) by the run's estimator.",
        ratio_of(real_or_nan(&q, row, 8), tokens));
  gauge_set("leasehold_round_grad_norm", "Newest done round: norm of the gradient before it was clipped.",
        real_or_nan(&q, row, 4));
  gauge_set("leasehold_round_learning_rate", "Newest done round: learning rate of its step.", real_or_nan(&q, row, 5));
  gauge_set("leasehold_round_groups_trained", "Newest done round: groups that were trained on.",
            real_or_nan(&q, row, 9));
  gauge_set("leasehold_round_groups_filtered", "Newest done round: groups that were left out.",
            real_or_nan(&q, row, 10));
  rows_end(&q);
  return rc;
}

/* What a larger pool would take at once. */
static enum rc waiting_gauge(struct store *s, struct err *err) {
  int64_t waiting = 0;
  const enum rc rc =
      store_int(s, &waiting, err,
                "SELECT coalesce(sum(samples_waiting), 0) FROM groups INDEXED BY groups_waiting WHERE run = "
                "(SELECT max(id) FROM runs WHERE state = ?1) AND state = " SQL_GROUP_OPEN " AND samples_waiting > 0",
                BINDS(b_int(RUN_RUNNING)));
  gauge_set("leasehold_samples_waiting", "The active run's samples that no lease holds.", (double)waiting);
  return rc;
}

enum rc state_gauges_set(struct store *s, int64_t ahead_ms, struct err *err) {
  enum rc rc = runs_by_state(s, err);
  if (rc == RC_OK) rc = progress(s, ahead_ms, err);
  if (rc == RC_OK) rc = waiting_gauge(s, err);
  return rc == RC_OK ? newest_round(s, err) : rc;
}

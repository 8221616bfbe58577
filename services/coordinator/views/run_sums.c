/* Sums a run's rounds up: the settled ones, which are one row, and those since. */
#include "services/coordinator/views/run_sums.h"

#include <math.h>
#include <stddef.h>

#include "services/coordinator/decide/stored.h"

#define COLUMNS                                                                                              \
  "done, inexact, sampled, trained, round_ms, opened_ms, published_ms, stale, unequal, nonfinite, max_abs, " \
  "abs_sum, k1_sum, k3_sum, wait_us, work_us, dispatch_ms, dispatch_window_ms, training_ms"
#define OF_DONE(value)       "iif(state = " SQL_ROUND_DONE ", " value ", NULL)"
#define OF_DISPATCHED(value) "iif(state = " SQL_ROUND_DONE " AND groups_trained > 0, " value ", NULL)"
#define OF_COUNTED(value)    "iif(state = " SQL_ROUND_DONE " AND closing = 0, " value ", NULL)"
/* In the order of the rounds: a sum of fractions depends on it. */
#define SINCE_SETTLED \
  "SELECT state = " SQL_ROUND_DONE " AND closing = 0, state = " SQL_ROUND_DONE " AND exact = 0, sampled_tokens, "    \
  OF_DONE("trained_tokens") ", " OF_COUNTED("published_ms - opened_ms") ", opened_ms, published_ms, stale_groups, "  \
  "logprob_unequal, logprob_nonfinite, logprob_max_abs_diff, " OF_DONE("logprob_abs_sum") ", "                       \
  OF_DONE("logprob_k1_sum") ", " OF_DONE("logprob_k3_sum") ", " OF_DONE("t.fill_us + t.starved_us") ", "             \
  OF_DONE("t.logprob_us + t.compute_us") ", " OF_DISPATCHED("submitted_ms - opened_ms") ", "                         \
  OF_DISPATCHED("published_ms - opened_ms") ", " OF_DISPATCHED("trained_ms - opened_ms")                             \
  " FROM rounds r LEFT JOIN cause_times t ON t.run = r.run AND t.round = r.round AND t.actor = " SQL_ACTOR_TRAINER   \
  " WHERE r.run = ?1 AND r.round >= coalesce((SELECT before_round FROM settled_rounds WHERE run = ?1), 0) AND "      \
  "r.round < ?2 ORDER BY r.round"
#define SUMS                                                                                                       \
  "sum(done), sum(inexact), sum(sampled), sum(trained), sum(round_ms), min(opened_ms), max(published_ms), "        \
  "sum(stale), sum(unequal), sum(nonfinite), max(max_abs), sum(abs_sum), sum(k1_sum), sum(k3_sum), sum(wait_us), " \
  "sum(work_us), sum(dispatch_ms), sum(dispatch_window_ms), sum(training_ms) FROM (SELECT " COLUMNS                \
  " FROM settled_rounds WHERE run = ?1 UNION ALL SELECT * FROM (" SINCE_SETTLED "))"

const char run_sums_settle[] =
    "INSERT OR REPLACE INTO settled_rounds (run, before_round, " COLUMNS ") SELECT ?1, ?2, " SUMS;

enum {
  S_DONE,
  S_INEXACT,
  S_SAMPLED,
  S_TRAINED,
  S_ROUND_MS,
  S_OPENED,
  S_PUBLISHED,
  S_STALE,
  S_UNEQUAL,
  S_NONFINITE,
  S_MAX_ABS,
  S_ABS_SUM,
  S_K1_SUM,
  S_K3_SUM,
  S_WAIT,
  S_WORK,
  S_DISPATCH,
  S_DISPATCH_WINDOW,
  S_TRAINING
};

static double real_or_nan(const struct rows *q, int column) {
  return rows_null(q, column) ? NAN : rows_real(q, column);
}

enum rc run_sums_read(struct store *s, int64_t run, struct run_sums *out, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, "SELECT " SUMS, BINDS(b_int(run), b_int(INT64_MAX)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct run_sums){.done = rows_int(&q, S_DONE),
                             .inexact = rows_int(&q, S_INEXACT),
                             .sampled = rows_int(&q, S_SAMPLED),
                             .trained = rows_int(&q, S_TRAINED),
                             .round_ms = rows_int(&q, S_ROUND_MS),
                             .opened_ms = rows_int(&q, S_OPENED),
                             .published_ms = rows_int(&q, S_PUBLISHED),
                             .stale = rows_int(&q, S_STALE),
                             .mismatch = {.unequal = rows_int(&q, S_UNEQUAL),
                                          .nonfinite = rows_int(&q, S_NONFINITE),
                                          .max_abs = rows_real(&q, S_MAX_ABS),
                                          .abs_sum = rows_real(&q, S_ABS_SUM),
                                          .k1_sum = rows_real(&q, S_K1_SUM),
                                          .k3_sum = rows_real(&q, S_K3_SUM)},
                             .wait_us = real_or_nan(&q, S_WAIT),
                             .work_us = real_or_nan(&q, S_WORK),
                             .dispatch_ms = real_or_nan(&q, S_DISPATCH),
                             .dispatch_window_ms = real_or_nan(&q, S_DISPATCH_WINDOW),
                             .training_ms = real_or_nan(&q, S_TRAINING)};
  }
  rows_end(&q);
  return rc;
}

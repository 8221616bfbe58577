/* Writes rounds, evaluations and contributions as JSON. */
#include "services/coordinator/views/round_view.h"

#include <math.h>

#include "common/base/limits.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/decide/stored.h"

#define ROUND_COLUMNS                                                                                               \
  "r.round, version, digest, reward_mean, well_formed_mean, groups_trained, groups_filtered, trained_tokens, "      \
  "completion_tokens_mean, loss_sum, denominator, entropy_sum, grad_norm, "                                         \
  "lr, skipped, exact, inexact_reason, logprob_max_abs_diff, logprob_unequal, logprob_nonfinite, logprob_abs_sum, " \
  "logprob_k1_sum, logprob_k3_sum, opened_ms, generated_ms, submitted_ms, trained_ms, "                             \
  "r.step_us, r.checkpoint_us, r.push_us, published_ms, sampled_tokens, t.fill_us + t.starved_us, t.logprob_us + "  \
  "t.compute_us, p.slot_busy_us, nullif(p.slot_window_us, 0), iif(groups_trained > 0, submitted_ms, NULL), "        \
  "iif(groups_trained > 0, trained_ms, NULL), "                                                                     \
  "(SELECT count(*) + (r.groups_trained > coalesce(sum(groups), 0)) FROM inner_steps i WHERE i.run = r.run AND "    \
  "i.round = r.round), r.ratio_sum, r.ratio_squares, r.clipped, r.kl_new_old, r.difference_new_old, "               \
  "admission_first, admission_spacing_us, admission_ordered, admission_end_us, admission_filled_end_us, "           \
  "lag_min, lag_max, lag_sum, compared_tokens, groups_lagged, groups_overflowed, groups_refused, "                  \
  "groups_preprocessed, prompts_passed_over, "                                                                      \
  "(SELECT v.activated_ms IS NULL AND v.state = " SQL_VERSION_SUPERSEDED                                            \
  " FROM versions v WHERE v.run = r.run AND "                                                                       \
  "v.version = r.version + 1), r.kl_reference"
/* t: the trainer's times, p: the pool's; null when they were not told. */
#define ROUND_TABLES                                                                                               \
  " FROM rounds r LEFT JOIN cause_times t ON t.run = r.run AND t.round = r.round AND t.actor = " SQL_ACTOR_TRAINER \
  " LEFT JOIN "                                                                                                    \
  "cause_times p ON p.run = r.run AND p.round = r.round AND p.actor = " SQL_ACTOR_POOL " "

enum {
  C_ROUND,
  C_VERSION,
  C_DIGEST,
  C_REWARD,
  C_FORMED,
  C_GROUPS,
  C_FILTERED,
  C_TOKENS,
  C_COMPLETION,
  C_LOSS,
  C_DENOMINATOR,
  C_ENTROPY,
  C_GRAD,
  C_LR,
  C_SKIPPED,
  C_EXACT,
  C_REASON,
  C_DIFF,
  C_UNEQUAL,
  C_NONFINITE,
  C_ABS_SUM,
  C_K1_SUM,
  C_K3_SUM,
  C_OPENED,
  C_GENERATED,
  C_SUBMITTED,
  C_TRAINED,
  C_STEP,
  C_CHECKPOINT,
  C_PUSH,
  C_PUBLISHED,
  C_SAMPLED,
  C_WAIT,
  C_WORK,
  C_SLOT_BUSY,
  C_SLOT_WINDOW,
  C_DISPATCHED,
  C_TRAINING_END,
  C_STEPS,
  C_RATIO_SUM,
  C_RATIO_SQUARES,
  C_CLIPPED,
  C_KL_NEW_OLD,
  C_DIFFERENCE_NEW_OLD,
  C_ADMISSION_FIRST,
  C_ADMISSION_SPACING,
  C_ADMISSION_ORDERED,
  C_ADMISSION_END,
  C_ADMISSION_FILLED_END,
  C_LAG_MIN,
  C_LAG_MAX,
  C_LAG_SUM,
  C_COMPARED,
  C_LAGGED,
  C_OVERFLOWED,
  C_REFUSED,
  C_PREPROCESSED,
  C_PASSED_OVER,
  C_VERSION_SKIPPED,
  C_KL_REFERENCE
};

void json_kv_column_real(struct json_writer *w, const char *key, const struct rows *q, int column) {
  json_kv_f64(w, key, rows_null(q, column) ? NAN : rows_real(q, column));
}

void json_kv_column_int(struct json_writer *w, const char *key, const struct rows *q, int column) {
  if (!rows_null(q, column)) {
    json_kv_int(w, key, rows_int(q, column));
    return;
  }
  json_key(w, key);
  json_write_null(w);
}

static void kv_difference(struct json_writer *w, const char *key, const struct rows *q, int later, int earlier) {
  json_key(w, key);
  if (rows_null(q, later) || rows_null(q, earlier))
    json_write_null(w);
  else
    json_write_int(w, rows_int(q, later) - rows_int(q, earlier));
}

static void kv_ms(struct json_writer *w, const char *key, const struct rows *q, int column, int64_t more_us) {
  json_kv_f64(w, key, rows_null(q, column) ? NAN : (double)(rows_int(q, column) + more_us) / 1000);
}

double ratio_of(double part, double whole) { return whole > 0 ? part / whole : NAN; }

static double difference(const struct rows *q, int later, int earlier) {
  return rows_null(q, later) || rows_null(q, earlier) ? NAN : (double)(rows_int(q, later) - rows_int(q, earlier));
}

/* openapi/coordinator.yaml defines these ratios. */
static void ratios_write(struct json_writer *w, const struct rows *q) {
  const double wait = rows_null(q, C_WAIT) ? NAN : rows_real(q, C_WAIT), work = rows_real(q, C_WORK);
  kv_difference(w, "window_ms", q, C_PUBLISHED, C_OPENED);
  kv_difference(w, "window_without_publish_ms", q, C_TRAINING_END, C_OPENED);
  json_kv_f64(w, "trainer_waiting_ratio", ratio_of(wait, wait + work));
  json_kv_f64(w, "trainer_first_dispatch_ratio",
              ratio_of(difference(q, C_DISPATCHED, C_OPENED), difference(q, C_PUBLISHED, C_OPENED)));
  json_kv_f64(w, "generation_idle_ratio",
              rows_null(q, C_SLOT_WINDOW) ? NAN : fmax(0, 1 - rows_real(q, C_SLOT_BUSY) / rows_real(q, C_SLOT_WINDOW)));
}

void mismatch_write(struct json_writer *w, const struct mismatch *m, int64_t tokens) {
  json_kv_f64(w, "logprob_max_abs_diff", m->max_abs);
  json_kv_f64(w, "logprob_mean_abs_diff", mismatch_mean(m->abs_sum, m->nonfinite, tokens));
  json_kv_f64(w, "logprob_kl_k1", mismatch_mean(m->k1_sum, m->nonfinite, tokens));
  json_kv_f64(w, "logprob_kl_k3", mismatch_mean(m->k3_sum, m->nonfinite, tokens));
  json_kv_int(w, "logprob_unequal", m->unequal);
  json_kv_int(w, "logprob_nonfinite", m->nonfinite);
}

double ratio_ess(double sum, double squares, double tokens) { return ratio_of(sum * sum, tokens * squares); }

/* How far the policy moved away from the one that sampled; null when no batch told of it. */
static void policy_write(struct json_writer *w, const struct rows *q) {
  const double tokens = rows_real(q, C_TOKENS);
  json_kv_int(w, "steps", rows_int(q, C_STEPS));
  json_kv_f64(w, "clip_fraction", rows_null(q, C_CLIPPED) ? NAN : ratio_of(rows_real(q, C_CLIPPED), tokens));
  json_kv_f64(w, "ess",
              rows_null(q, C_RATIO_SUM) || rows_null(q, C_RATIO_SQUARES)
                  ? NAN
                  : ratio_ess(rows_real(q, C_RATIO_SUM), rows_real(q, C_RATIO_SQUARES), tokens));
  json_kv_f64(w, "kl_new_old", rows_null(q, C_KL_NEW_OLD) ? NAN : ratio_of(rows_real(q, C_KL_NEW_OLD), tokens));
  json_kv_f64(w, "mean_abs_diff_new_old",
              rows_null(q, C_DIFFERENCE_NEW_OLD) ? NAN : ratio_of(rows_real(q, C_DIFFERENCE_NEW_OLD), tokens));
}

/* Null when the round was not planned. */
static void admission_write(struct json_writer *w, const struct rows *q) {
  json_key(w, "admission");
  if (rows_null(q, C_ADMISSION_END)) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_column_int(w, "first", q, C_ADMISSION_FIRST);
  json_kv_f64(w, "spacing_ms", rows_null(q, C_ADMISSION_SPACING) ? NAN : rows_real(q, C_ADMISSION_SPACING) / 1000);
  json_kv_bool(w, "ordered", rows_int(q, C_ADMISSION_ORDERED) != 0);
  json_kv_f64(w, "expected_end_ms", rows_real(q, C_ADMISSION_END) / 1000);
  json_kv_f64(w, "filled_end_ms", rows_real(q, C_ADMISSION_FILLED_END) / 1000);
  json_object_end(w);
}

/* Null but for `inflight`. */
static void lag_write(struct json_writer *w, const struct rows *q) {
  json_key(w, "lag");
  if (rows_null(q, C_LAG_MIN)) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_int(w, "min", rows_int(q, C_LAG_MIN));
  json_kv_f64(w, "mean", ratio_of(rows_real(q, C_LAG_SUM), rows_real(q, C_TOKENS)));
  json_kv_int(w, "max", rows_int(q, C_LAG_MAX));
  json_kv_int(w, "compared_tokens", rows_int(q, C_COMPARED));
  json_kv_int(w, "groups_dropped", rows_int(q, C_LAGGED));
  json_kv_int(w, "groups_overflowed", rows_int(q, C_OVERFLOWED));
  json_kv_int(w, "groups_refused", rows_int(q, C_REFUSED));
  json_kv_bool(w, "version_skipped", rows_int(q, C_VERSION_SKIPPED) != 0);
  json_object_end(w);
}

/* How far the policy is from its reference, and who computed the reference's log-probabilities; null in a run without a
 * KL term. */
static void reference_write(struct json_writer *w, const struct rows *q) {
  json_key(w, "reference");
  if (rows_null(q, C_PREPROCESSED)) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_f64(w, "kl",
              rows_null(q, C_KL_REFERENCE) ? NAN : ratio_of(rows_real(q, C_KL_REFERENCE), rows_real(q, C_TOKENS)));
  json_kv_int(w, "by_preprocessors", rows_int(q, C_PREPROCESSED));
  json_kv_int(w, "by_trainer", rows_int(q, C_GROUPS) - rows_int(q, C_PREPROCESSED));
  json_object_end(w);
}

static void round_write(struct json_writer *w, const struct rows *q) {
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  bool has = rows_digest(q, C_DIGEST, &digest);
  digest_hex(hex, &digest);
  json_object_begin(w);
  json_kv_int(w, "round", rows_int(q, C_ROUND));
  json_kv_int(w, "version", rows_int(q, C_VERSION));
  json_kv_string(w, "digest", has ? hex : NULL);
  json_kv_column_real(w, "reward_mean", q, C_REWARD);
  json_kv_column_real(w, "well_formed_mean", q, C_FORMED);
  json_kv_int(w, "groups", rows_int(q, C_GROUPS));
  json_kv_int(w, "filtered", rows_int(q, C_FILTERED));
  json_kv_column_int(w, "passed_over", q, C_PASSED_OVER);
  json_kv_int(w, "tokens", rows_int(q, C_TOKENS));
  json_kv_int(w, "sampled_tokens", rows_int(q, C_SAMPLED));
  json_kv_column_real(w, "completion_tokens_mean", q, C_COMPLETION);
  json_kv_f64(w, "loss", ratio_of(rows_real(q, C_LOSS), rows_real(q, C_DENOMINATOR)));
  json_kv_f64(w, "entropy", ratio_of(rows_real(q, C_ENTROPY), rows_real(q, C_TOKENS)));
  json_kv_column_real(w, "grad_norm", q, C_GRAD);
  json_kv_column_real(w, "lr", q, C_LR);
  json_kv_bool(w, "skipped", rows_int(q, C_SKIPPED) != 0);
  policy_write(w, q);
  json_kv_bool(w, "exact", rows_int(q, C_EXACT) != 0);
  json_kv_string(w, "inexact_reason", rows_null(q, C_REASON) ? NULL : rows_text(q, C_REASON, NULL));
  const struct mismatch d = {.unequal = rows_int(q, C_UNEQUAL),
                             .nonfinite = rows_int(q, C_NONFINITE),
                             .max_abs = rows_real(q, C_DIFF),
                             .abs_sum = rows_real(q, C_ABS_SUM),
                             .k1_sum = rows_real(q, C_K1_SUM),
                             .k3_sum = rows_real(q, C_K3_SUM)};
  mismatch_write(w, &d, rows_int(q, C_TOKENS));
  kv_difference(w, "generate_ms", q, C_GENERATED, C_OPENED);
  kv_difference(w, "train_ms", q, C_TRAINED, C_SUBMITTED);
  kv_ms(w, "step_ms", q, C_STEP, rows_int(q, C_CHECKPOINT));
  kv_ms(w, "publish_ms", q, C_PUSH, 0);
  kv_difference(w, "round_ms", q, C_PUBLISHED, C_OPENED);
  ratios_write(w, q);
  admission_write(w, q);
  lag_write(w, q);
  reference_write(w, q);
  json_object_end(w);
}

enum rc rounds_write(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit, bool newest,
                     struct err *err) {
  struct rows q;
  bool row;
  enum rc rc;
  if (newest) {
    rc = store_query(s, &q, err,
                     "SELECT * FROM (SELECT " ROUND_COLUMNS ROUND_TABLES
                     "WHERE r.run = ?1 AND r.round >= ?2 AND state = " SQL_ROUND_DONE
                     " AND closing = 0 ORDER BY r.round DESC LIMIT ?3) ORDER BY 1",
                     BINDS(b_int(run), b_int(from), b_int(limit)));
  } else {
    rc = store_query(s, &q, err,
                     "SELECT " ROUND_COLUMNS ROUND_TABLES
                     "WHERE r.run = ?1 AND r.round >= ?2 AND state = " SQL_ROUND_DONE
                     " AND closing = 0 ORDER BY r.round LIMIT ?3",
                     BINDS(b_int(run), b_int(from), b_int(limit)));
  }
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) round_write(w, &q);
  rows_end(&q);
  return rc;
}

enum rc round_text(struct store *s, int64_t run, int64_t round, struct buf *out, bool *found, struct err *err) {
  struct rows q;
  struct json_writer w;
  *found = false;
  json_writer_init(&w, out);
  enum rc rc = store_query(s, &q, err, "SELECT " ROUND_COLUMNS ROUND_TABLES "WHERE r.run = ?1 AND r.round = ?2",
                           BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found) round_write(&w, &q);
  rows_end(&q);
  return rc;
}

static enum rc contributors_write(struct json_writer *w, struct rows *q, struct err *err) {
  enum rc rc;
  bool row;
  json_key(w, "workers");
  json_array_begin(w);
  while ((rc = rows_next(q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_string(w, "id", id_worker(rows_int(q, 0)).text);
    json_kv_string(w, "name", rows_text(q, 1, NULL));
    json_kv_int(w, "samples", rows_int(q, 2));
    json_kv_int(w, "tokens", rows_int(q, 3));
    json_object_end(w);
  }
  json_array_end(w);
  return rc;
}

enum rc contributions_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  enum rc rc = store_query(s, &q, err,
                           "SELECT worker, name, samples, tokens FROM contributions JOIN workers ON workers.id = "
                           "worker WHERE run = ?1 AND round = ?2 ORDER BY worker",
                           BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = contributors_write(w, &q, err);
  rows_end(&q);
  return rc;
}

#define OF_RUN                                                                                                \
  "(SELECT worker, samples, tokens FROM settled_contributions WHERE run = ?1 UNION ALL SELECT worker, samples, " \
  "tokens FROM contributions WHERE run = ?1 AND round >= coalesce((SELECT before_round FROM settled_rounds "    \
  "WHERE run = ?1), 0))"

enum rc contributions_of_run_write(struct store *s, struct json_writer *w, int64_t run, int64_t before,
                                   struct err *err) {
  struct rows q = {0};
  int64_t count = 0;
  enum rc rc = store_int(s, &count, err, "SELECT count(DISTINCT worker) FROM " OF_RUN, BINDS(b_int(run)));
  json_kv_int(w, "workers_count", count);
  if (rc == RC_OK)
    rc = store_query(s, &q, err,
                     "SELECT * FROM (SELECT worker, name, sum(samples), sum(tokens) FROM " OF_RUN
                     " JOIN workers ON workers.id = worker WHERE worker < ?2 GROUP BY worker ORDER BY worker DESC "
                     "LIMIT ?3) ORDER BY worker",
                     BINDS(b_int(run), b_int(before), b_int(LIMIT_SHOWN_WORKERS)));
  if (rc == RC_OK) rc = contributors_write(w, &q, err);
  rows_end(&q);
  return rc;
}

/* Writes runs as JSON, with their totals, and sets the gauges that are of them. */
#include "services/coordinator/views/run_view.h"

#include <math.h>

#include "common/base/metrics.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/evaluation_view.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/views/run_sums.h"
#include "services/coordinator/run/run_config.h"
#include "services/coordinator/decide/stored.h"

/* Rounds without a reward may follow one that has one; a supervised run has none at all. */
enum { LINEAGE_MAX = 64, REWARD_ROUNDS = 64 };

static const char *const mode_names[] = {"sync", "pipelined", "inflight"};

int64_t run_eta_ms(int64_t rounds, int64_t done, int64_t round_ms_sum) {
  if (done <= 0) return -1;
  return (rounds - done) * round_ms_sum / done;
}

#define RUN_COLUMNS                                                                                          \
  "id, name, state, error, waiting_for, mode, objective, rounds, created_ms, started_ms, ended_ms, config, " \
  "config_hash, "                                                                                            \
  "busy_slot_us, slot_window_us, leases_granted, leases_lost, "                                              \
  "results_refused, (SELECT max(round) FROM rounds WHERE rounds.run = runs.id), dataset_counts, "    \
  "warnings"
enum {
  R_ID,
  R_NAME,
  R_STATE,
  R_ERROR,
  R_WAITING,
  R_MODE,
  R_OBJECTIVE,
  R_ROUNDS,
  R_CREATED,
  R_STARTED,
  R_ENDED,
  R_CONFIG,
  R_HASH,
  R_BUSY,
  R_WINDOW,
  R_GRANTED,
  R_LOST,
  R_REFUSED,
  R_ROUND,
  R_DATASET,
  R_WARNINGS
};

/* The members that a summary and the whole view share; inside an object. */
static enum rc run_head(struct store *s, struct json_writer *w, const struct rows *q, struct err *err) {
  struct rows v;
  bool row = false;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  int64_t run = rows_int(q, R_ID);
  json_kv_string(w, "id", id_run(run).text);
  json_kv_string(w, "name", rows_text(q, R_NAME, NULL));
  json_kv_string(w, "state", state_name(MACHINE_RUN, (int)rows_int(q, R_STATE)));
  json_kv_string(w, "error", rows_null(q, R_ERROR) ? NULL : rows_text(q, R_ERROR, NULL));
  json_kv_string(w, "waiting_for", rows_null(q, R_WAITING) ? NULL : rows_text(q, R_WAITING, NULL));
  json_kv_string(w, "mode", mode_names[rows_int(q, R_MODE) % 3]);
  json_kv_string(w, "objective", rows_text(q, R_OBJECTIVE, NULL));
  json_kv_column_int(w, "round", q, R_ROUND);
  json_kv_int(w, "rounds", rows_int(q, R_ROUNDS));
  json_kv_int(w, "created_ms", rows_int(q, R_CREATED));
  json_kv_column_int(w, "started_ms", q, R_STARTED);
  json_kv_column_int(w, "ended_ms", q, R_ENDED);
  enum rc rc =
      store_query(s, &v, err, "SELECT version, digest FROM versions WHERE run = ?1 AND state = " SQL_VERSION_CURRENT,
                  BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&v, &row, err);
  if (rc == RC_OK && row) {
    rows_digest(&v, 1, &digest);
    digest_hex(hex, &digest);
    json_kv_int(w, "version", rows_int(&v, 0));
    json_kv_string(w, "weights_digest", hex);
  } else {
    json_key(w, "version");
    json_write_null(w);
    json_kv_string(w, "weights_digest", NULL);
  }
  rows_end(&v);
  if (rc != RC_OK) return rc;
  row = false;
  rc = store_query(s, &v, err,
                   "SELECT reward_mean FROM rounds WHERE run = ?1 AND round > ?2 AND reward_mean IS NOT NULL ORDER BY "
                   "round DESC LIMIT 1",
                   BINDS(b_int(run), b_int(rows_int(q, R_ROUND) - REWARD_ROUNDS)));
  if (rc == RC_OK) rc = rows_next(&v, &row, err);
  json_kv_f64(w, "reward_mean", rc == RC_OK && row ? rows_real(&v, 0) : NAN);
  rows_end(&v);
  return rc;
}

enum rc run_summaries_write(struct store *s, struct json_writer *w, int64_t before, int64_t limit, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc =
      store_query(s, &q, err, "SELECT " RUN_COLUMNS " FROM runs WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
                  BINDS(b_int(before), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    rc = run_head(s, w, &q, err);
    json_object_end(w);
  }
  rows_end(&q);
  return rc;
}

/* ---- totals ---- */

static double idle_ratio(double busy_us, double window_us) {
  return window_us > 0 ? fmax(0, 1 - busy_us / window_us) : NAN;
}

static enum rc totals_write(struct store *s, struct json_writer *w, const struct rows *q, const struct run_part *part,
                            int64_t now_ms, struct run_sums *t, struct err *err) {
  int64_t run = rows_int(q, R_ID);
  enum rc rc = run_sums_read(s, run, t, err);
  if (rc != RC_OK) return rc;
  bool ended = !rows_null(q, R_ENDED);
  int64_t end_ms = ended ? (t->published_ms ? t->published_ms : rows_int(q, R_ENDED)) : now_ms;
  int64_t wall_ms = t->opened_ms ? end_ms - t->opened_ms : 0;
  json_key(w, "totals");
  json_object_begin(w);
  json_kv_int(w, "sampled_tokens", t->sampled);
  json_kv_int(w, "trained_tokens", t->trained);
  json_kv_int(w, "rl_wall_ms", wall_ms);
  json_kv_int(w, "window_ms", t->round_ms);
  json_kv_f64(w, "window_without_publish_ms", t->training_ms);
  json_kv_f64(w, "trainer_wait_ms", t->wait_us / 1000);
  json_kv_f64(w, "trainer_compute_ms", t->work_us / 1000);
  json_kv_f64(w, "trainer_waiting_ratio", ratio_of(t->wait_us, t->wait_us + t->work_us));
  json_kv_f64(w, "trainer_first_dispatch_ratio", ratio_of(t->dispatch_ms, t->dispatch_window_ms));
  json_kv_f64(w, "generation_idle_ratio", idle_ratio(rows_real(q, R_BUSY), rows_real(q, R_WINDOW)));
  json_kv_f64(w, "tokens_per_second", wall_ms > 0 ? 1000.0 * (double)t->sampled / (double)wall_ms : NAN);
  mismatch_write(w, &t->mismatch, t->trained);
  json_kv_int(w, "stale_results_trained_on", t->stale);
  json_kv_int(w, "leases_granted", rows_int(q, R_GRANTED));
  json_kv_int(w, "leases_lost", rows_int(q, R_LOST));
  json_kv_int(w, "results_refused", rows_int(q, R_REFUSED));
  rc = contributions_of_run_write(s, w, run, part->workers_before, err);
  json_object_end(w);
  return rc;
}

/* The servers of its reward's http terms; empty before the first answer. */
static enum rc reward_servers_write(struct store *s, struct json_writer *w, int64_t run, struct err *err) {
  static const char *const states[] = {"closed", "open", "half_open"};
  struct rows q;
  bool row;
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT term, url, state, requests, failures, answered, missed, last_error, (SELECT count(*) FROM "
                  "remote_rewards r INDEXED BY remote_rewards_waiting WHERE r.run = ?1 AND r.term = v.term AND "
                  "r.state = " SQL_REWARD_WAITING ") FROM reward_servers v WHERE run = ?1 ORDER BY term",
                  BINDS(b_int(run)));
  json_key(w, "reward_servers");
  json_array_begin(w);
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_int(w, "term", rows_int(&q, 0));
    json_kv_string(w, "url", rows_text(&q, 1, NULL));
    json_kv_string(w, "breaker", states[rows_int(&q, 2) % 3]);
    json_kv_int(w, "requests", rows_int(&q, 3));
    json_kv_int(w, "failures", rows_int(&q, 4));
    json_kv_int(w, "answered", rows_int(&q, 5));
    json_kv_int(w, "missed", rows_int(&q, 6));
    json_kv_int(w, "waiting", rows_int(&q, 8));
    json_kv_string(w, "last_error", rows_null(&q, 7) ? NULL : rows_text(&q, 7, NULL));
    json_object_end(w);
  }
  json_array_end(w);
  rows_end(&q);
  return rc;
}

/* For an evaluate run: its only evaluation. */
static enum rc result_write(struct store *s, struct json_writer *w, int64_t run, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT accuracy, well_formed, samples, problems FROM evaluations JOIN runs ON runs.id = "
                           "run WHERE run = ?1 AND round = 0 AND objective = 'evaluate'",
                           BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  json_key(w, "result");
  if (rc == RC_OK && row) {
    json_object_begin(w);
    json_kv_f64(w, "accuracy", rows_real(&q, 0));
    json_kv_f64(w, "well_formed", rows_real(&q, 1));
    json_kv_int(w, "samples", rows_int(&q, 2));
    json_kv_int(w, "problems", rows_int(&q, 3));
    json_object_end(w);
  } else {
    json_write_null(w);
  }
  rows_end(&q);
  return rc;
}

/* The versions that the run's weights came from, the nearest first; each is of a run that began with the next one. */
static enum rc lineage_write(struct store *s, struct json_writer *w, int64_t run, struct err *err) {
  struct rows q;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  bool row;
  json_key(w, "weights_from");
  json_array_begin(w);
  enum rc rc =
      store_query(s, &q, err,
                  "WITH RECURSIVE line (place, run, version) AS (SELECT 0, origin_run, origin_version FROM runs "
                  "WHERE id = ?1 AND origin_run NOT NULL UNION ALL SELECT place + 1, r.origin_run, "
                  "r.origin_version FROM line JOIN runs r ON r.id = line.run WHERE r.origin_run NOT NULL AND "
                  "r.origin_run < r.id LIMIT ?2) SELECT l.run, l.version, v.digest FROM line l LEFT JOIN versions v "
                  "ON v.run = l.run AND v.version = l.version ORDER BY place",
                  BINDS(b_int(run), b_int(LINEAGE_MAX)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const bool known = rows_digest(&q, 2, &digest);
    digest_hex(hex, &digest);
    json_object_begin(w);
    json_kv_string(w, "run", id_run(rows_int(&q, 0)).text);
    json_kv_int(w, "version", rows_int(&q, 1));
    json_kv_string(w, "digest", known ? hex : NULL);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

/* As the trainer told it with the run's newest step. */
static enum rc checkpoints_write(struct store *s, struct json_writer *w, int64_t run, struct err *err) {
  struct rows q;
  bool row;
  json_key(w, "checkpoints");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err, "SELECT version, best FROM checkpoints WHERE run = ?1 ORDER BY version",
                           BINDS(b_int(run)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_int(w, "version", rows_int(&q, 0));
    json_kv_bool(w, "best", rows_int(&q, 1) != 0);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

static enum rc config_copy(struct json_writer *w, const struct rows *q, struct err *err) {
  struct digest hash;
  char hex[DIGEST_HEX_MAX];
  size_t len;
  const char *text = rows_text(q, R_CONFIG, &len);
  json_key(w, "config");
  const enum rc rc = json_write_parsed(w, text, len, 0, err);
  rows_digest(q, R_HASH, &hash);
  digest_hex(hex, &hash);
  json_kv_string(w, "config_hash", hex);
  return rc;
}

/* A column that holds JSON, as a member; `absent` where it is NULL. */
static enum rc stored_json_write(struct json_writer *w, const char *key, const struct rows *q, int column,
                                 void (*absent)(struct json_writer *), struct err *err) {
  size_t len = 0;
  json_key(w, key);
  if (!rows_null(q, column)) {
    const char *text = rows_text(q, column, &len);
    return json_write_parsed(w, text, len, 0, err);
  }
  absent(w);
  return RC_OK;
}

static void empty_list(struct json_writer *w) {
  json_array_begin(w);
  json_array_end(w);
}

static enum rc run_body(struct store *s, struct json_writer *w, const struct rows *q, const struct run_part *part,
                        int64_t now_ms, struct err *err) {
  int64_t run = rows_int(q, R_ID);
  struct run_sums t = {0};
  enum rc rc = run_head(s, w, q, err);
  if (rc == RC_OK) rc = config_copy(w, q, err);
  if (rc == RC_OK) rc = stored_json_write(w, "warnings", q, R_WARNINGS, empty_list, err);
  if (rc == RC_OK) rc = stored_json_write(w, "dataset", q, R_DATASET, json_write_null, err);
  if (rc == RC_OK) rc = lineage_write(s, w, run, err);
  if (rc == RC_OK) rc = checkpoints_write(s, w, run, err);
  json_key(w, "history");
  json_array_begin(w);
  if (rc == RC_OK) rc = rounds_write(s, w, run, 0, part->history, true, err);
  json_array_end(w);
  if (rc == RC_OK) rc = evaluations_write(s, w, run, part->evaluations_before, err);
  if (rc == RC_OK) rc = totals_write(s, w, q, part, now_ms, &t, err);
  if (rc == RC_OK) rc = reward_servers_write(s, w, run, err);
  if (rc == RC_OK) rc = result_write(s, w, run, err);
  int64_t eta = rows_null(q, R_ENDED) ? run_eta_ms(rows_int(q, R_ROUNDS), t.done, t.round_ms) : 0;
  json_key(w, "eta_ms");
  if (eta < 0)
    json_write_null(w);
  else
    json_write_int(w, eta);
  return rc;
}

enum rc run_write(struct store *s, struct json_writer *w, int64_t run, const struct run_part *part, int64_t now_ms,
                  struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, "SELECT " RUN_COLUMNS " FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && !row) rc = err_set(err, RC_NOT_FOUND, "id", "there is no run %s", id_run(run).text);
  if (rc == RC_OK) {
    json_object_begin(w);
    rc = run_body(s, w, &q, part, now_ms, err);
    json_object_end(w);
  }
  rows_end(&q);
  return rc;
}

/* ---- gauges ---- */

static double real_or_nan(const struct rows *q, int column) {
  return rows_null(q, column) ? NAN : rows_real(q, column);
}

/* q NULL: there is no such round.  Columns from 2 on. */
static void mismatch_gauges(const struct rows *q) {
  const int64_t tokens = q ? rows_int(q, 2) : 0, nonfinite = q ? rows_int(q, 5) : 0;
  gauge_set("leasehold_round_logprob_max_abs_diff",
        "Newest done round: largest |sampler's - trainer's| log-probability of a trained token.",
        q ? rows_real(q, 3) : NAN);
  gauge_set("leasehold_round_logprob_unequal_tokens",
        "Newest done round: trained tokens whose log-probability differs between sampler and trainer.",
        q ? rows_real(q, 4) : NAN);
  gauge_set("leasehold_round_logprob_nonfinite_tokens",
        "Newest done round: of these, tokens whose difference is no finite number.", q ? (double)nonfinite : NAN);
  gauge_set("leasehold_round_logprob_mean_abs_diff",
        "Newest done round: mean |sampler's - trainer's| log-probability of the trained tokens.",
        q ? mismatch_mean(rows_real(q, 6), nonfinite, tokens) : NAN);
  gauge_set("leasehold_round_logprob_kl_k1",
            "Newest done round: KL(sampler || trainer), estimated by the mean difference.",
            q ? mismatch_mean(rows_real(q, 7), nonfinite, tokens) : NAN);
  gauge_set("leasehold_round_logprob_kl_k3",
        "Newest done round: KL(sampler || trainer), estimated by the mean of exp(-d) - 1 + d.",
        q ? mismatch_mean(rows_real(q, 8), nonfinite, tokens) : NAN);
}

/* q NULL: there is no such round.  Columns from 9 on. */
static void policy_gauges(const struct rows *q) {
  const double tokens = q ? rows_real(q, 2) : NAN;
  gauge_set("leasehold_round_clip_fraction", "Newest done round: share of the trained tokens whose ratio was clipped.",
        q ? ratio_of(real_or_nan(q, 11), tokens) : NAN);
  gauge_set("leasehold_round_ess",
        "Newest done round: effective share of the trained tokens, by their ratios new / sampling policy.",
        q ? ratio_ess(real_or_nan(q, 9), real_or_nan(q, 10), tokens) : NAN);
  gauge_set(
      "leasehold_round_kl_new_old",
      "Newest done round: KL(sampling policy || new), estimated by the mean of r - 1 - log r over the trained tokens.",
      q ? ratio_of(real_or_nan(q, 12), tokens) : NAN);
}

static enum rc round_gauges(struct store *s, int64_t run, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT published_ms - opened_ms, iif(groups_trained > 0, trained_ms, NULL) - opened_ms, "
                           "trained_tokens, logprob_max_abs_diff, logprob_unequal, logprob_nonfinite, logprob_abs_sum, "
                           "logprob_k1_sum, logprob_k3_sum, ratio_sum, ratio_squares, clipped, kl_new_old FROM rounds "
                           "WHERE run = ?1 AND state = " SQL_ROUND_DONE " ORDER BY round DESC LIMIT 1",
                           BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  row = rc == RC_OK && row;
  gauge_set("leasehold_round_window_seconds", "Newest done round: from its opening to its publication.",
        row ? real_or_nan(&q, 0) / 1000 : NAN);
  gauge_set("leasehold_round_window_without_publish_seconds",
        "Newest done round: from its opening to the end of its training.", row ? real_or_nan(&q, 1) / 1000 : NAN);
  mismatch_gauges(row ? &q : NULL);
  policy_gauges(row ? &q : NULL);
  rows_end(&q);
  return rc;
}

enum rc run_gauges_set(struct store *s, struct err *err) {
  struct rows q;
  struct run_sums t = {.wait_us = NAN, .work_us = NAN, .dispatch_ms = NAN};
  bool row = false;
  int64_t run = 0;
  double busy_us = 0, window_us = 0;
  enum rc rc = store_query(s, &q, err,
                           "SELECT id, busy_slot_us, slot_window_us FROM runs WHERE id = (SELECT max(run) FROM rounds)",
                           NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    run = rows_int(&q, 0);
    busy_us = rows_real(&q, 1);
    window_us = rows_real(&q, 2);
  }
  rows_end(&q);
  if (rc == RC_OK && row) rc = run_sums_read(s, run, &t, err);
  if (rc != RC_OK) return rc;
  gauge_set("leasehold_run_trainer_waiting_ratio",
        "The newest run's done rounds: trainer's wait / (wait + compute), wait being fill and starved.",
        ratio_of(t.wait_us, t.wait_us + t.work_us));
  gauge_set("leasehold_run_trainer_first_dispatch_ratio",
        "The newest run's done rounds: time before the first batch was submitted / time from opening to publication.",
        ratio_of(t.dispatch_ms, t.dispatch_window_ms));
  gauge_set("leasehold_run_generation_idle_ratio", "The newest run: 1 - busy slot time / (slots x time).",
        idle_ratio(busy_us, window_us));
  return round_gauges(s, run, err);
}

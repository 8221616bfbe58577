/* Writes evaluations as JSON: their sets with figures, and their problems. */
#include "services/coordinator/views/evaluation_view.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/views/round_view.h"

/* ---- figures ---- */

/* Column 0: its name, 1: value, 2: low, 3: high. */
static void figure_write(struct json_writer *w, const struct rows *q) {
  json_kv_f64(w, "value", rows_real(q, 1));
  json_kv_column_real(w, "low", q, 2);
  json_kv_column_real(w, "high", q, 3);
}

/* The figures of one set, in the order in which they were stored: pass@k by k, then the majority. */
static enum rc figures_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, int64_t set,
                             struct err *err) {
  static const char sql[] = "SELECT figure, value, low, high FROM evaluation_figures WHERE run = ?1 AND round = ?2 AND "
                            "number = ?3 AND figure <> 'accuracy' ORDER BY place";
  struct rows q;
  bool row = false;
  json_key(w, "pass_at");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err, sql, BINDS(b_int(run), b_int(round), b_int(set)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const char *name = rows_text(&q, 0, NULL);
    if (strncmp(name, "pass@", 5) != 0) break;
    json_object_begin(w);
    json_kv_int(w, "k", strtoll(name + 5, NULL, 10));
    figure_write(w, &q);
    json_object_end(w);
  }
  json_array_end(w);
  json_key(w, "majority");
  if (rc == RC_OK && row) {
    json_object_begin(w);
    figure_write(w, &q);
    json_object_end(w);
  } else {
    json_write_null(w);
  }
  rows_end(&q);
  return rc;
}

enum rc evaluation_sets_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  json_key(w, "sets");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT number, name, problems, samples, accuracy, well_formed, tokens FROM evaluation_sets "
                           "WHERE run = ?1 AND round = ?2 ORDER BY number",
                           BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_string(w, "name", rows_text(&q, 1, NULL));
    json_kv_int(w, "problems", rows_int(&q, 2));
    json_kv_int(w, "samples", rows_int(&q, 3));
    json_kv_f64(w, "accuracy", rows_real(&q, 4));
    json_kv_f64(w, "well_formed", rows_real(&q, 5));
    json_kv_f64(w, "completion_tokens_mean", rows_real(&q, 6));
    rc = figures_write(s, w, run, round, rows_int(&q, 0), err);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

/* ---- evaluations ---- */

#define EVALUATION_COLUMNS \
  "SELECT round, version, problems, samples, accuracy, well_formed FROM evaluations WHERE run = ?1"

static enum rc evaluation_write(struct store *s, struct json_writer *w, const struct rows *q, int64_t run,
                                struct err *err) {
  json_object_begin(w);
  json_kv_int(w, "round", rows_int(q, 0));
  json_kv_int(w, "version", rows_int(q, 1));
  json_kv_int(w, "problems", rows_int(q, 2));
  json_kv_int(w, "samples", rows_int(q, 3));
  json_kv_f64(w, "accuracy", rows_real(q, 4));
  json_kv_f64(w, "well_formed", rows_real(q, 5));
  const enum rc rc = evaluation_sets_write(s, w, run, rows_int(q, 0), err);
  json_object_end(w);
  return rc;
}

enum rc evaluations_write(struct store *s, struct json_writer *w, int64_t run, int64_t before, struct err *err) {
  struct rows q = {0};
  bool row;
  int64_t count = 0;
  enum rc rc = store_int(s, &count, err, "SELECT count(*) FROM evaluations WHERE run = ?1", BINDS(b_int(run)));
  json_kv_int(w, "evaluations_count", count);
  json_key(w, "evaluations");
  json_array_begin(w);
  if (rc == RC_OK)
    rc = store_query(s, &q, err,
                     "SELECT * FROM (" EVALUATION_COLUMNS
                     " AND round < ?2 ORDER BY round DESC LIMIT ?3) ORDER BY round",
                     BINDS(b_int(run), b_int(before), b_int(LIMIT_SHOWN_EVALUATIONS)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) rc = evaluation_write(s, w, &q, run, err);
  rows_end(&q);
  json_array_end(w);
  return rc;
}

enum rc evaluation_text(struct store *s, int64_t run, int64_t round, struct buf *out, bool *found, struct err *err) {
  struct rows q;
  struct json_writer w;
  *found = false;
  json_writer_init(&w, out);
  enum rc rc = store_query(s, &q, err, EVALUATION_COLUMNS " AND round = ?2", BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found) rc = evaluation_write(s, &w, &q, run, err);
  rows_end(&q);
  return rc;
}

/* ---- problems ---- */

static void rewards_write(struct json_writer *w, const struct rows *q, int column) {
  size_t len;
  const char *bytes = rows_blob(q, column, &len);
  json_key(w, "rewards");
  json_array_begin(w);
  for (size_t at = 0; at + sizeof(double) <= len; at += sizeof(double)) {
    double reward;
    memcpy(&reward, bytes + at, sizeof reward); /* SQLite's blobs are not aligned */
    json_write_f64(w, reward);
  }
  json_array_end(w);
}

enum rc evaluation_items_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, int64_t set,
                               int64_t from, int64_t limit, struct err *err) {
  struct rows q;
  struct digest content;
  char hex[DIGEST_HEX_MAX];
  bool row;
  json_key(w, "items");
  json_array_begin(w);
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT item, line, content, samples, passed, well_formed, tokens, majority, rewards FROM "
                  "evaluation_items WHERE run = ?1 AND round = ?2 AND number = ?3 AND item >= ?4 ORDER BY item "
                  "LIMIT ?5",
                  BINDS(b_int(run), b_int(round), b_int(set), b_int(from), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    rows_digest(&q, 2, &content);
    digest_hex(hex, &content);
    json_object_begin(w);
    json_kv_int(w, "item", rows_int(&q, 0));
    json_kv_int(w, "line", rows_int(&q, 1));
    json_kv_string(w, "content", hex);
    json_kv_int(w, "samples", rows_int(&q, 3));
    json_kv_int(w, "passed", rows_int(&q, 4));
    json_kv_int(w, "well_formed", rows_int(&q, 5));
    json_kv_int(w, "tokens", rows_int(&q, 6));
    json_kv_column_real(w, "majority", &q, 7);
    rewards_write(w, &q, 8);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

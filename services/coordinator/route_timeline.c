/* See route_timeline.h. */
#include "services/coordinator/route_timeline.h"

#include "common/base/limits.h"
#include "services/coordinator/core.h"
#include "services/coordinator/ids.h"
#include "services/coordinator/round_view.h"
#include "services/coordinator/run_life.h"

static enum rc batches_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  json_key(w, "batches");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT number, groups, tokens, submitted_ms, done_ms, compute_us FROM batches WHERE run = "
                           "?1 AND round = ?2 ORDER BY number",
                           BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_string(w, "id", id_batch(run, round, rows_int(&q, 0)).text);
    json_kv_int(w, "groups", rows_int(&q, 1));
    json_kv_int(w, "tokens", rows_int(&q, 2));
    json_kv_column_int(w, "submitted_ms", &q, 3);
    json_kv_column_int(w, "done_ms", &q, 4);
    json_kv_column_int(w, "compute_us", &q, 5);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

static enum rc round_write(struct store *s, struct json_writer *w, const struct rows *q, int64_t run, struct err *err) {
  int64_t round = rows_int(q, 0);
  json_object_begin(w);
  json_kv_int(w, "round", round);
  json_kv_string(w, "state", state_name(MACHINE_ROUND, (int)rows_int(q, 1)));
  json_kv_int(w, "version", rows_int(q, 2));
  json_kv_int(w, "opened_ms", rows_int(q, 3));
  json_kv_column_int(w, "generated_ms", q, 4);
  json_kv_column_int(w, "submitted_ms", q, 5);
  json_kv_column_int(w, "trained_ms", q, 6);
  json_kv_column_int(w, "step_begun_ms", q, 7);
  json_kv_column_int(w, "published_ms", q, 8);
  json_kv_column_int(w, "first_sealed_ms", q, 9);
  json_kv_int(w, "compute_us", rows_int(q, 10));
  json_kv_column_int(w, "step_us", q, 11);
  json_kv_column_int(w, "checkpoint_us", q, 12);
  json_kv_column_int(w, "push_us", q, 13);
  enum rc rc = batches_write(s, w, run, round, err);
  if (rc == RC_OK) rc = contributions_write(s, w, run, round, err);
  json_object_end(w);
  return rc;
}

static enum rc timeline_write(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit,
                              struct err *err) {
  struct rows q;
  bool row;
  enum run_state state;
  enum rc rc = run_state_of(s, run, &state, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT round, state, version, opened_ms, generated_ms, submitted_ms, trained_ms, step_begun_ms, published_ms,"
      " (SELECT min(sealed_ms) FROM groups WHERE groups.run = rounds.run AND groups.round = rounds.round), compute_us, "
      "step_us, checkpoint_us, push_us"
      " FROM rounds WHERE run = ?1 AND round >= ?2 ORDER BY round LIMIT ?3",
      BINDS(b_int(run), b_int(from), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) rc = round_write(s, w, &q, run, err);
  rows_end(&q);
  return rc;
}

void handle_get_timeline(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  int64_t run = 0, from, limit;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = http_query_i64(r, "from", 0, 0, LIMIT_ROUNDS, &from, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", 500, 1, 10000, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  json_kv_string(&w, "run", id_run(run).text);
  json_key(&w, "rounds");
  json_array_begin(&w);
  if (rc == RC_OK) rc = timeline_write(s, &w, run, from, limit, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

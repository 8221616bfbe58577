/* Answers GET /v1/runs/{id}/timeline: the times of rounds, and the intervals of every worker in the same window. */
#include "services/coordinator/api/route_timeline.h"

#include "common/base/limits.h"
#include "common/wire/worker.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/rounds/run_life.h"

/* ---- rounds ---- */

static enum rc batches_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  json_key(w, "batches");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT number, groups, tokens, submitted_ms, done_ms, logprob_us, compute_us, step FROM "
                           "batches WHERE run = ?1 AND round = ?2 ORDER BY number",
                           BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_string(w, "id", id_batch(run, round, rows_int(&q, 0)).text);
    json_kv_int(w, "groups", rows_int(&q, 1));
    json_kv_int(w, "tokens", rows_int(&q, 2));
    json_kv_column_int(w, "submitted_ms", &q, 3);
    json_kv_column_int(w, "done_ms", &q, 4);
    json_kv_column_int(w, "logprob_us", &q, 5);
    json_kv_column_int(w, "compute_us", &q, 6);
    json_kv_int(w, "after_steps", rows_int(&q, 7));
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

static enum rc inner_steps_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  json_key(w, "inner_steps");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT step, groups, denominator, planned_ms, done_ms, digest, grad_norm, lr, skipped, "
                           "step_us FROM inner_steps WHERE run = ?1 AND round = ?2 ORDER BY step",
                           BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const bool taken = rows_digest(&q, 5, &digest);
    digest_hex(hex, &digest);
    json_object_begin(w);
    json_kv_string(w, "id", id_inner_step(run, round, rows_int(&q, 0)).text);
    json_kv_int(w, "groups", rows_int(&q, 1));
    json_kv_f64(w, "denominator", rows_real(&q, 2));
    json_kv_int(w, "planned_ms", rows_int(&q, 3));
    json_kv_column_int(w, "done_ms", &q, 4);
    json_kv_string(w, "digest", taken ? hex : NULL);
    json_kv_column_real(w, "grad_norm", &q, 6);
    json_kv_column_real(w, "lr", &q, 7);
    json_kv_bool(w, "skipped", rows_int(&q, 8) != 0);
    json_kv_column_int(w, "step_us", &q, 9);
    json_object_end(w);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

/* The round's sums by cause of one actor; null when it told of nothing. */
static enum rc causes_write(struct store *s, struct json_writer *w, const char *key, int64_t run, int64_t round,
                            enum time_actor actor, struct err *err) {
  enum {
    TRAINERS = 1 << ACTOR_TRAINER,
    POOLS = 1 << ACTOR_POOL,
    PASSES = 1 << ACTOR_PREPROCESS,
    BOTH = TRAINERS | POOLS,
    ALL = BOTH | PASSES
  };
  static const struct {
    const char *name;
    int of;
  } columns[] = {{"fill_us", TRAINERS},
                 {"starved_us", ALL},
                 {"logprob_us", TRAINERS | PASSES},
                 {"compute_us", BOTH},
                 {"step_us", TRAINERS},
                 {"checkpoint_us", TRAINERS},
                 {"push_us", TRAINERS},
                 {"load_us", ALL},
                 {"idle_us", POOLS | PASSES},
                 {"slot_busy_us", POOLS},
                 {"slot_window_us", POOLS}};
  struct rows q;
  bool row = false;
  json_key(w, key);
  enum rc rc = store_query(s, &q, err,
                           "SELECT fill_us, starved_us, logprob_us, compute_us, step_us, checkpoint_us, push_us, "
                           "load_us, idle_us, slot_busy_us, slot_window_us FROM cause_times WHERE run = ?1 AND round = "
                           "?2 AND actor = ?3",
                           BINDS(b_int(run), b_int(round), b_int((int64_t)actor)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    json_object_begin(w);
    for (int i = 0; i < (int)(sizeof columns / sizeof columns[0]); i++)
      if (columns[i].of & 1 << actor) json_kv_int(w, columns[i].name, rows_int(&q, i));
    json_object_end(w);
  } else {
    json_write_null(w);
  }
  rows_end(&q);
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
  json_kv_int(w, "verify_us", rows_int(q, 10));
  json_kv_int(w, "logprob_us", rows_int(q, 11));
  json_kv_int(w, "compute_us", rows_int(q, 12));
  json_kv_column_int(w, "step_us", q, 13);
  json_kv_column_int(w, "checkpoint_us", q, 14);
  json_kv_column_int(w, "push_us", q, 15);
  enum rc rc = causes_write(s, w, "trainer", run, round, ACTOR_TRAINER, err);
  if (rc == RC_OK) rc = causes_write(s, w, "generation", run, round, ACTOR_POOL, err);
  if (rc == RC_OK) rc = causes_write(s, w, "preprocess", run, round, ACTOR_PREPROCESS, err);
  if (rc == RC_OK) rc = batches_write(s, w, run, round, err);
  if (rc == RC_OK) rc = inner_steps_write(s, w, run, round, err);
  if (rc == RC_OK) rc = contributions_write(s, w, run, round, err);
  json_object_end(w);
  return rc;
}

/* What the asked rounds span, in microseconds; until_us INT64_MAX: the last one is open. */
struct window {
  int64_t from_us, until_us;
};

static enum rc rounds_write_times(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit,
                                  struct window *window, struct err *err) {
  struct rows q;
  bool row;
  enum run_state state;
  *window = (struct window){INT64_MAX, 0};
  enum rc rc = run_state_of(s, run, &state, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT round, state, version, opened_ms, generated_ms, submitted_ms, trained_ms, step_begun_ms, published_ms,"
      " coalesce(first_sealed_ms, (SELECT min(sealed_ms) FROM groups WHERE groups.run = rounds.run AND groups.round = "
      "rounds.round)), verify_us, "
      "logprob_us, compute_us, step_us, checkpoint_us, push_us, coalesce(published_ms, (SELECT ended_ms FROM runs "
      "WHERE id = run)) FROM rounds WHERE run = ?1 AND round >= ?2 ORDER BY round LIMIT ?3",
      BINDS(b_int(run), b_int(from), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t opened_us = rows_int(&q, 3) * 1000;
    if (opened_us < window->from_us) window->from_us = opened_us;
    window->until_us = rows_null(&q, 16) ? INT64_MAX : rows_int(&q, 16) * 1000;
    rc = round_write(s, w, &q, run, err);
  }
  rows_end(&q);
  return rc;
}

/* ---- workers ---- */

struct interval_writer {
  struct json_writer *w;
  struct window window;
  struct interval last; /* not written yet: the next one may continue it */
  bool has_last, full;
  int64_t left; /* that may be written */
};

static void interval_writer_flush(struct interval_writer *t) {
  if (!t->has_last) return;
  t->has_last = false;
  t->full = t->left <= 0;
  if (t->full) return;
  t->left--;
  json_array_begin(t->w);
  json_write_string(t->w, interval_cause_name(t->last.cause));
  json_write_int(t->w, t->last.begin_us);
  json_write_int(t->w, t->last.end_us);
  json_array_end(t->w);
}

static void interval_writer_add(struct interval_writer *t, struct interval i) {
  if (i.begin_us < t->window.from_us) i.begin_us = t->window.from_us;
  if (i.end_us > t->window.until_us) i.end_us = t->window.until_us;
  if (i.end_us <= i.begin_us) return;
  if (t->has_last && t->last.cause == i.cause && t->last.end_us == i.begin_us) {
    t->last.end_us = i.end_us;
    return;
  }
  interval_writer_flush(t);
  t->last = i;
  t->has_last = true;
}

/* "intervals" and "truncated" of one worker: at most `most`, which are taken from *left. */
static enum rc intervals_of(struct store *s, struct json_writer *w, int64_t worker, const struct window *window,
                            int64_t most, int64_t *left, struct err *err) {
  struct rows q;
  bool row;
  struct interval i;
  struct interval_writer out = {.w = w, .window = *window, .left = most};
  json_key(w, "intervals");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT items FROM intervals WHERE worker = ?1 AND end_us > ?2 AND begin_us < ?3 ORDER BY "
                           "end_us",
                           BINDS(b_int(worker), b_int(window->from_us), b_int(window->until_us)));
  while (rc == RC_OK && !out.full && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    size_t bytes;
    const void *items = rows_blob(&q, 0, &bytes);
    for (size_t n = 0; interval_unpack(&i, items, bytes, n); n++) interval_writer_add(&out, i);
  }
  rows_end(&q);
  interval_writer_flush(&out);
  json_array_end(w);
  json_kv_bool(w, "truncated", out.full);
  *left -= most - out.left;
  return rc;
}

#define WORKERS_IN_WINDOW                                                                              \
  " FROM workers WHERE EXISTS (SELECT 1 FROM intervals WHERE worker = workers.id AND end_us > ?1 AND " \
  "begin_us < ?2) "

static enum rc coordinator_write(struct store *s, struct json_writer *w, const struct window *window, int64_t *left,
                                 struct err *err) {
  json_object_begin(w);
  json_kv_string(w, "id", "coordinator");
  json_kv_string(w, "name", "coordinator");
  json_kv_string(w, "kind", "coordinator");
  json_kv_int(w, "slots", 0);
  json_key(w, "clock_skew_ms");
  json_write_null(w);
  const enum rc rc = intervals_of(s, w, 0, window, *left, left, err);
  json_object_end(w);
  return rc;
}

static enum rc workers_write(struct store *s, struct json_writer *w, const struct window *window, struct err *err) {
  struct rows q = {0};
  bool row;
  int64_t count = 0, left = TIMELINE_INTERVALS;
  if (window->from_us >= window->until_us) return RC_OK; /* no rounds */
  enum rc rc = store_int(s, &count, err, "SELECT count(*)" WORKERS_IN_WINDOW,
                         BINDS(b_int(window->from_us), b_int(window->until_us)));
  if (rc == RC_OK)
    rc = store_query(s, &q, err,
                     "SELECT id, name, kind, slots, clock_skew_ms" WORKERS_IN_WINDOW "ORDER BY kind, id LIMIT ?3",
                     BINDS(b_int(window->from_us), b_int(window->until_us), b_int(TIMELINE_WORKERS)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    json_object_begin(w);
    json_kv_string(w, "id", id_worker(rows_int(&q, 0)).text);
    json_kv_string(w, "name", rows_text(&q, 1, NULL));
    json_kv_string(w, "kind", worker_kind_name((enum worker_kind)rows_int(&q, 2)));
    json_kv_int(w, "slots", rows_int(&q, 3));
    json_kv_column_int(w, "clock_skew_ms", &q, 4);
    rc = intervals_of(s, w, rows_int(&q, 0), window, left / (count > 0 ? count + 1 : 1), &left, err);
    json_object_end(w);
    count--;
  }
  rows_end(&q);
  return rc == RC_OK ? coordinator_write(s, w, window, &left, err) : rc;
}

void handle_get_timeline(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct window window = {0};
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
  if (rc == RC_OK) rc = rounds_write_times(s, &w, run, from, limit, &window, &err);
  json_array_end(&w);
  json_key(&w, "workers");
  json_array_begin(&w);
  if (rc == RC_OK) rc = workers_write(s, &w, &window, &err);
  json_array_end(&w);
  readers_give(readers, s);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

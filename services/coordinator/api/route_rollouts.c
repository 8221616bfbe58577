/* Answers the routes that show what was sampled: a round, a search over all rounds, one group, and how samples are
 * spread. */
#include "services/coordinator/api/route_rollouts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "common/wire/lease.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/trainer/shown_tokenizer.h"
#include "services/coordinator/views/group_view.h"
#include "services/coordinator/views/reward_terms.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/views/sample_view.h"
#include "services/coordinator/views/spread_view.h"
#include "services/coordinator/rounds/run_life.h"

enum { ROLLOUTS_BYTES_MAX = 64 << 20, TEXT_CHARACTERS_MAX = 400, PLACE_DIGITS_MAX = 12 };

enum {
  V_GROUP,
  V_SAMPLE,
  V_PURPOSE,
  V_PROMPT,
  V_ANSWER,
  V_TEXT,
  V_IDS,
  V_PROMPT_IDS,
  V_REWARD,
  V_ADVANTAGE,
  V_FORMED,
  V_DETAIL,
  V_WORKER,
  V_VERSION,
  V_FENCE,
  V_FINISH,
  V_STATE,
  V_LOGPROBS,
  V_TERMS,
  V_SET
};

static enum rc ids_write(struct json_writer *w, const char *key, const struct rows *q, int column, struct arena *arena,
                         struct err *err) {
  size_t len;
  const void *bytes = rows_blob(q, column, &len);
  int32_t *ids = arena_alloc(arena, len + 1, 1); /* SQLite's blobs are not aligned */
  if (!ids) return err_set(err, RC_NO_MEMORY, NULL, "the rollouts were refused memory");
  memcpy(ids, bytes, len);
  json_kv_i32s(w, key, ids, len / sizeof *ids);
  return RC_OK;
}

static enum rc tokens_write(struct json_writer *w, const struct rows *q, struct arena *arena, struct err *err) {
  size_t len, logprobs_len, count;
  int32_t *ids;
  const void *bytes = rows_blob(q, V_IDS, &len);
  rows_blob(q, V_LOGPROBS, &logprobs_len);
  const enum rc rc = token_bytes_unpack(&ids, &count, bytes, len, logprobs_len, arena, err);
  if (rc == RC_OK) json_kv_i32s(w, "token_ids", ids, count);
  return rc;
}

static enum rc logprobs_write(struct json_writer *w, const struct rows *q, struct arena *arena, struct err *err) {
  size_t len;
  const void *bytes = rows_blob(q, V_LOGPROBS, &len);
  float *values = arena_alloc(arena, len + 1, 1);
  if (!values) return err_set(err, RC_NO_MEMORY, NULL, "the rollouts were refused memory");
  memcpy(values, bytes, len);
  json_kv_f32s(w, "logprobs", values, len / sizeof *values);
  return RC_OK;
}

static enum rc rollout_write(struct json_writer *w, const struct rows *q, int64_t run, int64_t round,
                             const struct reward_terms *terms, struct err *err) {
  struct arena arena = ARENA_INIT;
  size_t len;
  json_object_begin(w);
  json_kv_string(w, "id", id_sample(run, round, rows_int(q, V_GROUP), rows_int(q, V_SAMPLE)).text);
  json_kv_string(w, "group", id_group(run, round, rows_int(q, V_GROUP)).text);
  json_kv_int(w, "sample", rows_int(q, V_SAMPLE));
  json_kv_string(w, "purpose", lease_purpose_name((enum lease_purpose)rows_int(q, V_PURPOSE)));
  json_kv_string(w, "group_state", state_name(MACHINE_GROUP, (int)rows_int(q, V_STATE)));
  const char *text = rows_text(q, V_PROMPT, &len);
  json_key(w, "prompt");
  json_write_string_len(w, text, len);
  json_kv_string(w, "answer", rows_text(q, V_ANSWER, NULL));
  text = rows_text(q, V_TEXT, &len);
  json_key(w, "text");
  json_write_string_len(w, text, len);
  enum rc rc = ids_write(w, "prompt_ids", q, V_PROMPT_IDS, &arena, err);
  if (rc == RC_OK) rc = tokens_write(w, q, &arena, err);
  if (rc == RC_OK) rc = logprobs_write(w, q, &arena, err);
  json_kv_column_real(w, "reward", q, V_REWARD);
  reward_terms_write(w, terms, q, V_TERMS);
  json_kv_column_real(w, "advantage", q, V_ADVANTAGE);
  json_kv_bool(w, "well_formed", rows_int(q, V_FORMED) != 0);
  json_kv_string(w, "detail", rows_null(q, V_DETAIL) ? NULL : rows_text(q, V_DETAIL, NULL));
  json_kv_string(w, "worker", id_worker(rows_int(q, V_WORKER)).text);
  json_kv_column_int(w, "version", q, V_VERSION);
  json_kv_int(w, "fence", rows_int(q, V_FENCE));
  json_kv_string(w, "finish", finish_reason_name((enum finish_reason)rows_int(q, V_FINISH)));
  json_object_end(w);
  arena_free(&arena);
  return rc;
}

static enum rc rollouts_write(struct store *s, struct json_writer *w, const struct buf *body, int64_t run,
                              int64_t round, int64_t limit, struct err *err) {
  struct rows q;
  struct reward_terms terms = {0};
  int64_t terms_of = INT64_MIN; /* the evaluation's set that they are of, -1 of training */
  bool row;
  enum rc rc = store_query(
      s, &q, err,
      "SELECT s.group_ordinal, s.sample, g.purpose, g.prompt, g.answer, o.text, o.token_ids, g.prompt_ids, "
      SQL_REWARD_OF("s") ", s.advantage, s.well_formed, s.detail, s.worker, s.version_first,"
      " s.fence, s.finish, g.state, o.logprobs, s.term_values, g.evaluation_set FROM samples s JOIN groups g "
      "ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal"
      " JOIN rollouts o ON o.run = s.run AND o.round = s.round AND o.group_ordinal = s.group_ordinal AND "
      "o.sample = s.sample"
      " WHERE s.run = ?1 AND s.round = ?2 AND s.state = ?3 ORDER BY s.group_ordinal, s.sample LIMIT ?4",
      BINDS(b_int(run), b_int(round), b_int(SAMPLE_DONE), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t set = rows_null(&q, V_SET) ? -1 : rows_int(&q, V_SET);
    if (set != terms_of) rc = reward_terms_read(&terms, s, run, set, err);
    terms_of = set;
    if (rc == RC_OK) rc = rollout_write(w, &q, run, round, &terms, err);
    if (rc == RC_OK && body->len > ROLLOUTS_BYTES_MAX)
      rc = err_set(err, RC_TOO_LARGE, "limit", "the answer is larger than %d bytes: ask for fewer rollouts",
                   ROLLOUTS_BYTES_MAX);
  }
  rows_end(&q);
  return rc;
}

/* Without ?round= it is the newest round that has a finished sample. */
static enum rc choose_round(struct store *s, int64_t run, int64_t *round, struct err *err) {
  enum run_state state;
  enum rc rc = run_state_of(s, run, &state, err);
  if (rc != RC_OK || *round >= 0) return rc;
  rc = store_int(s, round, err, "SELECT coalesce(max(round), 0) FROM contributions WHERE run = ?1", BINDS(b_int(run)));
  return rc;
}

static enum rc check_kept(struct store *s, int64_t run, int64_t round, struct err *err) {
  int64_t state = ROLLOUTS_KEPT;
  const enum rc rc = store_int(s, &state, err, "SELECT rollouts_state FROM rounds WHERE run = ?1 AND round = ?2",
                               BINDS(b_int(run), b_int(round)));
  if (rc == RC_NOT_FOUND) return RC_OK; /* a round that is still to come has no rollouts */
  if (rc != RC_OK || state == ROLLOUTS_KEPT) return rc;
  return err_set(err, RC_GONE, "round",
                 "the rollouts of round %s were dropped: run %s keeps those of its newest rounds only (keep_rounds)",
                 id_round(run, round).text, id_run(run).text);
}

void handle_get_rollouts(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  int64_t run = 0, round = 0, limit;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = http_query_i64(r, "round", -1, 0, LIMIT_ROUNDS, &round, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", 64, 1, 4096, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = choose_round(s, run, &round, &err);
  if (rc == RC_OK) rc = check_kept(s, run, round, &err);
  json_kv_string(&w, "run", id_run(run).text);
  json_kv_int(&w, "round", round);
  json_key(&w, "rollouts");
  json_array_begin(&w);
  if (rc == RC_OK) rc = rollouts_write(s, &w, &body, run, round, limit, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* ---- GET /v1/runs/{id}/samples ---- */

#define REWARD_MAX 1e300

static enum rc query_number(const struct http_request *r, const char *name, double *out, struct err *err) {
  const char *text = http_query(r, name);
  char *end = NULL;
  *out = NAN;
  if (text == NULL) return RC_OK;
  *out = strtod(text, &end);
  const bool decimal = strspn(text, "+-.0123456789eE") == strlen(text); /* strtod also reads blanks, 0x1p3 and nan */
  if (decimal && end != text && *end == '\0' && fabs(*out) <= REWARD_MAX) return RC_OK;
  return err_set(err, RC_INVALID, name, "%s: expected a number from -1e300 to 1e300, got \"%.64s\"", name,
                 text);
}

/* One of `count` words; NULL when it is absent. */
static enum rc query_word(const struct http_request *r, const char *name, const char *const *words, size_t count,
                          const char **out, struct err *err) {
  *out = http_query(r, name);
  if (*out == NULL) return RC_OK;
  for (size_t i = 0; i < count; i++)
    if (strcmp(words[i], *out) == 0) return RC_OK;
  return err_set(err, RC_INVALID, name, "%s: there is no \"%.64s\"", name, *out);
}

/* "12.63.7", as an answer's `next` has it. */
static enum rc query_place(const struct http_request *r, int64_t round_max, struct sample_place *out, struct err *err) {
  const char *text = http_query(r, "before"), *at = text;
  int64_t part[3] = {0};
  *out = (struct sample_place){round_max + 1, 0, 0};
  if (text == NULL) return RC_OK;
  for (int i = 0; i < 3 && at; i++) {
    int digits = 0;
    for (; digits < PLACE_DIGITS_MAX && isdigit((unsigned char)*at); digits++) part[i] = part[i] * 10 + (*at++ - '0');
    at = digits && *at == (i < 2 ? '.' : '\0') ? at + 1 : NULL;
  }
  if (at == NULL)
    return err_set(err, RC_INVALID, "before", "before: expected the `next` of an answer, got \"%.64s\"", text);
  if (part[0] <= round_max) *out = (struct sample_place){part[0], part[1], part[2]};
  return RC_OK;
}

/* What a text has to contain; NULL where that is nothing. */
static enum rc query_text(const struct http_request *r, const char **out, struct err *err) {
  const char *text = http_query(r, "text");
  const size_t characters = text ? utf8_characters(text, strlen(text)) : 0;
  *out = characters > 0 ? text : NULL;
  if (characters <= TEXT_CHARACTERS_MAX) return RC_OK;
  return err_set(err, RC_INVALID, "text", "text: expected at most %d characters, got %zu", TEXT_CHARACTERS_MAX,
                 characters);
}

static enum rc samples_query(const struct http_request *r, struct sample_query *q, struct err *err) {
  static const char *const finishes[] = {"stop", "length"}, *const purposes[] = {"training", "evaluation"};
  const char *states[GROUP_ABANDONED + 1];
  int64_t round_max = 0;
  for (int i = 0; i <= GROUP_ABANDONED; i++) states[i] = state_name(MACHINE_GROUP, i);
  enum rc rc = id_parse_run(&q->run, http_param(r, "id"), err);
  if (rc == RC_OK) rc = http_query_i64(r, "round_min", 0, 0, LIMIT_ROUNDS, &q->round_min, err);
  if (rc == RC_OK) rc = http_query_i64(r, "round_max", LIMIT_ROUNDS, 0, LIMIT_ROUNDS, &round_max, err);
  if (rc == RC_OK) rc = http_query_i64(r, "tokens_min", 0, 0, LIMIT_NEW_TOKENS, &q->tokens_min, err);
  if (rc == RC_OK) rc = query_number(r, "reward_min", &q->reward_min, err);
  if (rc == RC_OK) rc = query_number(r, "reward_max", &q->reward_max, err);
  if (rc == RC_OK) rc = query_word(r, "finish", finishes, 2, &q->finish, err);
  if (rc == RC_OK) rc = query_word(r, "purpose", purposes, 2, &q->purpose, err);
  if (rc == RC_OK) rc = query_word(r, "group_state", states, GROUP_ABANDONED + 1, &q->group_state, err);
  if (rc == RC_OK) rc = query_place(r, round_max, &q->before, err);
  return rc == RC_OK ? query_text(r, &q->text, err) : rc;
}

void handle_get_samples(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  struct sample_query query = {0};
  struct sample_progress progress = {0};
  enum run_state state;
  int64_t limit = 0;
  char next[64];
  json_writer_init(&w, &body);
  json_object_begin(&w);
  enum rc rc = samples_query(r, &query, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", 50, 1, SAMPLE_ROWS_MAX, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_state_of(s, query.run, &state, &err);
  json_kv_string(&w, "run", id_run(query.run).text);
  json_key(&w, "samples");
  json_array_begin(&w);
  if (rc == RC_OK) rc = samples_write(s, &w, &query, limit, &progress, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_kv_int(&w, "looked_at", progress.looked_at);
  snprintf(next, sizeof next, "%lld.%lld.%lld", (long long)progress.until.round, (long long)progress.until.group,
           (long long)progress.until.sample);
  json_kv_string(&w, "next", progress.more ? next : NULL);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* ---- GET /v1/groups/{id} ---- */

void handle_get_group(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  struct group_place g = {0};
  int64_t from = 0, limit = 0;
  json_writer_init(&w, &body);
  enum rc rc = http_query_i64(r, "from", 0, 0, LIMIT_SAMPLES_PER_GROUP, &from, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", 64, 1, LIMIT_SAMPLES_PER_GROUP, &limit, &err);
  if (rc == RC_OK) rc = id_parse_group(&g.run, &g.round, &g.ordinal, "group", http_param(r, "id"), &err);
  struct run_context *x = rounds_context_keep(context);
  struct shown_tokenizer *shown = rc == RC_OK && !x ? shown_tokenizer_take(context) : NULL;
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK)
    rc = group_write(s, &w, &g, from, limit, x ? x->tokenizer : shown_tokenizer_get(shown), ROLLOUTS_BYTES_MAX, &err);
  readers_give(readers, s);
  shown_tokenizer_give(shown);
  run_context_release(x);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* ---- GET /v1/runs/{id}/spread ---- */

void handle_get_spread(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  enum run_state state;
  int64_t run = 0, from = 0, limit = 0, next = -1;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = http_query_i64(r, "from", 0, 0, LIMIT_ROUNDS, &from, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", 50, 1, 200, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_state_of(s, run, &state, &err);
  json_kv_string(&w, "run", id_run(run).text);
  json_key(&w, "rounds");
  json_array_begin(&w);
  if (rc == RC_OK) rc = spreads_write(s, &w, run, from, limit, &next, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_key(&w, "next");
  if (next < 0)
    json_write_null(&w);
  else
    json_write_int(&w, next);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

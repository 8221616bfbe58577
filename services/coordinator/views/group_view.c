/* Writes a group and its samples, token by token. */
#include "services/coordinator/views/group_view.h"

#include <math.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/wire/lease.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/store/entropy_bytes.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"
#include "services/coordinator/views/reward_terms.h"
#include "services/coordinator/views/round_view.h"

enum {
  M_SAMPLE,
  M_TEXT,
  M_IDS,
  M_LOGPROBS,
  M_REWARD,
  M_ADVANTAGE,
  M_FORMED,
  M_DETAIL,
  M_WORKER,
  M_FENCE,
  M_FINISH,
  M_VERSION,
  M_TERMS
};

/* ---- tokens ---- */

/* Would this tokenizer have made the stored text?  Else it is another model's. */
static bool same_text(const struct tokenizer *t, const int32_t *ids, size_t count, const char *text, size_t len) {
  struct buf decoded = BUF_INIT;
  const bool same = tokenizer_decode(t, ids, count, true, &decoded, NULL) == RC_OK && !decoded.failed &&
                    decoded.len == len && (len == 0 || memcmp(decoded.data, text, len) == 0);
  buf_free(&decoded);
  return same;
}

/* The text of each token, special ones too.  A character that several tokens make belongs to the last of them. */
static void token_texts_write(struct json_writer *w, const struct tokenizer *t, const int32_t *ids, size_t count) {
  struct buf pending = BUF_INIT;
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    size_t len;
    const char *bytes = tokenizer_token_text(t, ids[i], false, &len);
    if (bytes) buf_append(&pending, bytes, len);
    const size_t whole = i + 1 < count ? utf8_whole(pending.data, pending.len) : pending.len,
                 tail = pending.len - whole;
    json_write_string_len(w, whole ? pending.data : "", whole);
    if (tail) memmove(pending.data, pending.data + whole, tail);
    pending.len = tail;
  }
  json_array_end(w);
  buf_free(&pending);
}

/* ---- one sample ---- */

/* What is known of all of the group's samples. */
struct shown_group {
  const struct group_place *place;
  const struct tokenizer *tokenizer; /* or NULL */
  struct reward_terms terms;
  void *steps; /* entropy_bytes.h; NULL: none are stored */
  size_t steps_len;
};

struct tokens {
  int64_t sample, count, version; /* version: of the oldest */
};

static void span_write(struct json_writer *w, int64_t version, int64_t start, int64_t count, bool fresh) {
  json_object_begin(w);
  json_kv_int(w, "version", version);
  json_kv_int(w, "start", start);
  json_kv_int(w, "count", count);
  json_kv_bool(w, "fresh", fresh);
  json_object_end(w);
}

/* Stored only where a sample has several. */
static enum rc spans_write(struct store *s, struct json_writer *w, const struct group_place *g, const struct tokens *t,
                           struct err *err) {
  struct rows q;
  bool row;
  int64_t spans = 0;
  json_key(w, "version_spans");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT version, start, count, fresh FROM spans WHERE run = ?1 AND round = ?2 AND "
                           "group_ordinal = ?3 AND sample = ?4 ORDER BY start",
                           BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(t->sample)));
  for (; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; spans++)
    span_write(w, rows_int(&q, 0), rows_int(&q, 1), rows_int(&q, 2), rows_int(&q, 3) != 0);
  rows_end(&q);
  if (rc == RC_OK && spans == 0 && t->count > 0) span_write(w, t->version, 0, t->count, true);
  json_array_end(w);
  return rc;
}

static void segment_write(struct json_writer *w, int64_t start, int64_t count, bool loss_mask) {
  json_object_begin(w);
  json_kv_int(w, "start", start);
  json_kv_int(w, "count", count);
  json_kv_bool(w, "loss_mask", loss_mask);
  json_object_end(w);
}

/* The entropies behind a sample's trained tokens. */
struct entropies {
  const void *steps;   /* entropy_bytes_of; NULL: none are stored */
  size_t count, taken; /* of steps, those that trained tokens have taken */
  double *nats;        /* [tokens] NaN where a token is not trained on */
  int64_t tokens;
};

static enum rc entropies_begin(struct entropies *e, const struct shown_group *shown, int64_t sample, size_t tokens,
                               struct arena *arena, struct err *err) {
  *e = (struct entropies){.tokens = (int64_t)tokens};
  e->steps = entropy_bytes_of(shown->steps, shown->steps_len, (size_t)sample, &e->count);
  if (!e->steps) return RC_OK;
  e->nats = arena_alloc(arena, tokens + 1, sizeof *e->nats);
  if (!e->nats) return err_set(err, RC_NO_MEMORY, NULL, "a sample's entropies were refused memory");
  for (size_t i = 0; i < tokens; i++) e->nats[i] = NAN;
  return RC_OK;
}

static void entropies_segment(struct entropies *e, int64_t start, int64_t count) {
  for (int64_t i = start; e->steps && i < start + count && i < e->tokens && e->taken < e->count; i++)
    e->nats[i] = entropy_bytes_at(e->steps, e->taken++);
}

/* Null of a group that was not trained on. */
static void entropies_write(struct json_writer *w, const struct entropies *e) {
  json_key(w, "entropies");
  if (!e->steps) {
    json_write_null(w);
    return;
  }
  json_array_begin(w);
  for (int64_t i = 0; i < e->tokens; i++) json_write_f64(w, e->nats[i]);
  json_array_end(w);
}

/* Stored only where a sample has several, or one that is not trained on. */
static enum rc segments_write(struct store *s, struct json_writer *w, const struct group_place *g,
                              const struct tokens *t, struct entropies *entropies, struct err *err) {
  struct rows q;
  bool row;
  int64_t segments = 0;
  json_key(w, "segments");
  json_array_begin(w);
  enum rc rc = store_query(s, &q, err,
                           "SELECT start, count, loss_mask FROM segments WHERE run = ?1 AND round = ?2 AND "
                           "group_ordinal = ?3 AND sample = ?4 ORDER BY start",
                           BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(t->sample)));
  for (; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; segments++) {
    segment_write(w, rows_int(&q, 0), rows_int(&q, 1), rows_int(&q, 2) != 0);
    if (rows_int(&q, 2)) entropies_segment(entropies, rows_int(&q, 0), rows_int(&q, 1));
  }
  rows_end(&q);
  if (rc == RC_OK && segments == 0 && t->count > 0) {
    segment_write(w, 0, t->count, true);
    entropies_segment(entropies, 0, t->count);
  }
  json_array_end(w);
  return rc;
}

/* SQLite's blobs are not aligned: a copy, in the arena. */
static enum rc copy_blob(void **out, size_t *count, const struct rows *q, int column, struct arena *arena,
                         struct err *err) {
  size_t len;
  const void *bytes = rows_blob(q, column, &len);
  *out = arena_alloc_bytes(arena, len + 1);
  *count = len / sizeof(int32_t);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "a group's samples were refused memory");
  if (len) memcpy(*out, bytes, len);
  return RC_OK;
}

static enum rc sample_write(struct store *s, struct json_writer *w, const struct rows *q,
                            const struct shown_group *shown, struct err *err) {
  const struct group_place *g = shown->place;
  const struct tokenizer *tokenizer = shown->tokenizer;
  struct arena arena = ARENA_INIT;
  void *logprobs = NULL;
  int32_t *ids = NULL;
  size_t count = 0, logprob_count = 0, len, packed_len;
  const int64_t sample = rows_int(q, M_SAMPLE);
  const char *text = rows_text(q, M_TEXT, &len);
  const void *packed = rows_blob(q, M_IDS, &packed_len);
  enum rc rc = copy_blob(&logprobs, &logprob_count, q, M_LOGPROBS, &arena, err);
  if (rc == RC_OK)
    rc = token_bytes_unpack(&ids, &count, packed, packed_len, logprob_count * sizeof(float), &arena, err);
  json_object_begin(w);
  json_kv_string(w, "id", id_sample(g->run, g->round, g->ordinal, sample).text);
  json_kv_int(w, "sample", sample);
  json_key(w, "text");
  json_write_string_len(w, text, len);
  if (rc == RC_OK) {
    json_kv_i32s(w, "token_ids", ids, count);
    json_kv_f32s(w, "logprobs", logprobs, logprob_count);
    json_key(w, "token_texts");
    if (tokenizer && same_text(tokenizer, ids, count, text, len))
      token_texts_write(w, tokenizer, ids, count);
    else
      json_write_null(w);
    const struct tokens t = {sample, (int64_t)count, rows_int(q, M_VERSION)};
    struct entropies e;
    rc = entropies_begin(&e, shown, sample, count, &arena, err);
    if (rc == RC_OK) rc = segments_write(s, w, g, &t, &e, err);
    if (rc == RC_OK) entropies_write(w, &e);
    if (rc == RC_OK) rc = spans_write(s, w, g, &t, err);
  }
  json_kv_column_real(w, "reward", q, M_REWARD);
  reward_terms_write(w, &shown->terms, q, M_TERMS);
  json_kv_column_real(w, "advantage", q, M_ADVANTAGE);
  json_kv_bool(w, "well_formed", rows_int(q, M_FORMED) != 0);
  json_kv_string(w, "detail", rows_null(q, M_DETAIL) ? NULL : rows_text(q, M_DETAIL, NULL));
  json_kv_string(w, "worker", id_worker(rows_int(q, M_WORKER)).text);
  json_kv_int(w, "fence", rows_int(q, M_FENCE));
  json_kv_string(w, "finish", finish_reason_name((enum finish_reason)rows_int(q, M_FINISH)));
  json_object_end(w);
  arena_free(&arena);
  return rc;
}

static enum rc samples_of(struct store *s, struct json_writer *w, const struct shown_group *shown, int64_t from,
                          int64_t limit, size_t bytes_max, struct err *err) {
  const struct group_place *g = shown->place;
  struct rows q;
  bool row;
  json_key(w, "samples");
  json_array_begin(w);
  enum rc rc = store_query(
      s, &q, err,
      "SELECT s.sample, o.text, o.token_ids, o.logprobs, " SQL_REWARD_OF("s") ", s.advantage, s.well_formed, "
      "s.detail, s.worker, s.fence, s.finish, s.version_first, s.term_values FROM samples s JOIN rollouts o ON "
      "o.run = s.run AND o.round = s.round AND o.group_ordinal = s.group_ordinal AND o.sample = s.sample WHERE "
      "s.run = ?1 AND s.round = ?2 AND s.group_ordinal = ?3 AND s.sample >= ?4 AND s.state = " SQL_SAMPLE_DONE
      " ORDER BY s.sample LIMIT ?5",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(from), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    rc = sample_write(s, w, &q, shown, err);
    if (rc == RC_OK && w->out->len > bytes_max)
      rc = err_set(err, RC_TOO_LARGE, "limit", "the answer is larger than %zu bytes: ask for fewer samples", bytes_max);
  }
  rows_end(&q);
  json_array_end(w);
  return rc;
}

/* ---- the group ---- */

/* Rewards' terms, and the entropies where there are some; memory: the arena's. */
static enum rc shown_read(struct shown_group *out, struct store *s, int64_t set, struct arena *arena, struct err *err) {
  const struct group_place *g = out->place;
  struct rows q;
  bool row = false;
  enum rc rc = reward_terms_read(&out->terms, s, g->run, set, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT steps FROM entropies WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3",
                   BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    const void *steps = rows_blob(&q, 0, &out->steps_len);
    out->steps = arena_alloc_bytes(arena, out->steps_len + 1);
    if (out->steps) memcpy(out->steps, steps, out->steps_len);
    if (!out->steps) rc = err_set(err, RC_NO_MEMORY, NULL, "a group's entropies were refused memory");
  }
  rows_end(&q);
  return rc;
}

enum { G_STATE, G_PURPOSE, G_REASON, G_ITEM, G_COUNT, G_TRAINED_IN, G_PROMPT, G_ANSWER, G_PROMPT_IDS, G_SET };

enum rc group_write(struct store *s, struct json_writer *w, const struct group_place *g, int64_t from, int64_t limit,
                    const struct tokenizer *tokenizer, size_t bytes_max, struct err *err) {
  struct rows q;
  struct arena arena = ARENA_INIT;
  bool row = false;
  void *ids = NULL;
  size_t count = 0, len;
  enum rc rc = store_query(s, &q, err,
                           "SELECT state, purpose, reason, dataset_index, sample_count, trained_in, prompt, answer, "
                           "prompt_ids, evaluation_set FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                           BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && !row)
    rc = err_set(err, RC_NOT_FOUND, "id", "there is no group %s, or its rollouts were dropped",
                 id_group(g->run, g->round, g->ordinal).text);
  if (rc == RC_OK) rc = copy_blob(&ids, &count, &q, G_PROMPT_IDS, &arena, err);
  struct shown_group shown = {.place = g, .tokenizer = tokenizer};
  if (rc == RC_OK) rc = shown_read(&shown, s, rows_null(&q, G_SET) ? -1 : rows_int(&q, G_SET), &arena, err);
  if (rc == RC_OK) {
    json_object_begin(w);
    json_kv_string(w, "id", id_group(g->run, g->round, g->ordinal).text);
    json_kv_string(w, "run", id_run(g->run).text);
    json_kv_int(w, "round", g->round);
    json_kv_int(w, "ordinal", g->ordinal);
    json_kv_string(w, "state", state_name(MACHINE_GROUP, (int)rows_int(&q, G_STATE)));
    json_kv_string(w, "purpose", lease_purpose_name((enum lease_purpose)rows_int(&q, G_PURPOSE)));
    json_kv_string(w, "reason", rows_null(&q, G_REASON) ? NULL : rows_text(&q, G_REASON, NULL));
    json_kv_int(w, "item", rows_int(&q, G_ITEM));
    json_kv_int(w, "samples_asked", rows_int(&q, G_COUNT));
    json_kv_column_int(w, "trained_in", &q, G_TRAINED_IN);
    const char *prompt = rows_text(&q, G_PROMPT, &len);
    json_key(w, "prompt");
    json_write_string_len(w, prompt, len);
    json_kv_string(w, "answer", rows_text(&q, G_ANSWER, NULL));
    json_kv_i32s(w, "prompt_ids", ids, count);
    rc = samples_of(s, w, &shown, from, limit, bytes_max, err);
    json_object_end(w);
  }
  rows_end(&q);
  arena_free(&arena);
  return rc;
}

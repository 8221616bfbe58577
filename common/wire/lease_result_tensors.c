/* Encodes and decodes a lease's result as safetensors, the form that generation-servers send: tokens and
 * log-probabilities of reasoning models are long, and as JSON each number costs the coordinator, which all servers
 * share, about a hundred times as much.
 *
 *   __metadata__   {"result": "<the JSON of the result without its samples>"}
 *   version_spans  I64 [spans, 4]     version, start, count, fresh (0 or 1); [spans, 3] where all are fresh
 *   samples        I32 [samples, 3]   index within the group, finish reason (0 stop, 1 length, 2 abort), tokens
 *   token_ids      I32 [tokens]
 *   logprobs       F32 [tokens]
 *   segments       I32 [segments, 3]  start, count, loss_mask (0 or 1)
 *
 * Everything lies sample after sample.  Segments and spans cover a sample's tokens exactly, so no further numbers are
 * needed to assign them to samples.
 *
 * Previous hop of a rollout: generation-server/worker/leases.c.  Next: coordinator/api/route_results.c. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "common/wire/lease_result_internal.h"
#include "common/wire/tensors.h"

#define HEAD_KEY "result"

enum { COLUMNS = 3, SPAN_COLUMNS = 4, TENSORS = 5 };

_Static_assert(FINISH_STOP == 0 && FINISH_LENGTH == 1 && FINISH_ABORT == 2, "the codes are part of the contract");

/* ---- writing ---- */

static void append_i32s(struct buf *out, int32_t a, int32_t b, int32_t c) {
  const int32_t row[COLUMNS] = {a, b, c};
  buf_append(out, row, sizeof row);
}

/* Three columns where all spans are fresh, as results were before `fresh` was recorded. */
static int span_columns(const struct lease_result *m) {
  for (size_t i = 0; i < m->sample_count; i++)
    for (size_t k = 0; k < m->samples[i].span_count; k++)
      if (!m->samples[i].spans[k].fresh) return SPAN_COLUMNS;
  return COLUMNS;
}

static void append_spans(struct buf *out, const struct sample_result *s, int columns) {
  for (size_t i = 0; i < s->span_count; i++) {
    const struct version_span *span = &s->spans[i];
    const int64_t row[SPAN_COLUMNS] = {span->version, span->start, span->count, span->fresh};
    buf_append(out, row, (size_t)columns * sizeof *row);
  }
}

static enum rc write_header(const struct lease_result *m, int columns, struct buf *out, struct err *err) {
  int64_t tokens = 0, logprobs = 0, segments = 0, spans = 0;
  for (size_t i = 0; i < m->sample_count; i++) {
    tokens += (int64_t)m->samples[i].token_ids.count;
    logprobs += (int64_t)m->samples[i].logprobs.count;
    segments += (int64_t)m->samples[i].segment_count;
    spans += (int64_t)m->samples[i].span_count;
  }
  const struct st_entry entries[TENSORS] = {
      {"version_spans", ST_I64, 2, {spans, columns}},
      {"samples", ST_I32, 2, {(int64_t)m->sample_count, COLUMNS}},
      {"token_ids", ST_I32, 1, {tokens}},
      {"logprobs", ST_F32, 1, {logprobs}},
      {"segments", ST_I32, 2, {segments, COLUMNS}},
  };
  struct buf head = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &head);
  json_object_begin(&w);
  lease_result_head_write(m, &w);
  json_object_end(&w);
  const enum rc rc = wire_tensors_begin(out, entries, TENSORS, HEAD_KEY, &head, err);
  buf_free(&head);
  return rc;
}

enum rc lease_result_encode_tensors(const struct lease_result *m, struct buf *out, struct err *err) {
  const int columns = span_columns(m);
  const enum rc rc = write_header(m, columns, out, err);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < m->sample_count; i++) append_spans(out, &m->samples[i], columns);
  for (size_t i = 0; i < m->sample_count; i++)
    append_i32s(out, m->samples[i].sample, (int32_t)m->samples[i].finish, (int32_t)m->samples[i].token_ids.count);
  for (size_t i = 0; i < m->sample_count; i++)
    buf_append(out, m->samples[i].token_ids.items, m->samples[i].token_ids.count * sizeof(int32_t));
  for (size_t i = 0; i < m->sample_count; i++)
    buf_append(out, m->samples[i].logprobs.items, m->samples[i].logprobs.count * sizeof(float));
  for (size_t i = 0; i < m->sample_count; i++)
    wire_append_segments(out, m->samples[i].segments, m->samples[i].segment_count);
  return buf_check(out, err);
}

/* ---- reading ---- */

static enum rc read_head(struct lease_result *m, const struct st_file *f, struct arena *arena, struct err *err) {
  struct json *head = NULL;
  const struct json_field fields[] = {LEASE_RESULT_HEAD(m)};
  enum rc rc = wire_tensors_metadata(&head, f, HEAD_KEY, err);
  if (rc == RC_OK) rc = wire_fields(head, fields, WIRE_COUNT(fields), arena, err);
  json_free(head);
  return rc;
}

/* All rows, and how many of them samples have taken. */
struct columns {
  const int64_t *spans; /* [span_rows, span_columns] */
  int span_columns;
  const int32_t (*samples)[COLUMNS];
  struct segment_rows segments;
  int32_t *token_ids;
  float *logprobs;
  size_t span_rows, sample_rows, token_rows, logprob_rows;
  size_t spans_taken, tokens_taken;
};

static enum rc read_columns(struct columns *c, const struct st_file *f, struct arena *arena, struct err *err) {
  void *spans, *samples, *tokens, *logprobs, *segments;
  const struct st_tensor *found = st_find(f, "version_spans");
  enum rc rc = wire_tensors_counted(f, TENSORS, err);
  c->span_columns = found && found->dims == 2 && found->shape[1] == COLUMNS ? COLUMNS : SPAN_COLUMNS;
  if (rc == RC_OK)
    rc = wire_tensor_read(&spans, &c->span_rows, f, "version_spans", ST_I64, c->span_columns, arena, err);
  if (rc == RC_OK) rc = wire_tensor_read(&samples, &c->sample_rows, f, "samples", ST_I32, COLUMNS, arena, err);
  if (rc == RC_OK) rc = wire_tensor_borrow(&tokens, &c->token_rows, f, "token_ids", ST_I32, arena, err);
  if (rc == RC_OK) rc = wire_tensor_borrow(&logprobs, &c->logprob_rows, f, "logprobs", ST_F32, arena, err);
  if (rc == RC_OK)
    rc = wire_tensor_read(&segments, &c->segments.count, f, "segments", ST_I32, TENSOR_SEGMENT_COLUMNS, arena, err);
  if (rc != RC_OK) return rc;
  c->spans = spans;
  c->samples = samples;
  c->segments.rows = segments;
  c->token_ids = tokens;
  c->logprobs = logprobs;
  if (c->sample_rows < 1 || c->sample_rows > LIMIT_SAMPLES_PER_GROUP)
    return err_set(err, RC_INVALID, "samples", "expected 1 to %d, got %zu", LIMIT_SAMPLES_PER_GROUP, c->sample_rows);
  if (c->logprob_rows != c->token_rows)
    return err_set(err, RC_INVALID, "logprobs", "expected one per token (%zu), got %zu", c->token_rows,
                   c->logprob_rows);
  return RC_OK;
}

/* Without branches, so that a compiler makes vectors of it. */
static bool token_fits(int32_t id, float logprob) {
  return (bool)((id >= 0) & (id < LIMIT_VOCABULARY) & (logprob >= -FLT_MAX) & (logprob <= 0)); /* a NaN is neither */
}

/* Over the longest part of a message. */
static bool tokens_fit(const int32_t *ids, const float *logprobs, size_t count) {
  enum { AT_ONCE = 32 };
  int32_t fit = 1;
  size_t i = 0;
  for (; i + AT_ONCE <= count; i += AT_ONCE)
    for (size_t k = 0; k < AT_ONCE; k++) fit &= token_fits(ids[i + k], logprobs[i + k]);
  for (; i < count; i++) fit &= token_fits(ids[i], logprobs[i]);
  return fit != 0;
}

static enum rc take_tokens(struct sample_result *s, struct columns *c, int32_t count, struct err *err) {
  const size_t left = c->token_rows - c->tokens_taken;
  if (count < 0 || count > LIMIT_NEW_TOKENS || (size_t)count > left)
    return err_set(err, RC_INVALID, "token_ids",
                   "expected 0 to %d tokens, and no more than the %zu that are left, got %d", LIMIT_NEW_TOKENS, left,
                   count);
  s->token_ids = (struct json_i32s){c->token_ids + c->tokens_taken, (size_t)count};
  s->logprobs = (struct json_f32s){c->logprobs + c->tokens_taken, (size_t)count};
  c->tokens_taken += (size_t)count;
  if (tokens_fit(s->token_ids.items, s->logprobs.items, (size_t)count)) return RC_OK;
  for (int32_t i = 0; i < count; i++) {
    const int32_t id = s->token_ids.items[i];
    const float logprob = s->logprobs.items[i];
    if (id < 0 || id >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "token_ids", "expected 0 to %d, got %d at token %d", LIMIT_VOCABULARY - 1, id, i);
    if (!token_fits(id, logprob))
      return err_set(err, RC_INVALID, "logprobs", "expected a finite number of at most 0, got %.9g at token %d",
                     (double)logprob, i);
  }
  return RC_OK;
}

static const int64_t *span_row(const struct columns *c, size_t i) { return c->spans + i * (size_t)c->span_columns; }

static enum rc take_spans(struct sample_result *s, struct columns *c, struct arena *arena, struct err *err) {
  const size_t first = c->spans_taken;
  for (int64_t covered = 0; covered < (int64_t)s->token_ids.count && c->spans_taken < c->span_rows;) {
    const int64_t *row = span_row(c, c->spans_taken++);
    if (row[0] < 0 || row[0] > (int64_t)WIRE_EXACT_MAX || row[1] < 0 || row[1] >= LIMIT_NEW_TOKENS || row[2] < 1 ||
        row[2] > LIMIT_NEW_TOKENS)
      return err_set(err, RC_INVALID, "version_spans",
                     "expected a version, a start below %d and a count of 1 to %d, got %lld, %lld and %lld",
                     LIMIT_NEW_TOKENS, LIMIT_NEW_TOKENS, (long long)row[0], (long long)row[1], (long long)row[2]);
    if (c->span_columns == SPAN_COLUMNS && row[3] != 0 && row[3] != 1)
      return err_set(err, RC_INVALID, "version_spans", "expected fresh to be 0 or 1, got %lld", (long long)row[3]);
    covered += row[2];
  }
  s->span_count = c->spans_taken - first;
  s->spans = arena_alloc(arena, s->span_count + 1, sizeof *s->spans);
  if (!s->spans) return err_set(err, RC_NO_MEMORY, NULL, "%zu spans were refused memory", s->span_count);
  for (size_t i = 0; i < s->span_count; i++) {
    const int64_t *row = span_row(c, first + i);
    s->spans[i] = (struct version_span){row[0], (int32_t)row[1], (int32_t)row[2],
                                        c->span_columns == COLUMNS || row[3] == 1};
  }
  return RC_OK;
}

static enum rc take_sample(struct sample_result *s, struct columns *c, const int32_t row[COLUMNS], struct arena *arena,
                           struct err *err) {
  if (row[0] < 0 || row[0] >= LIMIT_SAMPLES_PER_GROUP)
    return err_set(err, RC_INVALID, "sample", "expected 0 to %d, got %d", LIMIT_SAMPLES_PER_GROUP - 1, row[0]);
  if (row[1] < 0 || row[1] > FINISH_ABORT)
    return err_set(err, RC_INVALID, "finish_reason", "expected 0 (stop), 1 (length) or 2 (abort), got %d", row[1]);
  s->sample = row[0];
  s->finish = (enum finish_reason)row[1];
  enum rc rc = take_tokens(s, c, row[2], err);
  if (rc == RC_OK) rc = sample_tokens_check(s, err);
  if (rc == RC_OK)
    rc = wire_take_segments(&s->segments, &s->segment_count, &c->segments, s->token_ids.count, arena, err);
  if (rc == RC_OK) rc = take_spans(s, c, arena, err);
  return rc == RC_OK ? wire_version_spans_check(s->spans, s->span_count, s->token_ids.count, err) : rc;
}

static enum rc read_samples(struct lease_result *m, struct columns *c, struct arena *arena, struct err *err) {
  m->sample_count = c->sample_rows;
  m->samples = arena_alloc(arena, m->sample_count, sizeof *m->samples);
  if (!m->samples) return err_set(err, RC_NO_MEMORY, NULL, "%zu samples were refused memory", m->sample_count);
  for (size_t i = 0; i < m->sample_count; i++) {
    const enum rc rc = take_sample(&m->samples[i], c, c->samples[i], arena, err);
    char place[32];
    snprintf(place, sizeof place, "samples[%zu]", i);
    if (rc != RC_OK) {
      err_in_field(err, place);
      return rc;
    }
  }
  if (c->tokens_taken != c->token_rows || c->segments.taken != c->segments.count || c->spans_taken != c->span_rows)
    return err_set(err, RC_INVALID, "samples",
                   "expected every token, segment and span to be a sample's, got %zu, %zu and %zu too many",
                   c->token_rows - c->tokens_taken, c->segments.count - c->segments.taken,
                   c->span_rows - c->spans_taken);
  return lease_result_check(m, err);
}

enum rc lease_result_decode_tensors(struct lease_result *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err) {
  struct st_file *f;
  struct columns columns = {0};
  *m = (struct lease_result){0};
  enum rc rc = st_open_memory(&f, bytes, len, err);
  if (rc != RC_OK) return rc;
  rc = read_head(m, f, arena, err);
  if (rc == RC_OK) rc = read_columns(&columns, f, arena, err);
  if (rc == RC_OK) rc = read_samples(m, &columns, arena, err);
  st_close(f);
  return rc;
}

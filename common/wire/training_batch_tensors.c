/* Encodes and decodes a batch, and the status with its log-probabilities, as safetensors: the form in which the
 * coordinator and the trainer exchange them.  As JSON (training_batch.c) both cost about fifty times the CPU.
 *
 *   a batch        __metadata__   {"batch": "<the JSON of the batch, where a group's samples are their ids>"}
 *                  samples        I32 [samples, 2]   tokens, prompt_length
 *                  token_ids      I32 [tokens]       prompt and completion
 *                  segments       I32 [segments, 3]  start, count, loss_mask (0 or 1); over a completion
 *                  advantages     F32 [samples]
 *                  behaviour      F32 [trained]      only where samples have behaviour log-probabilities
 *                  reference      F32 [trained]      only of groups that say so; left out where that is none
 *                  exact_from     I32 [samples]      only of a batch that is verified
 *
 *   a status       __metadata__   {"status": "<the JSON of the status, where samples are their ids>"}
 *                  trained        I32 [samples]      trained tokens
 *                  logprobs       F32 [trained]      unless entropies alone were asked for
 *                  entropies      F32 [trained]      where they were asked for
 *
 * Everything lies sample after sample, group after group.  A sample's segments are those that cover its completion.
 *
 * Previous hop of a rollout: coordinator/driver/batch_build.c.  Next: trainer-server/api/route_submit_batch.c. */
#include <math.h>
#include <stdio.h>

#include "common/wire/tensors.h"
#include "common/wire/training_batch_internal.h"

#define BATCH_KEY  "batch"
#define STATUS_KEY "status"

enum { BATCH_TENSORS = 4 /* without log-probabilities */, SAMPLE_COLUMNS = 2 };

/* ---- a batch: writing ---- */

/* Rows of the tensors, of all samples together. */
struct batch_sizes {
  int64_t samples, tokens, segments, behaviour, reference;
};

static struct batch_sizes batch_sizes_of(const struct submit_batch *m) {
  struct batch_sizes n = {0};
  for (size_t g = 0; g < m->group_count; g++) {
    const struct batch_group *group = &m->groups[g];
    n.samples += (int64_t)group->sample_count;
    for (size_t i = 0; i < group->sample_count; i++) {
      n.tokens += (int64_t)group->samples[i].tokens.count;
      n.segments += (int64_t)group->samples[i].segment_count;
      n.behaviour += (int64_t)group->samples[i].behaviour.count;
      n.reference += (int64_t)group->samples[i].reference.count;
    }
  }
  return n;
}

enum rc submit_batch_encode_tensors(const struct submit_batch *m, struct buf *out, struct err *err) {
  const struct batch_sizes n = batch_sizes_of(m);
  size_t tensors = BATCH_TENSORS;
  struct st_entry entries[BATCH_TENSORS + 3] = {
      {"samples", ST_I32, 2, {n.samples, SAMPLE_COLUMNS}},
      {"token_ids", ST_I32, 1, {n.tokens}},
      {"segments", ST_I32, 2, {n.segments, TENSOR_SEGMENT_COLUMNS}},
      {"advantages", ST_F32, 1, {n.samples}},
  };
  if (n.behaviour > 0) entries[tensors++] = (struct st_entry){"behaviour", ST_F32, 1, {n.behaviour}};
  if (n.reference > 0) entries[tensors++] = (struct st_entry){"reference", ST_F32, 1, {n.reference}};
  if (m->verify.wanted) entries[tensors++] = (struct st_entry){"exact_from", ST_I32, 1, {n.samples}};
  struct buf head = BUF_INIT;
  submit_batch_write(m, false, &head);
  const enum rc rc = wire_tensors_begin(out, entries, tensors, BATCH_KEY, &head, err);
  buf_free(&head);
  if (rc != RC_OK) return rc;
  buf_reserve(out,
              (size_t)(n.samples * 4 + n.tokens + n.segments * TENSOR_SEGMENT_COLUMNS + n.behaviour + n.reference) *
                  sizeof(int32_t));
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      const struct batch_sample *s = &m->groups[g].samples[i];
      const int32_t row[SAMPLE_COLUMNS] = {(int32_t)s->tokens.count, s->prompt_length};
      buf_append(out, row, sizeof row);
    }
  }
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      const struct json_i32s *tokens = &m->groups[g].samples[i].tokens;
      buf_append(out, tokens->items, tokens->count * sizeof *tokens->items);
    }
  }
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++)
      wire_append_segments(out, m->groups[g].samples[i].segments, m->groups[g].samples[i].segment_count);
  }
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++)
      buf_append(out, &m->groups[g].samples[i].advantage, sizeof(float));
  }
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      const struct json_f32s *behaviour = &m->groups[g].samples[i].behaviour;
      buf_append(out, behaviour->items, behaviour->count * sizeof *behaviour->items);
    }
  }
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      const struct json_f32s *reference = &m->groups[g].samples[i].reference;
      buf_append(out, reference->items, reference->count * sizeof *reference->items);
    }
  }
  for (size_t g = 0; m->verify.wanted && g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++)
      buf_append(out, &m->groups[g].samples[i].exact_from, sizeof(int32_t));
  }
  return buf_check(out, err);
}

/* ---- a batch: reading ---- */

/* The samples' ids alone. */
static enum rc sample_read_id(void *item, const struct json *value, struct arena *arena, struct err *err) {
  return wire_read_name(&((struct batch_sample *)item)->id, value, arena, err);
}

static enum rc group_read_ids(void *item, const struct json *value, struct arena *arena, struct err *err) {
  return batch_group_read(item, value, sample_read_id, arena, err);
}

static enum rc read_head(struct submit_batch *m, const struct st_file *f, struct arena *arena, struct err *err) {
  struct json *head = NULL;
  enum rc rc = wire_tensors_metadata(&head, f, BATCH_KEY, err);
  if (rc == RC_OK) rc = submit_batch_read(m, head, group_read_ids, arena, err);
  json_free(head);
  return rc;
}

/* Log-probabilities, of which samples take one for each trained token. */
struct logprob_rows {
  const char *name;
  float *items; /* NULL: the message has none */
  size_t count, taken;
};

/* All rows, and how many of them samples have taken. */
struct columns {
  const int32_t (*samples)[SAMPLE_COLUMNS];
  struct segment_rows segments;
  int32_t *token_ids;
  const float *advantages;
  const int32_t *exact_from; /* NULL: the batch is not verified */
  struct logprob_rows behaviour, reference;
  size_t sample_rows, token_rows, advantage_rows;
  size_t samples_taken, tokens_taken;
};

static enum rc read_logprob_rows(struct logprob_rows *r, const struct st_file *f, struct arena *arena,
                                 struct err *err) {
  void *items;
  if (!st_find(f, r->name)) return RC_OK;
  const enum rc rc = wire_tensor_read(&items, &r->count, f, r->name, ST_F32, 0, arena, err);
  if (rc == RC_OK) r->items = items;
  return rc;
}

/* One for each sample of a batch that is verified. */
static enum rc read_exact(struct columns *c, const struct st_file *f, size_t samples, struct arena *arena,
                          struct err *err) {
  void *items;
  size_t count;
  const enum rc rc = wire_tensor_read(&items, &count, f, "exact_from", ST_I32, 0, arena, err);
  if (rc == RC_OK && count != samples)
    return err_set(err, RC_INVALID, "exact_from", "expected one for each of %zu ids, got %zu", samples, count);
  if (rc == RC_OK) c->exact_from = items;
  return rc;
}

static enum rc read_columns(struct columns *c, const struct st_file *f, size_t samples, bool verified,
                            struct arena *arena, struct err *err) {
  void *rows, *tokens, *segments, *advantages;
  c->behaviour.name = "behaviour";
  c->reference.name = "reference";
  const size_t optional =
      (size_t)(st_find(f, c->behaviour.name) != NULL) + (st_find(f, c->reference.name) != NULL) + verified;
  enum rc rc = wire_tensors_counted(f, BATCH_TENSORS + optional, err);
  if (rc == RC_OK) rc = wire_tensor_read(&rows, &c->sample_rows, f, "samples", ST_I32, SAMPLE_COLUMNS, arena, err);
  if (rc == RC_OK) rc = wire_tensor_read(&tokens, &c->token_rows, f, "token_ids", ST_I32, 0, arena, err);
  if (rc == RC_OK)
    rc = wire_tensor_read(&segments, &c->segments.count, f, "segments", ST_I32, TENSOR_SEGMENT_COLUMNS, arena, err);
  if (rc == RC_OK) rc = wire_tensor_read(&advantages, &c->advantage_rows, f, "advantages", ST_F32, 0, arena, err);
  if (rc == RC_OK) rc = read_logprob_rows(&c->behaviour, f, arena, err);
  if (rc == RC_OK) rc = read_logprob_rows(&c->reference, f, arena, err);
  if (rc == RC_OK && verified) rc = read_exact(c, f, samples, arena, err);
  if (rc != RC_OK) return rc;
  c->samples = rows;
  c->token_ids = tokens;
  c->segments.rows = segments;
  c->advantages = advantages;
  if (c->sample_rows != samples)
    return err_set(err, RC_INVALID, "samples", "expected one row for each of %zu ids, got %zu", samples,
                   c->sample_rows);
  if (c->advantage_rows != samples)
    return err_set(err, RC_INVALID, "advantages", "expected one for each of %zu ids, got %zu", samples,
                   c->advantage_rows);
  return RC_OK;
}

static enum rc take_logprobs(struct json_f32s *out, struct logprob_rows *r, const struct batch_sample *s,
                             struct err *err) {
  const size_t trained = wire_segments_trained(s->segments, s->segment_count);
  const size_t left = r->count - r->taken;
  if (trained > left)
    return err_set(err, RC_INVALID, r->name, "expected one for each of %zu trained tokens, %zu are left", trained,
                   left);
  if (trained == 0) return RC_OK;
  *out = (struct json_f32s){r->items + r->taken, trained};
  r->taken += trained;
  return wire_logprobs_check(r->name, out->items, trained, err);
}

static enum rc expect_all_taken(const struct logprob_rows *r, struct err *err) {
  if (r->taken == r->count) return RC_OK;
  return err_set(err, RC_INVALID, r->name, "expected every number to be a trained token's, got %zu too many",
                 r->count - r->taken);
}

static enum rc take_sample(struct batch_sample *s, struct columns *c, bool has_reference, struct arena *arena,
                           struct err *err) {
  const int32_t *row = c->samples[c->samples_taken];
  const size_t left = c->token_rows - c->tokens_taken;
  s->exact_from = c->exact_from ? c->exact_from[c->samples_taken] : -1;
  s->advantage = c->advantages[c->samples_taken++];
  s->prompt_length = row[1];
  if (row[0] < 0 || row[0] > LIMIT_SEQUENCE_TOKENS || (size_t)row[0] > left)
    return err_set(err, RC_INVALID, "tokens", "expected at most %d, and no more than the %zu that are left, got %d",
                   LIMIT_SEQUENCE_TOKENS, left, row[0]);
  s->tokens = (struct json_i32s){c->token_ids + c->tokens_taken, (size_t)row[0]};
  c->tokens_taken += s->tokens.count;
  for (size_t i = 0; i < s->tokens.count; i++) {
    const int32_t id = s->tokens.items[i];
    if (id < 0 || id >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, "tokens", "expected 0 to %d, got %d at token %zu", LIMIT_VOCABULARY - 1, id, i);
  }
  if (s->prompt_length < 1 || s->prompt_length > LIMIT_PROMPT_TOKENS)
    return err_set(err, RC_INVALID, "prompt_length", "expected 1 to %d, got %d", LIMIT_PROMPT_TOKENS, s->prompt_length);
  if (!isfinite(s->advantage))
    return err_set(err, RC_INVALID, "advantage", "expected a finite number, got %g", (double)s->advantage);
  if (s->exact_from < -1 || s->exact_from > LIMIT_SEQUENCE_TOKENS)
    return err_set(err, RC_INVALID, "exact_from", "expected -1 to %d, got %d", LIMIT_SEQUENCE_TOKENS, s->exact_from);
  enum rc rc = batch_sample_check(s, err);
  if (rc == RC_OK)
    rc = wire_take_segments(&s->segments, &s->segment_count, &c->segments, s->tokens.count - (size_t)s->prompt_length,
                            arena, err);
  if (rc == RC_OK) rc = batch_exact_check(s, err);
  if (rc == RC_OK && c->behaviour.items) rc = take_logprobs(&s->behaviour, &c->behaviour, s, err);
  return rc == RC_OK && has_reference ? take_logprobs(&s->reference, &c->reference, s, err) : rc;
}

static enum rc read_samples(struct submit_batch *m, const struct st_file *f, struct arena *arena, struct err *err) {
  struct columns c = {0};
  size_t samples = 0;
  for (size_t g = 0; g < m->group_count; g++) samples += m->groups[g].sample_count;
  enum rc rc = read_columns(&c, f, samples, m->verify.wanted, arena, err);
  for (size_t g = 0; rc == RC_OK && g < m->group_count; g++) {
    for (size_t i = 0; rc == RC_OK && i < m->groups[g].sample_count; i++) {
      char place[64];
      rc = take_sample(&m->groups[g].samples[i], &c, m->groups[g].has_reference, arena, err);
      snprintf(place, sizeof place, "groups[%zu].samples[%zu]", g, i);
      if (rc != RC_OK) err_in_field(err, place);
    }
  }
  if (rc == RC_OK) rc = expect_all_taken(&c.behaviour, err);
  if (rc == RC_OK) rc = expect_all_taken(&c.reference, err);
  if (rc != RC_OK || (c.tokens_taken == c.token_rows && c.segments.taken == c.segments.count)) return rc;
  return err_set(err, RC_INVALID, "samples",
                 "expected every token and segment to be a sample's, got %zu and %zu too many",
                 c.token_rows - c.tokens_taken, c.segments.count - c.segments.taken);
}

enum rc submit_batch_decode_tensors(struct submit_batch *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err) {
  struct st_file *f;
  *m = (struct submit_batch){0};
  enum rc rc = st_open_memory(&f, bytes, len, err);
  if (rc != RC_OK) return rc;
  rc = read_head(m, f, arena, err);
  if (rc == RC_OK) rc = read_samples(m, f, arena, err);
  st_close(f);
  return rc;
}

/* ---- a status ---- */

static const struct json_f32s *numbers_of(const struct sample_logprobs *s, int kind) {
  return kind == STATUS_LOGPROBS ? &s->logprobs : &s->entropies;
}

static int64_t numbers_count(const struct sample_logprobs *samples, size_t count, int kind) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += (int64_t)numbers_of(&samples[i], kind)->count;
  return sum;
}

/* Entropies are told of all samples or of none. */
static bool tells_entropies(const struct sample_logprobs *samples, size_t count, int numbers) {
  return (numbers & STATUS_ENTROPIES) && numbers_count(samples, count, STATUS_ENTROPIES) > 0;
}

static bool tells_logprobs(const struct sample_logprobs *samples, size_t count, int numbers) {
  return (numbers & STATUS_LOGPROBS) || !tells_entropies(samples, count, numbers);
}

void sample_logprobs_entries(struct st_entry entries[LOGPROB_TENSORS], size_t *tensors,
                             const struct sample_logprobs *samples, size_t count, int numbers) {
  const int64_t logprobs = numbers_count(samples, count, STATUS_LOGPROBS);
  *tensors = 0;
  entries[(*tensors)++] = (struct st_entry){"trained", ST_I32, 1, {(int64_t)count}};
  if (tells_logprobs(samples, count, numbers))
    entries[(*tensors)++] = (struct st_entry){"logprobs", ST_F32, 1, {logprobs}};
  if (tells_entropies(samples, count, numbers))
    entries[(*tensors)++] =
        (struct st_entry){"entropies", ST_F32, 1, {numbers_count(samples, count, STATUS_ENTROPIES)}};
}

static void numbers_append(struct buf *out, const struct sample_logprobs *samples, size_t count, int kind) {
  for (size_t i = 0; i < count; i++) {
    const struct json_f32s *numbers = numbers_of(&samples[i], kind);
    buf_append(out, numbers->items, numbers->count * sizeof(float));
  }
}

void sample_logprobs_append(struct buf *out, const struct sample_logprobs *samples, size_t count, int numbers) {
  for (size_t i = 0; i < count; i++) {
    const int32_t trained = (int32_t)samples[i].logprobs.count;
    buf_append(out, &trained, sizeof trained);
  }
  if (tells_logprobs(samples, count, numbers)) numbers_append(out, samples, count, STATUS_LOGPROBS);
  if (tells_entropies(samples, count, numbers)) numbers_append(out, samples, count, STATUS_ENTROPIES);
}

/* Each sample takes as many as it has trained tokens. */
static enum rc numbers_take(struct sample_logprobs *samples, size_t count, const int32_t *trained, int kind,
                            const struct st_file *f, struct arena *arena, struct err *err) {
  const char *name = kind == STATUS_LOGPROBS ? "logprobs" : "entropies";
  void *items;
  size_t left;
  const enum rc rc = wire_tensor_read(&items, &left, f, name, ST_F32, 0, arena, err);
  if (rc != RC_OK) return rc;
  float *next = items;
  for (size_t i = 0; i < count; i++) {
    if (trained[i] < 0 || trained[i] > LIMIT_SEQUENCE_TOKENS || (size_t)trained[i] > left)
      return err_set(err, RC_INVALID, "trained", "expected 0 to %d, and no more than the %zu that are left, got %d",
                     LIMIT_SEQUENCE_TOKENS, left, trained[i]);
    const struct json_f32s taken = {next, (size_t)trained[i]};
    if (kind == STATUS_LOGPROBS)
      samples[i].logprobs = taken;
    else
      samples[i].entropies = taken;
    next += trained[i];
    left -= (size_t)trained[i];
  }
  if (left == 0) return RC_OK;
  return err_set(err, RC_INVALID, name, "expected every number to be a sample's, got %zu too many", left);
}

enum rc sample_logprobs_take(struct sample_logprobs *samples, size_t count, int numbers, const struct st_file *f,
                             struct arena *arena, struct err *err) {
  void *trained;
  size_t found;
  const bool entropies = (numbers & STATUS_ENTROPIES) && st_find(f, "entropies");
  const bool logprobs = !entropies || st_find(f, "logprobs");
  enum rc rc = wire_tensors_counted(f, 1 + (size_t)logprobs + (size_t)entropies, err);
  if (rc == RC_OK) rc = wire_tensor_read(&trained, &found, f, "trained", ST_I32, 0, arena, err);
  if (rc != RC_OK) return rc;
  if (found != count)
    return err_set(err, RC_INVALID, "trained", "expected one for each of %zu ids, got %zu", count, found);
  if (logprobs) rc = numbers_take(samples, count, trained, STATUS_LOGPROBS, f, arena, err);
  if (rc == RC_OK && entropies) rc = numbers_take(samples, count, trained, STATUS_ENTROPIES, f, arena, err);
  return rc;
}

enum rc batch_status_encode_tensors(const struct batch_status *m, struct buf *out, struct err *err) {
  const size_t samples = m->state == JOB_DONE ? m->sample_count : 0;
  const int numbers = m->numbers ? m->numbers : STATUS_LOGPROBS;
  struct st_entry entries[LOGPROB_TENSORS];
  struct buf head = BUF_INIT;
  size_t tensors;
  sample_logprobs_entries(entries, &tensors, m->samples, samples, numbers);
  batch_status_write(m, false, &head);
  const enum rc rc = wire_tensors_begin(out, entries, tensors, STATUS_KEY, &head, err);
  buf_free(&head);
  if (rc != RC_OK) return rc;
  sample_logprobs_append(out, m->samples, samples, numbers);
  return buf_check(out, err);
}

/* An id alone. */
static enum rc logprobs_read_id(void *item, const struct json *value, struct arena *arena, struct err *err) {
  return wire_read_name(&((struct sample_logprobs *)item)->id, value, arena, err);
}

enum rc batch_status_decode_tensors(struct batch_status *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err) {
  struct st_file *f;
  struct json *head = NULL;
  *m = (struct batch_status){0};
  enum rc rc = st_open_memory(&f, bytes, len, err);
  if (rc != RC_OK) return rc;
  rc = wire_tensors_metadata(&head, f, STATUS_KEY, err);
  if (rc == RC_OK) rc = batch_status_read(m, head, logprobs_read_id, arena, err);
  if (rc == RC_OK)
    rc = sample_logprobs_take(m->samples, m->sample_count, STATUS_LOGPROBS | STATUS_ENTROPIES, f, arena, err);
  json_free(head);
  st_close(f);
  return rc;
}

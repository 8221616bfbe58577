/* Reads a complete group's samples from the database into a message. */
#include "services/coordinator/rounds/group_message.h"

#include <inttypes.h>
#include <string.h>

#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"

static enum rc no_memory(struct err *err) { return err_set(err, RC_NO_MEMORY, NULL, "a group was refused memory"); }

/* A sample without stored segments has one, which covers all its tokens and is trained on (route_results.c). */
static enum rc plain_segment(struct batch_sample *out, struct arena *arena, struct err *err) {
  out->segments = arena_alloc(arena, 1, sizeof *out->segments);
  if (!out->segments) return no_memory(err);
  const int32_t count = (int32_t)out->tokens.count - out->prompt_length;
  out->segments[0] = (struct sample_segment){.start = 0, .count = count, .loss_mask = true};
  out->segment_count = count > 0 ? 1 : 0;
  return RC_OK;
}

static enum rc read_segments(struct batch_sample *out, struct store *s, int64_t run, int64_t round, int64_t group,
                             int64_t sample, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  int64_t count = 0;
  enum rc rc =
      store_int(s, &count, err,
                "SELECT count(*) FROM segments WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4",
                BINDS(b_int(run), b_int(round), b_int(group), b_int(sample)));
  if (rc != RC_OK || count == 0) return rc == RC_OK ? plain_segment(out, arena, err) : rc;
  out->segments = arena_alloc(arena, (size_t)count + 1, sizeof *out->segments);
  if (!out->segments) return no_memory(err);
  rc = store_query(s, &q, err,
                   "SELECT start, count, loss_mask FROM segments WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 "
                   "AND sample = ?4 ORDER BY start",
                   BINDS(b_int(run), b_int(round), b_int(group), b_int(sample)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    out->segments[out->segment_count++] = (struct sample_segment){
        .start = (int32_t)rows_int(&q, 0), .count = (int32_t)rows_int(&q, 1), .loss_mask = rows_int(&q, 2) != 0};
  }
  rows_end(&q);
  return rc;
}

/* The log-probabilities of the tokens under a loss mask, packed. */
static enum rc pack_behaviour(struct json_f32s *out, const struct batch_sample *s, const float *logprobs, size_t count,
                              struct arena *arena, struct err *err) {
  out->items = arena_alloc(arena, count + 1, sizeof *out->items);
  if (!out->items) return no_memory(err);
  for (size_t g = 0; g < s->segment_count; g++) {
    const struct sample_segment *segment = &s->segments[g];
    if (!segment->loss_mask) continue;
    if (segment->start < 0 || segment->count < 0 || (size_t)segment->start + (size_t)segment->count > count)
      return err_set(err, RC_CORRUPT, NULL, "the segments of sample %s exceed its %zu tokens", s->id, count);
    memcpy(out->items + out->count, logprobs + segment->start, (size_t)segment->count * sizeof *logprobs);
    out->count += (size_t)segment->count;
  }
  return RC_OK;
}

static enum rc prompt_read(struct group_prompt *out, struct store *s, const struct group_key *key, struct arena *arena,
                           struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, "SELECT prompt_ids FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                           BINDS(b_int(key->run), b_int(key->round), b_int(key->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    const void *ids = rows_blob(&q, 0, &out->len);
    char *copy = arena_alloc(arena, out->len + 1, 1);
    if (copy) memcpy(copy, ids, out->len);
    out->ids = copy;
    if (!copy) rc = no_memory(err);
  }
  rows_end(&q);
  return rc;
}

/* Columns: sample, advantage, token_ids, logprobs, version_first. */
static enum rc read_sample(struct batch_sample *out, struct json_f32s *behaviour, struct store *s, const struct rows *q,
                           const struct group_prompt *prompt, const struct group_key *key, struct arena *arena,
                           struct err *err) {
  size_t ids_len, logprobs_len;
  int64_t sample = rows_int(q, 0);
  const void *ids = rows_blob(q, 2, &ids_len);
  const void *bytes = rows_blob(q, 3, &logprobs_len);
  int32_t *sampled = NULL;
  size_t count = 0;
  enum rc rc = token_bytes_unpack(&sampled, &count, ids, ids_len, logprobs_len, arena, err);
  if (rc != RC_OK) return rc;
  char *tokens = arena_alloc(arena, prompt->len + count * sizeof *sampled + 1, 1);
  float *logprobs = arena_alloc(arena, logprobs_len + 1, 1);
  char *id = arena_strdup(arena, id_sample(key->run, key->round, key->ordinal, sample).text);
  if (!tokens || !logprobs || !id) return no_memory(err);
  memcpy(tokens, prompt->ids, prompt->len);
  memcpy(tokens + prompt->len, sampled, count * sizeof *sampled);
  memcpy(logprobs, bytes, logprobs_len);
  *out = (struct batch_sample){.id = id,
                               .tokens = {(int32_t *)(void *)tokens, prompt->len / sizeof(int32_t) + count},
                               .prompt_length = (int32_t)(prompt->len / sizeof(int32_t)),
                               .advantage = (float)rows_real(q, 1)};
  rc = read_segments(out, s, key->run, key->round, key->ordinal, sample, arena, err);
  return rc == RC_OK ? pack_behaviour(behaviour, out, logprobs, logprobs_len / sizeof *logprobs, arena, err) : rc;
}

enum rc group_message(struct batch_group *out, struct group_record *record, struct store *s,
                      const struct group_key *key, const struct group_prompt *prompt, int64_t count,
                      struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  struct group_prompt read = {0};
  *out = (struct batch_group){.id = arena_strdup(arena, id_group(key->run, key->round, key->ordinal).text),
                              .samples = arena_alloc(arena, (size_t)count + 1, sizeof *out->samples)};
  *record =
      (struct group_record){.behaviour = arena_alloc(arena, (size_t)count + 1, sizeof *record->behaviour),
                            .samples = arena_alloc(arena, (size_t)count + 1, sizeof *record->samples),
                            .version_first = arena_alloc(arena, (size_t)count + 1, sizeof *record->version_first)};
  if (!out->id || !out->samples || !record->behaviour || !record->samples || !record->version_first)
    return no_memory(err);
  enum rc rc = prompt ? RC_OK : prompt_read(&read, s, key, arena, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT sample, advantage, token_ids, logprobs, version_first FROM samples JOIN rollouts "
                   "USING (run, round, group_ordinal, sample)"
                   " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 ORDER BY sample",
                   BINDS(b_int(key->run), b_int(key->round), b_int(key->ordinal)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && (int64_t)out->sample_count < count) {
    const size_t i = out->sample_count++;
    record->samples[i] = rows_int(&q, 0);
    record->version_first[i] = rows_int(&q, 4);
    rc = read_sample(&out->samples[i], &record->behaviour[i], s, &q, prompt ? prompt : &read, key, arena, err);
  }
  rows_end(&q);
  if (rc == RC_OK && (int64_t)out->sample_count != count)
    rc = err_set(err, RC_CORRUPT, NULL, "group %s has %zu of %" PRId64 " rollouts", out->id, out->sample_count, count);
  return rc;
}

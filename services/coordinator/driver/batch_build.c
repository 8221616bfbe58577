/* Builds a batch's message from stored rollouts or from the dataset, and compares its answer's log-probabilities. */
#include "services/coordinator/driver/batch_build.h"

#include <inttypes.h>
#include <string.h>

#include "services/coordinator/store/ids.h"

static enum rc no_memory(struct err *err) { return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory"); }

/* ---- cross-entropy ---- */

static enum rc sample_of_item(struct batch_sample *out, const struct dataset_item *item, const char *id,
                              struct arena *arena, struct err *err) {
  size_t p = (size_t)item->prompt_length, n = (size_t)item->completion_length;
  int32_t *tokens = arena_alloc(arena, p + n + 1, sizeof *tokens);
  struct sample_segment *segment = arena_alloc(arena, 1, sizeof *segment);
  char *name = arena_strdup(arena, id);
  if (!tokens || !segment || !name) return no_memory(err);
  if (p) memcpy(tokens, item->prompt_ids, p * sizeof *tokens);
  if (n) memcpy(tokens + p, item->completion_ids, n * sizeof *tokens);
  *segment = (struct sample_segment){.start = 0, .count = item->completion_length, .loss_mask = true};
  *out = (struct batch_sample){.id = name,
                               .tokens = {tokens, p + n},
                               .prompt_length = item->prompt_length,
                               .segments = segment,
                               .segment_count = 1,
                               .advantage = 1};
  return RC_OK;
}

static enum rc unit_of_dataset(struct batch_group *g, struct run_context *x, int64_t round, int64_t unit,
                               struct arena *arena, struct err *err) {
  int n = x->config.samples_per_group;
  enum rc rc = RC_OK;
  g->id = arena_strdup(arena, id_group(x->run, round, unit).text);
  g->samples = arena_alloc(arena, (size_t)n, sizeof *g->samples);
  if (!g->id || !g->samples) return no_memory(err);
  for (int s = 0; s < n && rc == RC_OK; s++)
    rc = sample_of_item(&g->samples[g->sample_count++], run_unit_item(x, round, unit, s),
                        id_sample(x->run, round, unit, s).text, arena, err);
  return rc;
}

/* Room for the groups of a batch. */
static enum rc groups_alloc(struct built_batch *out, struct store *s, int64_t run, int64_t round, int64_t number,
                            struct arena *arena, struct err *err) {
  int64_t groups = 0;
  enum rc rc = store_int(s, &groups, err, "SELECT count(*) FROM groups WHERE run = ?1 AND trained_in = ?2 AND batch = ?3",
                         BINDS(b_int(run), b_int(round), b_int(number)));
  *out = (struct built_batch){0};
  out->message.groups = arena_alloc(arena, (size_t)groups + 1, sizeof *out->message.groups);
  return rc == RC_OK && !out->message.groups ? no_memory(err) : rc;
}

enum rc batch_from_dataset(struct built_batch *out, struct store *s, struct run_context *x, int64_t round,
                           int64_t number, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc = groups_alloc(out, s, x->run, round, number, arena, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT ordinal FROM groups WHERE run = ?1 AND trained_in = ?2 AND batch = ?3 ORDER BY ordinal",
                   BINDS(b_int(x->run), b_int(round), b_int(number)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    struct batch_group *g = &out->message.groups[out->message.group_count++];
    rc = unit_of_dataset(g, x, round, rows_int(&q, 0), arena, err);
    out->sample_count += g->sample_count;
  }
  rows_end(&q);
  return rc;
}

/* ---- rollouts ---- */

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

struct prompt {
  const void *ids;
  size_t len;
};

struct group_key {
  int64_t run, round, ordinal;
};

/* Columns: sample, advantage, token_ids, logprobs, version_first. */
static enum rc read_sample(struct batch_sample *out, struct json_f32s *behaviour, struct store *s, const struct rows *q,
                           const struct prompt *prompt, const struct group_key *key, struct arena *arena,
                           struct err *err) {
  size_t ids_len, logprobs_len;
  int64_t sample = rows_int(q, 0);
  const void *ids = rows_blob(q, 2, &ids_len);
  const void *bytes = rows_blob(q, 3, &logprobs_len);
  char *tokens = arena_alloc(arena, prompt->len + ids_len + 1, 1);
  float *logprobs = arena_alloc(arena, logprobs_len + 1, 1);
  char *id = arena_strdup(arena, id_sample(key->run, key->round, key->ordinal, sample).text);
  if (!tokens || !logprobs || !id) return no_memory(err);
  memcpy(tokens, prompt->ids, prompt->len);
  memcpy(tokens + prompt->len, ids, ids_len);
  memcpy(logprobs, bytes, logprobs_len);
  *out = (struct batch_sample){.id = id,
                               .tokens = {(int32_t *)(void *)tokens, (prompt->len + ids_len) / sizeof(int32_t)},
                               .prompt_length = (int32_t)(prompt->len / sizeof(int32_t)),
                               .advantage = (float)rows_real(q, 1)};
  enum rc rc = read_segments(out, s, key->run, key->round, key->ordinal, sample, arena, err);
  return rc == RC_OK ? pack_behaviour(behaviour, out, logprobs, logprobs_len / sizeof *logprobs, arena, err) : rc;
}

/* What the trainer is told of a sample of several versions. */
static enum rc sample_in_flight(struct built_batch *out, struct store *s, const struct rows *q,
                                struct batch_sample *sample, const struct group_key *key, int64_t version,
                                struct arena *arena, struct err *err) {
  const struct lag_sample which = {.run = key->run,
                                   .round = key->round,
                                   .group = key->ordinal,
                                   .sample = rows_int(q, 0),
                                   .version_first = rows_int(q, 4)};
  sample->behaviour = out->behaviour[out->sample_count];
  return batch_lag_add(&out->lag, &out->compared[out->sample_count], s, &which, sample, version, arena, err);
}

static enum rc read_group(struct built_batch *out, struct store *s, const struct batch_key *batch,
                          const struct group_key *key, int64_t count, const struct prompt *prompt, struct arena *arena,
                          struct err *err) {
  struct rows q;
  bool row;
  struct batch_group *g = &out->message.groups[out->message.group_count++];
  g->id = arena_strdup(arena, id_group(key->run, key->round, key->ordinal).text);
  g->samples = arena_alloc(arena, (size_t)count + 1, sizeof *g->samples);
  if (!g->id || !g->samples) return no_memory(err);
  enum rc rc = store_query(s, &q, err,
                           "SELECT sample, advantage, token_ids, logprobs, version_first FROM samples JOIN rollouts "
                           "USING (run, round, group_ordinal, sample)"
                           " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 ORDER BY sample",
                           BINDS(b_int(key->run), b_int(key->round), b_int(key->ordinal)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && (int64_t)g->sample_count < count) {
    struct batch_sample *sample = &g->samples[g->sample_count++];
    rc = read_sample(sample, &out->behaviour[out->sample_count], s, &q, prompt, key, arena, err);
    if (rc == RC_OK && batch->inflight) rc = sample_in_flight(out, s, &q, sample, key, batch->version, arena, err);
    out->sample_count++;
  }
  rows_end(&q);
  if (rc == RC_OK && (int64_t)g->sample_count != count)
    rc = err_set(err, RC_CORRUPT, NULL, "group %s has %zu of %" PRId64 " rollouts", g->id, g->sample_count, count);
  return rc;
}

enum rc batch_from_rollouts(struct built_batch *out, struct store *s, const struct batch_key *key, struct arena *arena,
                            struct err *err) {
  struct rows q;
  bool row;
  int64_t samples = 0;
  const struct bind binds[] = {b_int(key->run), b_int(key->round), b_int(key->number)};
  enum rc rc = groups_alloc(out, s, key->run, key->round, key->number, arena, err);
  if (rc == RC_OK)
    rc = store_int(s, &samples, err,
                   "SELECT sum(sample_count) FROM groups WHERE run = ?1 AND trained_in = ?2 AND batch = ?3", binds, 3);
  if (rc != RC_OK) return rc;
  out->behaviour = arena_alloc(arena, (size_t)samples + 1, sizeof *out->behaviour);
  if (key->inflight) out->compared = arena_alloc(arena, (size_t)samples + 1, sizeof *out->compared);
  if (!out->behaviour || (key->inflight && !out->compared)) return no_memory(err);
  rc = store_query(s, &q, err,
                   "SELECT round, ordinal, sample_count, prompt_ids FROM groups WHERE run = ?1 AND trained_in = ?2 AND "
                   "batch = ?3 ORDER BY round, ordinal",
                   binds, 3);
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const struct group_key group = {key->run, rows_int(&q, 0), rows_int(&q, 1)};
    struct prompt prompt;
    prompt.ids = rows_blob(&q, 3, &prompt.len);
    rc = read_group(out, s, key, &group, rows_int(&q, 2), &prompt, arena, err);
  }
  rows_end(&q);
  return rc;
}

/* ---- comparing ---- */

bool logprobs_agree(const struct built_batch *b, const struct digest *trainers, struct arena *arena) {
  static const struct digest none;
  struct digest recorded;
  size_t at = 0;
  if (!b->behaviour) return true;
  if (b->compared && b->lag.compared < b->lag.tokens) return false; /* the others differ */
  struct sample_logprobs *samples = arena_alloc(arena, b->sample_count + 1, sizeof *samples);
  if (!samples || digest_equal(trainers, &none)) return false;
  for (size_t g = 0; g < b->message.group_count; g++) {
    for (size_t i = 0; i < b->message.groups[g].sample_count; i++, at++)
      samples[at] = (struct sample_logprobs){.id = b->message.groups[g].samples[i].id, .logprobs = b->behaviour[at]};
  }
  logprobs_digest(&recorded, samples, at);
  return digest_equal(&recorded, trainers);
}

/* compared NULL: all. */
static void compare_sample(struct mismatch *out, const float *recorded, const float *got, const bool *compared,
                           size_t count) {
  if (!compared) {
    mismatch_add(out, recorded, got, count);
    return;
  }
  for (size_t i = 0; i < count; i++)
    if (compared[i]) mismatch_add(out, &recorded[i], &got[i], 1);
}

enum rc logprobs_compare(struct mismatch *out, const struct built_batch *b, const struct batch_status *answer,
                         struct err *err) {
  size_t at = 0;
  *out = (struct mismatch){0};
  if (answer->sample_count != b->sample_count)
    return err_set(err, RC_CORRUPT, "samples", "the trainer answered for %zu samples, the batch has %zu",
                   answer->sample_count, b->sample_count);
  for (size_t g = 0; g < b->message.group_count; g++) {
    for (size_t i = 0; i < b->message.groups[g].sample_count; i++, at++) {
      const struct batch_sample *sent = &b->message.groups[g].samples[i];
      const struct sample_logprobs *got = &answer->samples[at];
      if (strcmp(got->id, sent->id) != 0)
        return err_set(err, RC_CORRUPT, "samples.id", "the trainer answered for sample '%.100s' where %s was expected",
                       got->id, sent->id);
      const size_t trained = wire_segments_trained(sent->segments, sent->segment_count);
      if (got->logprobs.count != trained) {
        return err_set(err, RC_CORRUPT, "samples.logprobs",
                       "the trainer answered %zu log-probabilities for sample %s, which has %zu trained tokens",
                       got->logprobs.count, sent->id, trained);
      }
      if (b->behaviour)
        compare_sample(out, b->behaviour[at].items, got->logprobs.items, b->compared ? b->compared[at] : NULL,
                       got->logprobs.count);
    }
  }
  return RC_OK;
}

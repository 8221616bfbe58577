/* Builds a batch's message from stored rollouts or from the dataset, and compares its answer's log-probabilities. */
#include "services/coordinator/driver/batch_build.h"

#include <inttypes.h>
#include <string.h>

#include "services/coordinator/decide/stored.h"
#include "services/coordinator/rounds/group_message.h"
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
  enum rc rc =
      store_int(s, &groups, err, "SELECT count(*) FROM groups WHERE run = ?1 AND trained_in = ?2 AND batch = ?3",
                BINDS(b_int(run), b_int(round), b_int(number)));
  *out = (struct built_batch){0};
  out->message.groups = arena_alloc(arena, (size_t)groups + 1, sizeof *out->message.groups);
  out->lags = arena_alloc(arena, (size_t)groups + 1, sizeof *out->lags);
  return rc == RC_OK && (!out->message.groups || !out->lags) ? no_memory(err) : rc;
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

/* What the trainer is told about a sample of several versions. */
static enum rc sample_in_flight(struct built_batch *out, struct store *s, struct batch_sample *sample,
                                const struct lag_sample *which, int64_t version, struct arena *arena,
                                struct err *err) {
  sample->behaviour = out->behaviour[out->sample_count];
  return batch_lag_add(&out->lags[out->message.group_count - 1], &out->compared[out->sample_count], s, which, sample,
                       version, arena, err);
}

/* What a preprocessor has computed of the group before the batch was planned; nothing otherwise. */
static enum rc read_reference(struct batch_group *g, struct store *s, const struct group_key *key, struct arena *arena,
                              struct err *err) {
  struct rows q;
  size_t len = 0, taken = 0;
  float *logprobs = NULL;
  enum rc rc = store_query(s, &q, err,
                           "SELECT logprobs FROM passes WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND state "
                           "= " SQL_PASS_DONE,
                           BINDS(b_int(key->run), b_int(key->round), b_int(key->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &g->has_reference, err);
  if (rc == RC_OK && g->has_reference) {
    const void *bytes = rows_blob(&q, 0, &len);
    logprobs = arena_alloc(arena, len + 1, 1);
    if (logprobs) memcpy(logprobs, bytes, len);
    if (!logprobs) rc = no_memory(err);
  }
  rows_end(&q);
  for (size_t i = 0; rc == RC_OK && g->has_reference && i < g->sample_count; i++) {
    struct batch_sample *sample = &g->samples[i];
    const size_t trained = wire_segments_trained(sample->segments, sample->segment_count);
    if (trained > len / sizeof *logprobs - taken)
      return err_set(err, RC_CORRUPT, NULL, "the pass of group %s has too few log-probabilities", g->id);
    sample->reference = (struct json_f32s){logprobs + taken, trained};
    taken += trained;
  }
  return rc;
}

static enum rc read_group(struct built_batch *out, struct store *s, const struct batch_key *batch,
                          const struct group_key *key, int64_t count, const struct group_prompt *prompt,
                          struct arena *arena, struct err *err) {
  struct batch_group *g = &out->message.groups[out->message.group_count++];
  struct group_record record;
  enum rc rc = group_message(g, &record, s, key, prompt, count, arena, err);
  if (rc == RC_OK && batch->has_reference) rc = read_reference(g, s, key, arena, err);
  for (size_t i = 0; rc == RC_OK && i < g->sample_count; i++, out->sample_count++) {
    const struct lag_sample which = {.run = key->run,
                                     .round = key->round,
                                     .group = key->ordinal,
                                     .sample = record.samples[i],
                                     .version_first = record.version_first[i]};
    out->behaviour[out->sample_count] = record.behaviour[i];
    if (batch->inflight) rc = sample_in_flight(out, s, &g->samples[i], &which, batch->version, arena, err);
  }
  if (rc == RC_OK && batch->inflight) lag_merge(&out->lag, &out->lags[out->message.group_count - 1]);
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
    struct group_prompt prompt;
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
  if (!b->behaviour || b->sample_count == 0) return true;
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

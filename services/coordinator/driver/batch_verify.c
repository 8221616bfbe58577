/* Says how a batch is verified, and takes out of it what was refused. */
#include "services/coordinator/driver/batch_verify.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/wire/worker.h"
#include "services/coordinator/checks/verdict.h"
#include "services/coordinator/store/ids.h"

static enum rc no_memory(struct err *err) { return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory"); }

/* ---- the message ---- */

/* In the message's order.  A worker of an older row tells no device, and neither do workers that are not ours. */
static enum rc sources_read(struct batch_sources *out, const struct built_batch *b, struct store *s,
                            const struct batch_key *key, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  size_t n = 0;
  out->items = arena_alloc(arena, b->sample_count + 1, sizeof *out->items);
  if (!out->items) return no_memory(err);
  enum rc rc = store_query(
      s, &q, err,
      "SELECT x.round, x.group_ordinal, x.sample, x.worker, EXISTS (SELECT 1 FROM workers t WHERE t.id = ?4 AND "
      "t.exactness = ?5 AND NOT EXISTS (SELECT 1 FROM workers w WHERE (w.id = x.worker OR w.id IN (SELECT h.worker "
      "FROM handed_back h WHERE h.run = x.run AND h.round = x.round AND h.group_ordinal = x.group_ordinal AND h.sample "
      "= x.sample)) AND (w.exactness <> ?5 OR w.device <> t.device))), x.version_first, x.version_last FROM groups g "
      "INDEXED BY groups_batch CROSS JOIN samples x ON x.run = g.run AND x.round = g.round AND x.group_ordinal = "
      "g.ordinal WHERE g.run = ?1 AND g.trained_in = ?2 AND g.batch = ?3 ORDER BY x.round, x.group_ordinal, x.sample",
      BINDS(b_int(key->run), b_int(key->round), b_int(key->number), b_int(key->trainer), b_int(WORKER_INVARIANT)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && n < b->sample_count)
    out->items[n++] = (struct sample_source){.round = rows_int(&q, 0),
                                             .group = rows_int(&q, 1),
                                             .sample = rows_int(&q, 2),
                                             .worker = rows_int(&q, 3),
                                             .promised = rows_int(&q, 4) != 0,
                                             .version_first = rows_int(&q, 5),
                                             .version_last = rows_int(&q, 6)};
  rows_end(&q);
  if (rc != RC_OK || n == b->sample_count) return rc;
  return err_set(err, RC_CORRUPT, NULL, "batch %s has %zu samples, of %zu somebody is known to have drawn them",
                 id_batch(key->run, key->round, key->number).text, b->sample_count, n);
}

enum rc batch_verify_fill(struct batch_sources *out, struct built_batch *b, struct store *s,
                          const struct batch_key *key, const struct run_config *config, struct arena *arena,
                          struct err *err) {
  const bool inexact_too = config->on_inexact != INEXACT_MARK;
  bool any = inexact_too;
  size_t at = 0;
  const enum rc rc = sources_read(out, b, s, key, arena, err);
  if (rc != RC_OK) return rc;
  for (size_t g = 0; g < b->message.group_count; g++) {
    struct batch_group *group = &b->message.groups[g];
    group->round = out->items[at].round;
    group->ordinal = out->items[at].group;
    for (size_t i = 0; i < group->sample_count; i++, at++) {
      struct batch_sample *sample = &group->samples[i];
      any |= out->items[at].promised;
      sample->exact_from =
          out->items[at].promised ? lag_exact_from(b->compared[at], b->behaviour[at].count) : -1;
    }
  }
  b->message.verify = (struct batch_verify){.wanted = any,
                                            .inexact_too = inexact_too,
                                            .seed = config->seed,
                                            .mismatch_most = VERDICT_LAG_MISMATCH_MOST,
                                            .draws_near = VERDICT_LAG_DRAWS_NEAR,
                                            .draws_most = VERDICT_LAG_DRAWS_MOST};
  return RC_OK;
}

/* ---- the answer ---- */

/* The token at a place of a completion, and the log-probability that was recorded for it. */
static enum rc given_find(struct refused_sample *out, const struct batch_sample *sample,
                          const struct json_f32s *behaviour, const struct sample_refusal *why, struct err *err) {
  const size_t place = (size_t)sample->prompt_length + (size_t)why->position;
  size_t before = 0;
  for (size_t g = 0; g < sample->segment_count; g++) {
    const struct sample_segment *segment = &sample->segments[g];
    const bool here = why->position >= segment->start && why->position < segment->start + segment->count;
    if (segment->loss_mask && here && place < sample->tokens.count) {
      out->given = sample->tokens.items[place];
      out->given_logprob = behaviour->items[before + (size_t)(why->position - segment->start)];
      return RC_OK;
    }
    if (segment->loss_mask) before += (size_t)segment->count;
  }
  return err_set(err, RC_CORRUPT, "refusals.position",
                 "the trainer refuses token %d of sample %s, which is not trained on", why->position, sample->id);
}

static const struct sample_refusal *refusal_of(const struct batch_status *answer, const char *sample) {
  for (size_t i = 0; i < answer->refusal_count; i++)
    if (strcmp(answer->refusals[i].id, sample) == 0) return &answer->refusals[i];
  return NULL;
}

/* at: the group's first sample in the batch.  *refused: how many of its samples are. */
static enum rc group_sift(struct refusals *found, const struct built_batch *b, const struct batch_sources *sources,
                          size_t g, size_t at, const struct batch_status *answer, size_t *refused, struct err *err) {
  const struct batch_group *group = &b->message.groups[g];
  enum rc rc = RC_OK;
  *refused = 0;
  for (size_t i = 0; i < group->sample_count && rc == RC_OK; i++) {
    const struct sample_refusal *why = refusal_of(answer, group->samples[i].id);
    const struct sample_source *source = &sources->items[at + i];
    if (!why) continue;
    struct refused_sample *r = &found->refused[found->refused_count++];
    *r = (struct refused_sample){.round = source->round,
                                 .group = source->group,
                                 .sample = source->sample,
                                 .promised = source->promised,
                                 .lag = b->message.version - source->version_first,
                                 .tokens = (int32_t)b->behaviour[at + i].count,
                                 .why = why};
    ++*refused;
    rc = given_find(r, &group->samples[i], &b->behaviour[at + i], why, err);
  }
  return rc;
}

static struct held_samples *held_of(struct refusals *found, int64_t worker) {
  size_t h = 0;
  while (h < found->held_count && found->held[h].worker != worker) h++;
  if (h == found->held_count) found->held[found->held_count++] = (struct held_samples){.worker = worker};
  return &found->held[h];
}

/* Samples of a group that held; at: its first. */
static void group_held(struct refusals *found, const struct built_batch *b, const struct batch_sources *sources,
                       size_t g, size_t at) {
  const struct batch_group *group = &b->message.groups[g];
  for (size_t i = 0; i < group->sample_count; i++) {
    const int32_t from = group->samples[i].exact_from;
    if (from < 0) continue;
    held_of(found, sources->items[at + i].worker)->count += (size_t)from < b->behaviour[at + i].count;
  }
}

void batch_verify_older(struct refusals *found, const struct built_batch *b, const struct batch_sources *sources,
                        const struct batch_status *answer) {
  for (size_t g = 0, at = 0; g < b->message.group_count; g++) {
    for (size_t i = 0; i < b->message.groups[g].sample_count; i++, at++) {
      const int32_t from = b->message.groups[g].samples[i].exact_from;
      const int64_t lag = b->message.version - sources->items[at].version_last;
      struct older_tokens *older = from > 0 ? &held_of(found, sources->items[at].worker)->older : NULL;
      for (int32_t t = 0; t < from; t++) {
        const double d = fabs((double)b->behaviour[at].items[t] - (double)answer->samples[at].logprobs.items[t]);
        if (!isfinite(d)) continue;
        older->tokens++;
        older->lags += lag > 1 ? lag : 1;
        older->distance += d;
      }
    }
  }
}

enum rc batch_verify_sift(struct refusals *found, struct built_batch *b, struct batch_sources *sources,
                          const struct batch_status *answer, struct arena *arena, struct err *err) {
  size_t groups = 0, samples = 0, refused = 0;
  *found = (struct refusals){.refused = arena_alloc(arena, answer->refusal_count + 1, sizeof *found->refused),
                             .held = arena_alloc(arena, b->sample_count + 1, sizeof *found->held)};
  if (!found->refused || !found->held) return no_memory(err);
  b->lag = (struct lag_sums){0};
  for (size_t g = 0, at = 0; g < b->message.group_count; g++) {
    const struct batch_group group = b->message.groups[g];
    const enum rc rc = group_sift(found, b, sources, g, at, answer, &refused, err);
    if (rc != RC_OK) return rc;
    if (refused == 0) {
      group_held(found, b, sources, g, at); /* before it moves to the front */
      lag_merge(&b->lag, &b->lags[g]);
      memmove(&b->behaviour[samples], &b->behaviour[at], group.sample_count * sizeof *b->behaviour);
      memmove(&sources->items[samples], &sources->items[at], group.sample_count * sizeof *sources->items);
      memmove(&b->compared[samples], &b->compared[at], group.sample_count * sizeof *b->compared);
      b->message.groups[groups++] = group;
      samples += group.sample_count;
    }
    at += group.sample_count;
  }
  b->message.group_count = groups;
  b->sample_count = samples;
  return RC_OK;
}

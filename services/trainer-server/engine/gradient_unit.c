/* Turns a group into training samples, and computes their log-probabilities, loss and gradient. */
#include "services/trainer-server/engine/gradient_unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

struct scored_sample {
  int first, count;
  float advantage;
}; /* in the unit's list of scored tokens */

struct unit_loss {
  const struct unit_config *config;
  const struct scored_sample *samples;
  const struct train_sample *tokens; /* of the samples */
  int sample_count, next;            /* the next sample whose tokens are due: chunks hold whole samples, in order */
  const float *reference;            /* log-probabilities under the frozen reference, or NULL */
  struct unit_result *out;
  struct timeline *timeline;
  double forward_us_per_token; /* of the first chunk; 0: it is still to come */
};

static enum rc sample_check(const struct model *m, int chunk_tokens, const struct batch_sample *s, struct err *err) {
  const size_t length = s->tokens.count;
  const int most = chunk_tokens < m->context_max ? chunk_tokens : m->context_max;
  if (length > (size_t)most) {
    return err_set(err, RC_TOO_LARGE, "tokens",
                   "sample %s has %zu tokens, this run takes at most %d (context %d, chunk_tokens %d)", s->id, length,
                   most, m->context_max, chunk_tokens);
  }
  if (s->prompt_length < 1 || (size_t)s->prompt_length > length) {
    return err_set(err, RC_INVALID, "prompt_length", "sample %s: expected 1..%zu, got %d", s->id, length,
                   s->prompt_length);
  }
  for (size_t i = 0; i < length; i++) {
    if (s->tokens.items[i] < 0 || s->tokens.items[i] >= m->config.vocabulary) {
      return err_set(err, RC_INVALID, "tokens", "sample %s: token %zu is %d, outside the vocabulary of %d", s->id, i,
                     s->tokens.items[i], m->config.vocabulary);
    }
  }
  int64_t at = 0;
  const int64_t completion = (int64_t)length - s->prompt_length;
  for (size_t g = 0; g < s->segment_count; g++) {
    const struct sample_segment *segment = &s->segments[g];
    if (segment->start != at || segment->count < 0 || segment->count > completion - at) {
      return err_set(err, RC_INVALID, "segments",
                     "sample %s: segment %zu does not continue at token %" PRId64 " of the completion's %" PRId64,
                     s->id, g, at, completion);
    }
    at += segment->count;
  }
  if (at != completion)
    return err_set(err, RC_INVALID, "segments", "sample %s: segments cover %" PRId64 " tokens of %" PRId64, s->id, at,
                   completion);
  return RC_OK;
}

enum rc unit_check(const struct model *m, int chunk_tokens, const struct batch_group *group, struct err *err) {
  for (size_t i = 0; i < group->sample_count; i++) {
    char path[ERR_FIELD_MAX];
    enum rc rc = sample_check(m, chunk_tokens, &group->samples[i], err);
    if (rc == RC_OK) continue;
    snprintf(path, sizeof path, "samples[%zu]", i);
    err_in_field(err, path);
    return rc;
  }
  return RC_OK;
}

/* A checked sample as the learner takes it; the mask lives in the arena. */
static enum rc sample_build(const struct batch_sample *s, struct train_sample *out, int *scored_count,
                            struct arena *arena, struct err *err) {
  const size_t length = s->tokens.count;
  uint8_t *scored = arena_alloc(arena, length + 1, 1);
  if (!scored) return err_set(err, RC_NO_MEMORY, NULL, "%zu bytes for a sample's mask were refused", length);
  *scored_count = 0;
  for (size_t g = 0; g < s->segment_count; g++) {
    const struct sample_segment *segment = &s->segments[g];
    if (!segment->loss_mask) continue;
    memset(scored + s->prompt_length + segment->start, 1, (size_t)segment->count);
    *scored_count += segment->count;
  }
  *out = (struct train_sample){.tokens = s->tokens.items, .length = (int)length, .scored = scored};
  return RC_OK;
}

/* A chunk of `tokens` has gone forward.  What lies between the last mark and now is that alone for the first chunk, and
 * the backward pass of the chunk before it as well for the others. */
static void unit_mark_forward(struct unit_loss *u, int tokens) {
  const int64_t now_us = clock_monotonic_us(), passed_us = now_us - u->timeline->at_us;
  int64_t forward_us = passed_us;
  if (u->forward_us_per_token > 0) {
    const int64_t share_us = (int64_t)(u->forward_us_per_token * tokens);
    if (share_us < passed_us) forward_us = share_us;
  } else if (tokens > 0) {
    u->forward_us_per_token = (double)passed_us / tokens;
  }
  u->out->compute_us += timeline_mark(u->timeline, CAUSE_COMPUTE, now_us - forward_us);
  u->out->logprob_us += timeline_mark(u->timeline, CAUSE_LOGPROB, now_us);
}

/* The learner's callback: whole samples from token `first` on.  A sample without scored tokens passes by with its
 * neighbours: loss_sequence ignores it. */
static void unit_loss_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct unit_loss *u = context;
  const int end = first + count, begin = u->next;
  int tokens = 0;
  for (; u->next < u->sample_count && u->samples[u->next].first + u->samples[u->next].count <= end; u->next++)
    tokens += u->tokens[u->next].length;
  unit_mark_forward(u, tokens);
  for (int i = begin; i < u->next; i++) {
    const struct scored_sample *s = &u->samples[i];
    const float *new_logprob = logprob + (s->first - first);
    loss_sequence(&u->config->loss, s->count, new_logprob, NULL, NULL, u->reference ? u->reference + s->first : NULL,
                  s->advantage, dlogprob + (s->first - first), &u->out->stats);
  }
}

enum rc unit_compute(struct learner *l, const struct model *m, const struct weights *w, const struct weights *reference,
                     const struct unit_config *config, const struct batch_group *group, float *grads,
                     struct unit_result *out, struct timeline *timeline, struct arena *arena, struct err *err) {
  int n = (int)group->sample_count, total = 0;
  struct train_sample *samples = arena_alloc(arena, (size_t)n + 1, sizeof *samples);
  struct scored_sample *scored = arena_alloc(arena, (size_t)n + 1, sizeof *scored);
  memset(out, 0, sizeof *out);
  enum rc rc = unit_check(m, LIMIT_SEQUENCE_TOKENS, group, err); /* the learner knows its own chunks */
  if (rc != RC_OK) return rc;
  out->samples = arena_alloc(arena, (size_t)n + 1, sizeof *out->samples);
  if (!samples || !scored || !out->samples)
    return err_set(err, RC_NO_MEMORY, NULL, "a unit of %d samples was refused memory", n);
  for (int i = 0; i < n; i++) {
    int count = 0;
    if ((rc = sample_build(&group->samples[i], &samples[i], &count, arena, err)) != RC_OK) return rc;
    scored[i] = (struct scored_sample){.first = total, .count = count, .advantage = group->samples[i].advantage};
    total += count;
  }
  float *logprob = arena_alloc(arena, (size_t)total + 1, sizeof *logprob);
  float *reference_logprob = reference ? arena_alloc(arena, (size_t)total + 1, sizeof *reference_logprob) : NULL;
  if (!logprob || (reference && !reference_logprob))
    return err_set(err, RC_NO_MEMORY, NULL, "log-probabilities of %d tokens were refused memory", total);
  if (reference) rc = learner_logprobs(l, reference, samples, n, config->temperature, reference_logprob, NULL, err);
  struct unit_loss context = {.config = config,
                              .samples = scored,
                              .tokens = samples,
                              .sample_count = n,
                              .reference = reference_logprob,
                              .out = out,
                              .timeline = timeline};
  out->compute_us += timeline_mark(timeline, CAUSE_COMPUTE, clock_monotonic_us());
  if (rc == RC_OK)
    rc = learner_gradients(l, w, samples, n, config->temperature, unit_loss_gradient, &context, grads, logprob, err);
  if (rc != RC_OK) return rc;
  out->entropy_sum = learner_entropy_sum(l);
  for (int i = 0; i < n; i++) {
    out->samples[i] = (struct sample_logprobs){.id = group->samples[i].id,
                                               .logprobs = {logprob + scored[i].first, (size_t)scored[i].count}};
  }
  out->compute_us += timeline_mark(timeline, CAUSE_COMPUTE, clock_monotonic_us());
  return RC_OK;
}

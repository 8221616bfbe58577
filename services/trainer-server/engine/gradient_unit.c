/* Turns a group into training samples, and computes their log-probabilities, loss and gradient. */
#include "services/trainer-server/engine/gradient_unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/philox.h"
#include "services/trainer-server/checks/judgement.h"

struct unit_loss {
  const struct unit_config *config;
  const struct scored_sample *samples;
  const struct train_sample *tokens; /* of the samples */
  int sample_count, next;            /* the next sample whose tokens are due: chunks hold whole samples, in order */
  int next_entropy;                  /* the same, of the entropy term */
  const float *advantages;           /* of the samples */
  const float *old;                  /* log-probabilities under the behaviour policy; NULL: the current one's */
  const float *reference;            /* under the frozen reference, or NULL */
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

enum rc unit_check_behaviour(const struct batch_group *group, bool wanted, struct err *err) {
  for (size_t i = 0; i < group->sample_count; i++) {
    const struct batch_sample *s = &group->samples[i];
    const size_t trained = wire_segments_trained(s->segments, s->segment_count);
    char path[ERR_FIELD_MAX];
    if (s->behaviour.count == (wanted ? trained : 0)) continue;
    if (wanted)
      err_set(err, RC_INVALID, "behaviour",
              "update 'inflight' needs the behaviour log-probability of each of %zu trained tokens, got %zu", trained,
              s->behaviour.count);
    else
      err_set(err, RC_INVALID, "behaviour",
              "expected no behaviour log-probabilities, the trainer computes its own; got %zu", s->behaviour.count);
    snprintf(path, sizeof path, "samples[%zu]", i);
    err_in_field(err, path);
    return RC_INVALID;
  }
  return RC_OK;
}

enum rc unit_check_reference(const struct batch_group *group, bool has_reference, struct err *err) {
  if (!group->has_reference) return RC_OK;
  if (!has_reference)
    return err_set(err, RC_INVALID, "reference",
                   "expected no reference's log-probabilities: the run has no KL term (kl_coefficient is 0)");
  for (size_t i = 0; i < group->sample_count; i++) {
    const struct batch_sample *s = &group->samples[i];
    const size_t trained = wire_segments_trained(s->segments, s->segment_count);
    char path[ERR_FIELD_MAX];
    if (s->reference.count == trained) continue;
    err_set(err, RC_INVALID, "reference",
            "expected the reference's log-probability of each of %zu trained tokens, got %zu", trained,
            s->reference.count);
    snprintf(path, sizeof path, "samples[%zu]", i);
    err_in_field(err, path);
    return RC_INVALID;
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

/* A chunk of `tokens` has gone forward.  The time since the last mark is that forward pass alone for the first chunk;
 * for the others it includes the backward pass of the chunk before. */
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

/* What passed since the last mark; 0 without a timeline. */
static int64_t unit_mark(struct timeline *t, enum interval_cause cause) {
  return t ? timeline_mark(t, cause, clock_monotonic_us()) : 0;
}

/* The learner's callback: whole samples from token `first` on.  A sample without scored tokens passes by with its
 * neighbours: loss_sequence ignores it. */
static void unit_loss_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct unit_loss *u = context;
  const int end = first + count, begin = u->next;
  int tokens = 0;
  for (; u->next < u->sample_count && u->samples[u->next].first + u->samples[u->next].count <= end; u->next++)
    tokens += u->tokens[u->next].length;
  if (u->timeline) unit_mark_forward(u, tokens);
  for (int i = begin; i < u->next; i++) {
    const struct scored_sample *s = &u->samples[i];
    const float *new_logprob = logprob + (s->first - first), *proximal = new_logprob;
    loss_sequence(&u->config->loss, s->count, new_logprob, u->old ? u->old + s->first : NULL, proximal,
                  u->reference ? u->reference + s->first : NULL, u->advantages[i], dlogprob + (s->first - first),
                  &u->out->stats);
  }
}

/* Behind it, over the same samples. */
static void unit_entropy_gradient(void *context, int first, int count, const float *entropy, float *dentropy) {
  struct unit_loss *u = context;
  (void)count;
  for (; u->next_entropy < u->next; u->next_entropy++) {
    const struct scored_sample *s = &u->samples[u->next_entropy];
    loss_entropy(&u->config->loss, s->count, entropy + (s->first - first), dentropy + (s->first - first),
                 &u->out->stats);
  }
}

/* The rewards are less by the KL of the policy that sampled, a constant: its sum over a sample's tokens, whose
 * log-probabilities under that policy are `old`. */
static void unit_kl_in_reward(const struct unit *unit, const struct unit_config *config, const float *old) {
  for (int i = 0; i < unit->count; i++) {
    const struct scored_sample *s = &unit->scored[i];
    unit->kl[i] = 0;
    for (int t = s->first; t < s->first + s->count; t++)
      unit->kl[i] += kl_estimate(config->loss.kl_estimator, (double)old[t], (double)unit->reference[t], NULL);
  }
  memcpy(unit->advantages, unit->given, (size_t)unit->count * sizeof *unit->given); /* it may be computed again */
  advantages_less_kl(config->advantage, unit->kl, unit->count, (double)config->loss.kl_coefficient, unit->advantages);
}

enum rc unit_prepare(struct unit *out, const struct model *m, const struct unit_policies *policies,
                     const struct batch_group *group, struct arena *arena, struct err *err) {
  const int n = (int)group->sample_count;
  int total = 0;
  enum rc rc = unit_check(m, LIMIT_SEQUENCE_TOKENS, group, err); /* the learner knows its own chunks */
  if (rc == RC_OK) rc = unit_check_behaviour(group, policies->recorded, err);
  const bool has_reference = policies->reference || policies->taught;
  if (rc == RC_OK) rc = unit_check_reference(group, has_reference, err);
  if (rc == RC_OK && policies->taught && !group->has_reference)
    rc = err_set(err, RC_INVALID, "reference", "expected the teacher's log-probabilities with group %s", group->id);
  if (rc != RC_OK) return rc;
  *out = (struct unit){.count = n,
                       .brought = group->has_reference,
                       .samples = arena_alloc(arena, (size_t)n + 1, sizeof *out->samples),
                       .scored = arena_alloc(arena, (size_t)n + 1, sizeof *out->scored),
                       .given = arena_alloc(arena, (size_t)n + 1, sizeof *out->given),
                       .advantages = arena_alloc(arena, (size_t)n + 1, sizeof *out->advantages),
                       .kl = arena_alloc(arena, (size_t)n + 1, sizeof *out->kl),
                       .results = arena_alloc(arena, (size_t)n + 1, sizeof *out->results)};
  if (!out->samples || !out->scored || !out->given || !out->advantages || !out->kl || !out->results)
    return err_set(err, RC_NO_MEMORY, NULL, "a unit of %d samples was refused memory", n);
  for (int i = 0; i < n; i++) {
    int count = 0;
    if ((rc = sample_build(&group->samples[i], &out->samples[i], &count, arena, err)) != RC_OK) return rc;
    out->scored[i] = (struct scored_sample){.first = total, .count = count};
    out->given[i] = out->advantages[i] = group->samples[i].advantage;
    total += count;
  }
  out->logprob = arena_alloc(arena, (size_t)total + 1, sizeof *out->logprob);
  out->entropy = arena_alloc(arena, (size_t)total + 1, sizeof *out->entropy);
  out->reference = has_reference ? arena_alloc(arena, (size_t)total + 1, sizeof *out->reference) : NULL;
  out->recorded = policies->recorded ? arena_alloc(arena, (size_t)total + 1, sizeof *out->recorded) : NULL;
  if (!out->logprob || !out->entropy || (has_reference && !out->reference) || (policies->recorded && !out->recorded))
    return err_set(err, RC_NO_MEMORY, NULL, "log-probabilities of %d tokens were refused memory", total);
  for (int i = 0; i < n; i++) {
    const struct batch_sample *s = &group->samples[i];
    const int first = out->scored[i].first;
    const size_t count = (size_t)out->scored[i].count;
    out->results[i] = (struct sample_logprobs){
        .id = s->id, .logprobs = {out->logprob + first, count}, .entropies = {out->entropy + first, count}};
    if (policies->recorded && s->behaviour.count > 0)
      memcpy(out->recorded + first, s->behaviour.items, s->behaviour.count * sizeof *s->behaviour.items);
    if (out->brought && s->reference.count > 0)
      memcpy(out->reference + first, s->reference.items, s->reference.count * sizeof *s->reference.items);
  }
  return RC_OK;
}

enum rc unit_compute(struct learner *l, const struct unit_policies *policies, const struct unit_config *config,
                     const struct unit *unit, float *grads, struct unit_result *out, struct timeline *timeline,
                     struct err *err) {
  const struct train_sample *samples = unit->samples;
  const int n = unit->count;
  const struct sampling_params whole = {0};
  enum rc rc = RC_OK;
  *out = (struct unit_result){.samples = unit->results};
  learner_set_cut(l, &whole); /* the reference has its whole vocabulary: it says something about every token */
  if (unit->reference && !unit->brought)
    rc = learner_logprobs(l, policies->reference, samples, n, config->temperature, unit->reference, NULL, err);
  learner_set_cut(l, &config->cut);
  out->compute_us += unit_mark(timeline, CAUSE_COMPUTE);
  if (rc == RC_OK && policies->behaviour) {
    rc = learner_logprobs(l, policies->behaviour, samples, n, config->temperature, unit->logprob, NULL, err);
    out->logprob_us += unit_mark(timeline, CAUSE_LOGPROB);
  }
  const float *old = policies->behaviour ? unit->logprob : unit->recorded;
  if (rc == RC_OK && unit->reference && config->loss.kl_in_reward) {
    if (!old) { /* the current policy sampled, and its log-probabilities are needed before its gradient */
      rc = learner_logprobs(l, policies->current, samples, n, config->temperature, unit->logprob, NULL, err);
      out->logprob_us += unit_mark(timeline, CAUSE_LOGPROB);
    }
    if (rc == RC_OK) unit_kl_in_reward(unit, config, old ? old : unit->logprob);
  }
  struct unit_loss context = {.config = config,
                              .samples = unit->scored,
                              .tokens = samples,
                              .sample_count = n,
                              .advantages = unit->advantages,
                              .old = old,
                              .reference = unit->reference,
                              .out = out,
                              .timeline = timeline};
  learner_entropy_term(l, config->loss.entropy_coefficient != 0 ? unit_entropy_gradient : NULL);
  learner_entropies(l, unit->entropy);
  float *logprob = policies->behaviour ? NULL : unit->logprob;
  learner_set_draws(l, unit->draws);
  if (rc == RC_OK && unit->parts)
    rc = learner_gradients_in_parts(l, policies->current, samples, n, config->temperature, unit_loss_gradient, &context,
                                    unit->parts, logprob, err);
  else if (rc == RC_OK)
    rc = learner_gradients(l, policies->current, samples, n, config->temperature, unit_loss_gradient, &context, grads,
                           logprob, err);
  learner_entropies(l, NULL); /* the unit's memory is not the learner's */
  learner_set_draws(l, NULL);
  if (rc != RC_OK) return rc;
  out->entropy_sum = learner_entropy_sum(l);
  out->compute_us += unit_mark(timeline, CAUSE_COMPUTE);
  return RC_OK;
}

/* ---- draws ---- */

enum rc unit_draws_prepare(struct unit_draws *out, const struct unit *unit, const struct unit_key *key,
                           struct arena *arena, struct err *err) {
  size_t total = 0, at = 0;
  for (int i = 0; i < unit->count; i++) total += (size_t)unit->scored[i].count;
  float *uniform = arena_alloc(arena, total + 1, sizeof *uniform);
  *out = (struct unit_draws){
      .draws = {.uniform = uniform,
                .token = arena_alloc(arena, total + 1, sizeof *out->draws.token),
                .logprob = arena_alloc(arena, total + 1, sizeof *out->draws.logprob)},
      .differences = arena_alloc(arena, (size_t)unit->count + 1, sizeof *out->differences)};
  if (!uniform || !out->draws.token || !out->draws.logprob || !out->differences)
    return err_set(err, RC_NO_MEMORY, NULL, "the draws of %zu tokens were refused memory", total);
  for (int i = 0; i < unit->count; i++) {
    const struct rng_key drawn = {.seed = key->seed,
                                  .purpose = RNG_SAMPLE,
                                  .round = (uint32_t)key->round,
                                  .group = (uint32_t)key->ordinal,
                                  .sample = (uint32_t)i};
    for (int t = 0; t < unit->samples[i].length; t++) {
      uint32_t words[4];
      if (!unit->samples[i].scored[t]) continue;
      rng_words(words, &drawn, (uint32_t)t);
      uniform[at++] = rng_uniform(words[0]);
    }
  }
  return RC_OK;
}

enum rc unit_draws_verify(struct unit_draws *out, const struct unit *unit, const struct batch_group *group, double near,
                          struct arena *arena, struct err *err) {
  size_t total = 0, at = 0;
  for (int i = 0; i < unit->count; i++) total += (size_t)unit->scored[i].count;
  uint8_t *kind = arena_alloc(arena, total + 1, sizeof *kind);
  out->draws.kind = kind;
  out->draws.near = (float)near;
  out->draws.low = arena_alloc(arena, total + 1, sizeof *out->draws.low);
  out->draws.high = arena_alloc(arena, total + 1, sizeof *out->draws.high);
  if (!kind || !out->draws.low || !out->draws.high)
    return err_set(err, RC_NO_MEMORY, NULL, "the draws of %zu tokens were refused memory", total);
  for (int i = 0; i < unit->count; i++) {
    const int32_t from = group->samples[i].exact_from;
    for (int t = 0; t < unit->scored[i].count; t++) kind[at++] = from < 0 ? DRAW_NONE : t < from ? DRAW_NEAR : DRAW_OWN;
  }
  return RC_OK;
}

static void sample_compare(const struct train_sample *s, const struct scored_sample *scored,
                           const struct batch_sample *from, struct unit_draws *d) {
  int at = scored->first;
  for (int t = 0; t < s->length; t++) {
    if (!s->scored[t]) continue;
    if (d->draws.token[at] != s->tokens[t]) {
      d->differences[d->difference_count++] = (struct draw_difference){.id = from->id,
                                                                       .position = t - from->prompt_length,
                                                                       .token = d->draws.token[at],
                                                                       .logprob = d->draws.logprob[at]};
      return;
    }
    at++;
  }
}

enum rc unit_draw(struct learner *l, const struct weights *w, const struct unit_config *config, const struct unit *unit,
                  struct unit_draws *draws, struct unit_result *out, struct timeline *timeline, struct err *err) {
  *out = (struct unit_result){.samples = unit->results};
  out->compute_us += unit_mark(timeline, CAUSE_COMPUTE);
  learner_set_cut(l, &config->cut);
  learner_set_draws(l, &draws->draws);
  const enum rc rc =
      learner_logprobs(l, w, unit->samples, unit->count, config->temperature, unit->logprob, NULL, err);
  learner_set_draws(l, NULL);
  out->logprob_us += unit_mark(timeline, CAUSE_LOGPROB);
  return rc;
}

void unit_draws_compare(struct unit_draws *d, const struct unit *unit, const struct batch_group *group) {
  d->difference_count = 0;
  for (int i = 0; i < unit->count; i++) sample_compare(&unit->samples[i], &unit->scored[i], &group->samples[i], d);
}

/* Tokens and positions of a sample's trained tokens. */
static void sample_places(const struct train_sample *s, int prompt, int32_t *token, int32_t *position) {
  int at = 0;
  for (int t = 0; t < s->length; t++) {
    if (!s->scored[t]) continue;
    token[at] = s->tokens[t];
    position[at++] = t - prompt;
  }
}

int unit_judge(struct sample_refusal *out, const struct unit_draws *d, const struct batch_verify *verify,
               const struct unit *unit, const struct batch_group *group) {
  int most = 0, refused = 0;
  for (int i = 0; i < unit->count; i++)
    if (unit->scored[i].count > most) most = unit->scored[i].count;
  int32_t *token = malloc(2 * ((size_t)most + 1) * sizeof *token), *position = token ? token + most + 1 : NULL;
  if (!token) return -1;
  for (int i = 0; i < unit->count; i++) {
    const int first = unit->scored[i].first;
    const struct judged_sample s = {.id = group->samples[i].id,
                                    .count = unit->scored[i].count,
                                    .exact_from = group->samples[i].exact_from,
                                    .position = position,
                                    .token = token,
                                    .due = d->draws.token + first,
                                    .due_logprob = d->draws.logprob + first,
                                    .low = d->draws.low + first,
                                    .high = d->draws.high + first,
                                    .recorded = unit->recorded + first,
                                    .own = unit->logprob + first};
    sample_places(&unit->samples[i], group->samples[i].prompt_length, token, position);
    refused += judgement_refuses(&out[refused], verify, &s);
  }
  free(token);
  return refused;
}

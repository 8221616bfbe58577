/* Judges one sample of a batch that is verified. */
#include "services/trainer-server/checks/judgement.h"

#include <math.h>
#include <string.h>

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

/* What a sample's tokens come to; of places, the first token of its kind, or -1. */
struct findings {
  int exact_token, exact_logprob, first_far, farthest;
  int unequal, far;
  double distance, farthest_distance;
};

static struct findings find(const struct judged_sample *s) {
  struct findings f = {.exact_token = -1, .exact_logprob = -1, .first_far = -1, .farthest = -1};
  for (int t = 0; t < s->count; t++) {
    const bool exact = s->exact_from >= 0 && t >= s->exact_from;
    if (exact && f.exact_token < 0 && s->due[t] != s->token[t]) f.exact_token = t;
    if (!exact && s->exact_from >= 0 && (s->token[t] < s->low[t] || s->token[t] > s->high[t])) {
      if (f.first_far < 0) f.first_far = t;
      f.far++;
    }
    if (exact && !same_bits(s->recorded[t], s->own[t])) {
      if (f.exact_logprob < 0) f.exact_logprob = t;
      f.unequal++;
    }
    const double d = fabs((double)s->recorded[t] - (double)s->own[t]);
    if (!isfinite(d)) continue;
    f.distance += d;
    if (f.farthest >= 0 && d <= f.farthest_distance) continue;
    f.farthest = t;
    f.farthest_distance = d;
  }
  return f;
}

bool judgement_refuses(struct sample_refusal *out, const struct batch_verify *v, const struct judged_sample *s) {
  if (s->exact_from < 0 && !v->inexact_too) return false;
  const struct findings f = find(s);
  const double tokens = s->count < JUDGED_TOKENS_LEAST ? JUDGED_TOKENS_LEAST : s->count;
  *out = (struct sample_refusal){
      .id = s->id, .unequal = f.unequal, .far = f.far, .mismatch = f.distance / tokens};
  int at = -1;
  if (f.exact_token >= 0) {
    out->reason = REFUSED_TOKEN;
    at = f.exact_token;
  } else if (f.exact_logprob >= 0) {
    out->reason = REFUSED_LOGPROB;
    at = f.exact_logprob;
  } else if (f.far > v->draws_most * tokens) {
    out->reason = REFUSED_DRAWS;
    at = f.first_far;
  } else if (f.distance > v->mismatch_most * tokens) {
    out->reason = REFUSED_MISMATCH;
    at = f.farthest;
  }
  if (at < 0) return false;
  out->position = s->position[at];
  out->logprob = out->token_logprob = s->own[at];
  out->token = s->token[at];
  if (out->reason == REFUSED_TOKEN) {
    out->token = s->due[at];
    out->token_logprob = s->due_logprob[at];
  } else if (out->reason == REFUSED_DRAWS) {
    out->token = s->token[at] < s->low[at] ? s->low[at] : s->high[at];
    out->token_logprob = NAN; /* not asked for */
  }
  return true;
}

bool judgement_same(const struct sample_refusal *a, const struct sample_refusal *b) {
  return strcmp(a->id, b->id) == 0 && a->reason == b->reason && a->position == b->position && a->token == b->token &&
         a->unequal == b->unequal && a->far == b->far && same_bits(a->logprob, b->logprob) &&
         same_bits(a->token_logprob, b->token_logprob) && memcmp(&a->mismatch, &b->mismatch, sizeof a->mismatch) == 0;
}

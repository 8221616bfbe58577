/* Computes losses over log-probabilities, one sequence at a time, and their derivatives: pure functions in double
 * precision, rounded once.
 *
 * With n new, o old (behaviour), r reference log-probability of a token, A the sequence's advantage, w = exp(n - o):
 *   cross-entropy  -n                                              d/dn  -1
 *   reinforce      -n A c, c = min(w, 1 + high) held constant      d/dn  -c A
 *   ppo (grpo)     -min(w A, clip(w, 1 - low, 1 + high) A)         d/dn  -w A where the first is the smaller or equal, else 0
 *   gspo           as ppo with one w = exp(mean(n - o)) for every token of the sequence: each token's derivative is -w A, because the mean's 1/count
 *                  meets count equal terms
 *   + k (exp(r - n) - (r - n) - 1)                                 d/dn  k (1 - exp(r - n))
 *
 * Previous hop: learner_gradients' callback.  Next hop: the head's backward. */
#include "common/model/learning/loss.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/model/network/elementary.h"

struct term {
  double loss, derivative;
  bool clipped; /* the ratio lies outside the clip range */
};

static struct term clipped_term(const struct loss_config *c, double ratio, double advantage) {
  const double low = 1 - (double)c->clip_low, high = 1 + (double)c->clip_high;
  const double bounded = ratio < low ? low : ratio > high ? high : ratio;
  const bool outside = ratio < low || ratio > high;
  if (ratio * advantage <= bounded * advantage)
    return (struct term){-(ratio * advantage), -(ratio * advantage), outside};
  return (struct term){-(bounded * advantage), 0, outside};
}

static struct term policy_term(const struct loss_config *c, double logprob, double ratio, double sequence_ratio,
                               double advantage) {
  const double high = 1 + (double)c->clip_high;
  const bool above = ratio > high;
  const double constant = above ? high : ratio;
  switch (c->kind) {
    case LOSS_CROSS_ENTROPY: return (struct term){-logprob, -1, false};
    case LOSS_REINFORCE: return (struct term){-(logprob * advantage * constant), -(advantage * constant), above};
    case LOSS_PPO: return clipped_term(c, ratio, advantage);
    case LOSS_GSPO: break;
  }
  return clipped_term(c, sequence_ratio, advantage);
}

void loss_sequence(const struct loss_config *config, int n, const float *logprob, const float *old,
                   const float *reference, float advantage, float *dlogprob, struct loss_stats *stats) {
  if (n <= 0) return;
  const double weight = config->normalization == NORMALIZE_SEQUENCES ? 1 / (double)n : 1;
  double log_ratio_sum = 0;
  for (int i = 0; old && i < n; i++) log_ratio_sum += (double)logprob[i] - (double)old[i];
  const double sequence_ratio = elementary_exp(log_ratio_sum / (double)n);
  for (int i = 0; i < n; i++) {
    const double new_logprob = (double)logprob[i];
    const double ratio = old ? elementary_exp(new_logprob - (double)old[i]) : 1;
    struct term term = policy_term(config, new_logprob, ratio, sequence_ratio, (double)advantage);
    if (reference) {
      const double gap = (double)reference[i] - new_logprob, growth = elementary_exp(gap);
      const double k3 = growth - gap - 1;
      stats->kl_reference += k3;
      term.loss += (double)config->kl_coefficient * k3;
      term.derivative += (double)config->kl_coefficient * (1 - growth);
    }
    stats->loss += weight * term.loss;
    stats->ratio_sum += ratio;
    stats->ratio_squares += ratio * ratio;
    stats->clipped += term.clipped;
    if (dlogprob) dlogprob[i] = (float)(weight * term.derivative);
  }
  stats->tokens += n;
}

static enum rc parse_name(int *out, const char *const *names, int count, const char *field, const char *name,
                          struct err *err) {
  char expected[128] = "";
  for (int i = 0; i < count; i++) {
    if (strcmp(name, names[i]) == 0) {
      *out = i;
      return RC_OK;
    }
    strncat(expected, i ? ", " : "", sizeof expected - strlen(expected) - 1);
    strncat(expected, names[i], sizeof expected - strlen(expected) - 1);
  }
  return err_set(err, RC_INVALID, field, "expected one of %s, got \"%s\"", expected, name);
}

enum rc loss_kind_parse(enum loss_kind *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {"grpo", "ppo", "reinforce", "gspo", "cross_entropy"};
  static const enum loss_kind KINDS[] = {LOSS_PPO, LOSS_PPO, LOSS_REINFORCE, LOSS_GSPO, LOSS_CROSS_ENTROPY};
  int index = 0;
  const enum rc rc = parse_name(&index, NAMES, 5, "loss", name, err);
  if (rc == RC_OK) *out = KINDS[index];
  return rc;
}

enum rc loss_normalization_parse(enum loss_normalization *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {
      [NORMALIZE_TOKENS] = "tokens", [NORMALIZE_SAMPLES] = "samples", [NORMALIZE_SEQUENCES] = "sequences"};
  int index = 0;
  const enum rc rc = parse_name(&index, NAMES, 3, "normalization", name, err);
  if (rc == RC_OK) *out = (enum loss_normalization)index;
  return rc;
}

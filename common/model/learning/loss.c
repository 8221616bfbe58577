/* Computes losses over log-probabilities, one sequence at a time, and their derivatives: pure functions in double
 * precision, rounded once.
 *
 * n new, o old (behaviour), p proximal, r reference log-probability of a token; A the sequence's advantage;
 * w = exp(n - o); clip(x) = min(max(x, 1 - low), 1 + high).  Loss of a token, its derivative, the source:
 *
 *   cross_entropy  -n                                              d/dn  -1
 *   reinforce      -c A n, c = min(w, 1 + high) held constant      d/dn  -c A                    PipelineRL, 2509.19128
 *   cispo          -c A n, c = clip(w) held constant               d/dn  -c A                    MiniMax-M1, 2506.13585
 *   ppo, grpo      -min(w A, clip(w) A)                            d/dn  -w A where w A <= clip(w) A, else 0
 *                                                                                     PPO, 1707.06347; GRPO, 2402.03300
 *   gspo           as ppo with one w = exp(mean(n - o)) for every token of the sequence: each token's derivative is -w A,
 *                  because the mean's 1/count meets count equal terms                                  GSPO, 2507.18071
 *   decoupled_ppo  -v min(x A, clip(x) A), x = exp(n - p), v = exp(p - o)
 *                                                                  d/dn  -v x A where x A <= clip(x) A, else 0
 *                                                                         Hilton et al., 2110.00641; AReaL, 2505.24298
 *   tis            as decoupled_ppo with v = min(exp(p - o), cap)          Ionides 2008; for language models Yao et al.
 *                                        2025, "Your efficient RL framework secretly brings you off-policy RL training"
 *   with a reference, unless the advantages hold it, + k times    Schulman 2020, "Approximating KL divergence"
 *     k1  n - r                                                      d/dn  1, whose expectation is zero: it moves no policy
 *     k2  (n - r)^2 / 2                                              d/dn  n - r: k1's gradient where k1 is a reward
 *     k3  exp(r - n) - (r - n) - 1                                   d/dn  1 - exp(r - n)                         GRPO
 *   - e H, H the entropy of the distribution that the token was drawn from     d/dH  -e            A3C, 1602.01783
 *
 * Each token counts 1, 1/n of a sequence of n tokens (GRPO), or 1/L, L the longest that a completion may be (Dr. GRPO,
 * 2503.20783); the step's denominator is its tokens in the first case (DAPO, 2503.14476), or its samples.
 *
 * A token that the current weights leave out of the cut vocabulary (NUMERICS.md, "Cuts": n is -infinity, w is 0) has no
 * loss and no derivative, with every objective, and is in no mean of gspo's.
 *
 * low = 1 makes cispo reinforce, which is how MiniMax-M1 uses it.  p = o makes decoupled_ppo and tis ppo; p = n makes
 * them a policy gradient with the importance weight exp(n - o) held constant, bounded by nothing but the cap of tis.
 *
 * Previous hop: trainer-server/engine/gradient_unit.c, called back by backward.c.  Next: the head in backward.c. */
#include "common/model/learning/loss.h"

#include <float.h>
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

/* The ratio, bounded, is a constant factor of the log-probability. */
static struct term constant_term(double logprob, double ratio, double low, double high, double advantage) {
  const double constant = ratio < low ? low : ratio > high ? high : ratio;
  return (struct term){-(logprob * advantage * constant), -(advantage * constant), ratio < low || ratio > high};
}

/* weight: of the proximal policy against the behaviour policy; ratio: of the new one against the proximal. */
static struct term decoupled_term(const struct loss_config *c, double weight, double ratio, double advantage) {
  const struct term near_proximal = clipped_term(c, ratio, advantage);
  const double cap = (double)c->importance_cap;
  const bool capped = cap > 0 && weight > cap;
  const double counted = capped ? cap : weight;
  return (struct term){counted * near_proximal.loss, counted * near_proximal.derivative,
                       near_proximal.clipped || capped};
}

/* Differences of a token's log-probabilities; `sequence` is the mean of its sequence's. */
struct log_ratios {
  double new_old, new_proximal, proximal_old, sequence;
};

static struct term policy_term(const struct loss_config *c, double logprob, const struct log_ratios *r, double ratio,
                               double advantage) {
  const double low = 1 - (double)c->clip_low, high = 1 + (double)c->clip_high;
  switch (c->kind) {
    case LOSS_CROSS_ENTROPY: return (struct term){-logprob, -1, false};
    case LOSS_REINFORCE: return constant_term(logprob, ratio, 0, high, advantage);
    case LOSS_CISPO: return constant_term(logprob, ratio, low, high, advantage);
    case LOSS_PPO: return clipped_term(c, ratio, advantage);
    case LOSS_GSPO: return clipped_term(c, elementary_exp(r->sequence), advantage);
    case LOSS_DECOUPLED_PPO: break;
  }
  return decoupled_term(c, elementary_exp(r->proximal_old), elementary_exp(r->new_proximal), advantage);
}

double kl_estimate(enum kl_estimator estimator, double logprob, double reference, double *derivative) {
  const double gap = reference - logprob;
  double growth, unused;
  double *d = derivative ? derivative : &unused;
  switch (estimator) {
    case KL_K1: *d = 1; return -gap;
    case KL_K2: *d = -gap; return gap * gap / 2;
    case KL_K3: break;
  }
  growth = elementary_exp(gap);
  *d = 1 - growth;
  return growth - gap - 1;
}

double loss_weight(const struct loss_config *config, int n) {
  switch (config->normalization) {
    case NORMALIZE_SEQUENCES: return 1 / (double)n;
    case NORMALIZE_LENGTH: return 1 / (double)config->length_max;
    case NORMALIZE_TOKENS:
    case NORMALIZE_SAMPLES: break;
  }
  return 1;
}

void loss_entropy(const struct loss_config *config, int n, const float *entropy, float *dentropy,
                  struct loss_stats *stats) {
  if (n <= 0) return;
  const double each = loss_weight(config, n) * (double)config->entropy_coefficient;
  for (int i = 0; i < n; i++) {
    stats->loss -= each * (double)entropy[i];
    dentropy[i] = (float)-each;
  }
}

static bool left_out(const struct loss_config *config, float logprob) { return config->cut && logprob < -FLT_MAX; }

/* The mean of new - old over the sequence's tokens. */
static double mean_log_ratio(const struct loss_config *config, int n, const float *logprob, const float *old) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (left_out(config, logprob[i])) continue;
    sum += (double)logprob[i] - (double)old[i];
    count++;
  }
  return count ? sum / (double)count : 0;
}

void loss_sequence(const struct loss_config *config, int n, const float *logprob, const float *old,
                   const float *proximal, const float *reference, float advantage, float *dlogprob,
                   struct loss_stats *stats) {
  if (n <= 0) return;
  const double weight = loss_weight(config, n);
  const double sequence = old ? mean_log_ratio(config, n, logprob, old) : 0;
  for (int i = 0; i < n; i++) {
    const double new_logprob = (double)logprob[i];
    struct log_ratios r = {.sequence = sequence};
    if (left_out(config, logprob[i])) {
      stats->clipped++;
      if (dlogprob) dlogprob[i] = 0;
      continue;
    }
    if (old) r.new_old = r.new_proximal = new_logprob - (double)old[i];
    if (old && proximal) {
      r.new_proximal = new_logprob - (double)proximal[i];
      r.proximal_old = (double)proximal[i] - (double)old[i];
    }
    const double ratio = elementary_exp(r.new_old);
    struct term term = policy_term(config, new_logprob, &r, ratio, (double)advantage);
    if (reference) {
      double derivative;
      const double kl = kl_estimate(config->kl_estimator, new_logprob, (double)reference[i], &derivative);
      stats->kl_reference += kl;
      if (!config->kl_in_reward) {
        term.loss += (double)config->kl_coefficient * kl;
        term.derivative += (double)config->kl_coefficient * derivative;
      }
    }
    stats->loss += weight * term.loss;
    stats->ratio_sum += ratio;
    stats->ratio_squares += ratio * ratio;
    stats->kl_new_old += ratio - r.new_old - 1;
    stats->difference_new_old += r.new_old < 0 ? -r.new_old : r.new_old;
    stats->clipped += term.clipped;
    if (dlogprob) dlogprob[i] = (float)(weight * term.derivative);
  }
  stats->tokens += n;
}

enum rc loss_kind_parse(enum loss_kind *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {"grpo",  "ppo",           "reinforce", "gspo",
                                      "cispo", "decoupled_ppo", "tis",       "cross_entropy"};
  static const enum loss_kind KINDS[] = {LOSS_PPO,   LOSS_PPO,           LOSS_REINFORCE,     LOSS_GSPO,
                                         LOSS_CISPO, LOSS_DECOUPLED_PPO, LOSS_DECOUPLED_PPO, LOSS_CROSS_ENTROPY};
  int index = 0;
  const enum rc rc = name_index(&index, name, NAMES, sizeof NAMES / sizeof NAMES[0], "loss", err);
  if (rc == RC_OK) *out = KINDS[index];
  return rc;
}

enum rc loss_normalization_parse(enum loss_normalization *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {
      [NORMALIZE_TOKENS] = "tokens", [NORMALIZE_SAMPLES] = "samples", [NORMALIZE_SEQUENCES] = "sequences",
      [NORMALIZE_LENGTH] = "length"};
  int index = 0;
  const enum rc rc = name_index(&index, name, NAMES, 4, "normalization", err);
  if (rc == RC_OK) *out = (enum loss_normalization)index;
  return rc;
}

enum rc kl_estimator_parse(enum kl_estimator *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {[KL_K1] = "k1", [KL_K2] = "k2", [KL_K3] = "k3"};
  int index = 0;
  const enum rc rc = name_index(&index, name, NAMES, 3, "kl_estimator", err);
  if (rc == RC_OK) *out = (enum kl_estimator)index;
  return rc;
}

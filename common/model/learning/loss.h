/* Losses and advantages, as pure functions over log-probabilities of the tokens that were sampled.  The head of loss.c
 * has every formula with its derivative and its source.
 *
 * The behaviour policy (`old`) sampled the tokens.  The proximal policy is the one that PPO's clip keeps the new one
 * near: the behaviour policy in PPO, the weights just before the optimizer step in AReaL, an average of recent weights
 * in Hilton et al.  The reference is the one that the KL term keeps it near.  All three are constants to the
 * derivative.  Where a run takes one optimizer step a round over that round's samples, the first two are the current
 * policy, every ratio is exactly 1, and every policy loss has the derivative -A (and the KL term's).  With update
 * "inflight" several versions are the behaviour policy, a token's being the one that sampled it, and the proximal
 * policy is the current one: decoupled PPO is then a policy gradient weighted by new / behaviour, which `tis` caps.
 *
 * `tis` counts a token whose weight is above the cap with the cap; AReaL's cap leaves such tokens out. */
#ifndef LEASEHOLD_MODEL_LEARNING_LOSS_H
#define LEASEHOLD_MODEL_LEARNING_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"

enum loss_kind {
  LOSS_CROSS_ENTROPY,
  LOSS_REINFORCE,
  LOSS_PPO,
  LOSS_GSPO,
  LOSS_CISPO,
  LOSS_DECOUPLED_PPO
}; /* "grpo" is LOSS_PPO with group advantages, "tis" is LOSS_DECOUPLED_PPO with an importance_cap */
enum advantage_kind {
  ADVANTAGE_GROUP,
  ADVANTAGE_GROUP_CENTERED,
  ADVANTAGE_LEAVE_ONE_OUT,
  ADVANTAGE_LEAVE_ONE_OUT_SCALED,
  ADVANTAGE_BATCH,          /* of a whole round, like the next: advantages_of gives what is then standardized */
  ADVANTAGE_BATCH_CENTERED, /* in its group before */
  ADVANTAGE_KINDS
};
enum loss_normalization {
  NORMALIZE_TOKENS,
  NORMALIZE_SAMPLES,
  NORMALIZE_SEQUENCES,
  NORMALIZE_LENGTH
}; /* /tokens of the step; /samples; mean per sequence, /samples; /length_max, /samples */
/* Estimators of KL(new, reference) by a token that the new policy sampled. */
enum kl_estimator { KL_K3, KL_K1, KL_K2 };

struct loss_config {
  enum loss_kind kind;
  /* The range of the ratio is [1 - low, 1 + high]; low 1: no lower bound. REINFORCE has the upper bound alone. */
  float clip_low, clip_high;
  float importance_cap; /* decoupled PPO: the most that proximal / behaviour weighs; 0: no cap */
  float kl_coefficient; /* against the reference; 0: none */
  enum kl_estimator kl_estimator;
  bool kl_in_reward;       /* the advantages hold the KL term (advantages_less_kl): it is summed, and no loss */
  float entropy_coefficient; /* this much of a token's entropy is taken from the loss; 0: none */
  enum loss_normalization normalization;
  int length_max; /* of NORMALIZE_LENGTH: the longest that a completion may be */
  bool cut;       /* rows of logits are cut: -infinity is a token that the current weights leave out, not a fault */
};

struct loss_stats {
  double loss;                     /* un-normalized sum */
  double kl_reference;             /* sum of the estimator's values */
  double ratio_sum, ratio_squares; /* of unclamped ratios new / old: ESS = sum^2 / (n * squares) */
  double kl_new_old;               /* sum of k3, an estimate of KL(old, new) over tokens that old sampled */
  double difference_new_old;       /* sum of |new - old| */
  /* clipped: the ratio is outside its range, or the weight above its cap, or the token left out, which is in tokens and
   * in no sum above */
  int clipped, tokens;
};

/* One sequence of n scored tokens: adds to stats, writes dlogprob[n] = d(un-normalized loss)/d new, un-normalized but
 * for loss_weight.  old may be NULL: it equals logprob, and so does proximal, which
 * is not read.  proximal may be NULL: it equals old; it may be logprob itself.  reference may be NULL: no KL.
 * advantage is one number per sequence (ignored by cross-entropy). dlogprob may be NULL. */
void loss_sequence(const struct loss_config *config, int n, const float *logprob, const float *old,
                   const float *proximal, const float *reference, float advantage, float *dlogprob,
                   struct loss_stats *stats);

/* The weight of every token of a sequence of n scored tokens, before the step's denominator. */
double loss_weight(const struct loss_config *config, int n);
/* Adds the entropy term of a sequence's tokens to the loss, writes dentropy[n] = d(un-normalized loss)/d entropy. */
void loss_entropy(const struct loss_config *config, int n, const float *entropy, float *dentropy,
                  struct loss_stats *stats);
/* The estimator's value at a token, and its derivative by the new policy's log-probability (may be NULL). */
double kl_estimate(enum kl_estimator estimator, double logprob, double reference, double *derivative);

/* advantages[n] of a group's rewards[n]. epsilon joins the standard deviation (population for GROUP, ddof 1 for the
 * scaled leave-one-out). */
void advantages_of(enum advantage_kind kind, const double *rewards, int n, double epsilon, float *advantages);
/* Changes the advantages as if every reward were less by coefficient * kl[n].  The kind must be linear in the rewards:
 * advantage_is_linear. */
void advantages_less_kl(enum advantage_kind kind, const double *kl, int n, double coefficient, float *advantages);
/* Standardizes the advantages of a round's samples: less their mean, divided by their standard deviation plus epsilon,
 * both over trained tokens[n]. Where the samples with trained tokens have equal advantages, all become exactly zero. */
void advantages_standardize(float *advantages, const int64_t *tokens, int n, double epsilon);
bool advantage_is_linear(enum advantage_kind kind);

/* "grpo", "ppo", "reinforce", "gspo", "cispo", "decoupled_ppo", "tis", "cross_entropy" */
enum rc loss_kind_parse(enum loss_kind *out, const char *name, struct err *err);
/* "tokens", "samples", "sequences", "length" */
enum rc loss_normalization_parse(enum loss_normalization *out, const char *name, struct err *err);
/* "k1", "k2", "k3" */
enum rc kl_estimator_parse(enum kl_estimator *out, const char *name, struct err *err);
/* "group", "group_centered", "leave_one_out", "leave_one_out_scaled", "batch", "batch_centered" */
enum rc advantage_kind_parse(enum advantage_kind *out, const char *name, struct err *err);
const char *advantage_kind_name(enum advantage_kind kind);

#endif

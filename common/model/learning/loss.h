/* Losses and advantages, as pure functions over log-probabilities of the tokens that were sampled.  The head of loss.c
 * has every formula with its derivative and its source.
 *
 * The behaviour policy (`old`) sampled the tokens.  The proximal policy is the one that PPO's clip keeps the new one near:
 * the behaviour policy in PPO, the weights just before the optimizer step in AReaL, an average of recent weights in
 * Hilton et al.  The reference is the one that the KL term keeps it near.  All three are constants to the derivative.
 * Where a run takes one optimizer step a round over that round's samples, the first two are the current policy, every
 * ratio is exactly 1, and every policy loss has the derivative -A (and the KL term's).  With update "inflight" several
 * versions are the behaviour policy, a token's being the one that sampled it, and the proximal policy is the current one:
 * decoupled PPO is then a policy gradient weighted by new / behaviour, which `tis` caps.
 *
 * `tis` counts a token whose weight is above the cap with the cap; AReaL's cap leaves such tokens out. */
#ifndef LEASEHOLD_MODEL_LEARNING_LOSS_H
#define LEASEHOLD_MODEL_LEARNING_LOSS_H

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
  ADVANTAGE_LEAVE_ONE_OUT_SCALED
};
enum loss_normalization {
  NORMALIZE_TOKENS,
  NORMALIZE_SAMPLES,
  NORMALIZE_SEQUENCES
}; /* /tokens of the step; /samples; mean per sequence, /samples */

struct loss_config {
  enum loss_kind kind;
  /* The range of the ratio is [1 - low, 1 + high]; low 1: no lower bound. REINFORCE has the upper bound alone. */
  float clip_low, clip_high;
  float importance_cap; /* decoupled PPO: the most that proximal / behaviour weighs; 0: whatever it is */
  float kl_coefficient; /* k3 against the reference; 0: none */
  enum loss_normalization normalization;
};

struct loss_stats {
  double loss;                     /* un-normalized sum */
  double kl_reference;             /* sum of k3 */
  double ratio_sum, ratio_squares; /* of unclamped ratios new / old: ESS = sum^2 / (n * squares) */
  double kl_new_old;               /* sum of k3, an estimate of KL(old, new) over tokens that old sampled */
  double difference_new_old;       /* sum of |new - old| */
  int clipped, tokens;             /* clipped: the ratio is outside its range, or the weight above its cap */
};

/* One sequence of n scored tokens: adds to stats, writes dlogprob[n] = d(un-normalized loss)/d new, un-normalized but
 * for weight (1, or 1/n for NORMALIZE_SEQUENCES).  old may be NULL: it equals logprob, and so does proximal, which
 * is not read.  proximal may be NULL: it equals old; it may be logprob itself.  reference may be NULL: no KL.  advantage is
 * one number per sequence (ignored by cross-entropy). dlogprob may be NULL. */
void loss_sequence(const struct loss_config *config, int n, const float *logprob, const float *old,
                   const float *proximal, const float *reference, float advantage, float *dlogprob,
                   struct loss_stats *stats);

/* advantages[n] of a group's rewards[n]. epsilon joins the standard deviation (population for GROUP, ddof 1 for the
 * scaled leave-one-out). */
void advantages_of(enum advantage_kind kind, const double *rewards, int n, double epsilon, float *advantages);

/* "grpo", "ppo", "reinforce", "gspo", "cispo", "decoupled_ppo", "tis", "cross_entropy" */
enum rc loss_kind_parse(enum loss_kind *out, const char *name, struct err *err);
/* "tokens", "samples", "sequences" */
enum rc loss_normalization_parse(enum loss_normalization *out, const char *name, struct err *err);

#endif

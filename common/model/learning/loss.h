/* Losses and advantages, as pure functions over log-probabilities.  Sources: GRPO (arXiv 2402.03300), PPO clip
 * (1707.06347), GSPO (2507.18071), PipelineRL (2509.19128) for `reinforce`; k3 from Schulman, "Approximating KL
 * divergence".  Vectors: REFERENCES. */
#ifndef LEASEHOLD_MODEL_LEARNING_LOSS_H
#define LEASEHOLD_MODEL_LEARNING_LOSS_H

#include "common/base/rc.h"

enum loss_kind {
  LOSS_CROSS_ENTROPY,
  LOSS_REINFORCE,
  LOSS_PPO,
  LOSS_GSPO
}; /* "grpo" is LOSS_PPO with group advantages */
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
  float clip_low, clip_high; /* PPO, GSPO: ratio in [1-low, 1+high]; REINFORCE: ratio <= 1 + high */
  float kl_coefficient;      /* k3 against the reference; 0: none */
  enum loss_normalization normalization;
};

struct loss_stats {
  double loss;                     /* un-normalized sum */
  double kl_reference;             /* sum of k3 */
  double ratio_sum, ratio_squares; /* of unclamped ratios: ESS = sum^2 / (n * squares) */
  int clipped, tokens;
};

/* One sequence of n scored tokens: adds to stats, writes dlogprob[n] = d(un-normalized loss)/d new, un-normalized but
 * for weight (1, or 1/n for NORMALIZE_SEQUENCES).  old, reference may be NULL (then ratio 1, no KL); advantage is one
 * number per sequence (ignored by cross-entropy). dlogprob may be NULL. */
void loss_sequence(const struct loss_config *config, int n, const float *logprob, const float *old,
                   const float *reference, float advantage, float *dlogprob, struct loss_stats *stats);

/* advantages[n] of a group's rewards[n]. epsilon joins the standard deviation (population for GROUP, ddof 1 for the
 * scaled leave-one-out). */
void advantages_of(enum advantage_kind kind, const double *rewards, int n, double epsilon, float *advantages);

/* "grpo", "ppo", "reinforce", "gspo", "cross_entropy" */
enum rc loss_kind_parse(enum loss_kind *out, const char *name, struct err *err);
/* "tokens", "samples", "sequences" */
enum rc loss_normalization_parse(enum loss_normalization *out, const char *name, struct err *err);

#endif

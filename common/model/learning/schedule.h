/* The optimizer's hyperparameters, and the learning rate as a pure function of them and the step. */
#ifndef LEASEHOLD_MODEL_LEARNING_SCHEDULE_H
#define LEASEHOLD_MODEL_LEARNING_SCHEDULE_H

#include <stdint.h>

#include "common/base/rc.h"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };

struct optimizer_config {
  double lr, beta1, beta2, eps, weight_decay; /* weight decay on matrices only, never on norms */
  double clip_norm;                           /* 0: no clipping */
  enum schedule_kind schedule;
  int warmup_steps, total_steps;
  double lr_min_ratio; /* the floor as a share of lr */
  int grad_scale_log2; /* default 32 */
};

/* The learning rate of step (1-based); pure. Warm-up is linear from lr/warmup. */
double schedule_lr(const struct optimizer_config *config, int64_t step);
/* The KL term's coefficient after a round of `samples` samples whose KL was `kl`; pure.  Ziegler et al., 1909.08593,
 * 2.2, with at most a horizon of samples. */
double schedule_kl_coefficient(double coefficient, double kl, double target, double samples, double horizon);
enum rc schedule_kind_parse(enum schedule_kind *out, const char *name, struct err *err);

#endif

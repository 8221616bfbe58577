/* Computes the advantages of a group's rewards (GRPO, arXiv 2402.03300; leave-one-out as in PipelineRL, 2509.19128).
 *
 *   group                 (r - mean) / (population std + epsilon)
 *   group_centered         r - mean
 *   leave_one_out          r - mean of the others = (r - mean) n / (n - 1)
 *   leave_one_out_scaled   leave_one_out / (sample std + epsilon)
 *   batch                  r, then standardized over the tokens of the round        REINFORCE++, 2501.03262
 *   batch_centered         r - mean, then standardized over the tokens of the round        its "baseline" form
 * A group of one, or of equal rewards, has advantages of exactly zero, whatever epsilon is; `batch` has no group's
 * baseline, so there it has not.  So has one whose deviation and epsilon are both zero.
 *
 * A KL term in the reward (RLOO, 2402.14740) makes each reward less by k times its sequence's sum of the estimator over
 * its tokens.  Where the advantage is linear in the rewards, it can be taken off the advantage by the same formula.
 *
 * Pure; called by coordinator/rounds/group_seal.c, and the KL term by trainer-server/engine/gradient_unit.c. */
#include "common/model/learning/loss.h"

#include <stdio.h>
#include <string.h>

static const char *const NAMES[] = {[ADVANTAGE_GROUP] = "group",
                                    [ADVANTAGE_GROUP_CENTERED] = "group_centered",
                                    [ADVANTAGE_LEAVE_ONE_OUT] = "leave_one_out",
                                    [ADVANTAGE_LEAVE_ONE_OUT_SCALED] = "leave_one_out_scaled",
                                    [ADVANTAGE_BATCH] = "batch",
                                    [ADVANTAGE_BATCH_CENTERED] = "batch_centered"};

static double mean_of(const double *x, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += x[i];
  return sum / (double)n;
}

/* A deviation can be zero where rewards are not equal: the squares of very small differences are. */
static double over(double factor, double deviation) { return deviation > 0 ? factor / deviation : 0; }

void advantages_of(enum advantage_kind kind, const double *rewards, int n, double epsilon, float *advantages) {
  bool equal = true;
  for (int i = 0; i < n; i++) {
    equal = equal && rewards[i] == rewards[0];
    advantages[i] = kind == ADVANTAGE_BATCH ? (float)rewards[i] : 0;
  }
  if (equal || kind == ADVANTAGE_BATCH) return;
  const double mean = mean_of(rewards, n);
  double squares = 0;
  for (int i = 0; i < n; i++) squares += (rewards[i] - mean) * (rewards[i] - mean);
  double factor = 1;
  switch (kind) {
    case ADVANTAGE_GROUP: factor = over(1, __builtin_sqrt(squares / (double)n) + epsilon); break;
    case ADVANTAGE_GROUP_CENTERED:
    case ADVANTAGE_BATCH:
    case ADVANTAGE_BATCH_CENTERED:
    case ADVANTAGE_KINDS: break;
    case ADVANTAGE_LEAVE_ONE_OUT: factor = (double)n / (double)(n - 1); break;
    case ADVANTAGE_LEAVE_ONE_OUT_SCALED:
      factor = over((double)n / (double)(n - 1), __builtin_sqrt(squares / (double)(n - 1)) + epsilon);
      break;
  }
  for (int i = 0; i < n; i++) { /* never -0, whose sign a database does not keep */
    const float advantage = (float)((rewards[i] - mean) * factor);
    advantages[i] = advantage == 0 ? 0 : advantage;
  }
}

bool advantage_is_linear(enum advantage_kind kind) {
  return kind == ADVANTAGE_GROUP_CENTERED || kind == ADVANTAGE_LEAVE_ONE_OUT;
}

void advantages_less_kl(enum advantage_kind kind, const double *kl, int n, double coefficient, float *advantages) {
  if (n < 2) return;
  const double mean = mean_of(kl, n), factor = kind == ADVANTAGE_LEAVE_ONE_OUT ? (double)n / (double)(n - 1) : 1;
  for (int i = 0; i < n; i++)
    advantages[i] = (float)((double)advantages[i] - coefficient * (kl[i] - mean) * factor);
}

void advantages_standardize(float *advantages, const int64_t *tokens, int n, double epsilon) {
  double sum = 0, squares = 0;
  int64_t count = 0;
  bool equal = true; /* among those that are trained on: of the others nothing is in the deviation */
  float first = 0;
  for (int i = 0; i < n; i++) {
    if (tokens[i] == 0) continue;
    if (count == 0) first = advantages[i];
    count += tokens[i];
    sum += (double)tokens[i] * (double)advantages[i];
    equal = equal && advantages[i] == first;
  }
  const double mean = count > 0 ? sum / (double)count : 0;
  for (int i = 0; i < n; i++) {
    const double d = (double)advantages[i] - mean;
    squares += (double)tokens[i] * d * d;
  }
  const double factor = count > 0 ? over(1, __builtin_sqrt(squares / (double)count) + epsilon) : 0;
  for (int i = 0; i < n; i++) advantages[i] = equal ? 0 : (float)(((double)advantages[i] - mean) * factor);
}

const char *advantage_kind_name(enum advantage_kind kind) { return NAMES[kind]; }

enum rc advantage_kind_parse(enum advantage_kind *out, const char *name, struct err *err) {
  int kind = 0;
  const enum rc rc = name_index(&kind, name, NAMES, ADVANTAGE_KINDS, "kind", err);
  if (rc == RC_OK) *out = (enum advantage_kind)kind;
  return rc;
}

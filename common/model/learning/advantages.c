/* Computes the advantages of a group's rewards (GRPO, arXiv 2402.03300; leave-one-out as in PipelineRL, 2509.19128).
 *
 *   group                 (r - mean) / (population std + epsilon)
 *   group_centered         r - mean
 *   leave_one_out          r - mean of the others = (r - mean) n / (n - 1)
 *   leave_one_out_scaled   leave_one_out / (sample std + epsilon)
 * A group of one, or of equal rewards, has advantages of exactly zero, whatever epsilon is. */
#include <stdbool.h>

#include "common/model/learning/loss.h"

void advantages_of(enum advantage_kind kind, const double *rewards, int n, double epsilon, float *advantages) {
  double sum = 0;
  bool equal = true;
  for (int i = 0; i < n; i++) {
    sum += rewards[i];
    equal = equal && rewards[i] == rewards[0];
    advantages[i] = 0;
  }
  if (equal) return;
  const double mean = sum / (double)n;
  double squares = 0;
  for (int i = 0; i < n; i++) squares += (rewards[i] - mean) * (rewards[i] - mean);
  double factor = 1;
  switch (kind) {
    case ADVANTAGE_GROUP: factor = 1 / (__builtin_sqrt(squares / (double)n) + epsilon); break;
    case ADVANTAGE_GROUP_CENTERED: break;
    case ADVANTAGE_LEAVE_ONE_OUT: factor = (double)n / (double)(n - 1); break;
    case ADVANTAGE_LEAVE_ONE_OUT_SCALED:
      factor = (double)n / (double)(n - 1) / (__builtin_sqrt(squares / (double)(n - 1)) + epsilon);
      break;
  }
  for (int i = 0; i < n; i++) advantages[i] = (float)((rewards[i] - mean) * factor);
}

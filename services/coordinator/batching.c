/* See batching.h. */
#include "services/coordinator/batching.h"

int batching_plan(const int64_t *tokens, int n, int64_t tokens_max, int32_t *batch_of) {
  int batches = 0;
  int64_t held = 0;
  for (int i = 0; i < n; i++) {
    if (batches == 0 || held + tokens[i] > tokens_max) {
      batches++;
      held = 0;
    }
    held += tokens[i];
    batch_of[i] = batches - 1;
  }
  return batches;
}

/* Chooses how many sealed groups the next batch takes, and how many it waits for. */
#include "services/coordinator/decide/batching.h"

enum { BATCHES_OF_ROUND = 16 }; /* at least, while the trainer has work */

int batching_select(const int64_t *tokens, int n, int64_t tokens_max) {
  int64_t held = 0;
  for (int i = 0; i < n; i++) {
    if (i > 0 && tokens[i] > tokens_max - held) return i;
    held += tokens[i];
  }
  return n;
}

int batching_worth(const struct batch_need *need) {
  if (need->trainer_idle || !need->round_open || need->completes) return 1;
  const int worth = (need->groups_per_round + BATCHES_OF_ROUND - 1) / BATCHES_OF_ROUND;
  return need->missing < worth ? need->missing : worth;
}

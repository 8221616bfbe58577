/* Chooses how many sealed groups the next batch takes. */
#include "services/coordinator/decide/batching.h"

int batching_select(const int64_t *tokens, int n, int64_t tokens_max) {
  int64_t held = 0;
  for (int i = 0; i < n; i++) {
    if (i > 0 && tokens[i] > tokens_max - held) return i;
    held += tokens[i];
  }
  return n;
}

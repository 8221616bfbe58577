/* Computes the penalty of long completions. */
#include "services/coordinator/decide/overlong.h"

double overlong_penalty(int64_t length, int64_t most, int64_t buffer) {
  const int64_t counted = buffer < most ? buffer : most;
  const int64_t excess = length - (most - counted);
  if (counted <= 0 || excess <= 0) return 0;
  return -(double)excess / (double)counted;
}

/* Estimates how far a worker's clock is off from the times of its messages. */
#include "services/coordinator/decide/clock_skew.h"

/* No message is so late: one that seems to be comes from a clock that was set, or a machine that slept. */
static const int64_t LATEST_US = 60000000;
static const int64_t AGREE_US = 1000000;

int64_t clock_skew_learn(int64_t known_us, int64_t sent_us, int64_t came_us) {
  if (sent_us == 0) return known_us;
  const int64_t seen_us = sent_us - came_us;
  return seen_us > known_us || seen_us < known_us - LATEST_US ? seen_us : known_us;
}

int64_t clock_skew_us(int64_t known_us) {
  if (known_us == CLOCK_SKEW_UNKNOWN) return 0;
  return known_us > AGREE_US || known_us < -AGREE_US ? known_us : 0;
}

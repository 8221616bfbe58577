/* Packs entropies in steps, and finds those of a sample. */
#include "services/coordinator/store/entropy_bytes.h"

#include <math.h>

static void put(struct buf *out, uint32_t value, size_t width) {
  unsigned char bytes[4];
  for (size_t i = 0; i < width; i++) bytes[i] = (unsigned char)(value >> (8 * i));
  buf_append(out, bytes, width);
}

static uint32_t take(const unsigned char *bytes, size_t width) {
  uint32_t value = 0;
  for (size_t i = 0; i < width; i++) value |= (uint32_t)bytes[i] << (8 * i);
  return value;
}

static uint32_t step_of(float nats) {
  if (!isfinite(nats)) return ENTROPY_NOT_FINITE;
  const double steps = (double)nats * ENTROPY_STEPS_PER_NAT + 0.5;
  return steps <= 0 ? 0 : steps >= ENTROPY_STEP_LAST ? ENTROPY_STEP_LAST : (uint32_t)steps;
}

void entropy_bytes_append(struct buf *out, const float *nats, size_t count) {
  put(out, (uint32_t)count, 4);
  for (size_t i = 0; i < count; i++) put(out, step_of(nats[i]), 2);
}

const void *entropy_bytes_of(const void *bytes, size_t len, size_t sample, size_t *count) {
  const unsigned char *at = bytes, *const end = at ? at + len : at;
  for (size_t i = 0; end - at >= 4; i++) {
    *count = take(at, 4);
    at += 4;
    if ((size_t)(end - at) / 2 < *count) return NULL;
    if (i == sample) return at;
    at += 2 * *count;
  }
  return NULL;
}

double entropy_bytes_at(const void *of, size_t token) {
  const uint32_t step = take((const unsigned char *)of + 2 * token, 2);
  return step == ENTROPY_NOT_FINITE ? NAN : (double)step / ENTROPY_STEPS_PER_NAT;
}

/* Packs entropies in steps, and finds those of a sample. */
#include "services/coordinator/store/entropy_bytes.h"

#include <math.h>

enum { PIECE = 256 }; /* tokens that are packed before they are appended */

static void put(unsigned char *bytes, uint32_t value, size_t width) {
  for (size_t i = 0; i < width; i++) bytes[i] = (unsigned char)(value >> (8 * i));
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
  unsigned char bytes[2 * PIECE];
  put(bytes, (uint32_t)count, 4);
  buf_append(out, bytes, 4);
  for (size_t done = 0; done < count;) {
    const size_t n = count - done < PIECE ? count - done : PIECE;
    for (size_t i = 0; i < n; i++) put(bytes + 2 * i, step_of(nats[done + i]), 2);
    buf_append(out, bytes, 2 * n);
    done += n;
  }
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

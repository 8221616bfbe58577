/* Packs and unpacks stored token ids: see token_bytes.h. */
#include "services/coordinator/store/token_bytes.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids are stored from memory as little-endian bytes");

enum { NARROW = 2, MIDDLE = 3, WIDE = 4 };

static size_t width_for(int32_t vocabulary) {
  return vocabulary <= 1 << 16 ? NARROW : vocabulary <= 1 << 24 ? MIDDLE : WIDE;
}

/* Most vocabularies', so by a loop that a compiler turns into vectors: as many at once, and no way out. */
static void pack_narrow(unsigned char *to, const int32_t *ids, size_t count) {
  enum { AT_ONCE = 32 };
  uint16_t narrow[AT_ONCE];
  size_t i = 0;
  for (; i + AT_ONCE <= count; i += AT_ONCE) {
    for (size_t k = 0; k < AT_ONCE; k++) narrow[k] = (uint16_t)ids[i + k];
    memcpy(to + i * NARROW, narrow, sizeof narrow);
  }
  for (; i < count; i++) {
    to[i * NARROW] = (unsigned char)ids[i];
    to[i * NARROW + 1] = (unsigned char)(ids[i] >> 8);
  }
}

enum rc token_bytes_pack(const void **out, size_t *len, const int32_t *ids, size_t count, int32_t vocabulary,
                         struct arena *arena, struct err *err) {
  const size_t width = width_for(vocabulary);
  *out = ids;
  *len = count * width;
  if (width == WIDE) return RC_OK;
  unsigned char *to = arena_alloc_bytes(arena, *len + 1);
  if (!to) return err_set(err, RC_NO_MEMORY, NULL, "%zu token ids were refused memory", count);
  *out = to;
  if (width == NARROW) pack_narrow(to, ids, count);
  for (size_t i = 0; width == MIDDLE && i < count; i++, to += width) {
    to[0] = (unsigned char)ids[i];
    to[1] = (unsigned char)(ids[i] >> 8);
    to[2] = (unsigned char)(ids[i] >> 16);
  }
  return RC_OK;
}

enum rc token_bytes_unpack(int32_t **out, size_t *count, const void *bytes, size_t len, size_t logprobs_len,
                           struct arena *arena, struct err *err) {
  const size_t n = logprobs_len / sizeof(float), width = n ? len / n : WIDE;
  const unsigned char *from = bytes;
  *count = n;
  if (width < NARROW || width > WIDE || n * width != len)
    return err_set(err, RC_CORRUPT, NULL, "%zu tokens are stored in %zu bytes", n, len);
  int32_t *ids = *out = arena_alloc_bytes(arena, (n + 1) * sizeof *ids);
  if (!ids) return err_set(err, RC_NO_MEMORY, NULL, "%zu token ids were refused memory", n);
  for (size_t i = 0; i < n; i++, from += width) {
    uint32_t id = (uint32_t)from[0] | (uint32_t)from[1] << 8;
    if (width >= MIDDLE) id |= (uint32_t)from[2] << 16;
    if (width == WIDE) id |= (uint32_t)from[3] << 24;
    ids[i] = (int32_t)id;
  }
  return RC_OK;
}

/* Divides one allocation into aligned arrays: the same function lays out the arrays twice, first without memory to
 * learn the size, then over the allocation, so that the announced and the used size cannot differ. */
#ifndef LEASEHOLD_MODEL_NETWORK_LAYOUT_H
#define LEASEHOLD_MODEL_NETWORK_LAYOUT_H

#include <stddef.h>

struct layout {
  char *base; /* NULL while measuring */
  size_t used;
};

/* count * size bytes at the next multiple of 64; NULL while measuring. */
static inline void *layout_take(struct layout *l, size_t count, size_t size) {
  const size_t at = l->used;
  l->used += (count * size + 63) / 64 * 64;
  return l->base ? l->base + at : NULL;
}

#endif

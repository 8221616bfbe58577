/* Cutting the parts of a large array into pieces that one message may carry, part after part: what every rank must do
 * alike, for the n-th piece of one is the n-th piece of all.  Pure. */
#ifndef LEASEHOLD_COMM_PIECES_H
#define LEASEHOLD_COMM_PIECES_H

#include <stdbool.h>
#include <stddef.h>

struct pieces {
  const size_t *begin; /* part r of the array is [begin[r], begin[r + 1]); borrowed */
  int part, parts;     /* the part at hand, and where to stop */
  size_t at;           /* what of the part at hand has been handed out */
  size_t most;         /* elements of a piece */
};

struct piece {
  int part;
  size_t begin, count;
};

/* The next piece, never empty; false when all have been handed out. */
static inline bool pieces_next(struct pieces *p, struct piece *out) {
  while (p->part < p->parts && p->begin[p->part] + p->at == p->begin[p->part + 1]) {
    p->part++;
    p->at = 0;
  }
  if (p->part >= p->parts) return false;
  const size_t begin = p->begin[p->part] + p->at, left = p->begin[p->part + 1] - begin;
  *out = (struct piece){.part = p->part, .begin = begin, .count = left < p->most ? left : p->most};
  p->at += out->count;
  return true;
}

#endif

/* Cuts the parts of a large array, one after the other, into pieces that one message can carry.
 *
 * All ranks must cut alike, because the n-th piece of one rank meets the n-th piece of every other.  Pure. */
#ifndef LEASEHOLD_COMM_MESSAGE_PIECES_H
#define LEASEHOLD_COMM_MESSAGE_PIECES_H

#include <stdbool.h>
#include <stddef.h>

struct message_pieces {
  const size_t *begin; /* part r of the array is [begin[r], begin[r + 1]); borrowed */
  int part, parts;     /* the current part, and where to stop */
  size_t at;           /* elements of the current part that have been handed out */
  size_t most;         /* elements of a piece at most */
};

struct message_piece {
  int part;
  size_t begin, count;
};

/* The next piece, never empty; false when all have been handed out. */
static inline bool message_pieces_next(struct message_pieces *p, struct message_piece *out) {
  while (p->part < p->parts && p->begin[p->part] + p->at == p->begin[p->part + 1]) {
    p->part++;
    p->at = 0;
  }
  if (p->part >= p->parts) return false;
  const size_t begin = p->begin[p->part] + p->at, left = p->begin[p->part + 1] - begin;
  *out = (struct message_piece){.part = p->part, .begin = begin, .count = left < p->most ? left : p->most};
  p->at += out->count;
  return true;
}

#endif

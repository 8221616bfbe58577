/* The part of the optimizer's state that each of several ranks keeps: contiguous elements of the flat parameter array.
 * Shards are whole blocks of the gradient's norm (NUMERICS.md), so that one rank sums each block exactly as a single
 * rank would.  If a model has fewer blocks than ranks, some ranks keep nothing.  Pure. */
#ifndef LEASEHOLD_MODEL_SHARD_H
#define LEASEHOLD_MODEL_SHARD_H

#include <stddef.h>

enum { SHARD_BLOCK = 1 << 16 }; /* elements: the norm's block, and a multiple of what parameters are aligned to */

struct shard {
  size_t begin, end; /* elements [begin, end) */
};

static inline size_t shard_blocks(size_t elements) { return (elements + SHARD_BLOCK - 1) / SHARD_BLOCK; }

/* Where rank's shard begins: ascending in rank, 0 for rank 0, `elements` for rank = ranks.  At most a block's
 * difference between any two ranks. */
static inline size_t shard_begin(size_t elements, int rank, int ranks) {
  const size_t at = shard_blocks(elements) * (size_t)rank / (size_t)ranks * SHARD_BLOCK;
  return at < elements ? at : elements;
}

static inline struct shard shard_of(size_t elements, int rank, int ranks) {
  return (struct shard){shard_begin(elements, rank, ranks), shard_begin(elements, rank + 1, ranks)};
}

static inline size_t shard_count(struct shard s) { return s.end - s.begin; }

#endif

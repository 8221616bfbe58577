/* Sampled token ids as they are stored: little-endian, in two bytes each where the vocabulary allows it, else in three
 * or four.  Every row holds a float32 log-probability for each token, so the width is told by the two lengths: rows
 * from before ids were packed are those of four.
 *
 *   api/route_results.c --packed--> rollouts.token_ids --read by--> queries that select them, beside length(logprobs)
 *
 * Pure, any thread; results lie in the caller's arena. */
#ifndef LEASEHOLD_COORDINATOR_STORE_TOKEN_BYTES_H
#define LEASEHOLD_COORDINATOR_STORE_TOKEN_BYTES_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/rc.h"

/* ids: 0 to vocabulary - 1. */
enum rc token_bytes_pack(const void **out, size_t *len, const int32_t *ids, size_t count, int32_t vocabulary,
                         struct arena *arena, struct err *err);
/* out: [count], count as many tokens as logprobs_len tells.  RC_CORRUPT when no width fits. */
enum rc token_bytes_unpack(int32_t **out, size_t *count, const void *bytes, size_t len, size_t logprobs_len,
                           struct arena *arena, struct err *err);

#endif

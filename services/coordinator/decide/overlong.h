/* The reward that a completion loses for coming close to its longest length, so that a policy learns to end before it
 * is cut off: the soft penalty of DAPO (arXiv 2503.14476), as PipelineRL (2509.19128) uses it.
 *
 *   0              where length <= most - buffer
 *   down to -1     in equal steps over the last `buffer` tokens: ((most - buffer) - length) / buffer
 *
 * It is added to the reward before rewards become advantages.  The stored reward stays the verifier's, and how many
 * samples were overlong can be counted from what is stored: their lengths, and the most that their groups allowed.
 *
 * Pure; called by group_seal.c. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_OVERLONG_H
#define LEASEHOLD_COORDINATOR_DECIDE_OVERLONG_H

#include <stdint.h>

/* length, most: tokens of the completion, and the most that it might have had.  buffer 0: no penalty; one above `most`
 * counts as `most`. */
double overlong_penalty(int64_t length, int64_t most, int64_t buffer);

#endif

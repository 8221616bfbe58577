/* The groups whose gradients are in the sums since the last step, by id: a step names exactly these, and none goes in
 * twice.  A fixed table of LIMIT_GROUPS_PER_ROUND groups with open addressing: a round of that many one-group batches
 * asks for each of them several times.  Owned by the engine's thread; sized at start. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_ACCUMULATED_GROUPS_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_ACCUMULATED_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire/training.h"

enum { ACCUMULATED_SLOTS = 4 * LIMIT_GROUPS_PER_ROUND };

/* answered: false when its batch failed afterwards for want of memory, or when a check took it ahead of its batch; then
 * only its results are still owed. */
struct accumulated_group {
  char id[LIMIT_NAME_MAX];
  bool answered;
  struct kept_unit *kept; /* of one that was taken ahead, else NULL */
};
/* What the batch of a group that was taken ahead is answered with. */
struct kept_unit {
  struct digest content; /* batch_group_digest */
  struct batch_stats stats;
  size_t count;    /* trained tokens */
  float numbers[]; /* [2 * count]: log-probabilities, sample after sample; then the entropies behind them, likewise */
};

struct accumulated {
  size_t count;
  uint16_t slots[ACCUMULATED_SLOTS]; /* index into groups plus 1; 0: free */
  struct accumulated_group groups[LIMIT_GROUPS_PER_ROUND];
};

/* NULL when the group is not in it. */
struct accumulated_group *accumulated_find(struct accumulated *a, const char *id);
/* A group that is not in it yet; asserts that there is room: see batch_check. */
void accumulated_add(struct accumulated *a, const char *id);
/* One that was just added was taken ahead; false when memory is refused: it will be computed once more. */
/* samples: entropies as many as log-probabilities. */
bool accumulated_keep(struct accumulated_group *g, const struct digest *content, const struct batch_stats *stats,
                      const struct sample_logprobs *samples, size_t count);
void accumulated_clear(struct accumulated *a);

#endif

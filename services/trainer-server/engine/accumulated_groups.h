/* The groups whose gradients are in the sums since the last step, by id: a step names exactly these, and none goes in
 * twice.  A fixed table of LIMIT_GROUPS_PER_ROUND groups with open addressing: a round of that many one-group batches
 * asks for each of them several times.  Owned by the engine's thread; sized at start. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_ACCUMULATED_GROUPS_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_ACCUMULATED_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"

enum { ACCUMULATED_SLOTS = 4 * LIMIT_GROUPS_PER_ROUND };

/* answered: false when its batch failed afterwards for want of memory; then only its log-probabilities are still owed. */
struct accumulated_group {
  char id[LIMIT_NAME_MAX];
  bool answered;
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
void accumulated_clear(struct accumulated *a);

#endif

/* The ordinals of a round's groups.
 *
 *   0 .. R-1  the round's prompts | R .. R+refills-1  refills | ORDINAL_EVALUATION_FIRST ..  evaluation
 *
 * Randomness is keyed by them, so they are part of what a digest depends on. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_ORDINALS_H
#define LEASEHOLD_COORDINATOR_DECIDE_ORDINALS_H

#include "common/base/limits.h"

/* Above every training group's ordinal, so that a round's evaluation does not move the randomness of its refills. */
enum { ORDINAL_EVALUATION_FIRST = 2 * LIMIT_GROUPS_PER_ROUND };

#endif

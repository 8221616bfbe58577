/* A run's curriculum: which prompts of the dataset's order are passed over, by the pass rates that its rounds recorded.
 *
 *   round r-1 is in --> its prompts' rates are recorded --> round r takes the next places that do not rest
 *                                                             a refill takes the next behind these
 *
 * Records change only between rounds.  So which prompts a round and its refills take depends on the rounds before it
 * and on nothing else, and sync and pipelined runs take the same.  Writer's thread, inside the caller's savepoint;
 * called by round.c, and only for runs that have a curriculum. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_CURRICULUM_H
#define LEASEHOLD_COORDINATOR_RECORDS_CURRICULUM_H

#include "services/coordinator/run/dataset.h"
#include "services/coordinator/writer/core_state.h"

/* At most this many prompts are passed over in a row: then the next one is taken although it should rest. */
enum { CURRICULUM_LOOKS = 4096 };

/* Where a round looks for its prompts. */
struct curriculum_walk {
  int64_t next; /* place in dataset order */
  int64_t passed_over;
};

/* Before a round opens: what the round before has recorded, before the first what `from` has; and where that one
 * ended. */
enum rc curriculum_open(struct core *c, int64_t round, struct curriculum_walk *out, struct err *err);
/* Where the open round looks for a refill. */
enum rc curriculum_resume(struct core *c, int64_t round, struct curriculum_walk *out, struct err *err);
/* The next prompt, and the walk behind it. */
enum rc curriculum_take(struct core *c, struct curriculum_walk *walk, struct dataset_place *out, struct err *err);
/* RC_INVALID: pass rates cannot be counted of a run that has dropped rollouts; name: as it was given. */
enum rc curriculum_countable(struct store *s, int64_t run, const char *name, struct err *err);
/* Keeps the walk with the round. */
enum rc curriculum_keep(struct core *c, int64_t round, const struct curriculum_walk *walk, struct err *err);

#endif

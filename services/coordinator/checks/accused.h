/* Workers whose samples were refused: counted, judged by what others sent (verdict.h), and in quarantine until the run
 * ends.
 *
 *   refused samples --accused_add--> names --accused_judge--> quarantine: leases lost, an incident
 *                                                        '--> nobody can tell: the run is paused
 *
 * On the writer's thread, inside the caller's savepoint.  Called by settle.c, refusals.c and nonfinite.c. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_ACCUSED_H
#define LEASEHOLD_COORDINATOR_CHECKS_ACCUSED_H

#include "services/coordinator/checks/verdict.h"
#include "services/coordinator/writer/core_state.h"

enum { ACCUSED_MAX = 64 /* workers of one check; those of more come with the next */, ACCUSED_DETAIL_MAX = 512 };

struct accused {
  int64_t run, round; /* in which they were found */
  int64_t since;      /* what was found from this round on tells who else agrees */
  const char *names[ACCUSED_MAX]; /* each once; the caller's memory */
  int count;
  char first[ACCUSED_DETAIL_MAX]; /* the first refusal, for people */
  const char *undecided; /* what the run's error says where nobody can tell; NULL: that the trainer draws otherwise */
};

/* A token of a completion. */
struct drawn_token {
  int64_t run, round, group, sample, position;
};
/* *worker: who drew it, a holder that handed the sample back behind it, or else the one that ended the sample. */
enum rc drawer_at(struct core *c, const struct drawn_token *t, int64_t *worker, struct err *err);

/* What was found of a worker's samples. */
struct checked_samples {
  int64_t held, refused;
  struct older_tokens older; /* of those that held */
};
/* Added to what was found of its name in the round. */
enum rc checked_add(struct core *c, int64_t run, int64_t round, int64_t worker, const struct checked_samples *n,
                    struct err *err);

/* detail: the evidence. */
void accused_add(struct accused *a, const char *name, const char *detail);
/* One that is in quarantine already stays there.  *held: the run is paused. */
enum rc accused_judge(struct core *c, const struct accused *a, const char *name, bool *held, struct err *err);

#endif

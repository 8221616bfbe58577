/* Workers whose samples were refused: counted, judged by what others sent (verdict.h), and in quarantine until the run ends.
 *
 *   refused samples --accused_add--> names --accused_judge--> quarantine: leases lost, an incident
 *                                                        '--> nobody can tell: the run is paused
 *
 * On the writer's thread, inside the caller's savepoint.  Called by settle.c and refusals.c. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_ACCUSED_H
#define LEASEHOLD_COORDINATOR_CHECKS_ACCUSED_H

#include "services/coordinator/writer/core_state.h"

enum { ACCUSED_MAX = 64 /* workers of one check; those of more come with the next */, ACCUSED_DETAIL_MAX = 512 };

struct accused {
  int64_t run, round; /* in which they were found */
  int64_t since;      /* what was found from this round on tells who else agrees */
  const char *names[ACCUSED_MAX]; /* each once; the caller's memory */
  int count;
  char first[ACCUSED_DETAIL_MAX]; /* the first refusal, for people */
};

/* detail: the evidence. */
void accused_add(struct accused *a, const char *name, const char *detail);
/* Samples that held, or that were refused. */
enum rc accused_count(struct core *c, const struct accused *a, const char *name, int64_t held, int64_t refused,
                      struct err *err);
/* One that is in quarantine already stays there.  *held: the run is paused. */
enum rc accused_judge(struct core *c, const struct accused *a, const char *name, bool *held, struct err *err);

#endif

/* Estimates how long a round of a run takes in each mode, from the paces of servers and trainer that were measured one
 * by one.
 *
 * Sampling is played as rounds are planned (decide/admission.h): a step costs by its rows, all samples are equally
 * long.  It leaves out messages, a pool whose servers differ, and cores that a server and the trainer share.  Larger
 * rounds than that plays are played in part and taken in proportion.  Pure. */
#ifndef LEASEHOLD_COORDINATOR_FORESEE_ROUND_TIMES_H
#define LEASEHOLD_COORDINATOR_FORESEE_ROUND_TIMES_H

#include "services/coordinator/decide/admission.h"

struct round_paces {
  const struct step_costs *costs;
  int32_t servers, slots;   /* slots of each */
  int32_t groups, samples;  /* of the round, of a group */
  int32_t groups_per_step;  /* of update: minibatch; else 0 */
  int64_t spacing_least_us; /* between two looks at polls that are parked */
  double new_tokens;        /* of a sample */
  double prompt_us;         /* until a group's prompt is computed */
  double group_us;          /* to learn from a group; 0: nothing is learned */
  double round_us;          /* between the last group and the next round: step, checkpoint, push */
};

/* Microseconds of a round. */
struct round_times {
  double sampled, learned; /* each alone */
  double sync, pipelined;  /* from one round's opening to the next one's */
  double inflight;         /* between two steps, when nobody waits: the slower side alone */
};

/* False, and nothing is told: a number is missing that it takes, such as the cost of steps of two sizes at least.  No
 * pace is below 0. */
bool round_times(struct round_times *out, const struct round_paces *p, struct admission_room *room);

#endif

/* Decides how many groups may be under way at once, and which are begun first: admission as a pure decision.
 *
 * An engine's step takes longer the more rows it has.  Where it hardly does, every slot is filled at once.  Where it
 * does, a full engine finishes its first group late and the trainer waits for it: then a round begins with few groups
 * and goes on with one more at a time, so that groups come out as fast as the trainer takes them.
 *
 *   groups begun |                  ___/      first:      begun when the round opens
 *                |          ___/              spacing_us: until one more may be begun
 *                |____/                       Every group is admitted in the end, whatever else happens.
 *                +------------------- time
 *
 * The plan is found by playing the round for some tens of plans, with the measured cost of a step by rows, the
 * trainer's time for a token, and lengths: those of earlier groups, dealt out to this round's several times, around
 * what each prompt's were an epoch ago if it was sampled before, or what is known of each sample.  Under `update:
 * minibatch` the play trains groups step by step.  Where groups are told apart the order is planned too: short ones
 * give the trainer work early, long ones must not be begun last, and the play weighs one against the other.
 *
 * Filling every slot in the order of ordinals is the plan that all others must beat, in deals by which they were not
 * chosen, and by more than those deals differ: otherwise, under heavy tails, the best of many plans would be the one
 * that suits the few lengths at hand.  It is also the answer while a measurement is lacking.
 *
 * Called by leases.c on the writer's thread, once a round: tens of milliseconds for a hundred groups.  So a round that
 * is too short for that (played_per_us) is not planned.  No database, no clock, no memory of its own.  Neither a plan
 * nor a wrong expectation changes what a sample becomes or what is a member, only when. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_ADMISSION_H
#define LEASEHOLD_COORDINATOR_DECIDE_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/decide/step_cost.h"

enum {
  ADMISSION_GROUPS_MAX = 256,  /* in a round that is planned; a larger one is not */
  ADMISSION_SAMPLES_MAX = 8192 /* likewise */
};

struct admission_facts {
  const struct step_costs *costs;
  int32_t servers, slots; /* ready generation-servers, slots of each */
  double train_us_per_token;
  int64_t spacing_least_us; /* between two groups, as nobody looks more often; at least 1 */
  int32_t groups, samples;  /* of the round, of a group */
  const float *tokens;      /* of samples, group by group: [known * samples] */
  int32_t known;            /* groups, of this round or of others */
  bool exact;               /* they are this round's, by ordinal: known == groups; else they are dealt out to it */
  const float *scale;       /* [groups], by ordinal: a group has this many times the lengths dealt; NULL: 1 */
  const float *most;        /* [groups], by ordinal: what each of its samples may have; NULL: not bounded */
  int32_t groups_per_step;  /* the trainer takes the groups by steps of this many, in the order of their ordinals
                            * (membership.h); 0: as they come */
  double played_per_us;     /* samples that may be played to find the plan, for a microsecond of the round; 0: any */
};

struct admission_plan {
  bool bounded;                        /* else every slot may be filled at once */
  bool ordered;                        /* else the order is that of the ordinals */
  int32_t first;                       /* groups */
  int64_t spacing_us;                  /* > 0, so that all are admitted in the end */
  int32_t order[ADMISSION_GROUPS_MAX]; /* ordinals, first to be begun first; always filled in for a planned round */
  double end_us, filled_end_us;        /* when the last group is trained: expected; so, with every slot filled */
};

/* The player's room, of any content. */
struct admission_room {
  struct admission_running {
    double ends; /* on the clock of tokens */
    int32_t group;
  } running[ADMISSION_SAMPLES_MAX];
  double step_us[ADMISSION_SAMPLES_MAX + 1];
  int32_t deals; /* how many times a plan is played */
  int32_t left[ADMISSION_GROUPS_MAX], by_length[ADMISSION_GROUPS_MAX];
  double longest[ADMISSION_GROUPS_MAX], total[ADMISSION_GROUPS_MAX];
  struct admission_plan ramp, other, candidate;
};

/* False: something that a plan needs is not known, or the round is too large; then *plan is to fill every slot. */
bool admission_plan(const struct admission_facts *f, struct admission_room *room, struct admission_plan *plan);

/* When the last group is trained if the round goes by the plan; microseconds after it opened.  The room must have been
 * used to plan with these facts. */
double admission_play(const struct admission_facts *f, struct admission_room *room, const struct admission_plan *plan);

/* Tries `plays` changes of the plan's order, each moving one group to another place, and keeps those that do no harm.
 * plan's end_us must be its play's. */
void admission_improve(const struct admission_facts *f, struct admission_room *room, struct admission_plan *plan,
                       int plays);

/* Are these gains of a plan, each of another deal, more than gain_least in the mean, and at least so many standard
 * errors of it? */
bool admission_outweighs(const double *gains, int32_t count, double gain_least, double errors_least);

/* How many groups of the round may have been begun so long after it opened. */
int32_t admission_groups(const struct admission_plan *plan, int64_t passed_us);
/* The same, but one more than were begun while none of these is under way: a plan never lets the pool stand still.  No
 * plan counts on it (one group after the other, each with a poll between), so it helps where a plan is wrong. */
int32_t admission_groups_now(const struct admission_plan *plan, int64_t passed_us, int32_t begun, int32_t under_way);
/* When the next may be: microseconds after the round opened; INT64_MAX: all are admitted. */
int64_t admission_next_us(const struct admission_plan *plan, int64_t passed_us);

/* Keeps those of `count` groups, in the order of service, that may be granted when `begun` training groups of the round
 * were begun and `most` may be; returns how many.  Groups that were begun go on; while a training group is shut out so
 * is evaluation. */
int admission_admit(const struct waiting_group *groups, int32_t *order, int count, int32_t begun, int32_t most);

#endif

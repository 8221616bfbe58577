/* The pool's pace, as far as a round is planned by it: what a step costs, how long samples are, and the plan itself.
 *
 * Costs come with heartbeats, lengths with sealed groups or with the prompts themselves (max_new_tokens, and what
 * prompt_lengths.h remembers of an epoch ago), the trainer's speed is pool.h's.  A round is planned when the first poll
 * asks for it; before a round's worth of groups has been sealed, while a server's costs are not known, or when some of
 * the round was begun before (by a coordinator that is gone), the plan is to fill every slot.  All of it is lost with
 * the process and measured again: order and admission only.
 *
 * The writer's thread only; in struct pool, filled by all code that learns something, read by leases.c.
 * decide/admission.h has the decision.  Knows no core and no database. */
#ifndef LEASEHOLD_COORDINATOR_POOL_PACE_H
#define LEASEHOLD_COORDINATOR_POOL_PACE_H

#include "common/wire/worker.h"
#include "services/coordinator/decide/admission.h"

/* What a worker has reported since it registered. */
struct steps_seen {
  int64_t steps[WIRE_STEP_SLOTS], rows[WIRE_STEP_SLOTS], us[WIRE_STEP_SLOTS];
};

struct pace {
  struct step_costs costs;
  int64_t run;                             /* that the lengths are of */
  float lengths[ADMISSION_SAMPLES_MAX];    /* of its last groups, a ring of whole groups */
  int32_t samples, groups, next;           /* of a group; groups in the ring; where the next one goes */
  int64_t plan_run, plan_round, opened_ms; /* the round of the plan, and when it was planned: monotonic */
  int32_t admitted;                        /* as pace_moved saw it last */
  struct admission_plan plan;
  int32_t place[ADMISSION_GROUPS_MAX]; /* in the plan's order, from 1, by ordinal; 0: there is no such order */
  float played[ADMISSION_SAMPLES_MAX]; /* the lengths that a plan goes by, where they are not those of the ring */
  float scale[ADMISSION_GROUPS_MAX];
  struct admission_room room;
};

/* A heartbeat's table. */
void pace_note_steps(struct pace *p, struct steps_seen *seen, const struct step_sum *items, size_t count,
                     int64_t now_ms);
/* A sealed training group's samples. */
void pace_note_group(struct pace *p, int64_t run, const int32_t *lengths, int count);

/* What the round is planned with beside what was measured here. */
struct pace_round {
  int64_t run, round;
  bool wanted;             /* else every slot is filled */
  int32_t groups, samples; /* of the round, of a group */
  int32_t servers, slots;  /* ready ones, slots of all */
  double groups_per_s;     /* the trainer's; 0: not known */
  double tokens;           /* of a sample, in the mean; 0: not known */
  bool begun;              /* some of it was, under no plan or a lost one */
  const float *most;       /* [groups], by ordinal: how long their samples may be */
  bool exact;              /* and each is as long as that: nothing else ends it */
  const float *expected;   /* [groups], by ordinal: how long their samples are in the mean (prompt_lengths.h); 0: not
                            * known; NULL: no group's is */
  int32_t groups_per_step; /* of update: minibatch; else 0 */
};
/* In the planned order, from 1, of a training group or a refill (0). */
int32_t pace_place(const struct pace *p, int32_t ordinal);
bool pace_planned(const struct pace *p, int64_t run, int64_t round);
/* How the round goes: planned now, if it was not yet. */
const struct admission_plan *pace_plan(struct pace *p, const struct pace_round *r, int64_t now_ms);
/* How many groups of the planned round may have been begun by now, when `begun` were and `under_way` of these are not
 * in. */
int32_t pace_groups(const struct pace *p, int64_t now_ms, int32_t begun, int32_t under_way);
/* More than at the last call: parked polls are worth a look. */
bool pace_moved(struct pace *p, int64_t now_ms);

#endif

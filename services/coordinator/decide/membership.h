/* Decides which groups make one optimizer step of a round under `update: minibatch`.
 *
 * Optimizer steps do not commute, so a group's step must not depend on which group was first.  It goes by rank: of the
 * round's training groups in the order of their ordinals, leave out those that were filtered or failed; step k takes
 * the ranks k*U .. (k+1)*U-1, U being groups_per_step.  The ranks behind the last full step belong to the round's own
 * step.
 *
 *   ordinal     0       1        2      3       4      5        U = 3
 *   standing    sealed  dropped  open   sealed  open   sealed
 *   rank        0       -        1?     1..2    ?      1..4     0 and 3 are of this step, whatever becomes of the open ones
 *
 * An open group may still be dropped, and then those behind it move up; none ever moves back.  So the first U groups
 * that are not dropped hold the step's members: a sealed one among them is a member for certain, before those in front
 * of it are in.  Refills have the ordinals behind the round's own, in the order in which they are issued, so they are
 * read alike.
 *
 * Pure, any thread, no memory.  Called by rounds/batches.c, whose plan is stored before anything is sent. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_MEMBERSHIP_H
#define LEASEHOLD_COORDINATOR_DECIDE_MEMBERSHIP_H

#include <stdbool.h>

enum group_standing {
  STANDING_OPEN,      /* not complete: it becomes sealed or dropped */
  STANDING_SEALED,    /* trainable, in no batch */
  STANDING_SUBMITTED, /* in a batch */
  STANDING_DROPPED    /* filtered, failed or abandoned: in no step */
};

struct step_members {
  int end;               /* the step's groups lie in front of groups[end] */
  int sealed, submitted; /* members so far */
  bool full;             /* every member is known */
};

/* groups: in the order of their ordinals, from the first one behind the members of the steps before, which are full. */
void membership_find(struct step_members *out, const enum group_standing *groups, int n, int groups_per_step);

#endif

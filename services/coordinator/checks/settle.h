/* Stores a check's findings: groups that pass are sealed or filtered, refused samples are drawn again, and the worker
 * that sent them gets no more work from the run.  One transaction, so a restart finds a group unchecked or settled.
 *
 *   found[samples] --verdict.h--> all hold: group_seal_when_judged
 *                                 refused: sample_again, an incident with the evidence, its worker's quarantine
 *                                 inexact: as the run's on_inexact says
 *
 * On the writer's thread; a group that has changed since it was checked is left alone, and so is one that is to be
 * refused, until its check is confirmed.  RC_UNAVAILABLE, and nothing is settled, when the trainer that answered no
 * longer holds its place: then it is not known whether its bits were promised.  Previous hop of a rollout:
 * check_message.c.  Next: rounds/group_seal.c, or a lease again. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_SETTLE_H
#define LEASEHOLD_COORDINATOR_CHECKS_SETTLE_H

#include "services/coordinator/checks/check_message.h"
#include "services/coordinator/writer/core.h"

struct settle_message {
  int64_t run, round, version;
  int64_t trainer; /* the worker that answered */
  const struct found_sample *found; /* in the groups' order; the command's arena */
  size_t count;
};
enum rc settle_execute(struct core *c, struct command *cmd, struct err *err);

#endif

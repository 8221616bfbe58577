/* The stream of groups of an `inflight` run: sampling never stops, and a round is the optimizer step that is being
 * filled.
 *
 *   issued (this round's next ordinal) -> open -> sealed --a step takes it: groups.trained_in--> submitted -> consumed
 *                                           |        |--a version is published, too old--> filtered: "lag"
 *                                           |        |--the queue is full (`full: drop_oldest`)--> filtered: "queue"
 *                                           |        '--of a worker in quarantine, or the trainer refused it after a step had
 *                                           |           taken it (batches_leave)--> filtered: "refused", "inexact"
 *                                           '--a version is published: samples that are too old are drawn again
 *
 * Rounds follow each other as in the other modes; a group is named after the round in which it was issued, and may be
 * trained in a later one.  A round is full when its step has taken groups_per_step groups.  Its figures cover these
 * groups, and those that were dropped meanwhile.
 *
 * A step that a group has left is filled again.
 *
 * The groups that a step took, and their order, are stored in the transaction that decides them (batches_plan), so the
 * step can be replayed.  Which groups those are depends on who was fast: the same seed does not give the same weights
 * here, the same ledger does.
 *
 * Writer's thread only, inside the caller's savepoint.  decide/lag.h has the bounds.  Previous hop of a rollout: a poll
 * (api/route_leases.c) for which nothing waits.  Next: pool/leases.c grants it. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_STREAM_H
#define LEASEHOLD_COORDINATOR_ROUNDS_STREAM_H

#include "services/coordinator/run/run_config.h"
#include "services/coordinator/writer/core_state.h"

/* Issues groups for `slots` free slots when no sample waits and the bounds allow it; nothing in other modes. */
enum rc stream_issue(struct core *c, int64_t slots, struct err *err);
/* The round whose figures a group of round `own` counts for: that which is being filled; in other modes, its own. */
enum rc stream_round(struct core *c, int64_t run, int64_t own, int64_t *out, struct err *err);
/* After the open round's step has taken groups, or an evaluation is in: `training`, once nothing is missing. */
enum rc stream_when_full(struct core *c, int64_t run, struct err *err);
/* A group that is closed: complete, or failed. */
struct stream_group {
  int64_t run, round, ordinal;
  bool dropped; /* no step takes it */
};
/* The last of a round's evaluation: its figures are told, and the run's last step may have waited for them. */
enum rc stream_closed(struct core *c, const struct stream_group *g, struct err *err);
/* A group was left out because its advantages are zero.  Where nothing else has come since the last step, for as many
 * groups as lag.h says, the run is held: sampling on would bring no step either.  Resumed, it gets as many again. */
enum rc stream_filtered(struct core *c, int64_t run, struct err *err);
/* In `inflight`, for a worker that is in quarantine from now on: its samples can be checked no more, or only in part,
 * unless the trainer has it already.  Its samples of open groups are drawn again, and complete groups that have some
 * are dropped (refused).  round: that is being filled. */
enum rc stream_take_back(struct core *c, int64_t run, int64_t round, const char *worker, struct err *err);
/* Groups were taken or dropped, so others may be issued. */
void stream_moved(struct core *c);
/* `version` becomes current, made by `round`: what is too old from now on goes. */
enum rc stream_published(struct core *c, int64_t run, int64_t round, int64_t version, struct err *err);

#endif

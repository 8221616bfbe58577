/* The sums behind a round's figures, kept in the round's row while its groups close and its batches come back, so that
 * closing a round of thousands of groups reads no group and no sample again:
 *
 *   a group's last sample  --round_sums_group-->  rewards, lengths, stale groups; one group less is open
 *   the round's last group --round_sums_means-->  its means; round_sums_evaluation: the evaluation's row
 *
 * The jobs that the trainer has not answered and the groups that wait for a batch are counted where they are planned
 * and answered: batches.c, inner_steps.c.  Each sum changes in the transaction that changes the rows that it sums; a
 * test compares all of them with what a scan of the rows gives (test_transitions.c).  Sums of rewards do not depend on
 * the order of the groups where rewards are 0 or 1; those of others may differ in the last digits, which decides
 * nothing.
 *
 * Writer's thread only, inside the caller's savepoint.  Previous hop of a rollout: group_seal.c. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_ROUND_SUMS_H
#define LEASEHOLD_COORDINATOR_RECORDS_ROUND_SUMS_H

#include "common/wire/lease.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/writer/core_state.h"

/* A group with all its samples. */
struct closed_group {
  int64_t run, round;
  int64_t counts_for; /* the round whose sums it is added to: stream_round */
  bool stream;        /* of an `inflight` run: it waits for no batch of its round, and may be of other versions */
  enum lease_purpose purpose;
  enum group_state state; /* that it is closed as */
  int64_t samples, well_formed, tokens;
  double rewards;
  int64_t version_first, version_last; /* of all its tokens */
};
enum rc round_sums_group(struct core *c, const struct closed_group *g, struct err *err);
/* The round's step has taken this batch of a stream's groups: their samples are in its means from now on. */
enum rc round_sums_taken(struct core *c, int64_t run, int64_t round, int64_t batch, struct err *err);
/* All groups are in.  evaluates: the round's means are of its evaluation groups too. */
enum rc round_sums_means(struct core *c, int64_t run, int64_t round, bool evaluates, struct err *err);
/* All evaluation groups are: their row, if there were any. */
enum rc round_sums_evaluation(struct core *c, int64_t run, int64_t round, struct err *err);
/* The round's jobs that the trainer has not answered, and its groups that wait for a batch. */
enum rc round_sums_undone(struct store *s, int64_t run, int64_t round, int64_t *out, struct err *err);

#endif

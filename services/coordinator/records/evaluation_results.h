/* Stores an evaluation's results, problem by problem, and its figures.
 *
 *   a problem's last sample --evaluation_item_store--> evaluation_items: rewards, right ones, majority
 *   the round's last one    --evaluation_close-------> evaluation_sets, evaluation_figures: each set's means and intervals
 *
 * Items stay when the rollouts behind them are dropped (retention.h): two evaluations can be compared problem by
 * problem (api/route_evaluations.c) as long as the database is there.  A problem that was not complete in time has no
 * item, and counts in no figure.  Figures do not depend on the order in which problems were answered: they are summed
 * in the order of lines.
 *
 * Writer's thread only, inside the caller's savepoint.  Previous hop of a rollout: group_seal.c. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_EVALUATION_RESULTS_H
#define LEASEHOLD_COORDINATOR_RECORDS_EVALUATION_RESULTS_H

#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core_state.h"

struct evaluated_group {
  int64_t run, round, ordinal;
  int set; /* of the run's, see run_rule */
};
/* Stores the result of a group whose samples are all stored. */
enum rc evaluation_item_store(struct core *c, const struct evaluated_group *g, struct err *err);
/* Stores the figures of a round whose evaluation groups are all in. */
enum rc evaluation_close(struct core *c, int64_t run, int64_t round, struct err *err);

#endif

/* Adds up a run's rounds, for its totals and for /metrics.
 *
 * Reading costs the rounds since the settled ones, not all of a long run: settled_rounds has one row for those
 * (rounds/settled.c).  Any thread, on a reader's snapshot. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_RUN_SUMS_H
#define LEASEHOLD_COORDINATOR_VIEWS_RUN_SUMS_H

#include "services/coordinator/decide/mismatch.h"
#include "services/coordinator/store/store.h"

struct run_sums {
  int64_t done, inexact, sampled, trained, round_ms, opened_ms, published_ms, stale;
  struct mismatch mismatch; /* sums: of the done rounds; the rest: of all that was compared */
  /* over the done rounds; NaN when no trainer told of any, or no batch was dispatched */
  double wait_us, work_us, dispatch_ms, dispatch_window_ms, training_ms;
};

enum rc run_sums_read(struct store *s, int64_t run, struct run_sums *out, struct err *err);

/* Replaces ?1's row of settled_rounds by one of all its rounds before ?2. */
extern const char run_sums_settle[];

#endif

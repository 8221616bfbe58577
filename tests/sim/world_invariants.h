/* What the coordinator's database must never hold, as statements that count what breaks DESIGN's invariants.
 *
 *   I1  one current version per run
 *   I2  a lease stands only for the current version and its weights; in `inflight`, for a range that holds it, and
 *       nothing older than max_lag may yet be trained
 *   I3  samples are held by one lease at a time, of a live worker and a fence of its own
 *   I4  a group is closed only when all its samples are accepted
 *   I5  a sealed group is in exactly one batch and consumed once, or filtered with a reason
 *   I6  a version is current exactly when the round that made it is done
 *
 * Called by the simulation and by test_transitions.c, between two transactions of a core that was never started.  A
 * promise about acceptance (I3, I9) cannot be read off the rows: those who send judge it. */
#ifndef LEASEHOLD_TESTS_SIM_WORLD_INVARIANTS_H
#define LEASEHOLD_TESTS_SIM_WORLD_INVARIANTS_H

#include "services/coordinator/store/store.h"

/* The first that is broken, with the number of rows that break it; NULL: all hold.  now_ms: the core's, at which
 * nothing may be overdue; INT64_MIN when its writer has not looked at the time just now. */
const char *invariant_broken(struct store *s, int64_t now_ms, int64_t *rows);

#endif

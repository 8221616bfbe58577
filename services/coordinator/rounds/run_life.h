/* Changes a run's state, with the event that tells of it, and clears up when the run ends.
 *
 * Writer's thread only, inside the caller's savepoint.  Called by route_run_control.c, round.c and the driver's
 * commands. Every change is checked by states.c.  A run that has ended holds no lease, no waiting sample and no
 * context; its done rounds stay as they are. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_RUN_LIFE_H
#define LEASEHOLD_COORDINATOR_ROUNDS_RUN_LIFE_H

#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/decide/states.h"

/* RC_NOT_FOUND */
enum rc run_state_of(struct store *s, int64_t run, enum run_state *out, struct err *err);
/* A checked transition, and the event `state`.  `waiting_for` is cleared. */
enum rc run_move(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err);
/* For trouble that does not pass: pauses the run, with `why` as its error until it is resumed or stopped.  A run
 * that was asked to stop is stopped. */
enum rc run_hold(struct core *c, int64_t run, const char *why, struct err *err);
/* For trouble that passes by itself: notes what the run waits for; NULL: for nothing any more.  The event `waiting`
 * tells when that begins and ends. */
enum rc run_waits(struct core *c, int64_t run, const char *what, struct err *err);
/* completed, stopped or failed: leases are superseded, waiting samples void, open groups and rounds abandoned, the
 * context given up. */
enum rc run_end(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err);

#endif

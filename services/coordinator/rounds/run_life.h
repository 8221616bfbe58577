/* A run's own transitions: state changes with their event, and the clearing up when it ends.
 *
 * Writer's thread only, inside the caller's savepoint.  Called by route_run_control.c, round.c and the driver's
 * commands. Every change goes through states.c; an ended run holds no lease, no waiting sample and no context, and
 * nothing of a done round is touched. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_RUN_LIFE_H
#define LEASEHOLD_COORDINATOR_ROUNDS_RUN_LIFE_H

#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/decide/states.h"

/* RC_NOT_FOUND */
enum rc run_state_of(struct store *s, int64_t run, enum run_state *out, struct err *err);
/* A checked transition, and the event `state`.  What the run waited for is forgotten. */
enum rc run_move(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err);
/* Trouble that does not pass: the run is paused, and `why` says so until it is resumed or stopped; one that was asked to
 * stop has stopped. */
enum rc run_hold(struct core *c, int64_t run, const char *why, struct err *err);
/* Trouble that passes by itself: the run goes on as soon as it has.  NULL: it has.  The event `waiting` when that begins
 * and ends. */
enum rc run_waits(struct core *c, int64_t run, const char *what, struct err *err);
/* completed or stopped: leases are superseded, waiting samples void, open groups and rounds abandoned, the
 * context given up. */
enum rc run_end(struct core *c, int64_t run, enum run_state to, const char *error, struct err *err);

#endif

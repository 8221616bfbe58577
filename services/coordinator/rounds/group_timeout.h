/* Groups that take too long: open since their first lease for group_timeout_ms, they have failed, so that a sample which
 * nobody can finish does not hold up its round for ever.
 *
 *   first lease |---- counted ----|   paused, or no server ready: not counted   |---- counted ----| group_timeout_ms: failed
 *
 * A failed group's leases are superseded (their holders are told by the next heartbeat), its waiting and leased samples
 * void; it is not trained on and not refilled, the round is marked as not exact, since who was too slow depends on the
 * machines, and an incident says so.  With the round's last open group the round is generated.
 *
 * Writer's thread only, inside the caller's savepoint, at every look at the time (tick.c).  groups.leased_ms is the stored
 * time (core_wall_us), which no setting of the machine's clock touches; what does not count is gathered in memory and put
 * on top of it before anything is judged by it.  After a restart all counts anew, since how long nobody could work is not known.  Cheap
 * when nothing is due: the earliest deadline is remembered. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H
#define LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H

#include "services/coordinator/writer/core_state.h"

enum rc groups_expire(struct core *c, struct err *err);

#endif

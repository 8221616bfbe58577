/* Groups that take too long fail: those that are still open group_timeout_ms after their first lease, so that a
 * sample which nobody can finish does not hold up its round for ever.
 *
 *   first lease |---- counted ----|   paused, or no server ready: not counted   |---- counted ----| group_timeout_ms
 *
 * A failed group's leases are superseded (their holders are told by the next heartbeat) and its unfinished samples
 * are void.  It is neither trained on nor refilled.  Its round is marked as not exact, because who was too slow
 * depends on the machines, and an incident says so.  If it was the round's last open group, the round is generated.
 *
 * Writer's thread only, inside the caller's savepoint, at every look at the time (tick.c).  groups.leased_ms is
 * stored time (core_wall_us), which setting the machine's clock does not change.  Time that does not count is added
 * up in memory and put on top of leased_ms before a group is judged.  After a restart the count begins anew, because
 * nobody knows for how long nothing could be worked on.  The earliest deadline is remembered, so a look costs little
 * when nothing is due. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H
#define LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H

#include "services/coordinator/writer/core_state.h"

enum rc groups_expire(struct core *c, struct err *err);

#endif

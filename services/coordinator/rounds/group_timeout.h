/* Groups that take too long fail: those that are still open group_timeout_ms after their first lease, so that a
 * sample that no server can finish does not hold up its round for ever.
 *
 *   first lease |---- counted ----|   paused, or no server ready: not counted   |---- counted ----| group_timeout_ms
 *
 * A failed group's leases are superseded (their holders are told by the next heartbeat) and its unfinished samples
 * are void.  It is neither trained on nor refilled.  Its round is marked as not exact, because who was too slow
 * depends on the machines, and an incident says so.  If it was the round's last open group, the round is generated.
 *
 * A group whose samples are all in, and which waits for the answers of reward servers, has another deadline
 * (decide/reward_calls.h); it may fail by the same function.
 *
 * Writer's thread only, inside the caller's savepoint, at every look at the time (tick.c).  groups.leased_ms is
 * stored time (core_wall_us), which setting the machine's clock does not change.  Time that does not count is added
 * up in memory and put on top of leased_ms before a group is judged.  After a restart the count begins anew, because
 * the time in which no server was ready is not stored.  The earliest deadline is remembered, so a look costs little
 * when nothing is due. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H
#define LEASEHOLD_COORDINATOR_ROUNDS_GROUP_TIMEOUT_H

#include "services/coordinator/writer/core_state.h"

/* Why a group fails, and the kind of the incident that tells of it. */
struct group_failure {
  const char *incident, *reason;
};
/* The open group fails; the round goes on without it. */
enum rc group_fail(struct core *c, int64_t run, int64_t round, int64_t ordinal, const struct group_failure *why,
                   struct err *err);
enum rc groups_expire(struct core *c, struct err *err);

#endif

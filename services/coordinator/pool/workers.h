/* The registry of workers: incarnations are in the database, liveness is in memory.  When a generation-server
 * registers under a name that is taken, it is a new incarnation, and the old one's leases are lost.  Trainers:
 * trainer_place.h.
 *
 * Writer's thread only, inside the caller's savepoint; workers_max at once.  Called by the routes that workers use
 * and, as time passes, by tick.c.  A worker of another epoch, or one that is gone, is not believed (I9): it is told
 * to register again. */
#ifndef LEASEHOLD_COORDINATOR_POOL_WORKERS_H
#define LEASEHOLD_COORDINATOR_POOL_WORKERS_H

#include "services/coordinator/pool/pool.h"
#include "services/coordinator/writer/command.h"

/* workers.gone_reason of those that were live when the coordinator went down. */
#define SQL_GONE_BY_START "'the coordinator was started again'"

/* At the start of an epoch: no worker is live, granted leases are expired. */
enum rc workers_forget_all(struct core *c, struct err *err);
/* Ends workers that were silent too long. */
enum rc workers_expire(struct core *c, struct err *err);
/* Puts every worker's last sign of life off by so much. */
void workers_put_off(struct core *c, int64_t ms);
/* One more, whose row is stored; there must be room (workers_full). */
struct live_worker *worker_add(struct core *c, const struct live_worker *w);
bool workers_full(const struct core *c);
/* Does one address with one token hold so many places that the rest is kept for others? */
bool workers_share_full(const struct core *c, uint64_t origin);
/* Ends one: its leases are lost. */
enum rc worker_end(struct core *c, struct live_worker *w, const char *reason, struct err *err);
struct live_worker *worker_named(struct core *c, enum worker_kind kind, const char *name); /* NULL: none live */
struct live_worker *worker_live(struct core *c, int64_t id);                               /* NULL: it is gone */
/* The live worker that a path names; RC_NOT_FOUND, RC_CONFLICT for another epoch, RC_FORBIDDEN for another's token.
 * alive: counts as a sign of life. */
enum rc worker_of(struct core *c, const struct command *cmd, const char *id, uint64_t epoch, bool alive,
                  struct live_worker **out, struct err *err);
/* RC_FORBIDDEN: the worker is live, and the caller's token is another's (owners.h). */
enum rc worker_owner_check(struct core *c, const struct command *cmd, int64_t id, struct err *err);
/* Whether it takes leases; its row is the caller's. */
void worker_ready(struct core *c, struct live_worker *w, bool ready);
int workers_generating(const struct core *c); /* live generation-servers that are ready */

/* What a worker that has these weights loaded may draw samples from: `current`, or of an `inflight` run an older
 * version that is not too old; has false: nothing.  Strings are current's. */
enum rc held_version(struct core *c, const struct digest *loaded, const struct current_version *current,
                     struct current_version *out, struct err *err);
/* A server has this version loaded: so it was not skipped. */
enum rc version_activated(struct core *c, int64_t run, int64_t version, struct err *err);
/* The version that workers are told to hold: the last run's current one.  None while trouble has paused the run,
 * because the trainer may not hold these weights any more.  Strings live in the arena. */
enum rc current_version_now(struct core *c, struct current_version *out, struct arena *arena, struct err *err);

#endif

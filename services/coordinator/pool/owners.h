/* Finds the owner of a worker's name: the holder of the token that took it (common/http/trust/tokens.h).
 *
 * A name is taken by its first registration and stays taken when its worker is gone: its newest row in the database
 * says whose it is.  It is free again once no token of that holder is accepted any more; an admin may take any.
 * Without tokens, names have no owner.  Registrations that no run has used leave one row per name, and at most
 * OWNERS_KEPT in all; rows that runs refer to are retention's concern.
 *
 * On the writer's thread, inside the caller's savepoint. */
#ifndef LEASEHOLD_COORDINATOR_POOL_OWNERS_H
#define LEASEHOLD_COORDINATOR_POOL_OWNERS_H

#include "services/coordinator/pool/pool.h"
#include "services/coordinator/writer/command.h"

enum { OWNERS_KEPT = 4096 };

/* RC_FORBIDDEN: the caller of cmd has another's token than the one that registered this worker. */
enum rc owner_check(const struct core *c, const struct command *cmd, const struct live_worker *w, struct err *err);
/* May the caller register under this name?  RC_FORBIDDEN: it is another's, or its token is of the wrong role for the
 * kind. */
enum rc owner_may_take(struct core *c, const struct command *cmd, enum worker_kind kind, const char *name,
                       struct err *err);
/* Drops rows of registrations that came to nothing: of this name, and the oldest of all names beyond OWNERS_KEPT. */
enum rc owners_prune(struct core *c, enum worker_kind kind, const char *name, struct err *err);

#endif

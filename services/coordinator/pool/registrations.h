/* Judges a registration before the writer sees it: does the URL lead back to the worker that registers it, and has this
 * caller registered too often lately?
 *
 * Trainers push weights to the URL, and the coordinator calls it, so its host must be the address that the request came
 * from, unless --allow-hosts names it.  Workers that only pull are never called: rollout-agents, preprocessors.  HTTP
 * threads; pool->registrations.mutex is held for a look-up. */
#ifndef LEASEHOLD_COORDINATOR_POOL_REGISTRATIONS_H
#define LEASEHOLD_COORDINATOR_POOL_REGISTRATIONS_H

#include "common/http/handler.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/writer/command.h"

/* cmd->message: a checked struct worker_register.  Leaves a hash of the caller's address and token in cmd->prepared.
 * RC_INVALID: the URL's host is not the caller's address; RC_FULL: too often. */
enum rc registration_admit(struct core *c, struct http_request *r, struct command *cmd, struct err *err);

/* Two processes have one name: each registers again as soon as the other has ended its leases.  One that was started
 * again elsewhere does not come back to where it was.  Writer: w registers where `old`, of the same name, is live. */
void registration_compare(struct core *c, struct live_worker *w, const char *url, const struct live_worker *old);
/* When such a name last changed hands, by the wall clock; 0: not lately.  Any thread. */
int64_t registration_shared_ms(struct core *c, enum worker_kind kind, const char *name, int64_t wall_ms);

#endif

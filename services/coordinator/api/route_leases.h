/* POST /v1/workers/{id}/leases: the long poll by which generation-servers pull work.
 *
 * Decoded on an HTTP thread, carried out (and parked) by the writer; the request is suspended meanwhile and answered
 * by its deadline at the latest.  A caller that hung up is granted nothing.
 *
 * Previous hop of a rollout: leases.c.  Next: the generation-server's engine. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_LEASES_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_LEASES_H

#include "services/coordinator/writer/command.h"

void handle_lease_poll(struct http_request *r, void *context);

/* On the writer's thread; without HTTP for tests and the simulation. */
enum rc poll_execute(struct core *c, struct command *cmd, struct err *err); /* cmd->message: struct lease_request */

#endif

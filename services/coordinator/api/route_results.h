/* PUT /v1/leases/{id}/result: accepted in one transaction, or refused (I3).
 *
 * Decoded on an HTTP thread into the command's arena, checked and stored by the writer.  A refusal is counted, and a
 * repeat with other content is an incident; nothing else of a refused result is stored.
 *
 * Previous hop of a rollout: generation-server/worker/leases.c.  Next: rounds/group_seal.c. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_RESULTS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_RESULTS_H

#include "services/coordinator/writer/command.h"

void handle_put_result(struct http_request *r, void *context);

/* On the writer's thread; without HTTP for tests and the simulation. */
enum rc result_execute(struct core *c, struct command *cmd, struct err *err); /* cmd->message: struct lease_result */

#endif

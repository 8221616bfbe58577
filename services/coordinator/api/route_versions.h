/* POST /v1/versions: the trainer announces a durable version.
 *
 * Decoded on an HTTP thread, carried out by the writer: the announcer must be a live trainer with the newest fence,
 * then publish.c decides.  The driver's way to the same publication is driver/step.c. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_VERSIONS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_VERSIONS_H

#include "services/coordinator/writer/command.h"

void handle_post_version(struct http_request *r, void *context);

/* On the writer's thread; without HTTP for the simulation.  cmd->message: struct version_announce. */
enum rc version_execute(struct core *c, struct command *cmd, struct err *err);

#endif

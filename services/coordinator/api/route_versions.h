/* POST /v1/versions: the trainer announces a durable version.
 *
 * Decoded on an HTTP thread, carried out by the writer: the announcer must be a live trainer with the newest fence,
 * then publish.c decides.  The driver's way to the same publication is driver/step.c. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_VERSIONS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_VERSIONS_H

#include "common/http/server.h"

void handle_post_version(struct http_request *r, void *context);

#endif

/* POST /v1/versions: the trainer announces a durable version. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_VERSIONS_H
#define LEASEHOLD_COORDINATOR_ROUTE_VERSIONS_H

#include "common/http/server.h"

void handle_post_version(struct http_request *r, void *context);

#endif

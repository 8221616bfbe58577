/* POST /v1/workers/{id}/leases: the long poll by which generation-servers pull work. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_LEASES_H
#define LEASEHOLD_COORDINATOR_ROUTE_LEASES_H

#include "common/http/server.h"

void handle_lease_poll(struct http_request *r, void *context);

#endif

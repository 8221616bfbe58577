/* GET /readyz: 200 while the writer lives and its queue is not full. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_HEALTH_H
#define LEASEHOLD_COORDINATOR_ROUTE_HEALTH_H

#include "common/http/server.h"

void handle_readyz(struct http_request *r, void *context);

#endif

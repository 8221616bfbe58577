/* GET /v1/runs/{id}/timeline: when each round did what, and who contributed. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_TIMELINE_H
#define LEASEHOLD_COORDINATOR_ROUTE_TIMELINE_H

#include "common/http/server.h"

void handle_get_timeline(struct http_request *r, void *context);

#endif

/* GET /v1/runs/{id}/events: server-sent events; see events.h. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_EVENTS_H
#define LEASEHOLD_COORDINATOR_ROUTE_EVENTS_H

#include "common/http/server.h"

void handle_get_events(struct http_request *r, void *context);

#endif

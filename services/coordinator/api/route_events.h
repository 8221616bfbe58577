/* GET /v1/runs/{id}/events: server-sent events; see events.h.
 *
 * An HTTP thread parses where the client left off and hands the request to the hub, which owns it from then on.
 * Nothing is kept here; the stream's memory is bounded by the hub and by common/http/stream.c. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_EVENTS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_EVENTS_H

#include "common/http/server.h"

void handle_get_events(struct http_request *r, void *context);

#endif

/* GET /v1/runs/{id}/timeline: when each round did what, and who contributed.
 *
 * An HTTP thread on a reader's snapshot; unfinished rounds are shown too, what has not happened is null.  Wall-clock
 * times, as they were recorded: for people and plots, nothing decides by them. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_TIMELINE_H
#define LEASEHOLD_COORDINATOR_ROUTE_TIMELINE_H

#include "common/http/server.h"

void handle_get_timeline(struct http_request *r, void *context);

#endif

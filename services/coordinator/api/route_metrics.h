/* GET /metrics: the gauges of the newest run, read from a snapshot when they are asked for, then all metrics.
 *
 * An HTTP thread; costs the writer nothing.  When no snapshot can be taken the gauges keep their last values. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_METRICS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_METRICS_H

#include "common/http/server.h"

void handle_get_metrics(struct http_request *r, void *context);

#endif

/* GET /metrics: the gauges of the newest run, read from a snapshot when they are asked for, then all metrics.
 *
 * An HTTP thread; costs the writer nothing.  When the snapshot cannot be had the gauges keep what they last showed. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_METRICS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_METRICS_H

#include "common/http/server.h"

void handle_get_metrics(struct http_request *r, void *context);

#endif

/* GET /v1/runs/{id}/timeline: when each round did what, who contributed, what every worker did meanwhile and the sums
 * of that by cause.
 *
 * An HTTP thread on a reader's snapshot; unfinished rounds are shown too, and what has not happened is null.  Times are
 * wall-clock times as their senders recorded them: they are for people and plots, and decide nothing.
 *
 * The answer is bounded: TIMELINE_INTERVALS are shared by the workers; one that has more than its share in the asked
 * rounds' window is cut at the end and says so.  Only the newest INTERVAL_ROWS_MAX rows of intervals are kept; the
 * sums stay. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_TIMELINE_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_TIMELINE_H

#include "common/http/server.h"

enum { TIMELINE_INTERVALS = 50000, TIMELINE_WORKERS = 1000 };

void handle_get_timeline(struct http_request *r, void *context);

#endif

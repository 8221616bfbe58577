/* GET /readyz: 200 while the writer lives and its queue is not full, else 503 with a sentence.
 *
 * An HTTP thread; looks at two counters of the core, takes no lock that the writer holds for long, and does not
 * read the database: it must answer even when no other route does.  /healthz and /metrics are common/http's. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_HEALTH_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_HEALTH_H

#include "common/http/server.h"

void handle_readyz(struct http_request *r, void *context);

#endif

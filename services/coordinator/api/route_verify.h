/* POST /v1/verify: what would a run's verifier make of these completions?
 *
 * A dry run: nothing is stored, and no run is needed.  The answer has each sample's reward, its terms' values and the
 * sentence that a run would keep with it, or why completions cannot be judged by that line.  Called on an offloaded
 * HTTP thread; pure but for the answer's memory. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_VERIFY_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_VERIFY_H

#include "common/http/server.h"

void handle_verify(struct http_request *r, void *context);

#endif

/* GET /v1/runs/{id}/rollouts: what was sampled, as text and ids, with rewards. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_ROLLOUTS_H
#define LEASEHOLD_COORDINATOR_ROUTE_ROLLOUTS_H

#include "common/http/server.h"

void handle_get_rollouts(struct http_request *r, void *context);

#endif

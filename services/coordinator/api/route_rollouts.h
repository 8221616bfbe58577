/* GET /v1/runs/{id}/rollouts: what was sampled, as text and ids, with rewards.
 *
 * An HTTP thread on a reader's snapshot; the answer is built in memory and bounded (413 beyond, asking for a smaller
 * limit), because one sample alone may have a hundred thousand tokens.  410 for a round that keep_rounds has dropped.
 * Reads only. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_ROLLOUTS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_ROLLOUTS_H

#include "common/http/server.h"

void handle_get_rollouts(struct http_request *r, void *context);

#endif

/* The routes that show samples: GET /v1/runs/{id}/rollouts, a round with everything; GET /v1/runs/{id}/samples, short
 * rows of all rounds that fit a search; GET /v1/groups/{id}, one group token by token; GET /v1/runs/{id}/spread, how
 * rewards and lengths are spread over samples.
 *
 * An HTTP thread on a reader's snapshot; the answer is built in memory and bounded (413 beyond, asking for a smaller
 * limit), because one sample alone may have a hundred thousand tokens.  410 for a round that keep_rounds has dropped.
 * Reads only. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_ROLLOUTS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_ROLLOUTS_H

#include "common/http/server.h"

void handle_get_rollouts(struct http_request *r, void *context);
void handle_get_samples(struct http_request *r, void *context);
void handle_get_group(struct http_request *r, void *context);
void handle_get_spread(struct http_request *r, void *context);

#endif

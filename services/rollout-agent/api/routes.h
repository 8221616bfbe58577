/* The agent's endpoints as a table for the HTTP layer: health and metrics. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_API_ROUTES_H
#define LEASEHOLD_ROLLOUT_AGENT_API_ROUTES_H

#include "common/http/server.h"

/* Static; every handler's context is struct agent (agent_state.h). */
const struct http_route *routes_all(size_t *count);

#endif

/* The server's endpoints as a table for the HTTP layer. */
#ifndef LEASEHOLD_GENERATION_SERVER_API_ROUTES_H
#define LEASEHOLD_GENERATION_SERVER_API_ROUTES_H

#include "common/http/server.h"

/* Static; every handler's context is struct server (server_state.h). */
const struct http_route *routes_all(size_t *count);

#endif

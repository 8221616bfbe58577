/* The coordinator's route table; one file pair per endpoint family, each named after its path.
 *
 * Every handler's context is the struct core.  Handlers run on the HTTP server's threads: GET reads a snapshot
 * (readers.h) and answers; everything else is decoded and checked there, then handed to the writer as a command
 * (core.h) and answered after its commit.  No handler waits.  `openapi/coordinator.yaml` is the contract. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTES_H
#define LEASEHOLD_COORDINATOR_API_ROUTES_H

#include "services/coordinator/writer/core.h"

extern const struct http_route coordinator_routes[];
extern const size_t coordinator_route_count;

#endif

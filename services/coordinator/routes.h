/* The coordinator's route table; one file pair per endpoint family.  Every handler's context is the struct core.
 * `openapi/coordinator.yaml` is the contract. */
#ifndef LEASEHOLD_COORDINATOR_ROUTES_H
#define LEASEHOLD_COORDINATOR_ROUTES_H

#include "services/coordinator/core.h"

extern const struct http_route coordinator_routes[];
extern const size_t coordinator_route_count;

#endif

/* PUT /v1/leases/{id}/result: accepted in one transaction, or refused (I3). */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_RESULTS_H
#define LEASEHOLD_COORDINATOR_ROUTE_RESULTS_H

#include "common/http/server.h"

void handle_put_result(struct http_request *r, void *context);

#endif

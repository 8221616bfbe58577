/* Checks of a set-up before a run is posted: POST /v1/check-run and POST /v1/check-disk. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_CHECKS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_CHECKS_H

#include "common/http/server.h"

void handle_check_run(struct http_request *r, void *context);
void handle_check_disk(struct http_request *r, void *context);

#endif

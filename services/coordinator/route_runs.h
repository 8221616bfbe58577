/* POST /v1/runs, GET /v1/runs, GET /v1/runs/{id}, GET /v1/runs/{id}/rounds. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_RUNS_H
#define LEASEHOLD_COORDINATOR_ROUTE_RUNS_H

#include "common/http/server.h"

void handle_post_run(struct http_request *r, void *context);
void handle_get_runs(struct http_request *r, void *context);
void handle_get_run(struct http_request *r, void *context);
void handle_get_rounds(struct http_request *r, void *context);

#endif

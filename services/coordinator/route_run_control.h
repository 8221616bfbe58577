/* POST /v1/runs/{id}/pause, /resume and /stop. */
#ifndef LEASEHOLD_COORDINATOR_ROUTE_RUN_CONTROL_H
#define LEASEHOLD_COORDINATOR_ROUTE_RUN_CONTROL_H

#include "common/http/server.h"

void handle_pause_run(struct http_request *r, void *context);
void handle_resume_run(struct http_request *r, void *context);
void handle_stop_run(struct http_request *r, void *context);

#endif

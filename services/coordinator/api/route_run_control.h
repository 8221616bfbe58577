/* POST /v1/runs/{id}/pause, /resume and /stop: idempotent, checked against the table of states.c.
 *
 * The handlers only hand a command to the writer, where the change is made in one transaction with its event.  The
 * driver sees the new state at its next look and must not be called from here. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_RUN_CONTROL_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_RUN_CONTROL_H

#include "common/http/server.h"

void handle_pause_run(struct http_request *r, void *context);
void handle_resume_run(struct http_request *r, void *context);
void handle_stop_run(struct http_request *r, void *context);

#endif

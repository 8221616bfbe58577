/* POST /v1/runs, GET /v1/runs, GET /v1/runs/{id}, GET /v1/runs/{id}/rounds.
 *
 * A run's configuration is parsed, resolved and hashed on an HTTP thread, and checked there (driver/run_check.c: no
 * file access on the writer); the writer queues it.  The reads are run_view.c and round_view.c on a reader's
 * snapshot.
 *
 * Next: the driver (driver/start.c) opens the run when its turn comes. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_RUNS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_RUNS_H

#include "common/http/server.h"

void handle_post_run(struct http_request *r, void *context);
void handle_get_runs(struct http_request *r, void *context);
void handle_get_run(struct http_request *r, void *context);
void handle_get_rounds(struct http_request *r, void *context);

#endif

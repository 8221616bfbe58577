/* POST /v1/runs, GET /v1/runs, GET /v1/runs/{id}, GET /v1/runs/{id}/rounds.
 *
 * A run's configuration is parsed, resolved and hashed on an HTTP thread, and checked there (trainer/run_check.c: no
 * file access on the writer); the writer queues it.  The reads are run_view.c and round_view.c on a reader's
 * snapshot.
 *
 * First hop of a rollout.  Next: driver/start.c opens the run when its turn comes, and rounds/round.c its round 0. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_RUNS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_RUNS_H

#include "common/http/server.h"
#include "services/coordinator/run/run_config.h"
#include "services/coordinator/writer/core.h"

void handle_post_run(struct http_request *r, void *context);
void handle_get_runs(struct http_request *r, void *context);
void handle_get_run(struct http_request *r, void *context);
void handle_get_rounds(struct http_request *r, void *context);
/* Gives the version that `start` names by a word its number, if it names one. */
enum rc run_start_find(struct core *c, struct run_config *config, struct err *err);

#endif

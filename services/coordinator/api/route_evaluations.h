/* GET /v1/runs/{id}/evaluation: an evaluation's problems, one by one.  GET /v1/compare: is one evaluation better than
 * another on the problems of both?
 *
 *   a: r1.5, b: r2.0 --their items, paired by content--> differences --evaluation/bootstrap.h--> interval, p value
 *
 * HTTP threads on a reader's snapshot.  Both answer from the items that are kept when rollouts are dropped.  A
 * comparison's work is bounded: COMPARE_DRAWS_MAX drawn problems in all, more are refused.  Reads only. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_EVALUATIONS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_EVALUATIONS_H

#include "common/http/server.h"

enum { COMPARE_DRAWS_MAX = 100000000, COMPARE_RESAMPLES_MAX = 1000000 };

void handle_get_evaluation(struct http_request *r, void *context);
void handle_compare(struct http_request *r, void *context);

#endif

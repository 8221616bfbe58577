/* The head of PUT /v1/leases/{id}/result: what its path and headers alone say is judged before its body is read.
 *
 *   headers --admit_result--> 404, 409, 403, 410, 422: answered, nothing of the body kept
 *                         --> body --> route_results.c: result_head_agrees, then the writer, which judges all of it again
 *
 * A result that was accepted may be repeated under an old epoch, and equal content is 200: then only the body can tell,
 * and it is read.  Without headers a result is judged by its body, when it is there. */
#ifndef LEASEHOLD_COORDINATOR_API_RESULT_HEAD_H
#define LEASEHOLD_COORDINATOR_API_RESULT_HEAD_H

#include "common/http/handler.h"
#include "common/wire/lease.h"

/* For http_route.admit, on a server thread: one look-up, through a reader's connection.  A refusal is counted. */
enum rc admit_result(struct http_request *r, void *context, struct err *err);
/* RC_INVALID when the headers say otherwise than the body. */
enum rc result_head_agrees(const struct http_request *r, const struct lease_result *m, struct err *err);

#endif

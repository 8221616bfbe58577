/* POST /v1/workers/{id}/passes and PUT /v1/passes/{id}/result.
 *
 * Decoded and checked on an HTTP thread, carried out by the writer (pool/passes.h).  A result's path and headers are
 * judged before its body is read, as those of leases are (result_head.h). */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_PASSES_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_PASSES_H

#include "services/coordinator/writer/command.h"

void handle_pass_poll(struct http_request *r, void *context);
/* For http_route.admit, on a server thread: one look-up. */
enum rc admit_pass_result(struct http_request *r, void *context, struct err *err);
void handle_put_pass_result(struct http_request *r, void *context);

/* On the writer's thread; without HTTP for tests. */
enum rc pass_poll_execute(struct core *c, struct command *cmd, struct err *err);   /* message: struct pass_request */
enum rc pass_result_execute(struct core *c, struct command *cmd, struct err *err); /* message: struct pass_result */

#endif

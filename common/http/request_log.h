/* Gives a request's log lines their context: its number, its trace, its id, the ids in its path.
 *
 * The thread that calls a request's handler has it as its log context from request_log_begin to request_log_end; work
 * that the handler hands to other threads takes it along (common/base/log.h). */
#ifndef LEASEHOLD_HTTP_REQUEST_LOG_H
#define LEASEHOLD_HTTP_REQUEST_LOG_H

#include "common/http/server_state.h"

/* The header has come: the request gets its trace and its id. */
void request_log_name(struct http_request *r);
void request_log_begin(struct http_request *r);
void request_log_end(void);
/* At level debug, how it was answered.  On the connection's thread, before the answer is queued. */
void request_log_answered(struct http_request *r, int status);

#endif

/* Judging a request by its head: token, path, method, announced body (request_head.c). */
#ifndef LEASEHOLD_HTTP_REQUEST_HEAD_H
#define LEASEHOLD_HTTP_REQUEST_HEAD_H

#include "common/http/server_state.h"

/* After the header has arrived: route, token, announced body size.  Sets refused_status on refusal. */
void request_begin(struct http_request *r, struct MHD_Connection *connection, const char *method);
/* Does the header announce one? */
bool request_has_body(const struct http_request *r);
/* Is the rest of a refused request's body not worth reading? */
bool request_answer_early(const struct http_request *r);

#endif

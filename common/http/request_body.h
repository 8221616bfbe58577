/* Collecting a request's body within its limits (request_body.c). */
#ifndef LEASEHOLD_HTTP_REQUEST_BODY_H
#define LEASEHOLD_HTTP_REQUEST_BODY_H

#include "common/http/server_state.h"

/* A request whose body is too long: `at_least` is "" or "at least ". */
void request_refuse_body(struct http_request *r, const char *at_least, uint64_t len);
/* False: the peer goes on sending a refused body without end, close the connection. */
bool request_collect(struct http_request *r, const char *bytes, size_t len);

#endif

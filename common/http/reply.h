/* The common parts of all kinds of answers: headers and the error body (reply.c). */
#ifndef LEASEHOLD_HTTP_REPLY_H
#define LEASEHOLD_HTTP_REPLY_H

#include "common/http/server_state.h"

void reply_error(struct http_request *r, int status, const struct err *err);
/* Puts content type and the request's reply headers on a response; NULL stays NULL. */
struct MHD_Response *reply_headers(struct http_request *r, struct MHD_Response *response, const char *content_type);

#endif

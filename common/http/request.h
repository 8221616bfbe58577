/* One request: made from its target, refused, freed with its last owner (request.c). */
#ifndef LEASEHOLD_HTTP_REQUEST_H
#define LEASEHOLD_HTTP_REQUEST_H

#include "common/http/server_state.h"

/* NULL when there is no memory.  A target that cannot be read makes a refused request.  place: of its connection. */
struct http_request *request_create(struct http_server *s, const char *target, struct http_connection *place);
/* The handler is not going to be called; the first refusal is answered instead. */
void request_refuse(struct http_request *r, int status, const struct err *err);
/* Gives `len` of the request's charge back to server->bodies_bytes. */
void request_uncharge(struct http_request *r, size_t len);
/* server->lock held on entry, released on return; the request may be freed. */
void request_unref_unlock(struct http_request *r);
void server_unref_unlock(struct http_server *s);

#endif

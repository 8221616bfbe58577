/* Handlers that take long run on threads of a pool (offload.c). */
#ifndef LEASEHOLD_HTTP_OFFLOAD_H
#define LEASEHOLD_HTTP_OFFLOAD_H

#include "common/http/server_state.h"

enum rc offload_start(struct http_server *s, struct err *err);
/* Waits for the handlers that run; nothing may be submitted any more. */
void offload_stop(struct http_server *s);
/* Suspends the request and queues it for its handler; false when it has been refused instead. */
bool offload_submit(struct http_request *r);

#endif

/* Finding a request's handler in the table of routes, and calling it (route.c). */
#ifndef LEASEHOLD_HTTP_ROUTE_H
#define LEASEHOLD_HTTP_ROUTE_H

#include "common/http/server_state.h"

enum { ROUTE_ALLOW_MAX = 64 };
/* 200 (r->route, r->params set), 404, or 405 with the allowed methods in `allow`; r->write_error is set in any case. */
int route_match(struct http_request *r, const char *method, char allow[ROUTE_ALLOW_MAX]);
/* RC_INTERNAL: the service's table has a mistake. */
enum rc route_check(const struct http_route *routes, size_t count, struct err *err);
/* Calls the handler, and answers in its place when it neither replied nor suspended. */
void route_run(struct http_request *r);

#endif

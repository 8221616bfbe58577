/* The HTTP server of all three services, and the only user of libmicrohttpd.
 *
 * A service declares a table of routes (handler.h).  libmicrohttpd's threads (epoll, two of them) collect the request's
 * body under the route's limit, check the bearer token, match the route and call its handler.
 *
 * It speaks https only where the process has a certificate (tls.h), else http only.
 *
 * Connections are bounded, and so is the time that a request may take to come: connections.c.  All requests are
 * resumed before the daemon stops.
 */
#ifndef LEASEHOLD_HTTP_SERVER_H
#define LEASEHOLD_HTTP_SERVER_H

#include <stddef.h>

#include "common/base/rc.h"
#include "common/base/service_limits.h"
#include "common/http/handler.h"

struct http_access;
struct http_server;

struct http_server_options {
  const char *bind_address; /* "127.0.0.1" */
  int port;                 /* 0 picks a free one: see http_server_port */
  struct http_access *access; /* kept by reference; NULL: everybody may do everything */
  int threads;              /* libmicrohttpd's; 0 means 2 */
  struct service_limits limits;
  const struct http_route *routes;
  size_t route_count;
  /* NULL, or http_route.write_error of requests whose path no route has */
  void (*write_error)(struct buf *out, int *status, const struct err *err);
  void *context; /* handed to every handler */
  /* NULL, or why the service is not ready yet: until http_server_open only this module's own handlers and those of
   * `early` routes are called, others answer 503 with this text. */
  const char *closed;
};

/* RC_IO with "port N in use" when the port is taken. */
enum rc http_server_start(struct http_server **out, const struct http_server_options *options, struct err *err);
int http_server_port(const struct http_server *server);
/* Whether a server could listen there just now: the same errors. */
enum rc http_port_check(const char *address, int port, struct err *err);
/* The service is ready: handlers are called from now on, with this context. */
void http_server_open(struct http_server *server, void *context);
/* Refuses new requests with 503, cancels the suspended ones, waits up to drain_ms for open replies, stops.  NULL does
 * nothing. */
void http_server_stop(struct http_server *server, int drain_ms);

#endif

/* Judges a request by its head: client certificate, token, path, method, the announced body, the service's own
 * admission.
 *
 * Runs on libmicrohttpd's thread of the connection, once, when the header is complete and before any of the body is
 * read: a refused request costs no memory for its body.  The token is compared in constant time, before anything tells
 * whether the path exists.  Next: request_body.c, then the handler. */
#include "common/http/request_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/limits.h"
#include "common/http/reply.h"
#include "common/http/request.h"
#include "common/http/request_body.h"
#include "common/http/route.h"
#include "common/http/status.h"
#include "common/http/tls_server.h"

/* The time depends on the length of the given token, not on its content. */
static bool same_secret(const char *given, const char *secret) {
  size_t given_len = strlen(given), secret_len = strlen(secret);
  volatile unsigned char diff = given_len != secret_len;
  for (size_t i = 0; i < given_len; i++) diff = (unsigned char)(diff | (given[i] ^ secret[i % secret_len]));
  return diff == 0;
}

static bool authorized(const struct http_request *r) {
  if (r->server->token == NULL) return true;
  const char *header = http_header(r, MHD_HTTP_HEADER_AUTHORIZATION);
  if (header == NULL || strncasecmp(header, "Bearer ", 7) != 0) return false;
  return same_secret(header + 7, r->server->token);
}

/* The announced length; 0 when there is none (libmicrohttpd has refused a malformed one). */
static uint64_t announced_length(const struct http_request *r) {
  const char *header = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
  return header == NULL ? 0 : strtoull(header, NULL, 10);
}

bool request_has_body(const struct http_request *r) {
  return announced_length(r) > 0 || http_header(r, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
}

static bool needs_no_context(const struct http_route *route) {
  return route->early || route->handler == http_handle_healthz || route->handler == http_handle_metrics;
}

static void check_route(struct http_request *r, const char *method) {
  struct err err;
  char allow[ROUTE_ALLOW_MAX];
  int status = route_match(r, method, allow);
  bool open = r->route != NULL && r->route->open;
  const char *closed = atomic_load(&r->server->closed);
  if (!open && tls_server_admit(r->place, r->connection, &err) != RC_OK) {
    request_refuse(r, MHD_HTTP_FORBIDDEN, &err);
  } else if (!open && !authorized(r)) {
    err_set(&err, RC_FORBIDDEN, NULL, "a valid bearer token was expected in the Authorization header");
    http_set_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    request_refuse(r, MHD_HTTP_UNAUTHORIZED, &err);
  } else if (status == 405) {
    err_set(&err, RC_UNSUPPORTED, NULL, "method %s was expected on this path, but %.16s came", allow, method);
    http_set_header(r, MHD_HTTP_HEADER_ALLOW, allow);
    request_refuse(r, status, &err);
  } else if (status == 404) {
    err_set(&err, RC_NOT_FOUND, NULL, "no such path");
    request_refuse(r, status, &err);
  } else if (closed != NULL && !needs_no_context(r->route)) {
    err_set(&err, RC_UNAVAILABLE, NULL, "%s", closed);
    request_refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, &err);
  }
}

void request_begin(struct http_request *r, struct MHD_Connection *connection, const char *method) {
  r->begun = true;
  r->connection = connection;
  if (r->refused_status == 0) check_route(r, method);
  if (r->refused_status != 0) return;

  r->body_max = r->route->body_limit != NULL ? r->route->body_limit(r->server->context) : r->route->body_bytes_max;
  if (r->body_max == 0) r->body_max = LIMIT_BODY_BYTES;
  struct err err;
  uint64_t len = announced_length(r);
  if (r->route->admit != NULL && r->route->admit(r, r->server->context, &err) != RC_OK)
    request_refuse(r, http_status_of(err.rc), &err);
  else if (len > r->body_max)
    request_refuse_body(r, "", len);
  else if (len > 0)
    buf_reserve(&r->body, len < (1u << 20) ? (size_t)len : 1u << 20); /* never much on the peer's word alone */
}

bool request_answer_early(const struct http_request *r) {
  if (r->refused_status == 0) return false;
  return announced_length(r) > HTTP_REFUSED_BODY_BYTES || http_header(r, MHD_HTTP_HEADER_EXPECT) != NULL;
}

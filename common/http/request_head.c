/* Judges a request by its head: its form, client certificate, token, path, method, role, the announced body, the
 * service's own admission.
 *
 * Runs on libmicrohttpd's thread of the connection, once, when the header is complete and before any of the body is
 * read: a refused request costs no memory for its body.  The token is judged (tokens.h) before anything but the
 * form of the error tells whether the path exists.  Next: request_body.c, then the handler. */
#include "common/http/request_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/limits.h"
#include "common/http/head_rules.h"
#include "common/http/reply.h"
#include "common/http/request.h"
#include "common/http/request_body.h"
#include "common/http/request_log.h"
#include "common/http/route.h"
#include "common/http/status.h"
#include "common/http/tls_server.h"

enum identity { KNOWN, UNKNOWN, OF_ANOTHER_ROLE };

static const char *shown_token(const struct http_request *r) {
  static const char scheme[] = "Bearer ";
  const char *header = http_header(r, MHD_HTTP_HEADER_AUTHORIZATION);
  const bool bearer = header != NULL && strncasecmp(header, scheme, sizeof scheme - 1) == 0;
  return bearer ? header + sizeof scheme - 1 : NULL;
}

static unsigned roles_of(const struct http_route *route) { return route->roles == 0 ? HTTP_ADMIN : route->roles; }

/* Without a route any token will do. */
static enum identity identify(struct http_request *r) {
  struct tokens *tokens = r->server->access == NULL ? NULL : r->server->access->tokens;
  if (tokens == NULL || !tokens_wanted(tokens)) return KNOWN;
  const char *token = shown_token(r);
  if (token == NULL || !tokens_know(tokens, token, &r->caller)) return UNKNOWN;
  digest_of(&r->token, token, strlen(token));
  return r->route == NULL || (r->caller.roles & (roles_of(r->route) | HTTP_ADMIN)) ? KNOWN : OF_ANOTHER_ROLE;
}

/* "admin, worker" */
static void name_roles(char *out, size_t size, unsigned roles) {
  size_t used = 0;
  out[0] = '\0';
  for (unsigned role = HTTP_ADMIN; role <= HTTP_PUSH && used < size; role <<= 1) {
    if (!(roles & role)) continue;
    const int len = snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "", token_role_name(role));
    used += len > 0 ? (size_t)len : 0;
  }
}

static void refuse_role(struct http_request *r) {
  struct err err;
  char wanted[64], has[64];
  name_roles(wanted, sizeof wanted, roles_of(r->route) | HTTP_ADMIN);
  name_roles(has, sizeof has, r->caller.roles);
  err_set(&err, RC_FORBIDDEN, NULL, "a token of role %s was expected for %s %s, but one of role %s came", wanted,
          r->route->method, r->route->path, has);
  request_refuse(r, MHD_HTTP_FORBIDDEN, &err);
}

struct token_claim http_caller(const struct http_request *r) { return r->caller; }

/* The announced length; 0 when there is none (libmicrohttpd has refused a malformed one). */
static uint64_t announced_length(const struct http_request *r) {
  const char *header = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
  return header == NULL ? 0 : strtoull(header, NULL, 10);
}

bool request_has_body(const struct http_request *r) {
  return announced_length(r) > 0 || http_header(r, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
}

static void check_head(struct http_request *r, const char *method) {
  struct err err;
  bool ends;
  const int status = head_rules_check(r, method, &ends, &err);
  if (status != 0) request_refuse(r, status, &err);
  if (ends) http_set_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
  r->ambiguous = ends;
}

static bool needs_no_context(const struct http_route *route) {
  return route->early || route->handler == http_handle_healthz || route->handler == http_handle_metrics;
}

static void check_route(struct http_request *r, const char *method) {
  struct err err;
  char allow[ROUTE_ALLOW_MAX];
  int status = route_match(r, method, allow);
  const bool open = r->route != NULL && (r->route->roles & HTTP_OPEN);
  const char *closed = atomic_load(&r->server->closed);
  const bool admitted = open || tls_server_admit(r->server, r->place, r->connection, &err) == RC_OK;
  const enum identity identity = open || !admitted ? KNOWN : identify(r);
  if (!admitted) {
    request_refuse(r, MHD_HTTP_FORBIDDEN, &err);
  } else if (identity == UNKNOWN) {
    err_set(&err, RC_FORBIDDEN, NULL, "a valid bearer token was expected in the Authorization header");
    http_set_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    request_refuse(r, MHD_HTTP_UNAUTHORIZED, &err);
  } else if (identity == OF_ANOTHER_ROLE) {
    refuse_role(r);
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

/* What a body is decoded by is not offered: bytes that were packed would be told to be bad JSON. */
static void check_encoding(struct http_request *r) {
  struct err err;
  const char *encoding = http_header(r, MHD_HTTP_HEADER_CONTENT_ENCODING);
  if (encoding == NULL || strcasecmp(encoding, "identity") == 0 || !request_has_body(r)) return;
  err_set(&err, RC_UNSUPPORTED, MHD_HTTP_HEADER_CONTENT_ENCODING,
          "an unencoded body was expected, but one of encoding \"%.40s\" came: send it without Content-Encoding",
          encoding);
  request_refuse(r, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, &err);
}

void request_begin(struct http_request *r, struct MHD_Connection *connection, const char *method) {
  r->begun = true;
  r->connection = connection;
  request_log_name(r);
  if (r->refused_status == 0) check_head(r, method);
  if (r->refused_status == 0) check_route(r, method);
  if (r->refused_status == 0) check_encoding(r);
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
  if (r->ambiguous) return true; /* what follows is no body that anyone could agree on */
  return announced_length(r) > HTTP_REFUSED_BODY_BYTES || http_header(r, MHD_HTTP_HEADER_EXPECT) != NULL;
}

/* Collects a request's body and parses it as JSON, both within limits.
 *
 * Runs on libmicrohttpd's thread of the connection until the body is complete; the JSON is parsed when the handler asks
 * for it.  Many peers, each within its route's limit, could still fill the memory together, so every byte of a body and
 * of its JSON is charged to server->bodies_bytes, and given back when the body is freed (request.c). */
#include "common/http/request_body.h"

#include "common/base/limits.h"
#include "common/http/request.h"
#include "common/http/status.h"

static size_t bodies_limit(const struct http_request *r) {
  const size_t twice = r->body_max > SIZE_MAX / 2 ? SIZE_MAX : 2 * r->body_max;
  return twice > LIMIT_HTTP_BODIES_BYTES ? twice : LIMIT_HTTP_BODIES_BYTES;
}

static enum rc body_charge(struct http_request *r, size_t len, struct err *err) {
  const size_t limit = bodies_limit(r);
  const size_t before = atomic_fetch_add(&r->server->bodies_bytes, len);
  r->body_charged += len;
  if (before <= limit && len <= limit - before) return RC_OK;
  return err_set(err, RC_FULL, NULL,
                 "request bodies take %zu bytes already, parsed ones with their JSON, at most %zu were expected",
                 before, limit);
}

void request_refuse_body(struct http_request *r, const char *at_least, uint64_t len) {
  struct err err;
  err_set(&err, RC_TOO_LARGE, NULL, "a body of at most %zu bytes was expected, but %s%llu came", r->body_max, at_least,
          (unsigned long long)len);
  request_refuse(r, MHD_HTTP_CONTENT_TOO_LARGE, &err);
}

bool request_collect(struct http_request *r, const char *bytes, size_t len) {
  if (r->refused_status == 0 && len > r->body_max - r->body.len)
    request_refuse_body(r, "at least ", (uint64_t)r->body.len + len);
  if (r->refused_status == 0) {
    struct err err;
    if (body_charge(r, len, &err) == RC_OK) {
      buf_append(&r->body, bytes, len);
      if (buf_check(&r->body, &err) == RC_OK) return true;
    }
    request_refuse(r, http_status_of(err.rc), &err);
  }
  http_release_body(r);
  r->discarded += len;
  return r->discarded <= r->body_max + HTTP_REFUSED_BODY_BYTES;
}

static enum rc parse_json(struct http_request *r, struct err *err) {
  struct json_size size;
  size_t len;
  const size_t nodes_max = r->route->json_nodes_max == 0 ? LIMIT_JSON_NODES : r->route->json_nodes_max;
  const char *bytes = http_body(r, &len);
  if (len == 0) return err_set(err, RC_INVALID, NULL, "a JSON body was expected, but none came");
  enum rc rc = json_measure(&size, bytes, len, r->body_max, nodes_max, err);
  if (rc != RC_OK) return rc;
  if (size.memory > bodies_limit(r) - r->body_charged)
    return err_set(err, RC_TOO_LARGE, NULL,
                   "a body of %zu bytes with %zu JSON values and members takes up to %zu bytes more, at most %zu were "
                   "expected of all bodies together",
                   len, size.nodes, size.memory, bodies_limit(r));
  rc = body_charge(r, size.memory, err);
  if (rc == RC_OK) rc = json_parse_measured(&r->json, bytes, len, &size, err);
  if (rc != RC_OK) request_uncharge(r, size.memory);
  return rc;
}

enum rc http_body_json(struct http_request *r, const struct json **out, struct err *err) {
  const enum rc rc = r->json == NULL ? parse_json(r, err) : RC_OK;
  if (rc == RC_OK) *out = r->json;
  return rc;
}

enum rc http_body_json_fitted(struct http_request *r, const struct json **out, struct err *err) {
  if (r->json == NULL && r->body.data != NULL) json_fit_numbers(r->body.data, r->body.len);
  return http_body_json(r, out, err);
}

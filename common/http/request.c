/* One request: its target, header, token and body, and its lifetime.
 *
 * libmicrohttpd shows the raw target first (request_create), then the complete header (request_begin), then the body
 * in pieces (request_collect).  A fault found on the way is kept in `refused` and answered in place of calling the
 * handler: at once when the peer announced a large body or waits for `100 Continue`, else after its (dropped) body,
 * because closing a socket with unread bytes resets the connection and would lose the answer. The token is compared
 * in constant time, before anything tells whether the path exists. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/limits.h"
#include "common/http/server_internal.h"
#include "common/http/status.h"

/* --- memory of bodies --- */

static size_t bodies_limit(const struct http_request *r) {
  const size_t twice = r->body_max > SIZE_MAX / 2 ? SIZE_MAX : 2 * r->body_max;
  return twice > LIMIT_HTTP_BODIES_BYTES ? twice : LIMIT_HTTP_BODIES_BYTES;
}

/* So many peers, each within its route's limit, could still fill the memory together. */
static enum rc body_charge(struct http_request *r, size_t len, struct err *err) {
  const size_t limit = bodies_limit(r);
  const size_t before = atomic_fetch_add(&r->server->bodies_bytes, len);
  r->body_charged += len;
  if (before <= limit && len <= limit - before) return RC_OK;
  return err_set(err, RC_FULL, NULL,
                 "request bodies take %zu bytes already, parsed ones with their JSON, at most %zu were expected",
                 before, limit);
}

static void body_uncharge(struct http_request *r, size_t len) {
  atomic_fetch_sub(&r->server->bodies_bytes, len);
  r->body_charged -= len;
}

static void body_free(struct http_request *r) {
  buf_free(&r->body);
  body_uncharge(r, r->body_charged);
}

void http_release_body(struct http_request *r) {
  json_free(r->json);
  r->json = NULL;
  body_free(r);
}

/* --- lifetime --- */

void server_unref_unlock(struct http_server *s) {
  bool last = --s->refs == 0;
  pthread_mutex_unlock(&s->lock);
  if (!last) return;
  pthread_cond_destroy(&s->queued);
  pthread_cond_destroy(&s->drained);
  pthread_mutex_destroy(&s->lock);
  connections_free(s);
  free(s->token);
  free(s);
}

void request_unref_unlock(struct http_request *r) {
  struct http_server *s = r->server;
  if (--r->refs > 0) {
    pthread_mutex_unlock(&s->lock);
    return;
  }
  *r->link = r->next;
  if (r->next != NULL) r->next->link = r->link;
  pthread_mutex_unlock(&s->lock); /* freeing what is large takes a while */
  http_release_body(r);
  pthread_mutex_lock(&s->lock);
  server_unref_unlock(s);
  if (r->response != NULL) MHD_destroy_response(r->response);
  buf_free(&r->unsent);
  arena_free(&r->arena);
  free(r);
}

static enum rc parse_path(struct http_request *r, const char *path, size_t len, struct err *err) {
  if (len == 0 || path[0] != '/')
    return err_set(err, RC_INVALID, NULL, "a request target that begins with '/' was expected");
  for (size_t begin = 1; begin <= len;) {
    size_t end = begin;
    while (end < len && path[end] != '/') end++;
    if (r->segment_count == HTTP_SEGMENTS_MAX)
      return err_set(err, RC_NOT_FOUND, NULL, "no path has more than %d segments", HTTP_SEGMENTS_MAX);
    enum rc rc = percent_decode(&r->arena, path + begin, end - begin, false, &r->segments[r->segment_count++], err);
    if (rc != RC_OK) return rc;
    begin = end + 1;
  }
  return RC_OK;
}

static enum rc parse_query(struct http_request *r, const char *query, struct err *err) {
  while (*query != '\0') {
    size_t len = strcspn(query, "&"), name_len = strcspn(query, "=&");
    if (len > 0) {
      if (r->query_count == HTTP_QUERY_MAX)
        return err_set(err, RC_INVALID, NULL, "at most %d query parameters were expected, but more came",
                       HTTP_QUERY_MAX);
      struct http_pair pair = {NULL, ""};
      enum rc rc = percent_decode(&r->arena, query, name_len, true, &pair.name, err);
      if (rc == RC_OK && name_len < len)
        rc = percent_decode(&r->arena, query + name_len + 1, len - name_len - 1, true, &pair.value, err);
      if (rc != RC_OK) return rc;
      if (http_query(r, pair.name) != NULL)
        return err_set(err, RC_INVALID, pair.name, "one value of query parameter \"%s\" was expected, but two came",
                       pair.name);
      r->query[r->query_count++] = pair;
    }
    query += len;
    if (*query == '&') query++;
  }
  return RC_OK;
}

struct http_request *request_create(struct http_server *s, const char *target) {
  struct http_request *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->server = s;
  r->refs = 1;

  struct err err;
  size_t len = strlen(target), path_len = strcspn(target, "?");
  if (len > LIMIT_HTTP_URL_BYTES) {
    err_set(&err, RC_TOO_LARGE, NULL, "at most %d bytes of request target were expected, but %zu came",
            LIMIT_HTTP_URL_BYTES, len);
    request_refuse(r, MHD_HTTP_URI_TOO_LONG, &err);
  } else if (parse_path(r, target, path_len, &err) != RC_OK ||
             (path_len < len && parse_query(r, target + path_len + 1, &err) != RC_OK)) {
    request_refuse(r, http_status_of(err.rc), &err);
  }

  pthread_mutex_lock(&s->lock);
  s->refs++;
  r->next = s->requests;
  r->link = &s->requests;
  if (r->next != NULL) r->next->link = &r->next;
  s->requests = r;
  pthread_mutex_unlock(&s->lock);
  return r;
}

void request_refuse(struct http_request *r, int status, const struct err *err) {
  if (r->refused_status != 0) return;
  r->refused_status = status;
  r->refused = *err;
}

/* --- the header --- */

/* The time depends on the length of what came, not on its content. */
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

/* Of handlers that need no context. */
static bool is_standard(const struct http_route *route) {
  return route->handler == http_handle_healthz || route->handler == http_handle_metrics;
}

static void check_route(struct http_request *r, const char *method) {
  struct err err;
  char allow[ROUTE_ALLOW_MAX];
  int status = route_match(r, method, allow);
  bool open = r->route != NULL && r->route->open;
  const char *closed = atomic_load(&r->server->closed);
  if (!open && !authorized(r)) {
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
  } else if (closed != NULL && !is_standard(r->route)) {
    err_set(&err, RC_UNAVAILABLE, NULL, "%s", closed);
    request_refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, &err);
  }
}

static void refuse_body(struct http_request *r, const char *at_least, uint64_t len) {
  struct err err;
  err_set(&err, RC_TOO_LARGE, NULL, "a body of at most %zu bytes was expected, but %s%llu came", r->body_max, at_least,
          (unsigned long long)len);
  request_refuse(r, MHD_HTTP_CONTENT_TOO_LARGE, &err);
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
    refuse_body(r, "", len);
  else if (len > 0)
    buf_reserve(&r->body, len < (1u << 20) ? (size_t)len : 1u << 20); /* never much on the peer's word alone */
}

/* --- the body --- */

bool request_answer_early(const struct http_request *r) {
  if (r->refused_status == 0) return false;
  return announced_length(r) > HTTP_REFUSED_BODY_BYTES || http_header(r, MHD_HTTP_HEADER_EXPECT) != NULL;
}

bool request_collect(struct http_request *r, const char *bytes, size_t len) {
  if (r->refused_status == 0 && len > r->body_max - r->body.len)
    refuse_body(r, "at least ", (uint64_t)r->body.len + len);
  if (r->refused_status == 0) {
    struct err err;
    if (body_charge(r, len, &err) == RC_OK) {
      buf_append(&r->body, bytes, len);
      if (buf_check(&r->body, &err) == RC_OK) return true;
    }
    request_refuse(r, http_status_of(err.rc), &err);
  }
  body_free(r);
  r->discarded += len;
  return r->discarded <= r->body_max + HTTP_REFUSED_BODY_BYTES;
}

/* --- accessors --- */

const char *http_query(const struct http_request *r, const char *name) {
  for (int i = 0; i < r->query_count; i++)
    if (strcmp(r->query[i].name, name) == 0) return r->query[i].value;
  return NULL;
}

enum rc http_query_i64(const struct http_request *r, const char *name, int64_t default_value, int64_t min, int64_t max,
                       int64_t *out, struct err *err) {
  const char *text = http_query(r, name);
  if (text == NULL) {
    *out = default_value;
    return RC_OK;
  }
  char *end = NULL;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  bool digits = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
  if (!digits || *end != '\0' || errno != 0 || value < min || value > max)
    return err_set(err, RC_INVALID, name, "%s: an integer from %lld to %lld was expected, but \"%.64s\" came", name,
                   (long long)min, (long long)max, text);
  *out = value;
  return RC_OK;
}

const char *http_header(const struct http_request *r, const char *name) {
  return r->connection == NULL ? NULL : MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *http_body(const struct http_request *r, size_t *len) {
  *len = r->body.len;
  return r->body.data == NULL ? "" : r->body.data;
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
  if (rc != RC_OK) body_uncharge(r, size.memory);
  return rc;
}

enum rc http_body_json(struct http_request *r, const struct json **out, struct err *err) {
  const enum rc rc = r->json == NULL ? parse_json(r, err) : RC_OK;
  if (rc == RC_OK) *out = r->json;
  return rc;
}

struct arena *http_arena(struct http_request *r) {
  return &r->arena;
}

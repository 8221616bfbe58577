/* Makes a request from its target, frees it with its last owner, and lets a handler read it.
 *
 * libmicrohttpd shows the raw target first (request_create), then the complete header (request_head.c), then the body
 * in pieces (request_body.c).  A fault found on the way is kept in `refused` and answered in place of calling the
 * handler: at once when the peer announced a large body or waits for `100 Continue`, else after its (dropped) body,
 * because closing a socket with unread bytes resets the connection and would lose the answer.
 *
 * The path is decoded segment by segment, hence an escaped slash never changes which route is meant.  All of it lies
 * in the request's arena. */
#include "common/http/request.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/limits.h"
#include "common/http/status.h"

void request_uncharge(struct http_request *r, size_t len) {
  atomic_fetch_sub(&r->server->bodies_bytes, len);
  r->body_charged -= len;
}

void http_release_body(struct http_request *r) {
  json_free(r->json);
  r->json = NULL;
  buf_free(&r->body);
  request_uncharge(r, r->body_charged);
}

/* --- lifetime --- */

void server_unref_unlock(struct http_server *s) {
  bool last = --s->refs == 0;
  pthread_mutex_unlock(&s->lock);
  if (!last) return;
  pthread_cond_destroy(&s->pool.queued);
  pthread_cond_destroy(&s->drained);
  pthread_mutex_destroy(&s->lock);
  connections_free(&s->connections);
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
  pthread_mutex_unlock(&s->lock); /* freeing a large body takes a while */
  http_release_body(r);
  pthread_mutex_lock(&s->lock);
  server_unref_unlock(s);
  if (r->response != NULL) MHD_destroy_response(r->response);
  buf_free(&r->unsent);
  arena_free(&r->arena);
  free(r);
}

void request_refuse(struct http_request *r, int status, const struct err *err) {
  if (r->refused_status != 0) return;
  r->refused_status = status;
  r->refused = *err;
}

/* --- the target --- */

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

static enum rc percent_decode(struct arena *arena, const char *text, size_t len, bool plus_is_space, const char **out,
                              struct err *err) {
  char *decoded = arena_alloc(arena, len + 1, 1);
  if (decoded == NULL)
    return err_set(err, RC_NO_MEMORY, NULL, "no memory for %zu bytes of the request target", len + 1);
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    char c = text[i];
    if (c == '+' && plus_is_space) c = ' ';
    if (text[i] == '%') {
      int high = i + 1 < len ? hex_value(text[i + 1]) : -1, low = i + 2 < len ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0)
        return err_set(err, RC_INVALID, NULL,
                       "two hex digits were expected after '%%' in the request target, but \"%.*s\" came",
                       (int)(len - i < 3 ? len - i : 3), text + i);
      c = (char)(high << 4 | low);
      if (c == '\0')
        return err_set(err, RC_INVALID, NULL, "no NUL byte was expected in the request target, but %%00 came");
      i += 2;
    }
    decoded[n++] = c;
  }
  decoded[n] = '\0';
  *out = decoded;
  return RC_OK;
}

/* The path and query of a target in absolute form (RFC 9112 3.2.2), as clients behind a proxy's settings send it:
 * "http://host:8100/v1/x?y" is "/v1/x?y".  No route asks whose name the authority is.  Other targets stay. */
static const char *origin_form(const char *target) {
  const size_t scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
  const size_t authority = scheme ? strcspn(target + scheme, "/?") : 0;
  return authority ? target + scheme + authority : target;
}

static enum rc parse_path(struct http_request *r, const char *path, size_t len, struct err *err) {
  if (len == 0 || path[0] != '/')
    return err_set(err, RC_INVALID, NULL, "a request target that begins with '/' was expected");
  for (size_t begin = 1; begin <= len;) {
    size_t end = begin;
    while (end < len && path[end] != '/') end++;
    if (r->segment_count == HTTP_SEGMENTS_MAX)
      return err_set(err, RC_NOT_FOUND, NULL, "no path has more than %d segments", HTTP_SEGMENTS_MAX);
    enum rc rc = percent_decode(&r->arena, path + begin, end - begin, false, &r->segments[r->segment_count], err);
    if (rc != RC_OK) return rc;
    r->segment_count++;
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

struct http_request *request_create(struct http_server *s, const char *target, struct http_connection *place) {
  struct http_request *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->server = s;
  r->place = place;
  r->refs = 1;

  struct err err;
  r->target_end = target + strlen(target);
  const char *path = origin_form(target);
  const size_t target_len = strlen(target), len = strlen(path), path_len = strcspn(path, "?");
  if (target_len > LIMIT_HTTP_URL_BYTES) {
    err_set(&err, RC_TOO_LARGE, NULL, "at most %d bytes of request target were expected, but %zu came",
            LIMIT_HTTP_URL_BYTES, target_len);
    request_refuse(r, MHD_HTTP_URI_TOO_LONG, &err);
  } else if (parse_path(r, path_len ? path : "/", path_len ? path_len : path != target, &err) != RC_OK ||
             (path_len < len && parse_query(r, path + path_len + 1, &err) != RC_OK)) {
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

void http_take_body(struct http_request *r, struct buf *out) {
  *out = r->body;
  r->body = (struct buf)BUF_INIT;
}

bool http_body_is_bytes(const struct http_request *r) {
  return http_media_is_bytes(http_header(r, MHD_HTTP_HEADER_CONTENT_TYPE));
}

const char *http_peer(struct http_request *r) {
  char text[NI_MAXHOST];
  const union MHD_ConnectionInfo *info =
      r->connection == NULL ? NULL : MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  const struct sockaddr *from = info == NULL ? NULL : info->client_addr;
  const socklen_t len =
      from != NULL && from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  if (from == NULL || getnameinfo(from, len, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0) return "";
  const char *kept = arena_strdup(&r->arena, text);
  return kept == NULL ? "" : kept;
}

const char *http_request_id(const struct http_request *r) { return r->id; }

struct arena *http_arena(struct http_request *r) {
  return &r->arena;
}

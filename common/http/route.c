/* Finds a request's handler by its decoded path and its method, and calls it.
 *
 * The table is small and declared by the service, so it is walked in order: the first entry whose pattern and method
 * fit wins (put literal paths before {parameters} that would also match them).  Matching runs on libmicrohttpd's
 * threads, the handler there or on a thread of the pool (offload.c).  No state of its own. */
#include "common/http/route.h"

#include <string.h>

#include "common/http/request_log.h"

/* One segment of a pattern: its length; *rest points behind it. */
static size_t pattern_segment(const char *pattern, const char **rest) {
  size_t len = strcspn(pattern, "/");
  *rest = pattern + len;
  return len;
}

static bool pattern_fits(const char *pattern, const struct http_request *r, const char *params[HTTP_PARAMS_MAX]) {
  int count = 0;
  for (int i = 0; i < r->segment_count; i++) {
    if (*pattern != '/') return false;
    const char *segment = pattern + 1;
    size_t len = pattern_segment(segment, &pattern);
    if (segment[0] == '{') {
      if (r->segments[i][0] == '\0') return false;
      params[count++] = r->segments[i];
    } else if (strlen(r->segments[i]) != len || memcmp(r->segments[i], segment, len) != 0) {
      return false;
    }
  }
  return *pattern == '\0';
}

int route_match(struct http_request *r, const char *method, char allow[ROUTE_ALLOW_MAX]) {
  struct http_server *s = r->server;
  const char *params[HTTP_PARAMS_MAX];
  int status = 404;
  allow[0] = '\0';
  r->write_error = s->write_error;
  for (size_t i = 0; i < s->route_count; i++) {
    if (!pattern_fits(s->routes[i].path, r, params)) continue;
    if (strcmp(s->routes[i].method, method) == 0) {
      r->route = &s->routes[i];
      r->write_error = r->route->write_error;
      memcpy(r->params, params, sizeof r->params);
      return 200;
    }
    if (status == 404) r->write_error = s->routes[i].write_error;
    status = 405;
    size_t used = strlen(allow), more = strlen(s->routes[i].method);
    if (used + more + 3 > ROUTE_ALLOW_MAX) continue;
    if (used > 0) {
      memcpy(allow + used, ", ", 2);
      used += 2;
    }
    memcpy(allow + used, s->routes[i].method, more + 1);
  }
  return status;
}

enum rc route_check(const struct http_route *routes, size_t count, struct err *err) {
  if (count == 0) return err_set(err, RC_INTERNAL, NULL, "at least one route was expected, but the table is empty");
  for (size_t i = 0; i < count; i++) {
    const char *rest = routes[i].path;
    int segments = 0, params = 0;
    while (*rest == '/') {
      segments++;
      params += rest[1] == '{';
      pattern_segment(rest + 1, &rest);
    }
    if (routes[i].method == NULL || routes[i].handler == NULL || *rest != '\0' || segments == 0 ||
        segments > HTTP_SEGMENTS_MAX || params > HTTP_PARAMS_MAX || (routes[i].health && routes[i].offload))
      return err_set(err, RC_INTERNAL, NULL,
                     "route \"%s\": a method, a handler, 1 to %d segments, at most %d parameters, and not offload "
                     "and health at once were expected",
                     routes[i].path, HTTP_SEGMENTS_MAX, HTTP_PARAMS_MAX);
  }
  return RC_OK;
}

const char *http_param(const struct http_request *r, const char *name) {
  if (r->route == NULL) return NULL;
  size_t len = strlen(name);
  int count = 0;
  for (const char *rest = r->route->path; *rest == '/';) {
    const char *segment = rest + 1;
    size_t segment_len = pattern_segment(segment, &rest);
    if (segment[0] != '{') continue;
    if (segment_len == len + 2 && memcmp(segment + 1, name, len) == 0) return r->params[count];
    count++;
  }
  return NULL;
}

void route_run(struct http_request *r) {
  struct http_server *s = r->server;
  request_log_begin(r);
  r->route->handler(r, s->context);
  pthread_mutex_lock(&s->lock);
  const bool unanswered = r->state == HTTP_HANDLING;
  pthread_mutex_unlock(&s->lock);
  if (unanswered) {
    struct err err;
    err_set(&err, RC_INTERNAL, NULL, "the handler of %s %s neither replied nor suspended", r->route->method,
            r->route->path);
    http_fail(r, &err);
  }
  request_log_end();
}

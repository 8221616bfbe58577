/* Routes: from a decoded path and a method to a handler. The table is small and declared by the service, so it is
 * walked in order: the first entry whose pattern and method fit wins (put literal paths before {parameters} that
 * would swallow them).  Paths are decoded segment by segment, hence an escaped slash never changes which route is
 * meant.  Runs on libmicrohttpd's threads before the handler; no state of its own. */
#include <string.h>

#include "common/http/server_internal.h"

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

enum rc percent_decode(struct arena *arena, const char *text, size_t len, bool plus_is_space, const char **out,
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
  for (size_t i = 0; i < s->route_count; i++) {
    if (!pattern_fits(s->routes[i].path, r, params)) continue;
    if (strcmp(s->routes[i].method, method) == 0) {
      r->route = &s->routes[i];
      memcpy(r->params, params, sizeof r->params);
      return 200;
    }
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

/* Sets a request's log context, and logs that it was answered. */
#include "common/http/request_log.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/utf8.h"

static atomic_llong requests_seen;

struct trace_headers {
  const char *parent; /* NULL: it did not come */
  struct trace_state state;
};

/* More than one traceparent names no trace; of tracestate several fields are one list. */
static enum MHD_Result note_header(void *context, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct trace_headers *found = context;
  (void)kind;
  if (strcasecmp(name, "traceparent") == 0) found->parent = found->parent ? "" : value ? value : "";
  if (strcasecmp(name, "tracestate") == 0) trace_state_add(&found->state, value ? value : "");
  return MHD_YES;
}

static void trace_take(struct http_request *r) {
  struct trace_headers came = {0};
  struct trace theirs;
  if (r->connection != NULL) MHD_get_connection_values(r->connection, MHD_HEADER_KIND, note_header, &came);
  if (came.parent == NULL || !trace_parse(&theirs, came.parent)) {
    trace_begin(&r->trace);
    return;
  }
  trace_state_write(theirs.state, &came.state);
  trace_below(&r->trace, &theirs);
}

static int params_of(const struct http_route *route) {
  int count = 0;
  for (const char *at = route->path; (at = strstr(at, "/{")) != NULL; at++) count++;
  return count;
}

/* Of the client's making only what is short and harmless in a header and in a log: proxies set it, so another is no
 * reason to refuse the request. */
void request_log_name(struct http_request *r) {
  const char *given = http_header(r, "X-Request-Id");
  trace_take(r);
  const bool taken = given && *given && strlen(given) <= HTTP_REQUEST_ID_CHARS && ascii_visible(given);
  snprintf(r->id, sizeof r->id, "%s", taken ? given : r->trace.span);
}

void request_log_begin(struct http_request *r) {
  if (r->number == 0) {
    r->number = atomic_fetch_add(&requests_seen, 1) + 1;
    r->begun_us = clock_monotonic_us();
  }
  log_context_clear();
  log_context_number(LOG_REQUEST, r->number);
  log_context_set(LOG_REQUEST_ID, strcmp(r->id, r->trace.span) == 0 ? NULL : r->id);
  trace_set(&r->trace);
  for (int i = 0; r->route != NULL && i < params_of(r->route); i++) log_context_id(r->params[i]);
}

void request_log_end(void) { log_context_clear(); }

void request_log_answered(struct http_request *r, int status) {
  if (!log_wanted(LOG_DEBUG)) return;
  request_log_begin(r);
  log_debug("http: %s %s answered %d after %.3f ms, x-request-id %s", r->route ? r->route->method : "a request of",
            r->route ? r->route->path : "no route", status, (double)(clock_monotonic_us() - r->begun_us) * 1e-3, r->id);
  request_log_end();
}

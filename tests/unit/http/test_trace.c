/* W3C Trace Context: which headers are taken, that a handler and what it calls are in one trace, and that what is
 * malformed begins a new one. */
#include "http_test.h"

#include "common/http/trace.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static void test_headers_that_are_taken(void **state) {
  (void)state;
  static const char *const taken[] = {"00-" TRACE "-" SPAN "-01", "cc-" TRACE "-" SPAN "-01",
                                      "cc-" TRACE "-" SPAN "-01-what-the-future-will-be-like"};
  struct trace t;
  char header[TRACEPARENT_CHARS + 1];
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
    assert_true(trace_parse(&t, taken[i]));
    assert_string_equal(t.id, TRACE);
    assert_string_equal(t.span, SPAN);
    assert_string_equal(t.parent, "");
    traceparent_write(header, &t);
    assert_string_equal(header, taken[0]);
  }
  assert_true(trace_parse(&t, "00-" TRACE "-" SPAN "-fe") && !t.sampled);
  traceparent_write(header, &t);
  assert_string_equal(header, "00-" TRACE "-" SPAN "-00");
  assert_true(trace_parse(&t, "00-" TRACE "-" SPAN "-0b") && t.sampled);
}

static const char *const MALFORMED[] = {
    "",
    "00",
    "00-" TRACE "-" SPAN,
    "00-" TRACE "-" SPAN "-",
    "00-" TRACE "-" SPAN "-1",
    "00-" TRACE "-" SPAN "-01-more",
    "00-" TRACE "-" SPAN "-01 ",
    "00-" TRACE "-" SPAN "-0g",
    "ff-" TRACE "-" SPAN "-01",
    "0G-" TRACE "-" SPAN "-01",
    "cc-" TRACE "-" SPAN "-01x",
    "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
    "00-00000000000000000000000000000000-" SPAN "-01",
    "00-" TRACE "-0000000000000000-01",
    "00_" TRACE "_" SPAN "_01",
    "00-4bf92f3577b34da6a3ce929d0e0e473-" SPAN "-010",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",
};
enum { MALFORMED_COUNT = sizeof MALFORMED / sizeof MALFORMED[0] };

static void test_headers_that_are_malformed(void **state) {
  (void)state;
  struct trace t;
  assert_false(trace_parse(&t, NULL));
  for (size_t i = 0; i < MALFORMED_COUNT; i++)
    if (trace_parse(&t, MALFORMED[i])) fail_msg("\"%s\" was taken", MALFORMED[i]);
}

static void test_new_traces_and_spans(void **state) {
  (void)state;
  static const uint8_t zeros[24];
  struct trace a, b, below;
  char header[TRACEPARENT_CHARS + 1];
  trace_begin(&a);
  trace_begin(&b);
  assert_string_not_equal(a.id, b.id);
  trace_below(&below, &a);
  assert_string_equal(below.id, a.id);
  assert_string_equal(below.parent, a.span);
  assert_string_not_equal(below.span, a.span);
  trace_of_bytes(&a, zeros);
  traceparent_write(header, &a);
  assert_true(trace_parse(&b, header)); /* zeros alone would be no trace */
}

/* ---- a server ---- */

static char asked_url[128];

/* "TRACE SPAN PARENT" of its own thread; with ?ask=1 the same of a request that it makes to itself, in a second
 * line. */
static void handle_trace(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  struct trace t = {0};
  assert_true(trace_get(&t));
  buf_printf(&body, "%s %s %s\n", t.id, t.span, t.parent);
  if (http_query(r, "ask")) {
    struct http_client *http;
    struct http_answer answer;
    assert_int_equal(http_client_create(&http, NULL, NULL, NULL), RC_OK);
    const struct http_call call = {.method = "GET", .url = asked_url, .deadline_ms = PEER_WAIT_MS};
    assert_int_equal(http_client_call(http, &call, &answer, NULL), RC_OK);
    buf_append(&body, answer.body.data, answer.body.len);
    http_answer_free(&answer);
    http_client_destroy(http);
  }
  http_reply(r, 200, "text/plain", &body);
}

static const struct http_route ROUTES[] = {
    {.method = "GET", .path = "/trace", .handler = handle_trace},
    {.method = "GET", .path = "/offloaded", .handler = handle_trace, .offload = true},
};

static struct trace traced(const char *line) {
  struct trace t = {0};
  assert_true(sscanf(line, "%32[0-9a-f] %16[0-9a-f] %16[0-9a-f]", t.id, t.span, t.parent) >= 2);
  return t;
}

static struct trace ask_traced(int port, const char *path, const char *headers, struct trace *second) {
  char *answer = ask_line(port, path, headers), *body = strstr(answer, "\r\n\r\n");
  assert_non_null(body);
  const struct trace t = traced(body + 4);
  if (second) *second = traced(strchr(body + 4, '\n') + 1);
  free(answer);
  return t;
}

static void test_a_request_is_in_the_trace_that_it_names(void **state) {
  (void)state;
  struct http_server *server = serve(ROUTES, ROUTE_COUNT(ROUTES), NULL, NULL);
  const int port = http_server_port(server);
  static const char *const paths[] = {"GET /trace?ask=1", "GET /offloaded?ask=1"};
  snprintf(asked_url, sizeof asked_url, "http://127.0.0.1:%d/trace", port);
  for (int i = 0; i < 2; i++) {
    struct trace asked;
    const struct trace t = ask_traced(port, paths[i], "TraceParent: 00-" TRACE "-" SPAN "-01\r\n", &asked);
    assert_string_equal(t.id, TRACE);
    assert_string_equal(t.parent, SPAN);
    assert_string_equal(asked.id, TRACE);
    assert_string_equal(asked.parent, t.span); /* the handler's span made that request */
    assert_string_not_equal(asked.span, t.span);
  }
  struct trace none;
  assert_false(trace_get(&none)); /* this thread works for nobody, so its calls name no trace */
  http_server_stop(server, 1000);
}

static void test_what_is_malformed_begins_a_new_trace(void **state) {
  (void)state;
  struct http_server *server = serve(ROUTES, ROUTE_COUNT(ROUTES), NULL, NULL);
  const int port = http_server_port(server);
  char headers[512], before[TRACE_ID_CHARS + 1] = "";
  for (size_t i = 1; i <= MALFORMED_COUNT + 1; i++) { /* the last: two headers, each of which would be taken */
    if (i < MALFORMED_COUNT)
      snprintf(headers, sizeof headers, "traceparent: %s\r\n", MALFORMED[i]);
    else if (i == MALFORMED_COUNT)
      headers[0] = 0;
    else
      snprintf(headers, sizeof headers,
               "traceparent: 00-" TRACE "-" SPAN "-01\r\ntraceparent: 00-" TRACE "-" SPAN "-01\r\n");
    if (i < MALFORMED_COUNT && MALFORMED[i][strlen(MALFORMED[i]) - 1] == ' ') continue; /* HTTP drops it */
    const struct trace t = ask_traced(port, "GET /trace", headers, NULL);
    if (strcmp(t.id, TRACE) == 0 || t.parent[0]) fail_msg("it was taken: %s", headers);
    assert_string_not_equal(t.id, before); /* nor the trace of the request before, on the same thread */
    memcpy(before, t.id, sizeof before);
  }
  http_server_stop(server, 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_headers_that_are_taken),
      cmocka_unit_test(test_headers_that_are_malformed),
      cmocka_unit_test(test_new_traces_and_spans),
      cmocka_unit_test(test_a_request_is_in_the_trace_that_it_names),
      cmocka_unit_test(test_what_is_malformed_begins_a_new_trace),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("http/trace", tests, NULL, NULL);
}

/* Plain exchanges: routes, parameters, query, token, bodies and their limits, malformed input, files, one server per
 * port. */
#include "http_test.h"

#include "common/base/file.h"
#include "tests/unit/base/scratch.h"

static void handle_run(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  buf_printf(&body, "run=%s group=%s", http_param(r, "id"),
             http_param(r, "group") == NULL ? "-" : http_param(r, "group"));
  http_reply(r, 200, "text/plain", &body);
}

static void handle_query(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  int64_t wait_ms;
  if (http_query_i64(r, "wait_ms", 7, 0, 60000, &wait_ms, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  struct buf body = BUF_INIT;
  const char *name = http_query(r, "name");
  buf_printf(&body, "wait=%lld name=%s", (long long)wait_ms, name == NULL ? "absent" : name);
  http_reply(r, 200, "text/plain", &body);
}

static void handle_echo(struct http_request *r, void *context) {
  (void)context;
  size_t len;
  const char *bytes = http_body(r, &len);
  struct buf body = BUF_INIT;
  buf_printf(&body, "len=%zu ", len);
  buf_append(&body, bytes, len < 64 ? len : 64);
  http_reply(r, 201, "text/plain", &body);
}

static void handle_json(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  const struct json *value, *again;
  if (http_body_json(r, &value, &err) != RC_OK || http_body_json(r, &again, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  assert_ptr_equal(value, again);
  http_set_header(r, "X-Leasehold-Digest", "abc");
  struct buf body = BUF_INIT;
  buf_printf(&body, "{\"members\":%zu}", json_length(value));
  http_reply_json(r, 200, &body);
}

static void handle_full(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  err_set(&err, RC_FULL, "slots", "at most 4 requests were expected");
  http_fail(r, &err);
}

static size_t late_limit = 16; /* what a service has learned since the start */

static size_t limit_by_now(void *context) {
  assert_non_null(context);
  return late_limit;
}

/* Answers after its body has been given up. */
static void handle_released(struct http_request *r, void *context) {
  (void)context;
  size_t before, after;
  http_body(r, &before);
  http_release_body(r);
  http_body(r, &after);
  struct buf body = BUF_INIT;
  buf_printf(&body, "before=%zu after=%zu", before, after);
  http_reply(r, 200, "text/plain", &body);
}

static void handle_silent(struct http_request *r, void *context) {
  (void)r;
  (void)context;
}

static void handle_file(struct http_request *r, void *context) {
  http_reply_file(r, "application/octet-stream", http_query(r, "missing") != NULL ? "/nonexistent/x" : context);
}

static void handle_unoffered(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  err_set(&err, RC_UNSUPPORTED, NULL, "not here");
  http_fail(r, &err);
}

/* The errors of a route whose clients know another form. */
static void write_teapot(struct buf *out, int *status, const struct err *err) {
  *status = 418;
  buf_printf(out, "{\"teapot\":\"%s\"}", err->message);
}

static void handle_event(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  struct buf event = BUF_INIT;
  err_set(&err, RC_FULL, NULL, "full in the middle");
  http_stream_begin(r, 200, "text/event-stream");
  buf_puts(&event, "data: ");
  http_write_error(r, &event, &err);
  assert_int_equal(http_stream_write(r, event.data, event.len), RC_OK);
  http_stream_end(r);
  buf_free(&event);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/v1/runs/latest", .handler = handle_query},
    {.method = "GET", .path = "/v1/runs/{id}", .handler = handle_run},
    {.method = "GET", .path = "/v1/runs/{id}/groups/{group}", .handler = handle_run},
    {.method = "POST", .path = "/v1/echo", .handler = handle_echo, .body_bytes_max = 1024},
    {.method = "PUT", .path = "/v1/echo", .handler = handle_echo, .body_bytes_max = 64u << 20},
    {.method = "POST", .path = "/v1/json", .handler = handle_json},
    {.method = "GET", .path = "/v1/full", .handler = handle_full},
    {.method = "GET", .path = "/v1/unoffered", .handler = handle_unoffered},
    {.method = "POST",
     .path = "/v1/teapot",
     .handler = handle_unoffered,
     .write_error = write_teapot,
     .body_bytes_max = 9},
    {.method = "GET", .path = "/v1/teapot/event", .handler = handle_event, .write_error = write_teapot},
    {.method = "GET", .path = "/v1/event", .handler = handle_event},
    {.method = "GET", .path = "/v1/silent", .handler = handle_silent},
    {.method = "GET", .path = "/v1/work/{id}", .handler = handle_run, .roles = HTTP_WORKER | HTTP_TRAINER},
    {.method = "GET", .path = "/v1/file", .handler = handle_file},
    {.method = "POST", .path = "/v1/released", .handler = handle_released, .body_limit = limit_by_now},
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN},
    {.method = "GET", .path = "/metrics", .handler = http_handle_metrics},
};

static struct http_server *server;
static int port;
static char file_path[64];

static void test_routes(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/runs/r7", "", 200, "run=r7 group=-");
  expect_answer(port, "GET /v1/runs/a%20b%2Fc/groups/%E2%82%AC", "", 200, "run=a b/c group=\xe2\x82\xac");
  expect_answer(port, "GET /v1/run%73/r7", "", 200, "run=r7");
  expect_answer(port, "GET /v1/runs/latest", "", 200, "wait=7");
  expect_answer(port, "GET /healthz", "", 200, "{\"status\":\"ok\"}");
  expect_answer(port, "GET /metrics", "", 200, "leasehold_http_responses_total{class=\"2xx\"}");
  expect_answer(port, "GET /v1/silent", "", 500, "neither replied nor suspended");
}

static void test_unknown_paths(void **state) {
  (void)state;
  expect_answer(port, "GET /", "", 404, "\"code\":\"not_found\"");
  expect_answer(port, "GET /v1/runs", "", 404, "not_found");
  expect_answer(port, "GET /v1/runs/", "", 404, "not_found");
  expect_answer(port, "GET /v1/runs/r7/", "", 404, "not_found");
  expect_answer(port, "GET /v1/runs/r7/groups", "", 404, "not_found");
  expect_answer(port, "GET //v1/runs/r7", "", 404, "not_found");
  expect_answer(port, "GET /a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s", "", 404, "not_found");
}

static void test_wrong_method(void **state) {
  (void)state;
  expect_answer(port, "DELETE /v1/echo", "", 405, "Allow: POST, PUT\r\n");
  expect_answer(port, "POST /v1/runs/r7", "Content-Length: 0\r\n", 405, "Allow: GET\r\n");
  expect_answer(port, "HEAD /v1/runs/r7", "", 405, "Allow: GET\r\n");
  expect_answer(port, "OPTIONS /v1/runs/r7", "", 405, "Allow: GET\r\n");
  expect_answer(port, "TRACE /v1/echo", "", 405, "Allow: POST, PUT\r\n");
  expect_answer(port, "BREW /v1/nothing", "", 404, "not_found");
}

static void test_malformed_targets(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/runs/%4", "", 422, "two hex digits");
  expect_answer(port, "GET /v1/runs/%zz", "", 422, "two hex digits");
  expect_answer(port, "GET /v1/runs/a%00b", "", 422, "NUL");
  expect_answer(port, "GET *", "", 422, "begins with '/'");
  char line[4096];
  snprintf(line, sizeof line, "GET /v1/runs/%03000d", 0);
  expect_answer(port, line, "", 414, "\"code\":\"too_large\"");
}

static void test_targets_in_absolute_form(void **state) {
  (void)state;
  expect_answer(port, "GET http://127.0.0.1:8100/v1/runs/r7", "", 200, "run=r7 group=-");
  expect_answer(port, "GET HTTPS://some.host/v1/runs/latest?wait_ms=5", "", 200, "wait=5");
  expect_answer(port, "GET http://h?x=1", "", 404, "not_found");
  expect_answer(port, "GET http://h", "", 404, "not_found");
  expect_answer(port, "GET http:///v1/runs/r7", "", 422, "begins with '/'");
  expect_answer(port, "GET ftp://h/v1/runs/r7", "", 422, "begins with '/'");
  expect_answer(port, "GET /http://h/v1/runs/r7", "", 404, "not_found");
  char line[4096];
  snprintf(line, sizeof line, "GET http://%02040d/v1/runs/r7", 0);
  expect_answer(port, line, "", 414, "\"code\":\"too_large\"");
}

/* Packed bytes were told to be bad JSON. */
static void test_a_packed_body_is_refused_by_its_encoding(void **state) {
  (void)state;
#define PACKED(encoding, length) \
  "POST /v1/json HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Encoding: " encoding "\r\n" length "\r\n\r\n"
  static const struct {
    const char *request, *says;
    int status;
  } cases[] = {
      {PACKED("gzip", "Content-Length: 4") "\x1f\x8b\b\b", "\"field\":\"Content-Encoding\"", 415},
      {PACKED("br", "Transfer-Encoding: chunked") "2\r\nab\r\n0\r\n\r\n", "one of encoding \\\"br\\\" came", 415},
      {PACKED("identity", "Content-Length: 2") "{}", "{\"members\":0}", 200},
      {PACKED("Identity", "Content-Length: 2") "{}", "{\"members\":0}", 200},
      {PACKED("gzip", "Content-Length: 0"), "a JSON body was expected", 422},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *answer = ask(port, cases[i].request);
    if (status_of(answer) != cases[i].status || strstr(answer, cases[i].says) == NULL)
      fail_msg("case %zu: %s", i, answer);
    free(answer);
  }
#undef PACKED
}

/* OpenAI's clients ask three times for what is answered by 500 and above, unless they are told not to. */
static void test_what_is_not_offered_need_not_be_asked_for_again(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/unoffered", "", 501, "x-should-retry: false\r\n");
}

/* Its handler's errors, those that come before its handler, and those within a stream. */
static void test_a_route_tells_its_errors_in_its_own_form(void **state) {
  (void)state;
  expect_answer(port, "POST /v1/teapot", "Content-Length: 0\r\n", 418, "{\"teapot\":\"not here\"}");
  expect_answer(port, "POST /v1/teapot", "Content-Length: 3000000\r\n", 418, "{\"teapot\":\"a body of at most 9 bytes");
  expect_answer(port, "GET /v1/teapot/event", "", 200, "data: {\"teapot\":\"full in the middle\"}");
  expect_answer(port, "GET /v1/event", "", 200, "data: {\"error\":{\"code\":\"full\",");
  expect_answer(port, "GET /v1/teapot", "", 418, "{\"teapot\":\"method POST was expected");
  expect_answer(port, "GET /v1/teapots", "", 404, "\"code\":\"not_found\"");
}

/* Of whatever kind the answer is; an id that could do harm is replaced, and one of ours is new each time. */
static void test_answers_have_the_id_of_their_request(void **state) {
  (void)state;
  static const char own[] = "X-Request-Id: agent-7/\"a\"\r\n", named[] = "x-request-id: agent-7/\"a\"\r\n";
  char longest[128], too_long[128], contains[128];
  expect_answer(port, "GET /v1/runs/r7", own, 200, named);
  expect_answer(port, "GET /v1/full", own, 429, named);
  expect_answer(port, "GET /nowhere", own, 404, named);
  expect_answer(port, "GET /v1/runs/%zz", own, 422, named);
  expect_answer(port, "GET /v1/event", own, 200, named);
  expect_answer(port, "GET /v1/file", own, 200, named);
  expect_answer(port, "GET /healthz", own, 200, named);
  snprintf(longest, sizeof longest, "X-Request-Id: %063d\r\n", 7);
  snprintf(contains, sizeof contains, "x-request-id: %063d\r\n", 7);
  expect_answer(port, "GET /healthz", longest, 200, contains);
  snprintf(too_long, sizeof too_long, "X-Request-Id: %064d\r\n", 7);
  const char *const replaced[] = {too_long, "X-Request-Id: a b\r\n", "X-Request-Id: \xc3\xa9\r\n", "X-Request-Id:\r\n",
                                  ""};
  char before[17] = "";
  for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++) {
    char *answer = ask_line(port, "GET /healthz", replaced[i]);
    const char *id = strstr(answer, "x-request-id: ");
    assert_non_null(id);
    id += strlen("x-request-id: ");
    assert_int_equal(strspn(id, "0123456789abcdef"), 16);
    assert_memory_equal(id + 16, "\r\n", 2);
    assert_memory_not_equal(id, before, 16);
    memcpy(before, id, 16);
    free(answer);
  }
}

static void test_query(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/runs/latest?wait_ms=60000&name=a+b%26c", "", 200, "wait=60000 name=a b&c");
  expect_answer(port, "GET /v1/runs/latest?&name&&", "", 200, "wait=7 name=");
  expect_answer(port, "GET /v1/runs/latest?name==x", "", 200, "name==x");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=60001", "", 422, "\"field\":\"wait_ms\"");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=-1", "", 422, "from 0 to 60000");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=1e3", "", 422, "\\\"1e3\\\" came");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=", "", 422, "wait_ms");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=+5", "", 422, "wait_ms");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=99999999999999999999", "", 422, "wait_ms");
  expect_answer(port, "GET /v1/runs/latest?wait_ms=1&wait_ms=2", "", 422, "two came");
  expect_answer(port, "GET /v1/runs/latest?name=%", "", 422, "hex digits");
  expect_answer(port, "GET /v1/runs/latest?a=&b=&c=&d=&e=&f=&g=&h=&i=&j=&k=&l=&m=&n=&o=&p=&q=", "", 422, "at most 16");
}

static void test_bodies(void **state) {
  (void)state;
  char *answer = ask(port, "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
  assert_int_equal(status_of(answer), 201);
  assert_non_null(strstr(answer, "len=5 hello"));
  free(answer);
  answer = ask(port,
               "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: "
               "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  assert_non_null(strstr(answer, "len=5 abcde"));
  free(answer);
  expect_answer(port, "POST /v1/echo", "Content-Length: 0\r\n", 201, "len=0 ");
}

static void test_json_bodies(void **state) {
  (void)state;
  char *answer = ask(
      port, "POST /v1/json HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"b\":2}");
  assert_non_null(strstr(answer, "{\"members\":2}"));
  assert_non_null(strstr(answer, "X-Leasehold-Digest: abc\r\n"));
  assert_non_null(strstr(answer, "Content-Type: application/json\r\n"));
  free(answer);
  answer = ask(port,
               "POST /v1/json HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"a\":2}");
  assert_int_equal(status_of(answer), 422);
  free(answer);
  expect_answer(port, "POST /v1/json", "Content-Length: 0\r\n", 422, "a JSON body was expected");
}

static void test_announced_body_too_large(void **state) {
  (void)state; /* answered from the header alone: the body is never sent */
  char *answer = ask(port, "POST /v1/json HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n");
  assert_int_equal(status_of(answer), 413);
  assert_non_null(strstr(answer, "at most 16777216 bytes was expected, but 99999999999 came"));
  free(answer);
  answer = ask(
      port,
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n");
  assert_int_equal(status_of(answer), 413); /* waits for permission: refused at once */
  free(answer);
}

static void test_sent_body_too_large(void **state) {
  (void)state;
  char request[4096];
  int n = snprintf(request, sizeof request,
                   "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1025\r\n\r\n%01025d", 0);
  assert_true(n > 0);
  char *answer = ask(port, request);
  assert_int_equal(status_of(answer), 413);
  free(answer);
  snprintf(request, sizeof request,
           "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
           "401\r\n%01025d\r\n0\r\n\r\n",
           0);
  answer = ask(port, request);
  assert_int_equal(status_of(answer), 413);
  assert_non_null(strstr(answer, "1024"));
  free(answer);
  snprintf(request, sizeof request,
           "POST /v1/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1024\r\n\r\n%01024d", 0);
  answer = ask(port, request);
  assert_int_equal(status_of(answer), 201); /* exactly the limit */
  free(answer);
}

static void test_late_limit_and_released_body(void **state) {
  (void)state;
  const char *request =
      "POST /v1/released HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 17\r\n\r\n0123456789abcdefg";
  late_limit = 16;
  char *answer = ask(port, request);
  assert_int_equal(status_of(answer), 413);
  free(answer);
  late_limit = 17;
  answer = ask(port, request);
  assert_int_equal(status_of(answer), 200);
  assert_non_null(strstr(answer, "before=17 after=0"));
  free(answer);
}

static void test_endless_chunked_body_is_cut_off(void **state) {
  (void)state;
  int fd = peer_connect(port);
  peer_send(fd, "POST /v1/echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  char chunk[16400];
  int n = snprintf(chunk, sizeof chunk, "4000\r\n%016384d\r\n", 0);
  bool cut = false;
  for (int i = 0; i < 4096 && !cut; i++) cut = send(fd, chunk, (size_t)n, MSG_NOSIGNAL) < 0; /* up to 64 MiB */
  assert_true(cut);
  close(fd);
}

static void test_large_body_arrives_whole(void **state) {
  (void)state;
  size_t len = 32u << 20;
  char *bytes = malloc(len);
  assert_non_null(bytes);
  memset(bytes, 'x', len);
  char url[64];
  snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/echo", port);
  struct http_client *client;
  struct http_answer answer;
  struct err err = {0};
  assert_int_equal(http_client_create(&client, NULL, NULL, &err), RC_OK);
  struct http_call call = {.method = "PUT", .url = url, .body = bytes, .body_len = len, .deadline_ms = PEER_WAIT_MS};
  if (http_client_call(client, &call, &answer, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(answer.status, 201);
  assert_memory_equal(answer.body.data, "len=33554432 xxx", 16);
  http_answer_free(&answer);
  call.method = "POST"; /* the 1 KiB route: refused before 32 MiB are sent */
  if (http_client_call(client, &call, &answer, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(answer.status, 413);
  assert_int_equal(http_answer_error(&answer, "echo", &err), RC_TOO_LARGE);
  http_answer_free(&answer);
  http_client_destroy(client);
  free(bytes);
}

static void test_malformed_requests_do_no_harm(void **state) {
  (void)state;
  static const char *const bad[] = {
      "GARBAGE\r\n\r\n",
      "GET\r\n\r\n",
      "GET /healthz HTTP/9.9\r\n\r\n",
      "GET /healthz HTTP/1.1\r\n\r\n",
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n",
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char *answer = ask(port, bad[i]); /* refused or cut off */
    if (answer[0] != '\0' && status_of(answer) != 505) assert_in_range(status_of(answer), 400, 499);
    free(answer);
  }
  expect_answer(port, "GET /healthz", "", 200, "ok");
}

/* A peer that vanishes in the middle of its request leaves nothing behind (a leak shows under the address
 * sanitizer). */
static void test_half_requests_do_no_harm(void **state) {
  (void)state;
  static const char *const half[] = {"",
                                     "G",
                                     "\r\n\r\n",
                                     "GET /healthz HTTP/1.1\r\nHo",
                                     "GET /v1/runs/r7 HTTP/1.1\r\nHost: t\r\n",
                                     "POST /v1/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\nhalf a body",
                                     "POST /v1/nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\nhalf a body"};
  for (size_t i = 0; i < sizeof half / sizeof half[0]; i++) {
    int fd = peer_connect(port);
    peer_send(fd, half[i]);
    clock_sleep_ms(5);
    close(fd);
  }
  expect_answer(port, "GET /healthz", "", 200, "ok");
}

static void test_keep_alive_and_pipelining(void **state) {
  (void)state;
  int fd = peer_connect(port);
  peer_send(
      fd,
      "GET /v1/runs/one HTTP/1.1\r\nHost: t\r\n\r\nGET /v1/runs/two HTTP/1.1\r\nHost: t\r\n\r\n"
      "POST /v1/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabcGET /v1/runs/last HTTP/1.1\r\nHost: t\r\n\r\n");
  char *answers = peer_read(fd, "run=last");
  const char *one = strstr(answers, "run=one"), *two = strstr(answers, "run=two"), *echo = strstr(answers, "len=3 abc");
  assert_true(one != NULL && two != NULL && echo != NULL && one < two && two < echo);
  free(answers);
  close(fd);
}

static void test_errors(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/full", "", 429, "Retry-After: 1\r\n");
  expect_answer(port, "GET /v1/full", "", 429,
                "{\"error\":{\"code\":\"full\",\"message\":\"at most 4 requests were expected\",\"field\":\"slots\"}}");
}

static void test_files(void **state) {
  (void)state;
  expect_answer(port, "GET /v1/file", "", 200, "Content-Length: 14\r\n");
  expect_answer(port, "GET /v1/file", "", 200, "\r\n\r\nweights, bytes");
  expect_answer(port, "GET /v1/file?missing=1", "", 404, "no such file");
}

static void test_token(void **state) {
  (void)state;
  struct http_access *access = access_of("s3cret", NULL);
  struct http_server *closed = serve(routes, ROUTE_COUNT(routes), NULL, access);
  int p = http_server_port(closed);
  expect_answer(p, "GET /v1/runs/r7", "", 401, "WWW-Authenticate: Bearer\r\n");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Bearer s3cret\r\n", 200, "run=r7");
  expect_answer(p, "GET /v1/runs/r7", "authorization: bearer s3cret\r\n", 200, "run=r7");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Bearer s3creT\r\n", 401, "\"code\":\"forbidden\"");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Bearer s3cre\r\n", 401, "forbidden");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Bearer s3crets3cret\r\n", 401, "forbidden");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Bearer \r\n", 401, "forbidden");
  expect_answer(p, "GET /v1/runs/r7", "Authorization: Basic s3cret\r\n", 401, "forbidden");
  expect_answer(p, "GET /nowhere", "", 401, "forbidden"); /* tells nothing about paths */
  expect_answer(p, "GET /nowhere", "Authorization: Bearer s3cret\r\n", 404, "not_found");
  expect_answer(p, "GET /healthz", "", 200, "ok");
  http_server_stop(closed, 1000);
  http_access_close(access);
}

static void test_roles(void **state) {
  (void)state;
  char folder[128], path[160];
  struct err err;
  static const char *const files[][2] = {
      {"admin", "the-admins-own-token"}, {"worker", "the-workers-own-token"}, {"viewer", "the-viewers-own-token"}};
  scratch_folder(folder, sizeof folder, "roles");
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
    assert_int_equal(file_write(path, files[i][1], strlen(files[i][1]), &err), RC_OK);
  }
  struct http_access *access = access_of(NULL, folder);
  struct http_server *guarded = serve(routes, ROUTE_COUNT(routes), NULL, access);
  int p = http_server_port(guarded);
  expect_answer(p, "GET /v1/work/7", "", 401, "WWW-Authenticate: Bearer\r\n");
  expect_answer(p, "GET /v1/work/7", "Authorization: Bearer the-workers-own-token\r\n", 200, "run=7");
  expect_answer(p, "GET /v1/work/7", "Authorization: Bearer the-admins-own-token\r\n", 200, "run=7");
  expect_answer(p, "GET /v1/work/7", "Authorization: Bearer the-viewers-own-token\r\n", 403,
                "a token of role admin, worker, trainer was expected for GET /v1/work/{id}, but one of role viewer "
                "came");
  expect_answer(p, "GET /v1/runs/7", "Authorization: Bearer the-workers-own-token\r\n", 403,
                "a token of role admin was"); /* none declared */
  expect_answer(p, "GET /nowhere", "Authorization: Bearer the-viewers-own-token\r\n", 404, "not_found");
  expect_answer(p, "GET /healthz", "", 200, "ok");
  http_server_stop(guarded, 1000);
  http_access_close(access);
  assert_int_equal(file_remove_tree(folder, &err), RC_OK);
}

/* Of a service whose clients know another form wherever they ask. */
static void test_a_path_that_no_route_has_is_told_in_the_services_form(void **state) {
  (void)state;
  struct http_server *other = NULL;
  struct err err = {0};
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = routes, .route_count = ROUTE_COUNT(routes), .write_error = write_teapot};
  assert_int_equal(http_server_start(&other, &options, &err), RC_OK);
  const int p = http_server_port(other);
  expect_answer(p, "GET /nowhere", "", 418, "{\"teapot\":\"no such path\"}");
  expect_answer(p, "POST /v1/full", "Content-Length: 0\r\n", 405, "\"code\":\"unsupported\"");
  http_server_stop(other, 1000);
}

static void test_refused_starts(void **state) {
  (void)state;
  struct http_server *second = NULL;
  struct err err = {0};
  char expected[64];
  struct http_server_options options = {
      .bind_address = "127.0.0.1", .port = port, .routes = routes, .route_count = ROUTE_COUNT(routes)};
  assert_int_equal(http_server_start(&second, &options, &err), RC_IO);
  snprintf(expected, sizeof expected, "port %d in use", port);
  assert_non_null(strstr(err.message, expected));
  options.bind_address = "not an address";
  assert_int_equal(http_server_start(&second, &options, &err), RC_INVALID);
  options.bind_address = "127.0.0.1";
  options.port = 65536;
  assert_int_equal(http_server_start(&second, &options, &err), RC_INVALID);
  options.port = 0;
  options.route_count = 0;
  assert_int_equal(http_server_start(&second, &options, &err), RC_INTERNAL);
  static const struct http_route wild[] = {{.method = "GET", .path = "/{a}/{b}/{c}/{d}/{e}", .handler = handle_run}};
  options.routes = wild;
  options.route_count = 1;
  assert_int_equal(http_server_start(&second, &options, &err), RC_INTERNAL);
  http_server_stop(NULL, 0);
}

static int group_setup(void **state) {
  (void)state;
  log_init("test", LOG_ERROR);
  snprintf(file_path, sizeof file_path, "/tmp/leasehold-http-test-XXXXXX");
  int fd = mkstemp(file_path);
  if (fd < 0 || write(fd, "weights, bytes", 14) != 14) return -1;
  close(fd);
  server = serve(routes, ROUTE_COUNT(routes), file_path, NULL);
  port = http_server_port(server);
  return 0;
}

static int group_teardown(void **state) {
  (void)state;
  http_server_stop(server, 1000);
  unlink(file_path);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_routes),
      cmocka_unit_test(test_unknown_paths),
      cmocka_unit_test(test_wrong_method),
      cmocka_unit_test(test_a_packed_body_is_refused_by_its_encoding),
      cmocka_unit_test(test_what_is_not_offered_need_not_be_asked_for_again),
      cmocka_unit_test(test_a_route_tells_its_errors_in_its_own_form),
      cmocka_unit_test(test_answers_have_the_id_of_their_request),
      cmocka_unit_test(test_malformed_targets),
      cmocka_unit_test(test_targets_in_absolute_form),
      cmocka_unit_test(test_query),
      cmocka_unit_test(test_bodies),
      cmocka_unit_test(test_json_bodies),
      cmocka_unit_test(test_announced_body_too_large),
      cmocka_unit_test(test_sent_body_too_large),
      cmocka_unit_test(test_late_limit_and_released_body),
      cmocka_unit_test(test_endless_chunked_body_is_cut_off),
      cmocka_unit_test(test_large_body_arrives_whole),
      cmocka_unit_test(test_malformed_requests_do_no_harm),
      cmocka_unit_test(test_half_requests_do_no_harm),
      cmocka_unit_test(test_keep_alive_and_pipelining),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_token),
      cmocka_unit_test(test_roles),
      cmocka_unit_test(test_a_path_that_no_route_has_is_told_in_the_services_form),
      cmocka_unit_test(test_refused_starts),
  };
  return cmocka_run_group_tests_name("http/server", tests, group_setup, group_teardown);
}

/* W3C Trace Context's tracestate: which lists are taken, what of a long one stays, and that it goes along with
 * traceparent and with nothing else.  The cases are those of the standard's own tests. */
#include "http_test.h"

#include "common/http/trace.h"
#include "common/http/trace_state.h"

#define PARENT "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
#define DIGITS "0123456789"
#define ALPHABET "abcdefghijklmnopqrstuvwxyz"

/* `fields`, NULL last, as they are sent on. */
static const char *joined(const char *const *fields) {
  static char text[TRACESTATE_CHARS + 1];
  struct trace_state s = {0};
  for (int i = 0; fields[i]; i++) trace_state_add(&s, fields[i]);
  trace_state_write(text, &s);
  return text;
}

static const char *alone(const char *field) { return joined((const char *const[]){field, NULL}); }

static void test_lists_that_are_taken(void **state) {
  (void)state;
  static const char *const taken[][2] = {
      {"foo=1", "foo=1"},
      {"foo=1,bar=2", "foo=1,bar=2"},
      {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"},
      {"fw529a3039@dt=FfeAAA;x:1,4@nr=0", "fw529a3039@dt=FfeAAA;x:1,4@nr=0"},
      {"foo=1 \t , \t bar=2, \t baz=3", "foo=1,bar=2,baz=3"},
      {"\t foo=1 \t", "foo=1"},
      {"foo= 1", "foo= 1"}, /* a blank that is the value's */
      {"foo=1,,bar=2, ,", "foo=1,bar=2"},
      {"", ""},
      {" , ", ""},
      {ALPHABET DIGITS "_-*/@a-z0-9_-*/= !\"#$%&'()*+-./0:;<>?@A[\\]^_`a{|}~",
       ALPHABET DIGITS "_-*/@a-z0-9_-*/= !\"#$%&'()*+-./0:;<>?@A[\\]^_`a{|}~"},
  };
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) assert_string_equal(alone(taken[i][0]), taken[i][1]);
}

static void test_one_malformed_member_drops_the_list(void **state) {
  (void)state;
  static const char *const malformed[] = {
      "foo",         "foo=",          "foo=,bar=3",       "=1",          "foo=bar=baz",         "foo =1",
      "FOO=1",       "foo.bar=1",     "foo@=1,bar=2",     "@foo=1,bar=2", "foo@@bar=1,bar=2",   "foo@bar@baz=1,bar=2",
      "1foo=1",      "foo@1bar=1",    "foo=1,foo=1",      "foo=1,foo=2", "foo=\x7f",            "foo=\xc3\xa4",
      "bar=2,foo",   "foo=1;bar=2=3", "foo=a\x01" "b",
  };
  for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++)
    if (alone(malformed[i])[0]) fail_msg("\"%s\" was taken", malformed[i]);
}

static void test_header_fields_are_one_list(void **state) {
  (void)state;
  assert_string_equal(joined((const char *const[]){"foo=1,bar=2", "rojo=1,congo=2", "baz=3", NULL}),
                      "foo=1,bar=2,rojo=1,congo=2,baz=3");
  assert_string_equal(joined((const char *const[]){"", "foo=1", "", NULL}), "foo=1");
  assert_string_equal(joined((const char *const[]){"foo=1", "foo=2", NULL}), "");
  assert_string_equal(joined((const char *const[]){"foo=1", "bar", "baz=1", NULL}), "");
}

/* Key, '=' and value of these lengths, of one letter. */
struct member {
  char text[1024];
};
static struct member sized(char letter, size_t tenant, size_t system, size_t value) {
  struct member m;
  size_t at = tenant;
  memset(m.text, letter, sizeof m.text);
  if (system > 0) m.text[at++] = '@';
  at += system;
  m.text[at++] = '=';
  m.text[at + value] = 0;
  return m;
}

static void test_lengths_have_limits(void **state) {
  (void)state;
  static const struct {
    size_t tenant, system, value;
    bool taken;
  } cases[] = {{256, 0, 1, true}, {257, 0, 1, false}, {241, 14, 1, true}, {242, 1, 1, false},
               {1, 15, 1, false}, {1, 0, 256, true},  {1, 0, 257, false}, {200, 0, 256, true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct member m = sized('z', cases[i].tenant, cases[i].system, cases[i].value);
    assert_string_equal(alone(m.text), !cases[i].taken || strlen(m.text) > TRACESTATE_CHARS ? "" : m.text);
  }
}

static void test_32_members_are_taken_and_33_are_not(void **state) {
  (void)state;
  char text[512] = "";
  for (int i = 1; i <= TRACESTATE_MEMBERS; i++) sprintf(text + strlen(text), "%sbar%02d=%02d", i > 1 ? "," : "", i, i);
  assert_string_equal(alone(text), text);
  strcat(text, ",bar33=33");
  assert_string_equal(alone(text), "");
}

static void test_512_characters_are_kept_of_whole_members(void **state) {
  (void)state;
  const struct member l = sized('l', 4, 0, 195), m = sized('m', 4, 0, 245),
                      s = sized('s', 4, 0, 95); /* 200, 250, 100 */
  const char *const large = l.text, *const larger = m.text, *const small = s.text;
  char text[8192], wanted[8192];
  snprintf(text, sizeof text, "%s,%s,a=%060d", large, larger, 0);
  assert_int_equal(strlen(text), TRACESTATE_CHARS + 2);
  snprintf(wanted, sizeof wanted, "%s,a=%060d", large, 0);
  assert_string_equal(alone(text), wanted);
  snprintf(text, sizeof text, "%s,%s,a=%058d", large, larger, 0);
  assert_int_equal(strlen(text), TRACESTATE_CHARS);
  assert_string_equal(alone(text), text);
  snprintf(text, sizeof text, "a=%0100d,%s,b=%0100d,%s,c=%0100d,d=%0100d,e=%0100d", 1, large, 2, small, 3, 4, 5);
  snprintf(wanted, sizeof wanted, "a=%0100d,b=%0100d,%s,c=%0100d,d=%0100d", 1, 2, small, 3, 4);
  assert_int_equal(strlen(wanted), TRACESTATE_CHARS);
  assert_string_equal(alone(text), wanted);
}

/* ---- a server ---- */

static char asked_url[128];

/* The tracestate of its own thread; with ?ask=1 what a request of its own brings to the same server. */
static void handle_state(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  struct trace t = {0};
  assert_true(trace_get(&t));
  if (http_query(r, "ask")) {
    struct http_client *http;
    struct http_answer answer;
    const struct http_call call = {.method = "GET", .url = asked_url, .deadline_ms = PEER_WAIT_MS};
    assert_int_equal(http_client_create(&http, NULL, NULL, NULL), RC_OK);
    assert_int_equal(http_client_call(http, &call, &answer, NULL), RC_OK);
    buf_append(&body, answer.body.data, answer.body.len);
    http_answer_free(&answer);
    http_client_destroy(http);
  } else {
    buf_printf(&body, "<%s>", t.state);
  }
  http_reply(r, 200, "text/plain", &body);
}

static const struct http_route ROUTES[] = {
    {.method = "GET", .path = "/state", .handler = handle_state},
    {.method = "GET", .path = "/offloaded", .handler = handle_state, .offload = true},
};

static void expect_state(int port, const char *path, const char *headers, const char *state) {
  char *answer = ask_line(port, path, headers), *body = strstr(answer, "\r\n\r\n"), wanted[TRACESTATE_CHARS + 8];
  snprintf(wanted, sizeof wanted, "<%s>", state);
  assert_non_null(body);
  assert_string_equal(body + 4, wanted);
  free(answer);
}

static void test_it_goes_along_with_what_a_handler_asks_for(void **state) {
  (void)state;
  struct http_server *server = serve(ROUTES, ROUTE_COUNT(ROUTES), NULL, NULL);
  const int port = http_server_port(server);
  static const char *const paths[] = {"GET /state", "GET /state?ask=1", "GET /offloaded?ask=1"};
  snprintf(asked_url, sizeof asked_url, "http://127.0.0.1:%d/state", port);
  for (int i = 0; i < 3; i++) {
    expect_state(port, paths[i], PARENT "tracestate: foo=1 , bar=2\r\nTraceState: baz@x=3\r\n", "foo=1,bar=2,baz@x=3");
    expect_state(port, paths[i], "tracestate: foo=1\r\n" PARENT, "foo=1");
    expect_state(port, paths[i], PARENT, ""); /* nor that of the request before, on the same thread */
    expect_state(port, paths[i], PARENT "tracestate: foo=1\r\ntracestate: Bar=2\r\n", "");
    expect_state(port, paths[i], "tracestate: foo=1\r\n", "");
    expect_state(port, paths[i], "traceparent: 00-malformed\r\ntracestate: foo=1\r\n", "");
    expect_state(port, paths[i], PARENT PARENT "tracestate: foo=1\r\n", "");
  }
  http_server_stop(server, 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lists_that_are_taken),
      cmocka_unit_test(test_one_malformed_member_drops_the_list),
      cmocka_unit_test(test_header_fields_are_one_list),
      cmocka_unit_test(test_lengths_have_limits),
      cmocka_unit_test(test_32_members_are_taken_and_33_are_not),
      cmocka_unit_test(test_512_characters_are_kept_of_whole_members),
      cmocka_unit_test(test_it_goes_along_with_what_a_handler_asks_for),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("http/trace_state", tests, NULL, NULL);
}

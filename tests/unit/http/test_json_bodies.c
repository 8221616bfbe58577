/* JSON bodies: the memory of their trees is charged to the service's bodies before they are parsed, and the object that
 * the path names is checked before they are collected. */
#include "common/base/limits.h"
#include "common/http/server_state.h"
#include "http_test.h"

static atomic_int handled;

static void handle_json(struct http_request *r, void *context) {
  (void)context;
  struct err err;
  const struct json *value;
  atomic_fetch_add(&handled, 1);
  if (http_body_json(r, &value, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  struct buf body = BUF_INIT;
  buf_printf(&body, "{\"items\":%zu,\"charged\":%zu}", json_length(value), atomic_load(&r->server->bodies_bytes));
  http_reply_json(r, 200, &body);
}

static enum rc admit_known(struct http_request *r, void *context, struct err *err) {
  (void)context;
  if (strcmp(http_param(r, "id"), "known") == 0) return RC_OK;
  return err_set(err, RC_NOT_FOUND, "id", "there is no lease '%s'", http_param(r, "id"));
}

static const struct http_route routes[] = {
    {.method = "POST", .path = "/v1/few", .handler = handle_json},
    {.method = "POST",
     .path = "/v1/many",
     .handler = handle_json,
     .body_bytes_max = 64u << 20,
     .json_nodes_max = LIMIT_JSON_NODES_TOKENS},
    {.method = "PUT", .path = "/v1/leases/{id}", .handler = handle_json, .admit = admit_known},
};

static struct http_server *server;

/* Posts `open`, then count times `item`, then "0]"; the answer's status. */
static int post(const char *path, const char *open, const char *item, size_t count, const char *contains) {
  struct buf text = BUF_INIT;
  struct http_client *client;
  struct http_answer answer;
  struct err err = {0};
  char url[64];
  buf_puts(&text, open);
  for (size_t i = 0; i < count; i++) buf_puts(&text, item);
  buf_puts(&text, "0]");
  snprintf(url, sizeof url, "http://127.0.0.1:%d%s", http_server_port(server), path);
  const struct http_call call = {
      .method = "POST", .url = url, .body = text.data, .body_len = text.len, .deadline_ms = 4 * PEER_WAIT_MS};
  assert_int_equal(http_client_create(&client, NULL, NULL, &err), RC_OK);
  if (http_client_call(client, &call, &answer, &err) != RC_OK) fail_msg("%s", err.message);
  buf_append(&answer.body, "", 1);
  if (!strstr(answer.body.data, contains)) fail_msg("\"%s\" was expected in: %s", contains, answer.body.data);
  const int status = answer.status;
  http_answer_free(&answer);
  http_client_destroy(client);
  buf_free(&text);
  return status;
}

static void expect_no_charge(size_t beside) {
  AWAIT(atomic_load(&server->bodies_bytes) == beside, "%zu bytes are charged, not %zu",
        atomic_load(&server->bodies_bytes), beside)
  continue;
}

static void test_a_tree_is_charged_while_it_lives(void **state) {
  (void)state;
  struct json_size size;
  struct err err;
  char contains[64];
  assert_int_equal(json_measure(&size, "[0,0,0]", 7, LIMIT_BODY_BYTES, LIMIT_JSON_NODES, &err), RC_OK);
  snprintf(contains, sizeof contains, "\"charged\":%zu", size.memory + 7);
  assert_int_equal(post("/v1/few", "[", "0,", 2, contains), 200);
  expect_no_charge(0);
  assert_int_equal(post("/v1/few", "[", "?,", 2, "fault at line 1"), 422);
  expect_no_charge(0);
}

static void test_a_tree_without_room_is_told_to_come_again(void **state) {
  (void)state;
  const size_t others = LIMIT_HTTP_BODIES_BYTES - (1 << 20); /* 100,000 numbers fit as bytes, not as a tree */
  atomic_fetch_add(&server->bodies_bytes, others);
  assert_int_equal(post("/v1/few", "[", "0,", 100000, "\"code\":\"full\""), 429);
  expect_no_charge(others);
  assert_int_equal(post("/v1/few", "[", "0,", 1000, "\"items\":1001"), 200);
  expect_no_charge(others);
  atomic_fetch_sub(&server->bodies_bytes, others);
  assert_int_equal(post("/v1/few", "[", "0,", 100000, "\"items\":100001"), 200);
  expect_no_charge(0);
}

static void test_nodes_are_bounded_by_the_route(void **state) {
  (void)state;
  assert_int_equal(post("/v1/few", "[", "0,", LIMIT_JSON_NODES, "at most 1048576 values and members, got 1048578"),
                   413);
  assert_int_equal(post("/v1/many", "[", "0,", LIMIT_JSON_NODES, "\"items\":1048577"), 200);
  expect_no_charge(0);
}

/* Whatever others hold: there is no use in coming again. */
static void test_a_tree_that_never_has_room_is_too_large(void **state) {
  (void)state;
  assert_int_equal(post("/v1/many", "[", "{},", 5 << 20, "at most 1073741824 bytes of memory"), 413);
  assert_int_equal(post("/v1/many", "[", "0,", LIMIT_JSON_NODES_TOKENS - 100, "of all bodies together"), 413);
  expect_no_charge(0);
}

static void test_who_is_not_admitted_is_refused_before_the_body(void **state) {
  (void)state;
  const int port = http_server_port(server), before = atomic_load(&handled);
  /* 15 MiB are announced, none is sent */
  char *answer = ask(port, "PUT /v1/leases/r1.0.0.0-3 HTTP/1.1\r\nHost: t\r\nContent-Length: 15728640\r\n\r\n");
  assert_int_equal(status_of(answer), 404);
  assert_non_null(strstr(answer, "there is no lease 'r1.0.0.0-3'"));
  free(answer);
  answer = ask(port, "PUT /v1/leases/x HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 7\r\n\r\ngarbage");
  assert_int_equal(status_of(answer), 404);
  free(answer);
  assert_int_equal(atomic_load(&handled), before);
  answer = ask(port, "PUT /v1/leases/known HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 2\r\n\r\n[]");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  answer = ask(port, "PUT /v1/leases/known HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n");
  assert_int_equal(status_of(answer), 413);
  free(answer);
}

static int group_setup(void **state) {
  (void)state;
  log_init("test", LOG_ERROR);
  server = serve(routes, ROUTE_COUNT(routes), NULL, NULL);
  return 0;
}

static int group_teardown(void **state) {
  (void)state;
  http_server_stop(server, 1000);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_tree_is_charged_while_it_lives),
      cmocka_unit_test(test_a_tree_without_room_is_told_to_come_again),
      cmocka_unit_test(test_nodes_are_bounded_by_the_route),
      cmocka_unit_test(test_a_tree_that_never_has_room_is_too_large),
      cmocka_unit_test(test_who_is_not_admitted_is_refused_before_the_body),
  };
  return cmocka_run_group_tests_name("http/json_bodies", tests, group_setup, group_teardown);
}

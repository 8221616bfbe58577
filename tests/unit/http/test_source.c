/* Answers that are read where they lie, piece by piece: whole, cut short by their source, left by their peer; and the
 * source is ended once, whatever happens. */
#include "http_test.h"

enum { BODY = 3 << 20, LARGE = 64 << 20 }; /* LARGE: more than the sockets of a peer that does not read hold */

struct bytes {
  size_t gone_at; /* from here on it has nothing any more */
  atomic_int ended;
};

static struct bytes all = {.gone_at = BODY}, half = {.gone_at = BODY / 2}, none = {.gone_at = 0},
                    large = {.gone_at = LARGE};

static char byte_at(size_t at) { return (char)('a' + at % 23); }

static size_t bytes_read(void *context, size_t at, char *out, size_t max) {
  const struct bytes *b = context;
  size_t count = 0;
  for (; count < max && at + count < b->gone_at; count++) out[count] = byte_at(at + count);
  return count;
}

static void bytes_end(void *context) { atomic_fetch_add(&((struct bytes *)context)->ended, 1); }

static void reply(struct http_request *r, struct bytes *b, size_t len) {
  const struct http_source source = {.context = b, .len = len, .read = bytes_read, .end = bytes_end};
  http_set_header(r, "X-Leasehold-Digest", "abc");
  http_reply_source(r, 200, "application/octet-stream", &source);
}

static void give_all(struct http_request *r, void *context) { (void)context, reply(r, &all, BODY); }
static void give_half(struct http_request *r, void *context) { (void)context, reply(r, &half, BODY); }
static void give_none(struct http_request *r, void *context) { (void)context, reply(r, &none, 0); }

static void give_large(struct http_request *r, void *context) { (void)context, reply(r, &large, LARGE); }

static const struct http_route routes[] = {
    {.method = "GET", .path = "/all", .handler = give_all},
    {.method = "GET", .path = "/offloaded", .handler = give_all, .offload = true},
    {.method = "GET", .path = "/half", .handler = give_half},
    {.method = "GET", .path = "/none", .handler = give_none},
    {.method = "GET", .path = "/large", .handler = give_large},
};

/* The whole body of length BODY, or RC_UNAVAILABLE where the connection was closed before its end. */
static enum rc pull(int port, const char *path, size_t *len) {
  struct http_client *client = NULL;
  struct http_answer answer = {0};
  struct err err = {0};
  char url[64];
  snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
  const struct http_call call = {
      .method = "GET", .url = url, .deadline_ms = PEER_WAIT_MS, .response_bytes_max = 2 * (size_t)BODY};
  assert_int_equal(http_client_create(&client, "", NULL, &err), RC_OK);
  const enum rc rc = http_client_call(client, &call, &answer, &err);
  if (rc == RC_OK) {
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.digest_header, "abc");
    for (size_t i = 0; i < answer.body.len; i++)
      if (answer.body.data[i] != byte_at(i)) fail_msg("byte %zu is not the source's", i);
    *len = answer.body.len;
    http_answer_free(&answer);
  }
  http_client_destroy(client);
  return rc;
}

static void a_body_comes_whole_from_its_source(void **state) {
  (void)state;
  struct http_server *server = serve(routes, ROUTE_COUNT(routes), NULL, NULL);
  const int port = http_server_port(server);
  size_t len = 0;
  atomic_store(&all.ended, 0);
  atomic_store(&none.ended, 0);
  assert_int_equal(pull(port, "/all", &len), RC_OK);
  assert_int_equal(len, BODY);
  expect_soon(&all.ended, 1);
  assert_int_equal(pull(port, "/offloaded", &len), RC_OK);
  assert_int_equal(len, BODY);
  expect_soon(&all.ended, 2);
  assert_int_equal(pull(port, "/none", &len), RC_OK);
  assert_int_equal(len, 0);
  expect_soon(&none.ended, 1);
  http_server_stop(server, 1000);
  assert_int_equal(atomic_load(&all.ended), 2);
}

static void a_source_that_has_gone_closes_the_connection(void **state) {
  (void)state;
  struct http_server *server = serve(routes, ROUTE_COUNT(routes), NULL, NULL);
  size_t len = 0;
  atomic_store(&half.ended, 0);
  assert_int_equal(pull(http_server_port(server), "/half", &len), RC_UNAVAILABLE);
  expect_soon(&half.ended, 1);
  http_server_stop(server, 1000);
  assert_int_equal(atomic_load(&half.ended), 1);
}

static void a_peer_that_hangs_up_or_stays_ends_the_source_once(void **state) {
  (void)state;
  struct http_server *server = serve(routes, ROUTE_COUNT(routes), NULL, NULL);
  atomic_store(&large.ended, 0);
  const int leaves = peer_connect(http_server_port(server)), stays = peer_connect(http_server_port(server));
  peer_send(leaves, "GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
  peer_send(stays, "GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
  free(peer_read(leaves, "\r\n\r\n"));
  free(peer_read(stays, "\r\n\r\n"));
  assert_int_equal(atomic_load(&large.ended), 0);
  close(leaves);
  expect_soon(&large.ended, 1);
  http_server_stop(server, 100);
  assert_int_equal(atomic_load(&large.ended), 2);
  close(stays);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_body_comes_whole_from_its_source),
      cmocka_unit_test(a_source_that_has_gone_closes_the_connection),
      cmocka_unit_test(a_peer_that_hangs_up_or_stays_ends_the_source_once),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("http/source", tests, NULL, NULL);
}

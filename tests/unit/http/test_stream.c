/* Streams: order and completeness, several writers, slow and vanishing readers, the end, shutdown. */
#include "http_test.h"

struct studio {
  atomic_intptr_t stream; /* the request that streams, published by the handler */
  atomic_int begun, cancelled, why;
  bool fresh;
};

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct studio *studio = context;
  atomic_store(&studio->why, (int)why);
  atomic_fetch_add(&studio->cancelled, 1);
  if (why == HTTP_CANCEL_SHUTDOWN) {
    http_stream_write(r, "event: bye\n\n", 12);
    http_stream_end(r);
  }
}

static void handle_events(struct http_request *r, void *context) {
  struct studio *studio = context;
  if (!studio->fresh) http_suspend(r, 24 * 3600 * 1000, on_cancelled, studio);
  http_stream_begin(r, 200, "text/event-stream");
  atomic_store(&studio->stream, (intptr_t)r);
  atomic_fetch_add(&studio->begun, 1);
}

static const struct http_route routes[] = {{.method = "GET", .path = "/events", .handler = handle_events}};

struct fixture {
  struct studio studio;
  struct http_server *server;
  int port;
};

static int setup(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  if (f == NULL) return -1;
  log_init("test", LOG_ERROR + 1);
  f->server = serve(routes, ROUTE_COUNT(routes), &f->studio, NULL);
  f->port = http_server_port(f->server);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  http_server_stop(f->server, 1000);
  free(f);
  return 0;
}

static int subscribe(struct fixture *f) {
  int fd = peer_connect(f->port), begun = atomic_load(&f->studio.begun);
  peer_send(fd, "GET /events HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  expect_soon(&f->studio.begun, begun + 1);
  return fd;
}

static struct http_request *stream_of(struct fixture *f) {
  return (struct http_request *)atomic_load(&f->studio.stream); /* NOLINT: published by the handler */
}

static void write_text(struct http_request *r, const char *text) {
  assert_int_equal(http_stream_write(r, text, strlen(text)), RC_OK);
}

static void expect_stream(struct fixture *f) {
  int fd = subscribe(f);
  struct http_request *r = stream_of(f);
  char *head = peer_read(fd, "\r\n\r\n"); /* the header comes before any event */
  assert_int_equal(status_of(head), 200);
  assert_non_null(strstr(head, "Content-Type: text/event-stream\r\n"));
  assert_non_null(strstr(head, "Transfer-Encoding: chunked\r\n"));
  free(head);
  write_text(r, "data: one\n\n");
  free(peer_read(fd, "data: one\n\n"));
  write_text(r, "data: two\n\n");
  write_text(r, "");
  write_text(r, "data: three\n\n");
  free(peer_read(fd, "data: three\n\n"));
  write_text(r, "data: last\n\n");
  http_stream_end(r);
  char *rest = peer_read(fd, "");
  assert_non_null(strstr(rest, "data: last\n\n"));
  assert_non_null(strstr(rest, "\r\n0\r\n"));
  free(rest);
  close(fd);
  assert_int_equal(atomic_load(&f->studio.cancelled), 0);
}

static void test_stream(void **state) { expect_stream(*state); }

static void test_stream_on_a_fresh_request(void **state) {
  struct fixture *f = *state;
  f->studio.fresh = true;
  expect_stream(f);
}

struct writer {
  struct http_request *stream;
  int number;
};

static void *write_numbers(void *context) {
  struct writer *w = context;
  for (int i = 0; i < 500; i++) {
    char event[32];
    int n = snprintf(event, sizeof event, "<%d:%03d>", w->number, i);
    if (http_stream_write(w->stream, event, (size_t)n) != RC_OK) return w;
  }
  return NULL;
}

/* Four threads write to one stream: nothing is lost or torn, each writer's order is kept. */
static void test_several_writers(void **state) {
  struct fixture *f = *state;
  int fd = subscribe(f);
  pthread_t threads[4];
  struct writer writers[4];
  for (int i = 0; i < 4; i++) {
    writers[i] = (struct writer){stream_of(f), i};
    assert_int_equal(pthread_create(&threads[i], NULL, write_numbers, &writers[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  http_stream_end(stream_of(f));
  char *raw = peer_read(fd, ""), *text = malloc(strlen(raw) + 1);
  assert_non_null(text);
  const char *in = strstr(raw, "\r\n\r\n") + 4; /* undo the chunks */
  size_t len = 0;
  for (size_t chunk = strtoul(in, NULL, 16); chunk > 0; chunk = strtoul(in, NULL, 16)) {
    in = strstr(in, "\r\n") + 2;
    memcpy(text + len, in, chunk);
    len += chunk;
    in += chunk + 2;
  }
  text[len] = '\0';
  assert_int_equal(len, 4 * 500 * 7);
  int next[4] = {0};
  for (const char *event = text; *event != '\0'; event += 7) {
    int number = -1, value = -1;
    assert_int_equal(sscanf(event, "<%d:%d>", &number, &value), 2);
    assert_in_range(number, 0, 3);
    assert_int_equal(value, next[number]++);
  }
  free(text);
  free(raw);
  close(fd);
}

static void test_reader_hangs_up(void **state) {
  struct fixture *f = *state;
  int fd = subscribe(f);
  struct http_request *r = stream_of(f);
  write_text(r, "data: one\n\n");
  free(peer_read(fd, "data: one\n\n"));
  close(fd);
  expect_soon(&f->studio.cancelled, 1);
  assert_int_equal(atomic_load(&f->studio.why), HTTP_CANCEL_HANGUP);
  assert_int_equal(http_stream_write(r, "x", 1), RC_GONE);
  http_stream_end(r);
}

/* Without a callback the writer learns it from its writes. */
static void test_reader_hangs_up_on_a_fresh_stream(void **state) {
  struct fixture *f = *state;
  f->studio.fresh = true;
  close(subscribe(f));
  struct http_request *r = stream_of(f);
  AWAIT(http_stream_write(r, "data: x\n\n", 9) == RC_GONE, "the writer does not learn it") continue;
  http_stream_end(r);
}

/* A reader that does not read costs at most 4 MiB, and gets everything that was accepted when it reads again. */
static void test_slow_reader(void **state) {
  struct fixture *f = *state;
  int fd = subscribe(f);
  struct http_request *r = stream_of(f);
  size_t block = 64 << 10, accepted = 0, received = 0;
  char *bytes = calloc(1, 5u << 20);
  assert_non_null(bytes);
  memset(bytes, '.', 5u << 20);
  assert_int_equal(http_stream_write(r, bytes, 5u << 20), RC_FULL); /* never fits */
  while (http_stream_write(r, bytes, block) == RC_OK) {
    accepted += block;
    assert_true(accepted < 256u << 20);
  }
  assert_int_equal(http_stream_write(r, bytes, block), RC_FULL);
  assert_true(accepted >= (4u << 20) - block);
  http_stream_end(r);
  for (;;) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, PEER_WAIT_MS), 1);
    ssize_t n = recv(fd, bytes, 1 << 20, 0);
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; i++)
      received += bytes[i] == '.'; /* the header has three: 1.1 and none else is checked below */
  }
  assert_true(received >= accepted && received < accepted + 8);
  free(bytes);
  close(fd);
}

static void test_shutdown_ends_streams(void **state) {
  struct fixture *f = *state;
  int fd = subscribe(f);
  free(peer_read(fd, "\r\n\r\n"));
  http_server_stop(f->server, 3000);
  f->server = NULL;
  char *rest = peer_read(fd, "");
  assert_non_null(strstr(rest, "event: bye"));
  assert_non_null(strstr(rest, "\r\n0\r\n"));
  free(rest);
  close(fd);
  assert_int_equal(atomic_load(&f->studio.cancelled), 1);
}

/* The writer does not end its stream: the server stops, later writes are refused and the end frees the request. */
static void test_shutdown_with_a_stream_left_open(void **state) {
  struct fixture *f = *state;
  f->studio.fresh = true;
  int fd = subscribe(f);
  struct http_request *r = stream_of(f);
  http_server_stop(f->server, 50);
  f->server = NULL;
  assert_int_equal(http_stream_write(r, "x", 1), RC_GONE);
  http_stream_end(r);
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_stream, setup, teardown),
      cmocka_unit_test_setup_teardown(test_stream_on_a_fresh_request, setup, teardown),
      cmocka_unit_test_setup_teardown(test_several_writers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reader_hangs_up, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reader_hangs_up_on_a_fresh_stream, setup, teardown),
      cmocka_unit_test_setup_teardown(test_slow_reader, setup, teardown),
      cmocka_unit_test_setup_teardown(test_shutdown_ends_streams, setup, teardown),
      cmocka_unit_test_setup_teardown(test_shutdown_with_a_stream_left_open, setup, teardown),
  };
  return cmocka_run_group_tests_name("http/stream", tests, NULL, NULL);
}

/* Handlers on threads of their own: they answer, suspend and stream as on the others; the queue is bounded, left by
 * peers that hang up, and emptied at the end; health does not wait for any of it. */
#include "http_test.h"

#include "common/http/server_state.h"

enum { THREADS = 2, QUEUE = 4, PEERS_MAX = 32, DRAIN_MS = 30 };

struct fixture {
  struct http_server *server;
  int port;
  pthread_mutex_t lock; /* guards open */
  pthread_cond_t opened;
  bool open; /* the gate at which slow handlers wait */
  atomic_int entered, left, cancelled[3], on_pool, replied;
  pthread_t replier;
  struct http_request *kept;
};

static void wait_at_gate(struct fixture *f) {
  struct timespec deadline = clock_deadline_in(PEER_WAIT_MS);
  atomic_fetch_add(&f->entered, 1);
  pthread_mutex_lock(&f->lock);
  while (!f->open && pthread_cond_timedwait(&f->opened, &f->lock, &deadline) == 0) continue;
  pthread_mutex_unlock(&f->lock);
  atomic_fetch_add(&f->left, 1);
}

static void open_gate(struct fixture *f) {
  pthread_mutex_lock(&f->lock);
  f->open = true;
  pthread_cond_broadcast(&f->opened);
  pthread_mutex_unlock(&f->lock);
}

static void handle_slow(struct http_request *r, void *context) {
  wait_at_gate(context);
  struct buf body = BUF_INIT;
  size_t len;
  http_body(r, &len);
  buf_printf(&body, "slow %s len=%zu from %s", http_param(r, "id"), len, http_header(r, "host"));
  http_set_header(r, "X-Slow", "yes");
  http_reply(r, 200, "text/plain", &body);
}

static void handle_json(struct http_request *r, void *context) {
  struct fixture *f = context;
  struct err err;
  const struct json *value;
  if (http_body_json(r, &value, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  wait_at_gate(f);
  http_reply_text(r, 200, "parsed");
}

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct fixture *f = context;
  atomic_fetch_add(&f->cancelled[why], 1);
  http_reply_text(r, 503, "cancelled after it suspended");
}

static void *reply_later(void *context) {
  struct fixture *f = context;
  http_reply_text(f->kept, 200, "replied later");
  atomic_store(&f->replied, 1);
  return NULL;
}

/* Suspends within the handler, and is answered by another thread before this returns. */
static void handle_suspend(struct http_request *r, void *context) {
  struct fixture *f = context;
  f->kept = r;
  http_suspend(r, 60000, on_cancelled, f);
  if (pthread_create(&f->replier, NULL, reply_later, f) != 0) http_reply_text(r, 500, "no thread");
  expect_soon(&f->replied, 1);
}

static void handle_keep(struct http_request *r, void *context) {
  struct fixture *f = context;
  wait_at_gate(f);
  http_suspend(r, 60000, on_cancelled, f);
  atomic_fetch_add(&f->on_pool, 1);
}

static void handle_stream(struct http_request *r, void *context) {
  (void)context;
  http_stream_begin(r, 200, "text/event-stream");
  http_stream_write(r, "data: one\n\n", 11);
  http_stream_write(r, "data: two\n\n", 11);
  http_stream_end(r);
}

static void handle_silent(struct http_request *r, void *context) { (void)r, (void)context; }

static void handle_now(struct http_request *r, void *context) {
  (void)context;
  http_reply_text(r, 200, "at once");
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/slow/{id}", .handler = handle_slow, .offload = true},
    {.method = "POST", .path = "/slow/{id}", .handler = handle_slow, .offload = true},
    {.method = "POST", .path = "/json", .handler = handle_json},
    {.method = "GET", .path = "/suspend", .handler = handle_suspend, .offload = true},
    {.method = "GET", .path = "/keep", .handler = handle_keep, .offload = true},
    {.method = "GET", .path = "/stream", .handler = handle_stream, .offload = true},
    {.method = "GET", .path = "/silent", .handler = handle_silent, .offload = true},
    {.method = "GET", .path = "/now", .handler = handle_now},
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN, .health = true},
};

static int setup(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  if (f == NULL) return -1;
  log_init("test", LOG_ERROR + 1);
  pthread_mutex_init(&f->lock, NULL);
  cond_init(&f->opened);
  f->server = serve_within(
      routes, ROUTE_COUNT(routes), f, NULL,
      (struct service_limits){.connections_max = 64, .handler_threads = THREADS, .handler_queue_max = QUEUE});
  f->port = http_server_port(f->server);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  open_gate(f);
  http_server_stop(f->server, 1000);
  pthread_cond_destroy(&f->opened);
  pthread_mutex_destroy(&f->lock);
  free(f);
  return 0;
}

static int ask_later(int port, const char *line) {
  char request[128];
  int fd = peer_connect(port);
  snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", line);
  peer_send(fd, request);
  return fd;
}

static void expect_and_close(int fd, int status, const char *contains) {
  char *said = peer_read(fd, "");
  if (status_of(said) != status || strstr(said, contains) == NULL)
    fail_msg("%d with \"%s\" was expected, but this came: %s", status, contains, said);
  free(said);
  close(fd);
}

static int64_t queued(struct fixture *f) {
  pthread_mutex_lock(&f->server->lock);
  const int64_t length = f->server->pool.queue_length;
  pthread_mutex_unlock(&f->server->lock);
  return length;
}

static void expect_queued(struct fixture *f, int count) {
  AWAIT(queued(f) == count, "%d were expected in the queue, not %lld", count, (long long)queued(f)) continue;
}

/* Fills all threads, then the queue; fds has room for both. */
static void fill(struct fixture *f, int fds[THREADS + QUEUE]) {
  for (int i = 0; i < THREADS; i++) fds[i] = ask_later(f->port, "GET /slow/x");
  expect_soon(&f->entered, THREADS);
  for (int i = THREADS; i < THREADS + QUEUE; i++) fds[i] = ask_later(f->port, "GET /slow/x");
  expect_queued(f, QUEUE);
}

static void test_an_offloaded_request_is_answered(void **state) {
  struct fixture *f = *state;
  open_gate(f);
  expect_answer(f->port, "GET /slow/7", "", 200, "slow 7 len=0 from t");
  expect_answer(f->port, "GET /slow/7", "", 200, "X-Slow: yes");
  expect_answer(f->port, "GET /silent", "", 500, "neither replied nor suspended");
  int fd = peer_connect(f->port); /* and the connection lives on */
  for (int i = 0; i < 3; i++) {
    peer_send(fd, "POST /slow/8 HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody");
    free(peer_read(fd, "slow 8 len=4 from t"));
    peer_send(fd, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n");
    free(peer_read(fd, "at once"));
  }
  close(fd);
}

static void test_an_offloaded_handler_may_suspend(void **state) {
  struct fixture *f = *state;
  expect_answer(f->port, "GET /suspend", "", 200, "replied later");
  pthread_join(f->replier, NULL);
}

static void test_an_offloaded_handler_may_stream(void **state) {
  struct fixture *f = *state;
  char *said = ask_line(f->port, "GET /stream", "");
  assert_non_null(strstr(said, "data: one\n\n"));
  assert_non_null(strstr(said, "data: two\n\n"));
  free(said);
}

/* A body of 100 KB is parsed, and its handler run, off libmicrohttpd's threads: they are free however many come. */
static void test_a_large_body_is_offloaded_whatever_its_route_says(void **state) {
  enum { BODY = 100000 };
  struct fixture *f = *state;
  char *request = malloc(BODY + 200);
  assert_non_null(request);
  int n = snprintf(request, 200, "POST /json HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %d\r\n\r\n\"",
                   BODY);
  memset(request + n, 'a', BODY - 2);
  memcpy(request + n + BODY - 2, "\"", 2);
  int fds[THREADS + 2];
  for (int i = 0; i < THREADS + 2; i++) {
    fds[i] = peer_connect(f->port);
    peer_send(fds[i], request);
  }
  expect_soon(&f->entered, THREADS);
  for (int i = 0; i < 20; i++) expect_answer(f->port, "GET /now", "", 200, "at once");
  assert_int_equal(atomic_load(&f->entered), THREADS);
  open_gate(f);
  for (int i = 0; i < THREADS + 2; i++) expect_and_close(fds[i], 200, "parsed");
  free(request);
}

static void test_health_does_not_wait_for_slow_handlers(void **state) {
  struct fixture *f = *state;
  int fds[THREADS + QUEUE];
  fill(f, fds);
  for (int i = 0; i < 20; i++) expect_answer(f->port, "GET /healthz", "", 200, "ok");
  assert_int_equal(atomic_load(&f->left), 0); /* all of them wait still */
  open_gate(f);
  for (int i = 0; i < THREADS + QUEUE; i++) expect_and_close(fds[i], 200, "slow x");
}

static void test_a_full_queue_is_503(void **state) {
  struct fixture *f = *state;
  int fds[THREADS + QUEUE];
  fill(f, fds);
  char *said = ask_line(f->port, "GET /slow/y", "");
  assert_int_equal(status_of(said), 503);
  assert_non_null(strstr(said, "Retry-After: 1"));
  free(said);
  open_gate(f);
  for (int i = 0; i < THREADS + QUEUE; i++) expect_and_close(fds[i], 200, "slow x");
  expect_answer(f->port, "GET /slow/y", "", 200, "slow y");
}

/* Peers that hang up leave the queue: their handlers never run, and their places are free. */
static void test_a_peer_that_hangs_up_leaves_the_queue(void **state) {
  struct fixture *f = *state;
  int fds[THREADS + QUEUE], again[QUEUE];
  fill(f, fds);
  for (int i = THREADS; i < THREADS + QUEUE; i++) close(fds[i]);
  expect_queued(f, 0);
  for (int i = 0; i < QUEUE; i++) again[i] = ask_later(f->port, "GET /slow/again");
  expect_queued(f, QUEUE);
  open_gate(f);
  for (int i = 0; i < THREADS; i++) expect_and_close(fds[i], 200, "slow x");
  for (int i = 0; i < QUEUE; i++) expect_and_close(again[i], 200, "slow again");
  assert_int_equal(atomic_load(&f->entered), THREADS + QUEUE);
}

/* A peer that only ends its own side still reads: it is not told that the service is overloaded. */
static void test_a_peer_that_ends_its_side_is_told_so(void **state) {
  struct fixture *f = *state;
  int fds[THREADS + QUEUE];
  fill(f, fds);
  shutdown(fds[THREADS], SHUT_WR);
  expect_and_close(fds[THREADS], 503, "ended its side of the connection");
  open_gate(f);
  for (int i = 0; i < THREADS + QUEUE; i++)
    if (i != THREADS) expect_and_close(fds[i], 200, "slow x");
}

/* Its peer left while the handler ran: it is told when it suspends. */
static void test_a_hang_up_while_the_handler_runs_is_told_when_it_suspends(void **state) {
  struct fixture *f = *state;
  int fd = ask_later(f->port, "GET /keep");
  expect_soon(&f->entered, 1);
  close(fd);
  clock_sleep_ms(20);
  open_gate(f);
  expect_soon(&f->cancelled[HTTP_CANCEL_HANGUP], 1);
}

static void *stop(void *context) {
  http_server_stop(context, DRAIN_MS);
  return NULL;
}

/* The queued are answered, handlers that run are waited for, what they suspend is cancelled. */
static void test_shutdown_cancels_the_queue_and_waits_for_handlers(void **state) {
  struct fixture *f = *state;
  int running = ask_later(f->port, "GET /slow/x"), keeping = ask_later(f->port, "GET /keep"), queued[QUEUE];
  expect_soon(&f->entered, 2);
  for (int i = 0; i < QUEUE; i++) queued[i] = ask_later(f->port, "GET /slow/queued");
  expect_queued(f, QUEUE);
  pthread_t stopper;
  assert_int_equal(pthread_create(&stopper, NULL, stop, f->server), 0);
  f->server = NULL;
  for (int i = 0; i < QUEUE; i++) expect_and_close(queued[i], 503, "the service is stopping");
  clock_sleep_ms(2 * DRAIN_MS); /* past the time to drain: still waited for */
  assert_int_equal(atomic_load(&f->left), 0);
  open_gate(f);
  pthread_join(stopper, NULL);
  assert_int_equal(atomic_load(&f->left), 2);
  expect_soon(&f->cancelled[HTTP_CANCEL_SHUTDOWN], 1);
  close(running);
  close(keeping);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(test_an_offloaded_request_is_answered),
      TEST(test_an_offloaded_handler_may_suspend),
      TEST(test_an_offloaded_handler_may_stream),
      TEST(test_a_large_body_is_offloaded_whatever_its_route_says),
      TEST(test_health_does_not_wait_for_slow_handlers),
      TEST(test_a_full_queue_is_503),
      TEST(test_a_peer_that_hangs_up_leaves_the_queue),
      TEST(test_a_peer_that_ends_its_side_is_told_so),
      TEST(test_a_hang_up_while_the_handler_runs_is_told_when_it_suspends),
      TEST(test_shutdown_cancels_the_queue_and_waits_for_handlers),
  };
  return cmocka_run_group_tests_name("http/offload", tests, NULL, NULL);
}

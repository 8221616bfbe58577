/* Suspended requests: replies from another thread, hang-ups, deadlines, shutdown, and the races between them. The
 * desk below is what a service has: a list of waiting requests under its own lock; who takes one off the list
 * replies. */
#include "http_test.h"

enum { DESK_MAX = 1024 };

struct waiting {
  struct http_request *request;
  bool here;
};

struct desk {
  pthread_mutex_t lock; /* guards waiting, count */
  struct waiting *waiting[DESK_MAX];
  int count;
  int64_t deadline_ms;
  atomic_int arrived, cancelled[3], answered;
  atomic_bool deaf; /* the cancelled callback does nothing: a service that forgets its duty */
};

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct waiting *w = context; /* memory of the request's arena */
  struct desk *desk = *(struct desk **)(void *)(w + 1);
  atomic_fetch_add(&desk->cancelled[why], 1);
  if (atomic_load(&desk->deaf)) return;
  pthread_mutex_lock(&desk->lock);
  bool mine = w->here;
  w->here = false;
  for (int i = 0; mine && i < desk->count; i++)
    if (desk->waiting[i] == w) desk->waiting[i--] = desk->waiting[--desk->count];
  pthread_mutex_unlock(&desk->lock);
  if (!mine) return;
  struct err err;
  err_set(&err, why == HTTP_CANCEL_DEADLINE ? RC_TIMEOUT : RC_UNAVAILABLE, NULL, "cancelled for reason %d", (int)why);
  http_fail(r, &err);
}

static void handle_wait(struct http_request *r, void *context) {
  struct desk *desk = context;
  struct waiting *w = arena_alloc(http_arena(r), 1, sizeof *w + sizeof desk);
  assert_non_null(w);
  memcpy(w + 1, &desk, sizeof(struct desk *));
  w->request = r;
  pthread_mutex_lock(&desk->lock);
  http_suspend(r, desk->deadline_ms, on_cancelled, w);
  w->here = true;
  desk->waiting[desk->count++] = w;
  pthread_mutex_unlock(&desk->lock);
  atomic_fetch_add(&desk->arrived, 1);
}

static void handle_at_once(struct http_request *r, void *context) {
  (void)context;
  http_reply_text(r, 200, "at once");
}

/* Takes one request off the desk. */
static struct http_request *desk_take(struct desk *desk) {
  pthread_mutex_lock(&desk->lock);
  struct waiting *w = desk->count > 0 ? desk->waiting[--desk->count] : NULL;
  struct http_request *r = NULL;
  if (w != NULL) {
    w->here = false;
    r = w->request;
  }
  pthread_mutex_unlock(&desk->lock);
  return r;
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/wait/{id}", .handler = handle_wait},
    {.method = "POST", .path = "/wait/{id}", .handler = handle_wait},
    {.method = "GET", .path = "/now", .handler = handle_at_once},
};

struct fixture {
  struct desk desk;
  struct http_server *server;
  int port;
};

static int setup(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  if (f == NULL) return -1;
  log_init("test", LOG_ERROR + 1);
  pthread_mutex_init(&f->desk.lock, NULL);
  f->desk.deadline_ms = 60000;
  f->server = serve(routes, ROUTE_COUNT(routes), &f->desk, NULL);
  f->port = http_server_port(f->server);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  http_server_stop(f->server, 1000);
  pthread_mutex_destroy(&f->desk.lock);
  free(f);
  return 0;
}

static int ask_later(int port, const char *id) {
  char request[128];
  int fd = peer_connect(port);
  snprintf(request, sizeof request, "GET /wait/%s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", id);
  peer_send(fd, request);
  return fd;
}

static void test_reply_from_another_thread(void **state) {
  struct fixture *f = *state;
  int fd = peer_connect(f->port);
  for (int i = 0; i < 3; i++) { /* the connection lives on between suspended requests */
    peer_send(fd, "POST /wait/x HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody");
    expect_soon(&f->desk.arrived, i + 1);
    struct http_request *r = desk_take(&f->desk);
    size_t len;
    assert_string_equal(http_param(r, "id"), "x");
    assert_string_equal(http_header(r, "host"), "t");
    assert_memory_equal(http_body(r, &len), "body", 4);
    http_set_header(r, "X-Turn", i == 0 ? "first" : "later");
    struct buf body = BUF_INIT;
    buf_printf(&body, "turn %d done", i);
    http_reply(r, 200, "text/plain", &body);
    assert_null(body.data);
    char done[32];
    snprintf(done, sizeof done, "turn %d done", i);
    free(peer_read(fd, done));
  }
  close(fd);
  assert_int_equal(atomic_load(&f->desk.cancelled[HTTP_CANCEL_HANGUP]), 0);
}

static void test_hang_up_is_noticed(void **state) {
  struct fixture *f = *state;
  close(ask_later(f->port, "closed"));
  expect_soon(&f->desk.cancelled[HTTP_CANCEL_HANGUP], 1);
  int fd = ask_later(f->port, "reset");
  expect_soon(&f->desk.arrived, 2);
  struct linger reset = {1, 0};
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
  close(fd);
  expect_soon(&f->desk.cancelled[HTTP_CANCEL_HANGUP], 2);
  expect_answer(f->port, "GET /now", "", 200, "at once");
}

static void test_deadline(void **state) {
  struct fixture *f = *state;
  f->desk.deadline_ms = 60;
  int64_t begin_ms = clock_monotonic_ms();
  expect_answer(f->port, "GET /wait/x", "", 504, "cancelled for reason 0");
  int64_t took_ms = clock_monotonic_ms() - begin_ms;
  if (took_ms < 60 || took_ms > 20000) fail_msg("a deadline of 60 ms came after %lld ms", (long long)took_ms);
  assert_int_equal(atomic_load(&f->desk.cancelled[HTTP_CANCEL_DEADLINE]), 1);
}

/* A later request with an earlier deadline must wake the watcher out of its longer sleep. */
static void test_earlier_deadline_overtakes(void **state) {
  struct fixture *f = *state;
  int slow = ask_later(f->port, "slow");
  expect_soon(&f->desk.arrived, 1);
  clock_sleep_ms(20);
  f->desk.deadline_ms = 50;
  expect_answer(f->port, "GET /wait/fast", "", 504, "reason 0");
  assert_int_equal(atomic_load(&f->desk.cancelled[HTTP_CANCEL_DEADLINE]), 1);
  http_reply_text(desk_take(&f->desk), 200, "slow but fine");
  free(peer_read(slow, "slow but fine"));
  close(slow);
}

static void test_200_suspended_at_once(void **state) {
  enum { N = 200 };
  struct fixture *f = *state;
  int fds[N];
  for (int i = 0; i < N; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", i);
    fds[i] = ask_later(f->port, id);
  }
  expect_soon(&f->desk.arrived, N);
  expect_answer(f->port, "GET /now", "", 200, "at once"); /* they hold no thread */
  for (int i = 0; i < 20; i++) close(fds[i]);
  expect_soon(&f->desk.cancelled[HTTP_CANCEL_HANGUP], 20);
  for (struct http_request *r = desk_take(&f->desk); r != NULL; r = desk_take(&f->desk)) {
    char text[32];
    snprintf(text, sizeof text, "you are %s.", http_param(r, "id"));
    http_reply_text(r, 200, text);
  }
  for (int i = 20; i < N; i++) {
    char text[32];
    snprintf(text, sizeof text, "you are %d.", i);
    free(peer_read(fds[i], text));
    close(fds[i]);
  }
  assert_int_equal(atomic_load(&f->desk.cancelled[HTTP_CANCEL_HANGUP]), 20);
}

static void *racing_replies(void *context) {
  struct desk *desk = context;
  int64_t end_ms = clock_monotonic_ms() + PEER_WAIT_MS;
  while (atomic_load(&desk->answered) >= 0 && clock_monotonic_ms() < end_ms) {
    struct http_request *r = desk_take(desk);
    if (r == NULL) continue;
    http_reply_text(r, 200, "replied");
    atomic_fetch_add(&desk->answered, 1);
  }
  return NULL;
}

/* Replies, deadlines and hang-ups of the same requests at the same moment: each is answered exactly once, and nothing
 * is touched after. */
static void test_races_of_reply_and_cancellation(void **state) {
  enum { N = 50, ROUNDS = 6 };
  struct fixture *f = *state;
  f->desk.deadline_ms = 2;
  pthread_t thread;
  for (int round = 0; round < ROUNDS; round++) {
    int fds[N];
    for (int i = 0; i < N; i++) {
      fds[i] = ask_later(f->port, "x");
      if (i == N / 2) assert_int_equal(pthread_create(&thread, NULL, racing_replies, &f->desk), 0);
    }
    int answers = 0;
    for (int i = 0; i < N; i++) {
      if (i % 5 != 0) {
        char *text = peer_read(fds[i], "");
        answers += status_of(text) == 200 || status_of(text) == 504;
        assert_null(strstr(text + 1, "HTTP/1.1"));
        free(text);
      }
      close(fds[i]);
    }
    assert_int_equal(answers, N - N / 5);
    expect_soon(&f->desk.arrived, N * (round + 1));
    atomic_store(&f->desk.answered, -1000000);
    pthread_join(thread, NULL);
    atomic_store(&f->desk.answered, 0);
  }
}

static void test_shutdown_answers_the_suspended(void **state) {
  struct fixture *f = *state;
  int fds[20];
  for (int i = 0; i < 20; i++) fds[i] = ask_later(f->port, "x");
  expect_soon(&f->desk.arrived, 20);
  int64_t begin_ms = clock_monotonic_ms();
  http_server_stop(f->server, 60000);
  f->server = NULL;
  assert_true(clock_monotonic_ms() - begin_ms < 20000); /* as soon as all are answered */
  assert_int_equal(atomic_load(&f->desk.cancelled[HTTP_CANCEL_SHUTDOWN]), 20);
  for (int i = 0; i < 20; i++) {
    char *text = peer_read(fds[i], "");
    assert_int_equal(status_of(text), 503);
    assert_non_null(strstr(text, "Retry-After: 1"));
    free(text);
    close(fds[i]);
  }
}

static void *stop_slowly(void *context) {
  http_server_stop(context, 400);
  return NULL;
}

/* A service that does not answer the cancelled: the server stops in time all the same, and its late replies touch no
 * freed memory. */
static void test_shutdown_with_replies_owed(void **state) {
  struct fixture *f = *state;
  atomic_store(&f->desk.deaf, true);
  int first = ask_later(f->port, "1"), second = ask_later(f->port, "2");
  expect_soon(&f->desk.arrived, 2);
  pthread_t stopper;
  assert_int_equal(pthread_create(&stopper, NULL, stop_slowly, f->server), 0);
  f->server = NULL;
  expect_soon(&f->desk.cancelled[HTTP_CANCEL_SHUTDOWN], 2);
  expect_answer(f->port, "GET /now", "", 503, "the service is stopping"); /* refused while draining */
  pthread_join(stopper, NULL);
  char *text = peer_read(first, "");
  assert_string_equal(text, "");
  free(text);
  close(first);
  close(second);
  http_reply_text(desk_take(&f->desk), 200, "far too late");
  struct err err;
  err_set(&err, RC_INTERNAL, NULL, "far too late");
  http_fail(desk_take(&f->desk), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_reply_from_another_thread, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hang_up_is_noticed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_deadline, setup, teardown),
      cmocka_unit_test_setup_teardown(test_earlier_deadline_overtakes, setup, teardown),
      cmocka_unit_test_setup_teardown(test_200_suspended_at_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_races_of_reply_and_cancellation, setup, teardown),
      cmocka_unit_test_setup_teardown(test_shutdown_answers_the_suspended, setup, teardown),
      cmocka_unit_test_setup_teardown(test_shutdown_with_replies_owed, setup, teardown),
  };
  return cmocka_run_group_tests_name("http/suspend", tests, NULL, NULL);
}

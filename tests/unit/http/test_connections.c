/* The limits of connections: heads and bodies that trickle, idle connections, answers that are not read, many
 * connections from one address, and health when every place is taken. */
#include "http_test.h"

#include <netinet/in.h>

#include "common/base/limits.h"
#include "common/base/metrics.h"
#include "common/http/connections.h"

/* The deadlines are those of real sockets, so these tests wait; but no longer than a busy machine needs to send a whole
 * request in time.  LATE_MS: how much later than it should such a machine may do a thing. */
enum { HEAD_MS = 80, BODY_MS = 80, IDLE_MS = 240, LATE_MS = 3000, TRICKLE_MS = 5, PACE = 4000, PEERS_MAX = 128 };
enum { LOOK_MS = 10 };

struct fixture {
  struct http_server *server;
  int port;
  atomic_int parked, hung_up;
  int peers[PEERS_MAX];
  int peer_count;
};

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct fixture *f = context;
  if (why == HTTP_CANCEL_HANGUP) atomic_fetch_add(&f->hung_up, 1);
  http_reply_text(r, 200, "cancelled");
}

static void handle_wait(struct http_request *r, void *context) {
  struct fixture *f = context;
  http_suspend(r, 60000, on_cancelled, f);
  atomic_fetch_add(&f->parked, 1);
}

static void handle_length(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  size_t len;
  http_body(r, &len);
  buf_printf(&body, "len=%zu", len);
  http_reply(r, 200, "text/plain", &body);
}

enum { LARGE = 32 << 20 };

static void handle_large(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  buf_reserve(&body, LARGE);
  memset(body.data, 'x', LARGE);
  body.len = LARGE;
  http_reply(r, 200, "text/plain", &body);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/wait", .handler = handle_wait},
    {.method = "GET", .path = "/now", .handler = handle_length},
    {.method = "POST", .path = "/now", .handler = handle_length},
    {.method = "GET", .path = "/large", .handler = handle_large},
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/metrics", .handler = http_handle_metrics, .health = true},
};

static struct fixture *start(void **state, struct service_limits limits) {
  struct fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  log_init("test", LOG_ERROR + 1);
  if (limits.head_timeout_ms == 0) limits.head_timeout_ms = 60000;
  f->server = serve_within(routes, ROUTE_COUNT(routes), f, NULL, limits);
  f->port = http_server_port(f->server);
  *state = f;
  return f;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  for (int i = 0; i < f->peer_count; i++) close(f->peers[i]);
  http_server_stop(f->server, 1000);
  free(f);
  return 0;
}

/* A peer from its own place in 127.0.0.0/8, which has sent `text`. */
static int peer_from(struct fixture *f, int host, const char *text) {
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (in_addr_t)host)};
  struct sockaddr_in there = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)f->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0 && f->peer_count < PEERS_MAX);
  assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&there, sizeof there), 0);
  peer_send(fd, text);
  f->peers[f->peer_count++] = fd;
  return fd;
}

/* Sends `byte` every `every_ms` until the server closes; returns when, after begin_ms, which is before the server's
 * time begins: this process may be held up in between.  *said has the server's text (free it). */
static int64_t trickle(int64_t begin_ms, int fd, char byte, int every_ms, char **said) {
  size_t len = 0, cap = 4096;
  *said = calloc(1, cap);
  assert_non_null(*said);
  while (clock_monotonic_ms() - begin_ms < PEER_WAIT_MS) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (poll(&wait, 1, every_ms) > 0) {
      ssize_t n = recv(fd, *said + len, cap - len - 1, 0);
      if (n <= 0) return clock_monotonic_ms() - begin_ms;
      len += (size_t)n;
      continue;
    }
    if (send(fd, &byte, 1, MSG_NOSIGNAL) < 0) return clock_monotonic_ms() - begin_ms;
  }
  fail_msg("a peer that trickles was not cut off within %d ms", PEER_WAIT_MS);
  return 0;
}

/* within_ms: of looks, which time in which the whole process stands still does not use up. */
static bool is_closed(int fd, int within_ms) {
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  char byte;
  do {
    while (poll(&wait, 1, within_ms < LOOK_MS ? within_ms : LOOK_MS) <= 0)
      if ((within_ms -= LOOK_MS) <= 0) return false;
  } while (recv(fd, &byte, 1, 0) > 0);
  return true;
}

/* A peer whose request came before its deadline.  One that this process held up between its connection and its request
 * is closed, and comes again. */
static int peer_in_time(struct fixture *f, const char *path) {
  char head[64];
  snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
  for (int tries = 0; tries < PEERS_MAX / 2; tries++) {
    const int fd = peer_from(f, 0, head);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char status[13] = "";
    AWAIT(poll(&wait, 1, 0) > 0 || atomic_load(&f->parked) > 0, "%s is neither answered nor parked", path) continue;
    if (atomic_load(&f->parked) > 0) return fd;
    if (recv(fd, status, sizeof status - 1, MSG_PEEK) > 0 && strcmp(status, "HTTP/1.1 200") == 0) return fd;
  }
  fail_msg("no request for %s came in time, of %d", path, PEERS_MAX / 2);
  return -1;
}

static int closed_count(const struct fixture *f) {
  int n = 0;
  for (int i = 0; i < f->peer_count; i++) n += is_closed(f->peers[i], 0);
  return n;
}

/* Peers are accepted by several threads: who asks before all are could be taken for an older one. */
static void expect_closed(const struct fixture *f, int n) {
  AWAIT(closed_count(f) >= n, "%d peers are closed, not %d", closed_count(f), n) continue;
}

/* Since before its time began. */
static void expect_cut(int64_t ms, int64_t timeout_ms) {
  if (ms < timeout_ms / 2 || ms > timeout_ms + LATE_MS)
    fail_msg("cut off after %lld ms, expected %lld to %lld", (long long)ms, (long long)timeout_ms / 2,
             (long long)timeout_ms + LATE_MS);
}

static void expect_408(char *said) {
  assert_int_equal(status_of(said), 408);
  assert_non_null(strstr(said, "{\"error\":{\"code\":\"timeout\""));
  free(said);
}

/* --- deadlines --- */

static void test_a_trickled_head_is_closed_by_its_deadline(void **state) {
  struct fixture *f = start(state, (struct service_limits){.head_timeout_ms = HEAD_MS});
  const int64_t begin_ms = clock_monotonic_ms();
  int fd = peer_from(f, 0, "GET /now HTTP/1.1\r\nHost: t\r\nX-Long: ");
  char *said;
  expect_cut(trickle(begin_ms, fd, 'a', TRICKLE_MS, &said), HEAD_MS);
  expect_408(said);
  assert_true(is_closed(peer_from(f, 0, ""), HEAD_MS + LATE_MS)); /* and one that says nothing at all */
  expect_answer(f->port, "GET /now", "", 200, "len=0");
}

static void test_a_trickled_body_is_closed_by_its_deadline(void **state) {
  struct fixture *f = start(state, (struct service_limits){.body_timeout_ms = BODY_MS, .pace_bytes = PACE});
  int64_t begin_ms = clock_monotonic_ms();
  char *said;
  int fd = peer_from(f, 0, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  expect_cut(trickle(begin_ms, fd, 'a', TRICKLE_MS, &said), BODY_MS);
  expect_408(said);
  begin_ms = clock_monotonic_ms();
  fd = peer_from(f, 0, "POST /now HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n");
  expect_cut(trickle(begin_ms, fd, 'a', TRICKLE_MS, &said), BODY_MS);
  expect_408(said);
}

/* Bytes that came fast do not buy time to stall in afterwards. */
static void test_a_body_cannot_save_up_time(void **state) {
  struct fixture *f = start(state, (struct service_limits){.body_timeout_ms = BODY_MS, .pace_bytes = PACE});
  const int64_t begin_ms = clock_monotonic_ms();
  char *said, block[PACE + 1];
  memset(block, 'a', PACE);
  block[PACE] = '\0';
  int fd = peer_from(f, 0, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  for (int i = 0; i < 20; i++) peer_send(fd, block); /* 20 s worth of the slowest pace */
  expect_cut(trickle(begin_ms, fd, 'a', TRICKLE_MS, &said), BODY_MS);
  expect_408(said);
}

/* Twice as fast as it must be, by the clock: held up, it has more to send. */
static void test_a_slow_but_steady_body_is_not_cut(void **state) {
  enum { STALL_MS = 1000, LENGTH = 12000, EVERY_MS = 25 }; /* for half as long again as it may stall */
  struct fixture *f = start(state, (struct service_limits){.body_timeout_ms = STALL_MS, .pace_bytes = PACE});
  char head[128], body[LENGTH];
  memset(body, 'a', LENGTH);
  snprintf(head, sizeof head, "POST /now HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %d\r\n\r\n",
           LENGTH);
  const int64_t begin_ms = clock_monotonic_ms();
  int fd = peer_from(f, 0, head);
  for (int64_t sent = 0; sent < LENGTH;) {
    clock_sleep_ms(EVERY_MS);
    int64_t due = (clock_monotonic_ms() - begin_ms) * 2 * PACE / 1000;
    if (due > LENGTH) due = LENGTH;
    assert_int_equal(send(fd, body + sent, (size_t)(due - sent), MSG_NOSIGNAL), due - sent);
    sent = due;
  }
  char *said = peer_read(fd, "");
  assert_non_null(strstr(said, "len=12000"));
  free(said);
}

static void test_an_idle_connection_outlives_the_head_deadline(void **state) {
  struct fixture *f = start(state, (struct service_limits){.head_timeout_ms = HEAD_MS, .idle_timeout_ms = 60000});
  int fd = peer_in_time(f, "/now");
  free(peer_read(fd, "len=0"));
  clock_sleep_ms(2 * HEAD_MS);
  peer_send(fd, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n");
  free(peer_read(fd, "len=0"));
}

static void test_an_idle_connection_is_closed(void **state) {
  struct fixture *f = start(state, (struct service_limits){.idle_timeout_ms = IDLE_MS});
  const int64_t begin_ms = clock_monotonic_ms();
  int fd = peer_from(f, 0, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n");
  free(peer_read(fd, "len=0"));
  char *said = peer_read(fd, ""); /* it is closed without a word: words would answer the next request */
  assert_string_equal(said, "");
  free(said);
  expect_cut(clock_monotonic_ms() - begin_ms, IDLE_MS);
}

static void test_the_head_of_a_later_request_has_a_deadline_too(void **state) {
  struct fixture *f = start(state, (struct service_limits){.head_timeout_ms = HEAD_MS, .idle_timeout_ms = 60000});
  char *said;
  int fd = peer_in_time(f, "/now");
  free(peer_read(fd, "len=0"));
  clock_sleep_ms(HEAD_MS / 2);
  expect_cut(trickle(clock_monotonic_ms(), fd, 'G', TRICKLE_MS, &said), HEAD_MS);
  expect_408(said);
}

static double dropped_late(void) {
  return metric_value(metrics_register(METRIC_COUNTER, "leasehold_http_connections_dropped_total", "why=\"late\"", ""));
}

/* By poll, which goes on after a process was stopped; a recv that has a time-out of its own fails then. */
static size_t take(int fd, char *block, size_t size) {
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  if (poll(&wait, 1, PEER_WAIT_MS) <= 0) fail_msg("nothing came within %d ms", PEER_WAIT_MS);
  const ssize_t n = recv(fd, block, size, 0);
  return n > 0 ? (size_t)n : 0;
}

static size_t take_all(int fd) {
  char block[65536];
  size_t got = 0;
  for (size_t n; (n = take(fd, block, sizeof block)) > 0;) got += n;
  return got;
}

static void test_a_peer_that_does_not_take_its_answer_is_closed(void **state) {
  struct fixture *f = start(state, (struct service_limits){.body_timeout_ms = BODY_MS, .pace_bytes = PACE});
  const double before = dropped_late();
  int fd = peer_from(f, 0, "GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
  AWAIT(dropped_late() > before, "nobody was closed") continue;
  assert_true(take_all(fd) < LARGE);
}

static void test_a_peer_that_takes_its_answer_slowly_gets_it_whole(void **state) {
  struct fixture *f = start(state, (struct service_limits){.body_timeout_ms = 10 * LATE_MS, .pace_bytes = PACE});
  char first[4096];
  int fd = peer_from(f, 0, "GET /large HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const size_t n = take(fd, first, sizeof first);
  assert_true(n > 0);
  clock_sleep_ms(BODY_MS / 10);
  assert_true(n + take_all(fd) > LARGE);
}

static void test_a_long_poll_outlives_every_deadline(void **state) {
  struct fixture *f =
      start(state, (struct service_limits){.head_timeout_ms = 50, .body_timeout_ms = 50, .idle_timeout_ms = 50});
  assert_false(is_closed(peer_in_time(f, "/wait"), 150));
  assert_int_equal(atomic_load(&f->hung_up), 0);
}

/* Stopped, or frozen with its container: what has come meanwhile lies unread when the watcher wakes, and it may be the
 * first to run.  A peer that stays away afterwards is closed in the time that it had left. */
static void test_no_peer_pays_for_time_in_which_the_process_stood_still(void **state) {
  enum { TIMEOUT_MS = 8000, SPENT_MS = 2000, STILL_MS = 600000 };
  const struct service_limits limits = {.connections_max = 8,
                                        .incomplete_per_address_max = 8,
                                        .head_timeout_ms = TIMEOUT_MS,
                                        .body_timeout_ms = TIMEOUT_MS,
                                        .pace_bytes = PACE,
                                        .idle_timeout_ms = TIMEOUT_MS};
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  const struct sockaddr_in name = {.sin_family = AF_INET};
  struct http_connection *opened[4];
  int peers[4];
  struct connections t = {0};
  struct err err = {0};
  (void)state;
  assert_int_equal(connections_create(&t, &limits, &err), RC_OK);
  for (int i = 0; i < 4; i++) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peers[i] = ends[1];
    opened[i] = connection_open(&t, ends[0], (const struct sockaddr *)&name);
  }
  assert_int_equal(connection_admit(&t, opened[1], true, &err), RC_OK);
  connection_sending(&t, opened[2]);
  connection_idle(&t, opened[3]);
  int64_t at_ms = clock_monotonic_ms();
  pthread_mutex_lock(&lock);
  for (int64_t spent_ms = 0; spent_ms < SPENT_MS; spent_ms += t.sweep_ms)
    connections_sweep(&t, &lock, at_ms += t.sweep_ms);
  connections_sweep(&t, &lock, at_ms += STILL_MS);
  for (int i = 0; i < 4; i++) assert_false(opened[i]->doomed);
  int64_t left_ms = 0;
  while (!opened[0]->doomed && left_ms < TIMEOUT_MS) {
    left_ms += t.sweep_ms;
    connections_sweep(&t, &lock, at_ms + left_ms);
  }
  assert_in_range(left_ms, TIMEOUT_MS - SPENT_MS - 3 * t.sweep_ms, TIMEOUT_MS - SPENT_MS + 3 * t.sweep_ms);
  for (int i = 0; i < 4; i++) {
    assert_true(opened[i]->doomed);
    close(opened[i]->fd);
    close(peers[i]);
  }
  pthread_mutex_unlock(&lock);
  connections_free(&t);
}

/* libmicrohttpd did not see an end that came together with the last bytes, so such peers kept their places until their
 * time-outs.  One whose bytes are unread may have sent all of its request, and one whose request is complete may have
 * closed its half. */
static void test_a_peer_that_is_gone_in_the_middle_of_its_request_keeps_no_place(void **state) {
  enum { TIMEOUT_MS = 60000, HEAD, BODY, STAYS, UNREAD, BUSY, PEERS };
  const struct service_limits limits = {.connections_max = PEERS,
                                        .incomplete_per_address_max = PEERS,
                                        .head_timeout_ms = TIMEOUT_MS,
                                        .body_timeout_ms = TIMEOUT_MS,
                                        .pace_bytes = PACE,
                                        .idle_timeout_ms = TIMEOUT_MS};
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  const struct sockaddr_in name = {.sin_family = AF_INET};
  struct http_connection *opened[PEERS];
  int peers[PEERS];
  struct connections t = {0};
  struct err err = {0};
  (void)state;
  assert_int_equal(connections_create(&t, &limits, &err), RC_OK);
  for (int i = HEAD; i < PEERS; i++) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peers[i] = ends[1];
    opened[i] = connection_open(&t, ends[0], (const struct sockaddr *)&name);
    if (i == UNREAD) assert_int_equal(send(peers[i], "x", 1, MSG_NOSIGNAL), 1);
    if (i == BODY || i == BUSY) assert_int_equal(connection_admit(&t, opened[i], i == BODY, &err), RC_OK);
    if (i != STAYS) shutdown(peers[i], SHUT_WR);
  }
  int64_t at_ms = clock_monotonic_ms();
  pthread_mutex_lock(&lock);
  connections_sweep(&t, &lock, at_ms += t.sweep_ms);
  connections_sweep(&t, &lock, at_ms += 2 * t.sweep_ms); /* late: who should have read it stood still too */
  for (int i = HEAD; i < PEERS; i++) assert_false(opened[i]->doomed);
  for (int64_t passed_ms = 0; passed_ms < 2000; passed_ms += t.sweep_ms)
    connections_sweep(&t, &lock, at_ms += t.sweep_ms);
  for (int i = HEAD; i < PEERS; i++) {
    assert_int_equal(opened[i]->doomed, i == HEAD || i == BODY);
    close(opened[i]->fd);
    close(peers[i]);
  }
  pthread_mutex_unlock(&lock);
  connections_free(&t);
}

/* --- addresses --- */

static void test_incomplete_connections_of_one_address_are_bounded(void **state) {
  struct fixture *f = start(state, (struct service_limits){.incomplete_per_address_max = 8});
  int first = peer_from(f, 1, "GET /now HTTP/1.1\r\nHost: ");
  clock_sleep_ms(20);
  for (int i = 1; i < 8; i++) peer_from(f, 1, "GET /now HTTP/1.1\r\nHost: ");
  int other = peer_from(f, 2, "GET /now HTTP/1.1\r\nHost: ");
  assert_false(is_closed(first, 20));
  int ninth = peer_from(f, 1, "GET /now HTTP/1.1\r\nHost: ");
  assert_true(is_closed(first, LATE_MS)); /* the oldest gives way, not the newcomer */
  assert_false(is_closed(other, 0));
  peer_send(ninth, "t\r\n\r\n");
  free(peer_read(ninth, "len=0"));
}

/* Bodies that keep their pace stay; the request that would be one too many is told so. */
static void test_bodies_that_keep_pace_do_not_give_way(void **state) {
  struct fixture *f = start(state, (struct service_limits){.incomplete_per_address_max = 4});
  int bodies[4];
  for (int i = 0; i < 4; i++)
    bodies[i] = peer_from(f, 1, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nab");
  clock_sleep_ms(50);
  int fifth = peer_from(f, 1, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nabcd");
  char *said = peer_read(fifth, "");
  assert_int_equal(status_of(said), 429);
  assert_non_null(strstr(said, "Retry-After: 1"));
  free(said);
  int get = peer_from(f, 1, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n"); /* complete at once: it counts for nothing */
  free(peer_read(get, "len=0"));
  for (int i = 0; i < 4; i++) {
    peer_send(bodies[i], "cd");
    free(peer_read(bodies[i], "len=4"));
  }
}

static void test_parked_and_idle_connections_do_not_count_against_their_address(void **state) {
  struct fixture *f = start(state, (struct service_limits){.incomplete_per_address_max = 4});
  for (int i = 0; i < 40; i++) {
    peer_from(f, 1, "GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
    expect_soon(&f->parked, i + 1);
  }
  for (int i = 0; i < 40; i++) free(peer_read(peer_from(f, 1, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n"), "len=0"));
  int body = peer_from(f, 1, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nab");
  clock_sleep_ms(20);
  peer_send(body, "cd");
  free(peer_read(body, "len=4"));
  for (int i = 0; i < f->peer_count; i++) assert_false(is_closed(f->peers[i], 0));
}

/* A socket that listens on "::" sees IPv4 peers as ::ffff:a.b.c.d, all of them in one /64. */
static void test_ipv4_peers_of_an_ipv6_socket_are_several_addresses(void **state) {
  const struct service_limits limits = {.connections_max = 8,
                                        .incomplete_per_address_max = 1,
                                        .head_timeout_ms = 60000,
                                        .body_timeout_ms = 60000,
                                        .pace_bytes = PACE,
                                        .idle_timeout_ms = 60000};
  const char *const from[] = {"::ffff:10.0.0.1", "::ffff:10.0.0.2", "::1", "2001:db8::1", "2001:db8::2"};
  struct http_connection *opened[5];
  struct connections t = {0};
  struct err err = {0};
  (void)state;
  assert_int_equal(connections_create(&t, &limits, &err), RC_OK);
  for (int i = 0; i < 5; i++) {
    struct sockaddr_in6 name = {.sin6_family = AF_INET6};
    int ends[2];
    assert_int_equal(inet_pton(AF_INET6, from[i], &name.sin6_addr), 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    close(ends[1]);
    opened[i] = connection_open(&t, ends[0], (const struct sockaddr *)&name);
  }
  for (int i = 0; i < 5; i++) {
    assert_int_equal(opened[i]->doomed, i == 3); /* of one /64 the older gave way */
    close(opened[i]->fd);
  }
  connections_free(&t);
}

/* --- the ceiling and the reserve --- */

static void test_health_is_answered_when_long_polls_hold_every_connection(void **state) {
  struct fixture *f = start(state, (struct service_limits){.connections_max = 16});
  for (int i = 0; i < 16; i++) {
    peer_from(f, i, "GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
    expect_soon(&f->parked, i + 1);
  }
  for (int i = 0; i < 200; i++) { /* more than the reserve has: each gives its place back */
    int fd = peer_connect(f->port);
    peer_send(fd, i % 2 == 0 ? "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n" : "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n");
    char *said = peer_read(fd, ""); /* and is closed, although it may live on */
    assert_int_equal(status_of(said), 200);
    assert_non_null(strstr(said, "Connection: close"));
    free(said);
    close(fd);
  }
  expect_answer(f->port, "GET /now", "", 503, "all 16 connections are taken");
  expect_answer(f->port, "GET /now", "", 503, "Retry-After: 1");
  char *said = ask(f->port, "POST /now HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nabcd");
  assert_int_equal(status_of(said), 503);
  free(said);
  close(f->peers[--f->peer_count]);
  int status = 503; /* until its connection is gone */
  for (const int64_t end_ms = clock_monotonic_ms() + PEER_WAIT_MS; status == 503 && clock_monotonic_ms() < end_ms;) {
    said = ask_line(f->port, "GET /now", "");
    status = status_of(said);
    free(said);
  }
  assert_int_equal(status, 200);
}

/* Neither the connections nor the reserve can be held by requests that never become complete. */
static void test_health_is_answered_when_tricklers_hold_every_connection(void **state) {
  struct fixture *f = start(state, (struct service_limits){.connections_max = 32});
  for (int i = 0; i < 32 + 64; i++) peer_from(f, i, "GET /now HTTP/1.1\r\nHost: ");
  expect_closed(f, 64);
  expect_answer(f->port, "GET /healthz", "", 200, "ok");
  expect_answer(f->port, "GET /now", "", 200, "len=0");
  assert_true(closed_count(f) >= 64);
}

static void test_the_reserve_cannot_be_held_by_tricklers(void **state) {
  struct fixture *f = start(state, (struct service_limits){.connections_max = 8});
  for (int i = 0; i < 8; i++) {
    peer_from(f, i, "GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
    expect_soon(&f->parked, i + 1);
  }
  for (int i = 0; i < 110; i++) peer_from(f, i, "GET /healthz HTTP/1.1\r\nHost: ");
  expect_closed(f, 110 - LIMIT_HTTP_RESERVE / 2);
  const int64_t begin_ms = clock_monotonic_ms();
  expect_answer(f->port, "GET /healthz", "", 200, "ok");
  assert_true(clock_monotonic_ms() - begin_ms < 500);
  for (int i = 0; i < 8; i++) assert_false(is_closed(f->peers[i], 0));
  for (int i = 8; i < f->peer_count; i++) assert_true(is_closed(f->peers[i], LATE_MS)); /* a second is all they get */
}

static void test_an_idle_connection_gives_way_at_the_ceiling(void **state) {
  struct fixture *f = start(state, (struct service_limits){.connections_max = 8});
  for (int i = 0; i < 8; i++) free(peer_read(peer_from(f, i, "GET /now HTTP/1.1\r\nHost: t\r\n\r\n"), "len=0"));
  clock_sleep_ms(20);
  expect_answer(f->port, "GET /now", "", 200, "len=0");
  assert_int_equal(closed_count(f), 1);
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_a_trickled_head_is_closed_by_its_deadline),
      TEST(test_a_trickled_body_is_closed_by_its_deadline),
      TEST(test_a_body_cannot_save_up_time),
      TEST(test_a_slow_but_steady_body_is_not_cut),
      TEST(test_an_idle_connection_outlives_the_head_deadline),
      TEST(test_an_idle_connection_is_closed),
      TEST(test_the_head_of_a_later_request_has_a_deadline_too),
      TEST(test_a_peer_that_does_not_take_its_answer_is_closed),
      TEST(test_a_peer_that_takes_its_answer_slowly_gets_it_whole),
      TEST(test_a_long_poll_outlives_every_deadline),
      cmocka_unit_test(test_no_peer_pays_for_time_in_which_the_process_stood_still),
      cmocka_unit_test(test_a_peer_that_is_gone_in_the_middle_of_its_request_keeps_no_place),
      TEST(test_incomplete_connections_of_one_address_are_bounded),
      TEST(test_bodies_that_keep_pace_do_not_give_way),
      TEST(test_parked_and_idle_connections_do_not_count_against_their_address),
      cmocka_unit_test(test_ipv4_peers_of_an_ipv6_socket_are_several_addresses),
      TEST(test_health_is_answered_when_long_polls_hold_every_connection),
      TEST(test_health_is_answered_when_tricklers_hold_every_connection),
      TEST(test_the_reserve_cannot_be_held_by_tricklers),
      TEST(test_an_idle_connection_gives_way_at_the_ceiling),
  };
  return cmocka_run_group_tests_name("http/connections", tests, NULL, NULL);
}

/* The client against peers that are slow, silent, wrong, too talkative or gone. The peer is a thread that accepts one
 * connection, plays a script and closes; so every byte on the wire is the test's own. */
#include <fcntl.h>
#include <netinet/in.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "http_test.h"
#include "tests/unit/base/scratch.h"

/* Sends `bytes` after the request has been read to its empty line, then `rest` again and again, then waits hold_ms
 * before closing. */
struct peer {
  const char *bytes;
  size_t bytes_len;
  const char *rest; /* NULL: none; "" sends nothing; every rest_ms until the client hangs up */
  int64_t rest_ms, hold_ms;
  int exchanges; /* on one connection */
  int listen_fd, port;
  pthread_t thread;
  int64_t seen_ms, gap_ms_most; /* the longest that it has waited for anything, or been kept from running */
  char request[8192];           /* the last one, header only */
  atomic_bool asked;  /* its header has come */
};

static void note_gap(struct peer *p) {
  const int64_t now_ms = clock_monotonic_ms();
  if (now_ms - p->seen_ms > p->gap_ms_most) p->gap_ms_most = now_ms - p->seen_ms;
  p->seen_ms = now_ms;
}

static void *peer_main(void *context) {
  struct peer *p = context;
  int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return NULL;
  note_gap(p);
  for (int i = 0; i < p->exchanges; i++) {
    size_t len = 0;
    p->request[0] = '\0';
    while (strstr(p->request, "\r\n\r\n") == NULL && len + 1 < sizeof p->request) {
      ssize_t n = recv(fd, p->request + len, sizeof p->request - 1 - len, 0);
      if (n <= 0) break;
      len += (size_t)n;
      p->request[len] = '\0';
    }
    atomic_store(&p->asked, true);
    if (send(fd, p->bytes, p->bytes_len, MSG_NOSIGNAL) < 0) break;
  }
  while (p->rest && send(fd, p->rest, strlen(p->rest), MSG_NOSIGNAL) >= 0) {
    struct pollfd gone = {.fd = fd, .events = POLLRDHUP};
    const bool hung_up = poll(&gone, 1, (int)p->rest_ms) > 0;
    note_gap(p);
    if (hung_up) break;
  }
  struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
  if (p->hold_ms > 0) poll(&wait, 1, (int)p->hold_ms);
  close(fd);
  return NULL;
}

static void peer_begin(struct peer *p) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(p->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(p->listen_fd, 8), 0);
  assert_int_equal(getsockname(p->listen_fd, (struct sockaddr *)&address, &len), 0);
  p->port = ntohs(address.sin_port);
  p->seen_ms = clock_monotonic_ms();
  assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

static void peer_start(struct peer *p, const char *bytes, int64_t hold_ms, int exchanges) {
  memset(p, 0, sizeof *p);
  p->bytes = bytes;
  p->bytes_len = strlen(bytes);
  p->hold_ms = hold_ms;
  p->exchanges = exchanges;
  peer_begin(p);
}

static void peer_stop(struct peer *p) {
  shutdown(p->listen_fd, SHUT_RDWR);
  pthread_join(p->thread, NULL);
  close(p->listen_fd);
}

static struct http_client *client_of(const char *token, const atomic_bool *cancel) {
  struct http_client *c = NULL;
  struct err err = {0};
  if (http_client_create(&c, token, cancel, &err) != RC_OK) fail_msg("%s", err.message);
  return c;
}

static enum rc get(struct http_client *c, int port, int64_t deadline_ms, size_t max, struct http_answer *answer,
                   struct err *err) {
  char url[64];
  snprintf(url, sizeof url, "http://127.0.0.1:%d/x?y=1", port);
  struct http_call call = {.method = "GET", .url = url, .deadline_ms = deadline_ms, .response_bytes_max = max};
  return http_client_call(c, &call, answer, err);
}

/* One call to a peer that sends `bytes`: its code. */
static enum rc outcome(const char *bytes, int64_t hold_ms, int64_t deadline_ms, size_t max, struct err *err) {
  struct peer p;
  struct http_answer answer;
  peer_start(&p, bytes, hold_ms, 1);
  struct http_client *c = client_of(NULL, NULL);
  enum rc rc = get(c, p.port, deadline_ms, max, &answer, err);
  http_answer_free(&answer);
  http_client_destroy(c);
  peer_stop(&p);
  return rc;
}

/* One call to a peer that goes on with `rest`: its code.  gap_ms: as struct peer's, or NULL. */
static enum rc outcome_of_endless(const char *bytes, const char *rest, int64_t rest_ms, int64_t deadline_ms,
                                  int64_t stall_ms, int64_t *gap_ms, struct err *err) {
  struct peer p = {.bytes = bytes, .bytes_len = strlen(bytes), .rest = rest, .rest_ms = rest_ms, .exchanges = 1};
  struct http_answer answer;
  char url[64];
  peer_begin(&p);
  snprintf(url, sizeof url, "http://127.0.0.1:%d/x", p.port);
  struct http_client *c = client_of(NULL, NULL);
  const struct http_call call = {.method = "GET", .url = url, .deadline_ms = deadline_ms, .stall_ms = stall_ms};
  enum rc rc = http_client_call(c, &call, &answer, err);
  http_answer_free(&answer);
  http_client_destroy(c);
  peer_stop(&p);
  if (gap_ms) *gap_ms = p.gap_ms_most;
  return rc;
}

static void test_answer(void **state) {
  (void)state;
  struct peer p;
  struct http_answer answer;
  struct err err = {0};
  peer_start(&p, "HTTP/1.1 404 Nope\r\nContent-Length: 5\r\nx-leasehold-digest:  0123abcd \r\n\r\nhello", 0, 1);
  struct http_client *c = client_of("tok", NULL);
  char url[64];
  snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/leases/l1/result", p.port);
  struct http_call call = {.method = "PUT",
                           .url = url,
                           .body = "{}",
                           .body_len = 2,
                           .deadline_ms = PEER_WAIT_MS,
                           .headers = (const char *const[]){"X-Epoch: 4", "X-Fence: 9", NULL}};
  assert_int_equal(http_client_call(c, &call, &answer, &err), RC_OK);
  assert_int_equal(answer.status, 404);
  assert_int_equal(answer.body.len, 5);
  assert_string_equal(answer.body.data, "hello");
  assert_string_equal(answer.digest_header, "0123abcd");
  http_answer_free(&answer);
  http_client_destroy(c);
  peer_stop(&p);
  static const char *const sent[] = {"PUT /v1/leases/l1/result HTTP/1.1\r\n",
                                     "\r\nAuthorization: Bearer tok\r\n",
                                     "\r\nContent-Length: 2\r\n",
                                     "\r\nContent-Type: application/json\r\n",
                                     "\r\nX-Epoch: 4\r\n",
                                     "\r\nX-Fence: 9\r\n"};
  for (size_t i = 0; i < sizeof sent / sizeof sent[0]; i++)
    if (strstr(p.request, sent[i]) == NULL) fail_msg("no \"%s\" in: %s", sent[i], p.request);
}

static void test_connection_is_kept(void **state) {
  (void)state;
  struct peer p;
  struct err err = {0};
  peer_start(&p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, 3); /* accepts only once */
  struct http_client *c = client_of(NULL, NULL);
  for (int i = 0; i < 3; i++) {
    struct http_answer answer;
    assert_int_equal(get(c, p.port, PEER_WAIT_MS, 0, &answer, &err), RC_OK);
    assert_string_equal(answer.body.data, "ok");
    http_answer_free(&answer);
  }
  http_client_destroy(c);
  peer_stop(&p);
  assert_null(strstr(p.request, "Authorization"));
}

static void test_half_answers(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(outcome("", 0, PEER_WAIT_MS, 0, &err), RC_UNAVAILABLE);
  assert_int_equal(outcome("HTTP/1.1 200 O", 0, PEER_WAIT_MS, 0, &err), RC_UNAVAILABLE);
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", 0, PEER_WAIT_MS, 0, &err),
                   RC_UNAVAILABLE);
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", 0, PEER_WAIT_MS, 0, &err),
                   RC_UNAVAILABLE);
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 0, PEER_WAIT_MS, 0, &err),
                   RC_UNAVAILABLE);
  assert_int_equal(outcome("SSH-2.0-OpenSSH\r\n", 0, PEER_WAIT_MS, 0, &err), RC_UNAVAILABLE);
}

static void test_slow_peer_meets_the_deadline(void **state) {
  (void)state;
  static const char *const slow[] = {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"};
  for (size_t i = 0; i < 3; i++) {
    struct err err;
    int64_t begin_ms = clock_monotonic_ms();
    assert_int_equal(outcome(slow[i], 60000, 60, 0, &err), RC_TIMEOUT);
    assert_in_range(clock_monotonic_ms() - begin_ms, 50, 20000);
    assert_non_null(strstr(err.message, "within 60 ms"));
  }
}

/* Fifty bytes a second keep every socket timer happy; the deadline is the whole exchange's. */
static void test_dripping_peer_meets_the_deadline(void **state) {
  (void)state;
  static const struct {
    const char *bytes, *rest;
  } drips[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", "x"},
               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"},
               {"HTTP/1.1 200 OK\r\nX-Slow: ", "x"},
               {"HTTP/1.1 2", "0"},
               {"", "HTTP/1.1 100 Continue\r\n\r\n"}};
  for (size_t i = 0; i < sizeof drips / sizeof drips[0]; i++) {
    struct err err;
    int64_t begin_ms = clock_monotonic_ms();
    enum rc rc = outcome_of_endless(drips[i].bytes, drips[i].rest, 20, 60, 0, NULL, &err);
    if (rc != RC_TIMEOUT) fail_msg("drip %zu: expected a timeout, got %s: %s", i, rc_name(rc), err.message);
    assert_in_range(clock_monotonic_ms() - begin_ms, 50, 20000); /* the whole answer would take 100 seconds */
  }
}

struct stall {
  const char *bytes, *rest;
  int64_t rest_ms;
  enum rc want, got;
  int64_t took_ms, gap_ms;
  struct err err;
  pthread_t thread;
};

static void *stall_main(void *context) {
  struct stall *s = context;
  int64_t begin_ms = clock_monotonic_ms();
  s->got = outcome_of_endless(s->bytes, s->rest, s->rest_ms, 60000, 1000, &s->gap_ms, &s->err);
  s->took_ms = clock_monotonic_ms() - begin_ms;
  return NULL;
}

/* Where a call says so, a transfer that has stopped ends long before its deadline; one that flows does not. */
static void test_stalled_transfers_are_given_up(void **state) {
  (void)state;
  char flow[512];
  memset(flow, 'x', sizeof flow - 1);
  flow[sizeof flow - 1] = '\0';
  struct stall stalls[] = {
      {.bytes = "", .rest = "", .rest_ms = 50, .want = RC_TIMEOUT},
      {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhalf", .rest = "", .rest_ms = 50, .want = RC_TIMEOUT},
      {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", .rest = "x", .rest_ms = 100, .want = RC_TIMEOUT},
      {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 14000\r\n\r\n", .rest = flow, .rest_ms = 50, .want = RC_OK}};
  enum { N = sizeof stalls / sizeof stalls[0] };
  for (size_t i = 0; i < N; i++) assert_int_equal(pthread_create(&stalls[i].thread, NULL, stall_main, &stalls[i]), 0);
  for (size_t i = 0; i < N; i++) pthread_join(stalls[i].thread, NULL);
  for (size_t i = 0; i < N; i++) {
    const struct stall *s = &stalls[i];
    if (s->want == RC_OK && s->gap_ms >= 900) continue; /* this process stood still, so nothing flowed */
    if (s->got != s->want) fail_msg("transfer %zu: expected %s, got %s", i, rc_name(s->want), rc_name(s->got));
    if (s->want == RC_OK) continue;
    if (!strstr(s->err.message, "bytes a second")) fail_msg("stall %zu: %s", i, s->err.message);
    assert_in_range(s->took_ms, 900, 30000);
  }
}

/* An answer shorter or longer than announced: surplus bytes never become part of a later answer. */
static void test_wrong_lengths(void **state) {
  (void)state;
  static const char *const lies[] = {"Content-Length: 99999999999999999999999", "Content-Length: -1",
                                     "Content-Length: ten", "Content-Length: 5\r\nContent-Length: 50"};
  struct peer p;
  struct http_answer answer;
  struct err err = {0};
  peer_start(&p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 0,
             1);
  struct http_client *c = client_of(NULL, NULL);
  assert_int_equal(get(c, p.port, PEER_WAIT_MS, 0, &answer, &err), RC_OK);
  assert_string_equal(answer.body.data, "ok");
  http_answer_free(&answer);
  assert_int_not_equal(get(c, p.port, 60, 0, &answer, &err), RC_OK); /* the peer accepts nobody else */
  http_client_destroy(c);
  peer_stop(&p);
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    char bytes[256];
    snprintf(bytes, sizeof bytes, "HTTP/1.1 200 OK\r\n%s\r\n\r\nhello", lies[i]);
    enum rc rc = outcome(bytes, 0, PEER_WAIT_MS, 0, &err);
    if (rc != RC_UNAVAILABLE && rc != RC_TOO_LARGE) fail_msg("\"%s\": got %s", lies[i], rc_name(rc));
    assert_non_null(strstr(err.message, "GET http://127.0.0.1:"));
  }
}

static void test_garbage_is_no_answer(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t len;
  } garbage[] = {{"\0\0\0\0\r\n\r\n", 8},
                 {"\xff\xfe\x00\x01garbage\r\n\r\n", 15},
                 {"HTTP/9.9 200 OK\r\n\r\n", 19},
                 {"HTTP/1.1 abc OK\r\n\r\n", 19},
                 {"HTTP/1.1\r\n\r\n", 12},
                 {"{\"error\":1}", 11},
                 {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx", 68}};
  for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
    struct peer p = {.bytes = garbage[i].bytes, .bytes_len = garbage[i].len, .exchanges = 1};
    struct http_answer answer;
    struct err err = {0};
    peer_begin(&p);
    struct http_client *c = client_of(NULL, NULL);
    enum rc rc = get(c, p.port, PEER_WAIT_MS, 0, &answer, &err);
    if (rc != RC_UNAVAILABLE) fail_msg("garbage %zu: expected unavailable, got %s", i, rc_name(rc));
    assert_true(strlen(err.message) > 20);
    http_client_destroy(c);
    peer_stop(&p);
  }
}

/* A header has no announced length, so it has a ceiling; and so has a status line. */
static void test_endless_headers_are_cut_off(void **state) {
  (void)state;
  char line[1024];
  snprintf(line, sizeof line, "X-Filler: %0900d\r\n", 0);
  struct err err;
  enum rc rc = outcome_of_endless("HTTP/1.1 200 OK\r\n", line, 0, PEER_WAIT_MS, 0, NULL, &err);
  if (rc != RC_UNAVAILABLE && rc != RC_TOO_LARGE) fail_msg("header lines: %s: %s", rc_name(rc), err.message);
  memset(line, 'x', sizeof line - 1);
  rc = outcome_of_endless("HTTP/1.1 200 OK\r\nX-Filler: ", line, 0, PEER_WAIT_MS, 0, NULL, &err);
  if (rc != RC_NO_MEMORY || !strstr(err.message, "100 KiB")) fail_msg("a line: %s: %s", rc_name(rc), err.message);
  rc = outcome_of_endless("HTTP/1.1 200 OK", line, 0, PEER_WAIT_MS, 0, NULL, &err);
  if (rc != RC_NO_MEMORY || !strstr(err.message, "100 KiB")) fail_msg("status line: %s: %s", rc_name(rc), err.message);
  rc = outcome_of_endless("HTTP/1.1 200 OK\r\n\r\n", line, 0, PEER_WAIT_MS, 0, NULL, &err);
  assert_int_equal(rc, RC_TOO_LARGE); /* an endless body */
}

static void test_oversize_answers(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", 1000, PEER_WAIT_MS, 10, &err),
                   RC_TOO_LARGE); /* from the header */
  assert_non_null(strstr(err.message, "at most 10 bytes"));
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello hello\r\n0\r\n\r\n", 0,
                           PEER_WAIT_MS, 10, &err),
                   RC_TOO_LARGE);
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\n\r\nhello hello", 0, PEER_WAIT_MS, 10, &err), RC_TOO_LARGE);
  assert_int_equal(outcome("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello hell", 0, PEER_WAIT_MS, 10, &err),
                   RC_OK);
}

static void test_oversize_digest_header_is_none(void **state) {
  (void)state;
  struct peer p;
  struct http_answer answer;
  struct err err;
  char bytes[512];
  snprintf(bytes, sizeof bytes, "HTTP/1.1 200 OK\r\nX-Leasehold-Digest: %0100d\r\nContent-Length: 0\r\n\r\n", 0);
  peer_start(&p, bytes, 0, 1);
  struct http_client *c = client_of(NULL, NULL);
  assert_int_equal(get(c, p.port, PEER_WAIT_MS, 0, &answer, &err), RC_OK);
  assert_string_equal(answer.digest_header, "");
  http_answer_free(&answer);
  http_client_destroy(c);
  peer_stop(&p);
}

static void test_connection_refused(void **state) {
  (void)state;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC,
                  0); /* bound and not listening: refused, and nobody else takes the port */
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
  struct http_client *c = client_of(NULL, NULL);
  struct http_answer answer;
  struct err err;
  assert_int_equal(get(c, ntohs(address.sin_port), PEER_WAIT_MS, 0, &answer, &err), RC_UNAVAILABLE);
  assert_non_null(strstr(err.message, "GET http://127.0.0.1:"));
  http_client_destroy(c);
  close(fd);
}

static void test_bad_urls(void **state) {
  (void)state;
  static const char *const urls[] = {"", "http://", "file:///etc/passwd", "ftp://127.0.0.1:1/",
                                     "https://", "http://127.0.0.1:99999/"};
  struct http_client *c = client_of(NULL, NULL);
  for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
    struct http_answer answer;
    struct err err;
    struct http_call call = {.method = "GET", .url = urls[i], .deadline_ms = 1000};
    assert_int_equal(http_client_call(c, &call, &answer, &err), RC_INVALID);
  }
  http_client_destroy(c);
}

struct canceller {
  struct peer *peer;
  atomic_bool cancel;
};

static void *cancel_when_asked(void *context) {
  struct canceller *c = context;
  AWAIT(atomic_load(&c->peer->asked), "the peer was not asked") continue;
  atomic_store(&c->cancel, true);
  return NULL;
}

static void test_cancel_flag(void **state) {
  (void)state;
  struct peer p;
  struct canceller canceller = {.peer = &p};
  struct http_answer answer;
  struct err err;
  pthread_t thread;
  peer_start(&p, "", 5000, 1);
  struct http_client *c = client_of(NULL, &canceller.cancel);
  assert_int_equal(pthread_create(&thread, NULL, cancel_when_asked, &canceller), 0);
  int64_t begin_ms = clock_monotonic_ms();
  assert_int_equal(get(c, p.port, 30000, 0, &answer, &err), RC_UNAVAILABLE);
  assert_true(clock_monotonic_ms() - begin_ms < 5000);
  assert_non_null(strstr(err.message, "cancelled"));
  assert_int_equal(get(c, p.port, 30000, 0, &answer, &err), RC_UNAVAILABLE); /* and at once from then on */
  pthread_join(thread, NULL);
  http_client_destroy(c);
  peer_stop(&p);
}

static void test_redirects_are_not_followed(void **state) {
  (void)state;
  struct peer p;
  struct http_answer answer;
  struct err err;
  peer_start(&p, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 0, 1);
  struct http_client *c = client_of(NULL, NULL);
  assert_int_equal(get(c, p.port, PEER_WAIT_MS, 0, &answer, &err), RC_OK);
  assert_int_equal(answer.status, 302);
  http_answer_free(&answer);
  http_client_destroy(c);
  peer_stop(&p);
}

/* Certificates are tested end to end (test_tls.py, test_remote_rewards.py). */
static void test_https_is_spoken_to_peers_and_strangers(void **state) {
  (void)state;
  struct http_answer answer;
  struct err err;
  const struct http_call call = {.method = "GET", .url = "https://127.0.0.1:1/", .deadline_ms = PEER_WAIT_MS};
  struct http_client *c = client_of(NULL, NULL);
  assert_int_equal(http_client_call(c, &call, &answer, &err), RC_UNAVAILABLE); /* nobody listens there */
  http_client_of_strangers(c, NULL);
  assert_int_equal(http_client_call(c, &call, &answer, &err), RC_UNAVAILABLE); /* nobody listens there */
  http_client_destroy(c);
}

static void test_a_file_of_authorities_has_certificates(void **state) {
  (void)state;
  char folder[64], path[LIMIT_PATH_MAX];
  struct err err;
  scratch_folder(folder, sizeof folder, "authorities");
  assert_int_equal(http_ca_file_check(NULL, &err), RC_OK);
  assert_int_equal(http_ca_file_check("", &err), RC_OK);
  assert_int_equal(path_format(path, NULL, "%s/authority.pem", folder), RC_OK);
  assert_int_equal(http_ca_file_check(path, &err), RC_NOT_FOUND);
  assert_int_equal(file_write(path, "", 0, NULL), RC_OK);
  assert_int_equal(http_ca_file_check(path, &err), RC_INVALID);
  static const char key[] = "-----BEGIN PRIVATE KEY-----\n", both[] = "# ours\n-----BEGIN CERTIFICATE-----\n";
  assert_int_equal(file_write(path, key, sizeof key - 1, NULL), RC_OK);
  assert_int_equal(http_ca_file_check(path, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "authority.pem"));
  assert_int_equal(file_write(path, both, sizeof both - 1, NULL), RC_OK);
  assert_int_equal(http_ca_file_check(path, &err), RC_OK);
  file_remove_tree(folder, NULL);
}

/* A model's file or a run may have any name: no byte of it may end a path segment or a query value. */
static void test_names_are_escaped_for_urls(void **state) {
  (void)state;
  struct buf url = BUF_INIT;
  buf_puts(&url, "http://h/");
  http_url_escape(&url, "");
  http_url_escape(&url, "Az09-._~");
  http_url_escape(&url, " /?#&=+%\xc3\xbc\x01");
  assert_string_equal(url.data, "http://h/Az09-._~%20%2F%3F%23%26%3D%2B%25%C3%BC%01");
  buf_free(&url);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names_are_escaped_for_urls),
      cmocka_unit_test(test_answer),
      cmocka_unit_test(test_connection_is_kept),
      cmocka_unit_test(test_half_answers),
      cmocka_unit_test(test_slow_peer_meets_the_deadline),
      cmocka_unit_test(test_dripping_peer_meets_the_deadline),
      cmocka_unit_test(test_stalled_transfers_are_given_up),
      cmocka_unit_test(test_wrong_lengths),
      cmocka_unit_test(test_garbage_is_no_answer),
      cmocka_unit_test(test_endless_headers_are_cut_off),
      cmocka_unit_test(test_oversize_answers),
      cmocka_unit_test(test_oversize_digest_header_is_none),
      cmocka_unit_test(test_connection_refused),
      cmocka_unit_test(test_bad_urls),
      cmocka_unit_test(test_cancel_flag),
      cmocka_unit_test(test_redirects_are_not_followed),
      cmocka_unit_test(test_https_is_spoken_to_peers_and_strangers),
      cmocka_unit_test(test_a_file_of_authorities_has_certificates),
  };
  return cmocka_run_group_tests_name("http/client", tests, NULL, NULL);
}

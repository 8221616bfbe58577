/* Fixtures of the HTTP tests: a server on a free port, and raw-socket peers that may behave as badly as they like.
 * Every wait here has a deadline, so that a broken server fails a test and does not hang it. */
#ifndef LEASEHOLD_TESTS_HTTP_TEST_H
#define LEASEHOLD_TESTS_HTTP_TEST_H

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/http/trust/access.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/http/status.h"
#include "tests/unit/base/await.h"

enum { PEER_WAIT_MS = 30000 }; /* only a test that fails waits so long */
#define ROUTE_COUNT(routes) (sizeof(routes) / sizeof((routes)[0]))

static inline struct http_server *serve_within(const struct http_route *routes, size_t count, void *context,
                                               struct http_access *access, struct service_limits limits) {
  struct http_server *server = NULL;
  struct err err = {0};
  struct http_server_options options = {.bind_address = "127.0.0.1",
                                        .access = access,
                                        .limits = limits,
                                        .routes = routes,
                                        .route_count = count,
                                        .context = context};
  if (http_server_start(&server, &options, &err) != RC_OK) fail_msg("%s", err.message);
  return server;
}

static inline struct http_server *serve(const struct http_route *routes, size_t count, void *context,
                                        struct http_access *access) {
  return serve_within(routes, count, context, access, (struct service_limits){.connections_max = 512});
}

/* Of --auth-token and --token-dir, either may be NULL. */
static inline struct http_access *access_of(const char *token, const char *token_dir) {
  const struct program_settings settings = {.bind = "127.0.0.1", .token = token, .token_dir = token_dir};
  struct http_access *access = NULL;
  struct err err = {0};
  if (http_access_open(&access, &settings, 0, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  return access;
}

static inline int peer_connect(int port) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

static inline void peer_send(int fd, const char *text) {
  size_t len = strlen(text);
  assert_int_equal(send(fd, text, len, MSG_NOSIGNAL), (ssize_t)len);
}

/* Reads until the text `until` has come ("" : until the server closes).  NUL-terminated, free() it. */
static inline char *peer_read(int fd, const char *until) {
  size_t len = 0, cap = 1 << 20;
  char *text = calloc(1, cap);
  assert_non_null(text);
  int64_t end_ms = clock_monotonic_ms() + PEER_WAIT_MS;
  while (until[0] == '\0' || strstr(text, until) == NULL) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int64_t left_ms = end_ms - clock_monotonic_ms();
    if (left_ms <= 0 || poll(&wait, 1, (int)left_ms) <= 0)
      fail_msg("no \"%s\" within %d ms in: %s", until, PEER_WAIT_MS, text);
    assert_true(len + 1 < cap);
    ssize_t n = recv(fd, text + len, cap - len - 1, 0);
    if (n <= 0 && until[0] != '\0') fail_msg("closed before \"%s\" in: %s", until, text);
    if (n <= 0) break;
    len += (size_t)n;
    text[len] = '\0';
  }
  return text;
}

/* One request on a connection of its own, whole answer as text. */
static inline char *ask(int port, const char *request) {
  int fd = peer_connect(port);
  peer_send(fd, request);
  char *answer = peer_read(fd, "");
  close(fd);
  return answer;
}

static inline int status_of(const char *answer) {
  int status = 0;
  if (sscanf(answer, "HTTP/1.1 %d", &status) != 1) fail_msg("no status line in: \"%s\"", answer);
  return status;
}

/* `line` is "GET /path"; `more` are further header lines, each ended by \r\n, or "". */
static inline char *ask_line(int port, const char *line, const char *more) {
  char request[8192];
  int n = snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n%s\r\n", line, more);
  assert_true(n > 0 && (size_t)n < sizeof request);
  return ask(port, request);
}

static inline void expect_answer(int port, const char *line, const char *more, int status, const char *contains) {
  char *answer = ask_line(port, line, more);
  if (status_of(answer) != status || strstr(answer, contains) == NULL)
    fail_msg("%s: %d with \"%s\" was expected, but this came: %s", line, status, contains, answer);
  free(answer);
}

/* Waits until *value becomes `wanted`. */
static inline void expect_soon(atomic_int *value, int wanted) {
  AWAIT(atomic_load(value) == wanted, "it is %d, not %d", atomic_load(value), wanted) continue;
}

#endif

/* Many connections that have something to say at once, and nobody who comes after them: all are answered (epoll_wait
 * in watcher.c says what would break).  And many that talk nonsense while the server stops: it lives to its end
 * (end_connections in server.c). */
#include "http_test.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

/* AT_ONCE: what libmicrohttpd asks of one epoll_wait. */
enum { AT_ONCE = 128, PEERS_MAX = 3 * AT_ONCE, HELD_MS = 10000 };

static atomic_bool held, let_go;

static void handle_now(struct http_request *r, void *context) {
  (void)context;
  http_reply_text(r, 200, "now");
}

/* The server's only thread stays here until the others have sent their requests. */
static void handle_held(struct http_request *r, void *context) {
  (void)context;
  const int64_t end_ms = clock_monotonic_ms() + HELD_MS;
  atomic_store(&held, true);
  while (!atomic_load(&let_go) && clock_monotonic_ms() < end_ms) sched_yield();
  http_reply_text(r, 200, "held");
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/now", .handler = handle_now},
    {.method = "GET", .path = "/held", .handler = handle_held},
};

#define GET(path) "GET " path " HTTP/1.1\r\nHost: t\r\n\r\n"

static void answered(int fd, const char *word) { free(peer_read(fd, word)); }

static void answers_all_of(int peers) {
  struct http_server *server = NULL;
  struct err err = {0};
  const struct http_server_options options = {.bind_address = "127.0.0.1",
                                              .threads = 1,
                                              .limits = {.connections_max = 2 * PEERS_MAX},
                                              .routes = routes,
                                              .route_count = ROUTE_COUNT(routes)};
  int fds[PEERS_MAX];
  if (http_server_start(&server, &options, &err) != RC_OK) fail_msg("%s", err.message);
  const int port = http_server_port(server);
  for (int i = 0; i < peers; i++) fds[i] = peer_connect(port);
  const int last = peer_connect(port); /* when it is answered, the others have been accepted */
  for (int i = 0; i < 2; i++) {
    peer_send(last, GET("/now"));
    answered(last, "now");
  }
  atomic_store(&held, false);
  atomic_store(&let_go, false);
  peer_send(last, GET("/held"));
  AWAIT(atomic_load(&held), "the server does not work on a request") continue;
  for (int i = 0; i < peers; i++) peer_send(fds[i], GET("/now"));
  atomic_store(&let_go, true);
  answered(last, "held");
  for (int i = 0; i < peers; i++) answered(fds[i], "now");
  for (int i = 0; i < peers; i++) close(fds[i]);
  close(last);
  http_server_stop(server, 1000);
}

static void as_many_as_one_call_takes_are_answered(void **state) {
  (void)state;
  answers_all_of(AT_ONCE);
}

static void one_less_and_one_more_are_answered(void **state) {
  (void)state;
  answers_all_of(AT_ONCE - 1);
  answers_all_of(AT_ONCE + 1);
}

static void as_many_as_several_calls_take_are_answered(void **state) {
  (void)state;
  answers_all_of(2 * AT_ONCE);
  answers_all_of(PEERS_MAX);
}

/* --- nonsense --- */

enum { TALKERS_MAX = 64, HALT_MS = 1100 };

struct talk {
  int port;
  atomic_bool over;
  atomic_int said;
};

/* One connection after the other, each with a chunk whose size is no number. */
static void *talk(void *context) {
  static const char nonsense[] = "GET /now HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
  struct talk *t = context;
  const struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)t->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char answer[512];
  while (!atomic_load(&t->over)) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
        send(fd, nonsense, sizeof nonsense - 1, MSG_NOSIGNAL) > 0)
      (void)!recv(fd, answer, sizeof answer, 0);
    close(fd);
    atomic_fetch_add(&t->said, 1);
  }
  return NULL;
}

/* Another process, which stops this one in a moment, and lets it go on HALT_MS later. */
static pid_t halt_soon(int delay_us) {
  const pid_t me = getpid(), halter = fork();
  if (halter != 0) return halter;
  const int64_t begin_us = clock_monotonic_us();
  while (clock_monotonic_us() - begin_us < delay_us) continue;
  kill(me, SIGSTOP);
  clock_sleep_ms(HALT_MS);
  kill(me, SIGCONT);
  _exit(0);
}

static void stop_amid_nonsense(int talker_count, int said_by_each, int halted_after_us) {
  struct http_server *server = serve(routes, ROUTE_COUNT(routes), NULL, NULL);
  struct talk t = {.port = http_server_port(server)};
  pthread_t talkers[TALKERS_MAX];
  for (int k = 0; k < talker_count; k++) assert_int_equal(pthread_create(&talkers[k], NULL, talk, &t), 0);
  AWAIT(atomic_load(&t.said) >= said_by_each * talker_count, "nobody talks to the server") continue;
  const pid_t halter = halted_after_us < 0 ? -1 : halt_soon(halted_after_us);
  http_server_stop(server, 0);
  if (halter >= 0) waitpid(halter, NULL, 0);
  atomic_store(&t.over, true);
  for (int k = 0; k < talker_count; k++) pthread_join(talkers[k], NULL);
}

static void a_server_that_stops_outlives_nonsense(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) stop_amid_nonsense(8, 20, -1);
}

/* The second that connections had to end passed while nobody ran: then libmicrohttpd was stopped amid them. */
static void a_server_that_stood_still_while_it_stopped_outlives_nonsense(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) stop_amid_nonsense(TALKERS_MAX, 4, 60 * i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(as_many_as_one_call_takes_are_answered),
      cmocka_unit_test(one_less_and_one_more_are_answered),
      cmocka_unit_test(as_many_as_several_calls_take_are_answered),
      cmocka_unit_test(a_server_that_stops_outlives_nonsense),
      cmocka_unit_test(a_server_that_stood_still_while_it_stopped_outlives_nonsense),
  };
  log_init("test", LOG_ERROR + 1);
  return cmocka_run_group_tests_name("http/burst", tests, NULL, NULL);
}

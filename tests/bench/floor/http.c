/* What HTTP alone costs the coordinator: libmicrohttpd with the settings of common/http/server.c, and a handler that
 * drops what comes and answers as many bytes as the coordinator does.  Called by tests/bench/bench-coordinator; the
 * load is coordinator_load's "floor".
 *
 *   floor_http PORT POLL_ANSWER_BYTES RESULT_ANSWER_BYTES HELD_MS
 *
 * HELD_MS 0: it answers at once.  Otherwise it suspends every request, and another thread resumes all that wait, so
 * often: a durable answer waits for a commit that others share.  The lock guards the list of those that wait. */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2, CONNECTION_BYTES = 32 << 10, CONNECTIONS_MAX = 12000, IDLE_S = 600 };

static struct MHD_Response *poll_answer, *result_answer;
static int held_ms;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct MHD_Connection *waiting[CONNECTIONS_MAX];
static int waiting_count;

enum stage { STAGE_BEGUN = 1, STAGE_HELD };

static enum MHD_Result answer(struct MHD_Connection *connection, const char *method) {
  return MHD_queue_response(connection, MHD_HTTP_OK, *method == 'P' && method[1] == 'U' ? result_answer : poll_answer);
}

/* *place: the stage that the request is in. */
static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *bytes, size_t *len, void **place) {
  (void)context, (void)url, (void)version, (void)bytes;
  if (*place == NULL) {
    *place = (void *)STAGE_BEGUN;
    return MHD_YES;
  }
  if (*len) {
    *len = 0;
    return MHD_YES;
  }
  if (!held_ms || *place == (void *)STAGE_HELD) return answer(connection, method);
  *place = (void *)STAGE_HELD;
  pthread_mutex_lock(&lock);
  MHD_suspend_connection(connection);
  waiting[waiting_count++] = connection;
  pthread_mutex_unlock(&lock);
  return MHD_YES;
}

static void *resume_main(void *context) {
  const struct timespec pause = {.tv_nsec = 1000000L * held_ms};
  for (;;) {
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&lock);
    while (waiting_count) MHD_resume_connection(waiting[--waiting_count]);
    pthread_mutex_unlock(&lock);
  }
  return context;
}

static struct MHD_Response *response_of(const char *size) {
  const size_t len = strtoul(size, NULL, 10);
  char *body = malloc(len + 1);
  if (!body) return NULL;
  memset(body, 'x', len);
  struct MHD_Response *r = MHD_create_response_from_buffer(len, body, MHD_RESPMEM_MUST_FREE);
  if (r) MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
  return r;
}

int main(int argc, char **argv) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  pthread_t thread;
  sigset_t stop;
  int signal_number;
  if (argc != 5) return 2;
  at.sin_port = htons((uint16_t)atoi(argv[1]));
  poll_answer = response_of(argv[2]);
  result_answer = response_of(argv[3]);
  held_ms = atoi(argv[4]);
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, NULL);
  struct MHD_Daemon *daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, NULL,
      MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
      MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
      MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS, MHD_OPTION_END);
  if (!daemon || !poll_answer || !result_answer) {
    fprintf(stderr, "port %s cannot be served\n", argv[1]);
    return 1;
  }
  if (held_ms && pthread_create(&thread, NULL, resume_main, NULL) != 0) return 1;
  sigwait(&stop, &signal_number);
  return 0;
}

/* The server: starting, libmicrohttpd's callbacks, stopping.
 *
 * One exchange, as libmicrohttpd's threads see it:
 *
 *   on_target      request line read: the request is made
 *   on_request #1  header read: route, token, announced size (request_begin)
 *   on_request     a piece of the body (request_collect), as often as it takes
 *   on_request     body complete: the handler is called; it replies, or suspends the connection
 *   on_request     only after a suspension, resumed by the reply: the response is queued
 *   on_completed   sent, or the connection died: libmicrohttpd's reference is dropped
 *
 * Stopping: new requests get 503; all suspended are cancelled and have drain_ms to be answered; then whatever is
 * still parked is resumed without an answer (libmicrohttpd aborts the process when stopped with suspended
 * connections), the daemon's threads are joined, and last the watcher's. */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/http/server_internal.h"

enum { HTTP_BACKLOG = 1024, HTTP_SPARE_FILES = 256 };

/* --- libmicrohttpd's callbacks --- */

static void *on_target(void *context, const char *target, struct MHD_Connection *connection) {
  (void)connection;
  return request_create(context, target);
}

static void on_log(void *context, const char *format, va_list args) {
  (void)context;
  char line[256];
  vsnprintf(line, sizeof line, format, args);
  line[strcspn(line, "\n")] = '\0';
  log_debug("http: libmicrohttpd: %s", line);
}

/* Queues the response that a reply has left in the request; without one the connection is closed. */
static enum MHD_Result queue_response(struct http_request *r, struct MHD_Connection *connection) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  struct MHD_Response *response = r->response;
  int status = r->status;
  r->response = NULL;
  pthread_mutex_unlock(&s->lock);
  if (response == NULL) return MHD_NO;
  enum MHD_Result result = MHD_queue_response(connection, (unsigned)status, response);
  MHD_destroy_response(response);
  metric_add(s->responses[status >= 100 && status <= 599 ? status / 100 : 0], 1);
  return result;
}

static enum MHD_Result handle(struct http_request *r, struct MHD_Connection *connection) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  r->state = HTTP_HANDLING;
  if (!r->counted) s->open_replies++;
  r->counted = true;
  pthread_mutex_unlock(&s->lock);

  if (r->refused_status != 0) {
    reply_error(r, r->refused_status, &r->refused);
    return queue_response(r, connection);
  }
  r->route->handler(r, s->context);

  pthread_mutex_lock(&s->lock);
  bool called_again = r->was_suspended, unanswered = r->state == HTTP_HANDLING;
  pthread_mutex_unlock(&s->lock);
  if (called_again) return MHD_YES;
  if (unanswered) {
    struct err err;
    err_set(&err, RC_INTERNAL, NULL, "the handler of %s %s neither replied nor suspended", r->route->method,
            r->route->path);
    http_fail(r, &err);
  }
  return queue_response(r, connection);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_len, void **request) {
  (void)url;
  (void)version;
  struct http_server *s = context;
  struct http_request *r = *request;
  if (r == NULL) {
    log_error("http: no memory for a request, its connection is closed");
    return MHD_NO;
  }
  if (!r->begun) {
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    if (stopping) {
      struct err err;
      err_set(&err, RC_UNAVAILABLE, NULL, "the service is stopping");
      http_set_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
      request_refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, &err);
    }
    request_begin(r, connection, method);
    return request_answer_early(r) ? handle(r, connection) : MHD_YES;
  }
  pthread_mutex_lock(&s->lock);
  bool collecting = r->state == HTTP_COLLECTING;
  pthread_mutex_unlock(&s->lock);
  if (!collecting) return queue_response(r, connection);
  if (*upload_len == 0) return handle(r, connection);
  bool go_on = request_collect(r, upload, *upload_len);
  *upload_len = 0;
  return go_on ? MHD_YES : MHD_NO;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode why) {
  (void)connection;
  (void)why;
  struct http_server *s = context;
  struct http_request *r = *request;
  if (r == NULL) return;
  *request = NULL;
  pthread_mutex_lock(&s->lock);
  watcher_cancel(r, HTTP_CANCEL_HANGUP); /* watched still: a stream that its writer has not ended */
  r->connection = NULL;
  r->parked = false;
  if (r->counted && --s->open_replies == 0) pthread_cond_broadcast(&s->drained);
  request_unref_unlock(r);
}

/* --- starting --- */

static enum rc listen_on(const char *address, int port, int *out_fd, int *out_port, struct err *err) {
  char service[16];
  snprintf(service, sizeof service, "%d", port);
  struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found = NULL;
  int failed = port < 0 || port > 65535 ? EAI_SERVICE : getaddrinfo(address, service, &hints, &found);
  if (failed != 0)
    return err_set(err, RC_INVALID, NULL,
                   "an address to bind and a port from 0 to 65535 were expected, but \"%s\" port %d came: %s", address,
                   port, gai_strerror(failed));
  int yes = 1;
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool bound = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
               bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, HTTP_BACKLOG) == 0;
  struct sockaddr_storage name;
  socklen_t name_len = sizeof name;
  bound = bound && getsockname(fd, (struct sockaddr *)&name, &name_len) == 0;
  freeaddrinfo(found);
  if (!bound) {
    enum rc rc = errno == EADDRINUSE ? err_set(err, RC_IO, NULL, "port %d in use on %s", port, address)
                                     : err_set_errno(err, RC_IO, "listening on %s port %d", address, port);
    if (fd >= 0) close(fd);
    return rc;
  }
  *out_fd = fd;
  *out_port = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&name)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&name)->sin_port);
  return RC_OK;
}

/* The usual soft limit of 1,024 files is below our connection limit. */
static void raise_file_limit(int connections) {
  struct rlimit limit;
  rlim_t wanted = (rlim_t)(connections + HTTP_SPARE_FILES);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
    log_warn("http: %llu open files are allowed, %llu are needed for %d connections",
             (unsigned long long)limit.rlim_cur, (unsigned long long)wanted, connections);
}

static struct MHD_Daemon *start_daemon(struct http_server *s, int listen_fd, int threads, int connections) {
  struct MHD_OptionItem options[] = {
      {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)on_log, NULL}, /* first: it also hears about the options after it */
      {MHD_OPTION_LISTEN_SOCKET, listen_fd, NULL},
      {MHD_OPTION_CONNECTION_LIMIT, connections, NULL},
      {MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_SECONDS, NULL},
      {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_CONNECTION_BYTES, NULL},
      {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
      {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_target, s},
      {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, s},
      {threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, NULL},
      {MHD_OPTION_END, 0, NULL},
  };
  return MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                          on_request, s, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
}

static void register_metrics(struct http_server *s) {
  for (int i = 1; i <= 5; i++) {
    char labels[32];
    snprintf(labels, sizeof labels, "class=\"%dxx\"", i);
    s->responses[i] =
        metrics_register(METRIC_COUNTER, "leasehold_http_responses_total", labels, "HTTP responses by class of status");
  }
}

enum rc http_server_start(struct http_server **out, const struct http_server_options *options, struct err *err) {
  int connections = options->connections_max == 0 ? LIMIT_HTTP_CONNECTIONS : options->connections_max;
  int threads = options->threads == 0 ? 2 : options->threads;
  if (connections < threads || threads < 1 || threads > LIMIT_THREADS)
    return err_set(err, RC_INVALID, NULL,
                   "1 to %d http threads and no fewer connections were expected, but %d and %d came", LIMIT_THREADS,
                   threads, connections);
  enum rc rc = route_check(options->routes, options->route_count, err);
  if (rc != RC_OK) return rc;
  struct http_server *s = calloc(1, sizeof *s);
  if (s == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for the http server");
  pthread_mutex_init(&s->lock, NULL);
  cond_init(&s->drained);
  s->refs = 1;
  s->routes = options->routes;
  s->route_count = options->route_count;
  s->context = options->context;
  atomic_init(&s->closed, options->closed);
  int listen_fd = -1;
  bool watching = false;
  if (options->token != NULL && options->token[0] != '\0' && (s->token = strdup(options->token)) == NULL) {
    rc = err_set(err, RC_NO_MEMORY, NULL, "no memory for the http token");
    goto out;
  }
  raise_file_limit(connections);
  register_metrics(s);
  if ((rc = listen_on(options->bind_address, options->port, &listen_fd, &s->port, err)) != RC_OK) goto out;
  if ((rc = watcher_start(s, connections, err)) != RC_OK) goto out;
  watching = true;
  s->daemon = start_daemon(s, listen_fd, threads, connections);
  if (s->daemon == NULL)
    rc = err_set_errno(err, RC_IO, "starting libmicrohttpd with %d threads and %d connections", threads, connections);
  listen_fd = -1; /* libmicrohttpd's, also when it failed */
out:
  if (rc == RC_OK) {
    *out = s;
    return RC_OK;
  }
  if (watching) watcher_stop(s);
  if (listen_fd >= 0) close(listen_fd);
  pthread_mutex_lock(&s->lock);
  server_unref_unlock(s);
  return rc;
}

int http_server_port(const struct http_server *server) { return server->port; }

void http_server_open(struct http_server *server, void *context) {
  server->context = context;
  atomic_store(&server->closed, NULL);
}

/* --- stopping --- */

void http_server_stop(struct http_server *s, int drain_ms) {
  if (s == NULL) return;
  struct timespec deadline = clock_deadline_in(drain_ms);
  pthread_mutex_lock(&s->lock);
  s->stopping = true;
  watcher_cancel_all(s, HTTP_CANCEL_SHUTDOWN);
  while (s->open_replies > 0 && pthread_cond_timedwait(&s->drained, &s->lock, &deadline) == 0) continue;
  if (s->open_replies > 0) log_warn("http: stopping with %d replies open after %d ms", s->open_replies, drain_ms);
  s->closing = true;
  for (struct http_request *r = s->requests; r != NULL; r = r->next) {
    if (r->state != HTTP_SUSPENDED && r->state != HTTP_STREAMING) continue;
    r->abandoned = true;
    if (!r->parked) continue;
    r->parked = false;
    MHD_resume_connection(r->connection);
  }
  pthread_mutex_unlock(&s->lock);

  MHD_stop_daemon(s->daemon);
  watcher_stop(s);
  pthread_mutex_lock(&s->lock);
  server_unref_unlock(s);
}

/* Starts the server, serves libmicrohttpd's callbacks, and stops it.
 *
 * One exchange, as libmicrohttpd's threads see it:
 *
 *   on_connection  accepted: it gets its place in the table, or one in the reserve (connections.c)
 *   on_target      request line read: the request is made
 *   on_request #1  header read: route, token, announced size (request_head.c)
 *   on_request     a piece of the body (request_body.c), as often as it takes
 *   on_request     body complete: the handler is called; it replies, or suspends the connection; or the request is
 *                  suspended for the handlers' threads (offload.c), and the same happens there
 *   on_request     only after a suspension, resumed by the reply: the response is queued
 *   on_completed   sent, or the connection died: libmicrohttpd's reference is dropped
 *
 * Stopping: new requests get 503; all suspended ones are cancelled and have drain_ms to be answered.  Then connections
 * that are still parked are resumed without an answer, because libmicrohttpd aborts the process when it is stopped with
 * suspended connections; requests that the pool's handlers work on are waited for.  Then all connections are ended,
 * and nobody is accepted any more (end_connections).  The daemon's threads are joined next, and the watcher's last. */
#include "common/http/server.h"

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
#include "common/http/offload.h"
#include "common/http/reply.h"
#include "common/http/request.h"
#include "common/http/request_body.h"
#include "common/http/request_head.h"
#include "common/http/request_log.h"
#include "common/http/route.h"
#include "common/http/server_state.h"
#include "common/http/status.h"
#include "common/http/trust/tls.h"
#include "common/http/trust/tls_material.h"
#include "common/http/tls_server.h"
#include "common/http/watcher.h"

enum { HTTP_BACKLOG = 1024, HTTP_SPARE_FILES = 256, HTTP_END_LOOKS = 100, HTTP_END_LOOK_MS = 50 };

/* --- libmicrohttpd's callbacks --- */

static void on_connection(void *context, struct MHD_Connection *connection, void **place,
                          enum MHD_ConnectionNotificationCode what) {
  struct http_server *s = context;
  struct http_connection *c = *place;
  const bool starts = what == MHD_CONNECTION_NOTIFY_STARTED;
  struct tls_material *tls = !starts ? c->tls : s->tls ? tls_hold() : NULL;
  if (!starts && tls != NULL) tls_server_end(s, c);
  pthread_mutex_lock(&s->lock);
  if (starts) {
    c = connection_open(&s->connections,
                        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
    c->tls = tls;
    c->secure = tls != NULL;
    *place = c;
    watcher_follow(s, c);
    watcher_wake_by(s, clock_monotonic_ms() + s->connections.sweep_ms);
    if (s->ending) connections_end(&s->connections);
  } else {
    connection_close(&s->connections, c);
    if (connections_none(&s->connections)) pthread_cond_broadcast(&s->drained);
  }
  pthread_mutex_unlock(&s->lock);
  if (!starts)
    tls_material_release(tls);
  else if (tls != NULL)
    tls_server_begin(c, connection);
}

static void *on_target(void *context, const char *target, struct MHD_Connection *connection) {
  return request_create(context, target,
                        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
}

static void on_log(void *context, const char *format, va_list args) {
  (void)context;
  tls_server_hear();
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
  if (r->state == HTTP_REPLIED) connection_sending(&s->connections, r->place);
  pthread_mutex_unlock(&s->lock);
  if (response == NULL) return MHD_NO;
  request_log_answered(r, status);
  enum MHD_Result result = MHD_queue_response(connection, (unsigned)status, response);
  MHD_destroy_response(response);
  metric_add(s->responses[status >= 100 && status <= 599 ? status / 100 : 0], 1);
  return result;
}

static bool takes_long(const struct http_request *r) {
  return !r->route->health && (r->route->offload || r->body.len > HTTP_OFFLOAD_BODY_BYTES);
}

static enum MHD_Result handle(struct http_request *r, struct MHD_Connection *connection) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  r->state = HTTP_HANDLING;
  if (!r->counted) s->open_replies++;
  r->counted = true;
  connection_busy(&s->connections, r->place);
  pthread_mutex_unlock(&s->lock);

  if (r->refused_status != 0) {
    request_log_begin(r);
    reply_error(r, r->refused_status, &r->refused);
    request_log_end();
    return queue_response(r, connection);
  }
  if (takes_long(r)) return offload_submit(r) ? MHD_YES : queue_response(r, connection);
  route_run(r);
  pthread_mutex_lock(&s->lock);
  const bool called_again = r->was_suspended;
  pthread_mutex_unlock(&s->lock);
  return called_again ? MHD_YES : queue_response(r, connection);
}

/* The header has come. */
static enum MHD_Result begin(struct http_request *r, struct MHD_Connection *connection, const char *method) {
  struct http_server *s = r->server;
  struct err err;
  pthread_mutex_lock(&s->lock);
  const bool stopping = s->stopping;
  pthread_mutex_unlock(&s->lock);
  if (stopping) {
    err_set(&err, RC_UNAVAILABLE, NULL, "the service is stopping");
    http_set_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    request_refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, &err);
  }
  request_begin(r, connection, method);
  const bool health = r->route != NULL && r->route->health, body = request_has_body(r);
  pthread_mutex_lock(&s->lock);
  const enum rc rc = connection_admit(&s->connections, r->place, body, &err);
  pthread_mutex_unlock(&s->lock);
  if (rc != RC_OK) http_set_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
  if (rc != RC_OK && !health) request_refuse(r, http_status_of(rc), &err);
  return request_answer_early(r) ? handle(r, connection) : MHD_YES;
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
  if (!r->begun) return begin(r, connection, method);
  pthread_mutex_lock(&s->lock);
  bool collecting = r->state == HTTP_COLLECTING;
  if (collecting) connection_received(&s->connections, r->place, *upload_len);
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
  connection_idle(&s->connections, r->place);
  r->place = NULL;
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

enum rc http_port_check(const char *address, int port, struct err *err) {
  int fd = -1, bound;
  const enum rc rc = listen_on(address, port, &fd, &bound, err);
  if (fd >= 0) close(fd);
  return rc;
}

/* The usual soft limit of 1,024 open files is below our connection limit.  Where the hard limit is too low as well,
 * fewer connections are served: without a free descriptor none could be accepted, not even into the reserve. */
static void fit_files(struct service_limits *limits) {
  const rlim_t others = LIMIT_HTTP_RESERVE + HTTP_SPARE_FILES, wanted = (rlim_t)limits->connections_max + others;
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) return;
  files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur >= wanted) return;
  const rlim_t left = files.rlim_cur > 2 * others ? files.rlim_cur - others : files.rlim_cur / 2;
  log_warn("http: %llu open files are allowed and %llu needed for %lld connections; %llu are served",
           (unsigned long long)files.rlim_cur, (unsigned long long)wanted, (long long)limits->connections_max,
           (unsigned long long)left);
  limits->connections_max = (int64_t)left;
}

/* The limits with their defaults in place of 0. */
static struct service_limits limits_of(const struct service_limits *given) {
  struct service_limits l = *given;
  const struct {
    int64_t *value, unless_given;
  } defaults[] = {
      {&l.connections_max, SERVICE_CONNECTIONS_MAX},
      {&l.incomplete_per_address_max, SERVICE_INCOMPLETE_PER_ADDRESS_MAX},
      {&l.head_timeout_ms, SERVICE_HEAD_TIMEOUT_MS},
      {&l.body_timeout_ms, SERVICE_BODY_TIMEOUT_MS},
      {&l.pace_bytes, SERVICE_PACE_BYTES},
      {&l.idle_timeout_ms, SERVICE_IDLE_TIMEOUT_MS},
      {&l.handler_threads, SERVICE_HANDLER_THREADS},
      {&l.handler_queue_max, SERVICE_HANDLER_QUEUE_MAX},
  };
  for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
    if (*defaults[i].value == 0) *defaults[i].value = defaults[i].unless_given;
  return l;
}

/* Streamed answers are bounded by libmicrohttpd's own time-out only. */
static int inactivity_seconds(const struct service_limits *l) {
  const int64_t longest_ms = l->body_timeout_ms > l->idle_timeout_ms ? l->body_timeout_ms : l->idle_timeout_ms;
  return (int)((longest_ms + 999) / 1000);
}

/* The key and the certificate are read while the daemon starts; every connection is given those of its time. */
static struct MHD_Daemon *start_daemon(struct http_server *s, int listen_fd, int threads,
                                       const struct tls_material *tls) {
  struct MHD_OptionItem options[] = {
      {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)on_log, NULL}, /* first: it also hears about the options after it */
      {MHD_OPTION_LISTEN_SOCKET, listen_fd, NULL},
      {MHD_OPTION_CONNECTION_LIMIT, s->connections.count, NULL},
      {MHD_OPTION_CONNECTION_TIMEOUT, inactivity_seconds(&s->limits), NULL},
      {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_CONNECTION_BYTES, NULL},
      {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
      {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_target, s},
      {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, s},
      {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, s},
      {threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, NULL},
      {MHD_OPTION_END, 0, NULL},
  };
  const unsigned flags = MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  if (tls == NULL)
    return MHD_start_daemon(flags | MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, s, MHD_OPTION_ARRAY,
                            options, MHD_OPTION_END);
  /* not by epoll: tls_server.c says why */
  return MHD_start_daemon(flags | MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_TLS, 0, NULL, NULL, on_request, s,
                          MHD_OPTION_ARRAY, options, MHD_OPTION_HTTPS_MEM_CERT, tls->cert.data,
                          MHD_OPTION_HTTPS_MEM_KEY, tls->key.data, MHD_OPTION_HTTPS_PRIORITIES, tls_server_priorities,
                          MHD_OPTION_END);
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
  struct service_limits limits = limits_of(&options->limits);
  int threads = options->threads == 0 ? 2 : options->threads;
  if (limits.connections_max < threads || threads < 1 || threads > LIMIT_THREADS)
    return err_set(err, RC_INVALID, NULL,
                   "1 to %d http threads and no fewer connections were expected, but %d and %lld came", LIMIT_THREADS,
                   threads, (long long)limits.connections_max);
  enum rc rc = route_check(options->routes, options->route_count, err);
  if (rc != RC_OK) return rc;
  struct http_server *s = calloc(1, sizeof *s);
  if (s == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for the http server");
  pthread_mutex_init(&s->lock, NULL);
  cond_init(&s->drained);
  cond_init(&s->pool.queued);
  s->refs = 1;
  s->routes = options->routes;
  s->route_count = options->route_count;
  s->write_error = options->write_error;
  s->context = options->context;
  s->access = options->access;
  atomic_init(&s->closed, options->closed);
  struct tls_material *tls = http_tls_serves() ? tls_hold() : NULL;
  s->tls = tls != NULL;
  int listen_fd = -1;
  bool watching = false;
  fit_files(&limits);
  s->limits = limits;
  register_metrics(s);
  if (s->tls) tls_server_register(s);
  if ((rc = connections_create(&s->connections, &s->limits, err)) != RC_OK) goto out;
  if ((rc = listen_on(options->bind_address, options->port, &listen_fd, &s->port, err)) != RC_OK) goto out;
  if ((rc = watcher_start(s, err)) != RC_OK) goto out;
  watching = true;
  if ((rc = offload_start(s, err)) != RC_OK) goto out;
  s->listen_fd = listen_fd;
  s->daemon = start_daemon(s, listen_fd, threads, tls);
  if (s->daemon == NULL)
    rc = err_set_errno(err, RC_IO, "starting libmicrohttpd with %d threads and %d connections", threads,
                       s->connections.count);
  listen_fd = -1; /* libmicrohttpd's, also when it failed */
out:
  tls_material_release(tls);
  if (rc == RC_OK) {
    *out = s;
    return RC_OK;
  }
  offload_stop(s);
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

/* libmicrohttpd 0.9.75 follows a null pointer when it reads a malformed request while it is being stopped: by then
 * MHD_queue_response only claims to have queued the answer.  So it is stopped without connections.  They are given so
 * many looks and not so much time: a process that has stood still for seconds had given its connections none. */
static void end_connections(struct http_server *s) {
  shutdown(s->listen_fd, SHUT_RDWR);
  pthread_mutex_lock(&s->lock);
  s->ending = true;
  connections_end(&s->connections);
  for (int looks = 0; looks < HTTP_END_LOOKS && !connections_none(&s->connections);) {
    const struct timespec next = clock_deadline_in(HTTP_END_LOOK_MS);
    if (pthread_cond_timedwait(&s->drained, &s->lock, &next) != 0) looks++;
  }
  pthread_mutex_unlock(&s->lock);
}

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

  offload_stop(s);
  end_connections(s);
  MHD_stop_daemon(s->daemon);
  watcher_stop(s);
  pthread_mutex_lock(&s->lock);
  server_unref_unlock(s);
}

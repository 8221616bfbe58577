/* The state that the server's files share: the server, one request, and who may touch which field.
 *
 * There are no functions here.  The files stand on floors; each file calls only files on the floors below it:
 *
 *   server.c                             start and stop, libmicrohttpd's callbacks
 *   request_head.c  offload.c            judging a request's head; handlers on threads of their own
 *   head_rules.c                         what a head must be before anything else is asked
 *   request_body.c  route.c   stream.c   collecting a body; finding the handler; answers written bit by bit (SSE)
 *   request_log.c                        what is logged on behalf of a request
 *   reply.c                              answers, from any thread
 *   watcher.c                            suspending, hang-ups, deadlines, cancelling
 *   request.c  tls_server.c              one request: its target and its lifetime; connections over TLS
 *   connections.c                        who may hold a connection, and for how long
 *
 * Threads.  Until its handler has been called a request belongs to the libmicrohttpd thread of its connection.  From
 * then on every field marked [lock] is guarded by server->lock, the module's only mutex (it guards the whole table of
 * connections too).  libmicrohttpd's suspend and resume are called under it (they never call back), application code
 * never is.
 *
 * Lifetime.  request->refs counts up to four owners: libmicrohttpd (from the request line until its `completed`
 * callback), the application (from http_suspend until its reply or http_stream_end), the watcher (while a
 * cancellation is due or running), and the handlers' pool (while the request is queued or running there).  The last
 * owner to let go frees the request.  A request keeps its server alive, so that a late reply after http_server_stop
 * still finds the mutex.
 */
#ifndef LEASEHOLD_HTTP_SERVER_STATE_H
#define LEASEHOLD_HTTP_SERVER_STATE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/service_limits.h"
#include "common/http/trust/access.h"
#include "common/http/connections.h"
#include "common/http/handler.h"
#include "common/http/trace.h"

enum {
  HTTP_SEGMENTS_MAX = 16,             /* of a path */
  HTTP_QUERY_MAX = 16,                /* parameters of a query string */
  HTTP_REPLY_HEADERS_MAX = 8,         /* http_set_header calls of one request */
  HTTP_OFFLOAD_BODY_BYTES = 64 << 10, /* a request with more is never worked on by libmicrohttpd's threads */
  HTTP_CONNECTION_BYTES = 32 << 10,   /* libmicrohttpd's memory of one connection: bounds the header */
  HTTP_REFUSED_BODY_BYTES =
      1 << 20, /* a refused body up to this size is read and dropped, so that the answer is not lost */
  HTTP_STREAM_UNSENT_MAX = 4 << 20,
  HTTP_STREAM_BLOCK = 16 << 10,
  HTTP_SUSPEND_MS_MAX = 24 * 3600 * 1000, /* streams; long polls are bounded by LIMIT_WAIT_MS_MAX */
  HTTP_TLS_FAILURES = 6
};

enum http_state { HTTP_COLLECTING, HTTP_HANDLING, HTTP_SUSPENDED, HTTP_STREAMING, HTTP_REPLIED };

struct http_pair {
  const char *name, *value;
};

struct http_request {
  struct http_server *server;
  struct MHD_Connection *connection; /* [lock] NULL once libmicrohttpd is done with the exchange */
  struct http_connection *place;     /* [lock] its connection's entry in the table; NULL likewise */
  struct arena arena;

  /* The request line, then the header; written by the connection's thread before the handler runs. */
  const char *segments[HTTP_SEGMENTS_MAX];
  int segment_count;
  struct http_pair query[HTTP_QUERY_MAX];
  int query_count;
  const char *target_end; /* in libmicrohttpd's memory of the head: see head_rules.c */
  bool begun;
  bool ambiguous; /* its head says two things: the connection ends with the answer */
  const struct http_route *route;
  void (*write_error)(struct buf *out, int *status, const struct err *err); /* NULL: as status.h does */
  struct token_claim caller; /* roles 0: no token was asked for */
  struct digest token;       /* that was shown */
  const char *params[HTTP_PARAMS_MAX];
  size_t body_max, discarded, body_charged; /* charged: to server->bodies_bytes, with the JSON's memory */
  struct buf body;
  struct json *json;
  int refused_status; /* not 0: the handler is not called, `refused` is the answer */
  struct err refused;

  int64_t number, begun_us; /* set by request_log.c, as what follows; number 0: not yet */
  struct trace trace;
  char id[HTTP_REQUEST_ID_CHARS + 1]; /* with the trace when the header has come */

  struct http_pair reply_headers[HTTP_REPLY_HEADERS_MAX];
  int reply_header_count;

  enum http_state state; /* [lock] from HTTP_HANDLING on, as all below */
  int refs;
  bool counted;       /* one of server->open_replies */
  bool parked;        /* suspended in libmicrohttpd just now: must be resumed exactly once */
  bool was_suspended; /* libmicrohttpd calls again: do not queue before that */
  bool abandoned;     /* the daemon stops: whatever is replied is dropped */
  int status;
  struct MHD_Response *response; /* waits for the connection's thread to queue it */

  http_cancelled cancelled;
  void *cancel_context;
  enum http_cancel cancel_why;
  int64_t deadline_ms; /* monotonic */
  struct http_request *next_due, *next_queued;

  struct buf unsent; /* of a stream; the first `sent` bytes are already out */
  size_t sent;
  bool gone; /* the stream's peer hung up */

  struct http_request *next, **link; /* server->requests */
};

struct http_server {
  struct MHD_Daemon *daemon;
  const struct http_route *routes;
  size_t route_count;
  void (*write_error)(struct buf *out, int *status, const struct err *err); /* where there is no route; or NULL */
  _Atomic(void *) context;      /* health is answered while it is being set */
  _Atomic(const char *) closed; /* why no handler is called yet; NULL: they are, with the context that is now set */
  struct http_access *access; /* NULL: everybody may do everything */
  bool tls; /* its connections are TLS, with today's material each: tls_server.c */
  int listen_fd; /* libmicrohttpd's, which closes it */
  int port;
  struct service_limits limits;
  struct metric *responses[6]; /* by hundreds of the status */
  struct metric *handshakes_failed[HTTP_TLS_FAILURES]; /* tls_server.c's; NULL without TLS */
  atomic_size_t bodies_bytes;  /* request bodies in memory, and their JSON */

  pthread_mutex_t lock;   /* guards every [lock] field of every request, and all below */
  pthread_cond_t drained; /* open_replies became 0, or nobody is connected any more */
  int refs;               /* 1 + requests */
  struct http_request *requests;
  int open_replies;
  bool stopping; /* new requests are refused */
  bool closing;  /* nothing may be parked any more */
  bool ending;   /* nobody may stay connected */

  struct connections connections;

  struct { /* watcher.c owns these */
    pthread_t thread;
    bool stop;
    int epoll_fd, wake_fd;
    int64_t next_wake_ms;
    unsigned tokens_generation; /* of the tokens that open requests were last compared with */
    struct http_request *due_head, **due_tail;
  } watcher;

  struct { /* offload.c owns these */
    pthread_t *threads;
    int size;
    bool stop;
    pthread_cond_t queued; /* the queue is no longer empty, or stop */
    struct http_request *queue_head, **queue_tail;
    int64_t queue_length;
  } pool;
};

#endif

/* What the server's files share: the server, one request, and the rules of who may touch them.
 *
 *   server.c   start and stop, libmicrohttpd's callbacks      route.c        which handler, which parameters
 *   request.c  target, headers, token, body; lifetime         reply.c        answers, from any thread
 *   watcher.c  suspending, hang-ups, deadlines, cancelling    stream.c       answers written bit by bit (SSE)
 *   offload.c  handlers on threads of their own               connections.c  who may hold a connection, how long
 *
 * Threads.  Until its handler has been called a request belongs to the libmicrohttpd thread of its connection.  From
 * then on every field marked [lock] is guarded by server->lock, the module's only mutex (the table of connections is
 * too, all of it); libmicrohttpd's suspend and
 * resume are called under it (they never call back), application code never is.
 *
 * Lifetime.  request->refs counts up to four owners: libmicrohttpd (from the request line until its `completed`
 * callback), the application (from http_suspend until its reply or http_stream_end), the watcher (while a
 * cancellation is due or running), and the handlers' pool (while queued or running there). Whoever drops the last one frees.  A request keeps its server alive, so that a
 * late reply after http_server_stop finds the mutex.
 */
#ifndef LEASEHOLD_HTTP_SERVER_INTERNAL_H
#define LEASEHOLD_HTTP_SERVER_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/http/server.h"

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
  HTTP_SUSPEND_MS_MAX = 24 * 3600 * 1000 /* streams; long polls are bounded by LIMIT_WAIT_MS_MAX */
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
  bool begun;
  const struct http_route *route;
  const char *params[HTTP_PARAMS_MAX];
  size_t body_max, discarded, body_charged; /* charged: to server->bodies_bytes, with what JSON takes */
  struct buf body;
  struct json *json;
  int refused_status; /* not 0: the handler is not called, `refused` is the answer */
  struct err refused;

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

enum connection_state { CONNECTION_HEAD, CONNECTION_BODY, CONNECTION_BUSY, CONNECTION_SENDING, CONNECTION_IDLE };

/* One open connection; its index is its entry's. */
struct http_connection {
  int fd; /* -1: the entry is free */
  enum connection_state state;
  bool reserve;        /* beyond connections_max, or beyond its address's share */
  bool doomed;         /* shut down from here, and counted no more; libmicrohttpd closes it soon */
  int address;         /* in server->addresses */
  int64_t deadline_ms; /* monotonic; none while BUSY */
  uint64_t bytes;      /* IDLE: received by the end of the last request; SENDING: acknowledged at the last sweep */
  uint64_t unpaid;     /* bytes moved for which the deadline is yet to be put off */
  int next_free;
  struct http_request *watched; /* watcher.c: NULL, or the suspended request on it */
  uint32_t generation;          /* of `watched` */
};

struct http_address {
  unsigned char bytes[9]; /* family, then all of an IPv4 address or the first half of an IPv6 one */
  int connections, incomplete;
  int next; /* in its bucket, or free; ends with -1 */
};

struct http_server {
  struct MHD_Daemon *daemon;
  const struct http_route *routes;
  size_t route_count;
  _Atomic(void *) context;      /* health is answered while it is being set */
  _Atomic(const char *) closed; /* why no handler is called yet; NULL: they are, with the context that is now set */
  char *token;
  int port;
  struct service_limits limits;
  struct metric *responses[6]; /* by hundreds of the status */
  struct metric *dropped[3];   /* connections.c: by reason */
  atomic_size_t bodies_bytes;  /* request bodies in memory, and their JSON */

  pthread_mutex_t lock;   /* guards every [lock] field of every request, and all below */
  pthread_cond_t drained; /* open_replies became 0 */
  int refs;               /* 1 + requests */
  struct http_request *requests;
  int open_replies;
  bool stopping; /* new requests are refused */
  bool closing;  /* nothing may be parked any more */

  pthread_t watcher; /* watcher.c owns these */
  bool watcher_stop;
  int epoll_fd, wake_fd;
  int64_t next_wake_ms;
  struct http_request *due_head, **due_tail;

  struct http_connection *connections; /* connections.c owns these */
  int connection_count, connection_free;
  int connections_top; /* all used entries lie below */
  int connections_used, reserve_used;
  struct http_address *addresses;
  int *address_buckets, address_free;
  uint64_t address_seed;
  int64_t sweep_ms, next_sweep_ms;

  pthread_t *pool; /* offload.c owns these */
  int pool_size;
  bool pool_stop;
  pthread_cond_t queued; /* the queue is no longer empty, or pool_stop */
  struct http_request *queue_head, **queue_tail;
  int64_t queue_length;
};

/* server.c */
/* Calls the handler, and answers in its place when it neither replied nor suspended. */
void request_run(struct http_request *r);

/* request.c */
struct http_request *request_create(struct http_server *s, const char *target);
/* After the header has arrived: route, token, announced body size.  Sets refused_status on refusal. */
void request_begin(struct http_request *r, struct MHD_Connection *connection, const char *method);
void request_refuse(struct http_request *r, int status, const struct err *err);
/* False: the peer goes on sending a refused body without end, close the connection. */
bool request_collect(struct http_request *r, const char *bytes, size_t len);
/* Does the header announce one? */
bool request_has_body(const struct http_request *r);
/* Is the rest of a refused request's body not worth reading? */
bool request_answer_early(const struct http_request *r);
/* server->lock held on entry, released on return; the request may be freed. */
void request_unref_unlock(struct http_request *r);
void server_unref_unlock(struct http_server *s);

/* route.c */
enum { ROUTE_ALLOW_MAX = 64 };
/* 200 (r->route, r->params set), 404, or 405 with the allowed methods in `allow`. */
int route_match(struct http_request *r, const char *method, char allow[ROUTE_ALLOW_MAX]);
enum rc route_check(const struct http_route *routes, size_t count, struct err *err);
/* A NUL-terminated decoded copy; RC_INVALID for a bad escape or a NUL, RC_NO_MEMORY. */
enum rc percent_decode(struct arena *arena, const char *text, size_t len, bool plus_is_space, const char **out,
                       struct err *err);

/* reply.c */
void reply_error(struct http_request *r, int status, const struct err *err);
/* Puts content type and the request's reply headers on a response; NULL stays NULL. */
struct MHD_Response *reply_headers(struct http_request *r, struct MHD_Response *response, const char *content_type);

/* watcher.c; all with server->lock held, but for start and stop */
enum rc watcher_start(struct http_server *s, struct err *err);
void watcher_stop(struct http_server *s);
/* It looks at deadlines no later than at_ms (monotonic). */
void watcher_wake_by(struct http_server *s, int64_t at_ms);
/* http_suspend, with the lock held. */
void request_suspend(struct http_request *r, int64_t deadline_ms, http_cancelled cancelled, void *cancel_context);
void watcher_add(struct http_request *r, int64_t deadline_ms);
bool watcher_watches(const struct http_request *r); /* false too once it is cancelled */
void watcher_remove(struct http_request *r);
/* The request leaves the table; its callback is going to be called on the watcher's thread. */
void watcher_cancel(struct http_request *r, enum http_cancel why);
void watcher_cancel_all(struct http_server *s, enum http_cancel why);

/* offload.c */
enum rc offload_start(struct http_server *s, struct err *err);
/* Waits for the handlers that run; nothing may be submitted any more. */
void offload_stop(struct http_server *s);
/* Suspends the request and queues it for its handler; false when it has been refused instead. */
bool offload_submit(struct http_request *r);

/* connections.c; all with server->lock held, but for create and free */
enum rc connections_create(struct http_server *s, struct err *err);
void connections_free(struct http_server *s); /* after a create that failed, too */
struct http_connection *connection_open(struct http_server *s, int fd, const struct sockaddr *name);
void connection_close(struct http_server *s, struct http_connection *c);
/* Its request's head is complete.  RC_UNAVAILABLE: it is in the reserve and has to stay there; RC_FULL: its address has
 * as many bodies coming as it may. */
enum rc connection_admit(struct http_server *s, struct http_connection *c, bool body, struct err *err);
void connection_received(struct http_server *s, struct http_connection *c, size_t bytes); /* of a body */
void connection_busy(struct http_server *s, struct http_connection *c);                   /* the request is complete */
void connection_sending(struct http_server *s, struct http_connection *c);                /* a whole answer is queued */
void connection_idle(struct http_server *s, struct http_connection *c);                   /* and was sent */
/* Ends those whose time is up, if it is time to look. */
void connections_sweep(struct http_server *s, int64_t now_ms);

#endif

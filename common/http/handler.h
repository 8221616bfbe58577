/* The functions that a handler may call on its request, and the table of routes that names the handlers.
 *
 * A handler either replies at once (http_reply*, http_fail) or keeps the request (http_suspend) and lets any thread
 * reply later, exactly once:
 *
 *     COLLECTING ---> HANDLING ----------------------> REPLIED
 *                      |  ^  |                            ^
 *                 [queued]|  +-> SUSPENDED ---------------+
 *                      |  |      (reply later, hang-up, or deadline)
 *                      v  |
 *                   the pool
 *
 * A long handler must not hold up a health check that waits for the same thread, so handlers of routes marked
 * `offload`, and of any request with a body of more than 64 KiB, run on a bounded pool of threads.  A request that
 * waits for the pool is SUSPENDED: a hang-up, 30 s or the end of the server takes it out of the queue, and a full queue
 * is answered with 503.  Then it is HANDLING again, and its handler may call the same functions as on libmicrohttpd's
 * threads; its connection is still parked, which http_suspend and the replies take into account.
 *
 * A suspended connection neither times out nor notices a hang-up by itself, so one watcher thread epolls the sockets
 * of the suspended and keeps their deadlines: at hang-up or deadline it calls the `cancelled` callback given to
 * http_suspend. Streaming (SSE): http_stream_begin on a suspended or fresh request, then http_stream_write and
 * http_stream_end from any thread.
 *
 * Memory: the request, its body and its arena live until the reply has been handed to libmicrohttpd; http_reply takes
 * over the memory of the body buf.
 */
#ifndef LEASEHOLD_HTTP_HANDLER_H
#define LEASEHOLD_HTTP_HANDLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rc.h"
#include "common/http/trust/roles.h"
#include "common/http/trust/tokens.h"
#include "common/json/json.h"

struct http_request; /* one exchange */

enum { HTTP_PARAMS_MAX = 4, HTTP_REQUEST_ID_CHARS = 63 };

typedef void (*http_handler)(struct http_request *request, void *context);

/* The table is walked in order and must live as long as the server: the first entry whose path and method fit wins. */
struct http_route {
  const char *method;    /* "GET" */
  const char *path;      /* "/v1/runs/{id}/pause": a {name} matches one segment */
  http_handler handler;  /* must not block on anything without a deadline */
  size_t body_bytes_max; /* 0: LIMIT_BODY_BYTES */
  unsigned roles;        /* whose token is asked for where tokens are: bits of roles.h; 0: HTTP_ADMIN; HTTP_OPEN:
                          * nobody's */
  /* NULL, or body_bytes_max of a service that learns it late; called when the header has come, must not wait */
  size_t (*body_limit)(void *context);
  size_t json_nodes_max; /* of a JSON body; 0: LIMIT_JSON_NODES */
  /* NULL, or checks the object that the path names when the header has come: with another rc than RC_OK the request is
   * refused before its body is collected.  Runs on a server thread; must not wait. */
  enum rc (*admit)(struct http_request *request, void *context, struct err *err);
  /* NULL, or writes errors as this route's clients know them, and may change the status; NULL: as status.h does.
   * A request of another method than the path's routes have is told as the first of them tells. */
  void (*write_error)(struct buf *out, int *status, const struct err *err);
  bool offload; /* the handler takes longer than some hundred microseconds: it runs on a thread of the pool */
  bool health;  /* answered also when all connections are taken: quick, small, without a body; never offloaded */
  bool early;   /* answered before http_server_open too, with a context that is NULL until then */
};

/* --- reading the request (valid until the reply) --- */
/* Path parameter, percent-decoded; never NULL for a declared one */
const char *http_param(const struct http_request *r, const char *name);
const char *http_query(const struct http_request *r, const char *name); /* NULL when absent */
/* A query integer with default and bounds; RC_INVALID names the field. */
enum rc http_query_i64(const struct http_request *r, const char *name, int64_t default_value, int64_t min, int64_t max,
                       int64_t *out, struct err *err);
const char *http_header(const struct http_request *r, const char *name); /* case-insensitive; NULL when absent */
const char *http_body(const struct http_request *r, size_t *len);
/* Takes the body over: the caller frees *out, and the request has none any more.  It stays charged to the service's
 * bodies for as long as the request lasts. */
void http_take_body(struct http_request *r, struct buf *out);
/* Does its Content-Type say application/octet-stream? */
bool http_body_is_bytes(const struct http_request *r);
/* The body as JSON, parsed by the first call; freed with the request.  The memory of its tree is charged to the
 * service's bodies first.  RC_INVALID when it is not an acceptable document, RC_TOO_LARGE (too many nodes, or more
 * memory than there could ever be), RC_FULL (no room now), RC_NO_MEMORY. */
enum rc http_body_json(struct http_request *r, const struct json **out, struct err *err);
/* The same for a body that contains others' documents, such as a tool's schema: numbers beyond 64 bits or a double
 * become the nearest reals, in place of a refusal. */
enum rc http_body_json_fitted(struct http_request *r, const struct json **out, struct err *err);
struct arena *http_arena(struct http_request *r);
/* What the caller's token stands for; roles 0 where no token is asked for. */
struct token_claim http_caller(const struct http_request *r);
/* What its answer's x-request-id says: the client's X-Request-Id if that is 1 to HTTP_REQUEST_ID_CHARS visible ASCII
 * characters, else its span's id. */
const char *http_request_id(const struct http_request *r);
/* The numeric address that the request came from. */
const char *http_peer(struct http_request *r);
/* Frees the body and its JSON early, in the handler, and gives their charge back: nothing that was read from them may
 * be used afterwards. */
void http_release_body(struct http_request *r);

/* --- replying: exactly one of these per request, from any thread --- */
/* Takes over body's memory (body is empty afterwards). */
void http_reply(struct http_request *r, int status, const char *content_type, struct buf *body);
void http_reply_json(struct http_request *r, int status, struct buf *body);
/* Bytes that stay where they are: read piece by piece as the peer takes them. */
struct http_source {
  void *context;
  size_t len; /* the body's */
  /* Copies up to max bytes from `at` on, on a server thread, and must not wait; 0: they are gone, the connection is
   * closed. */
  size_t (*read)(void *context, size_t at, char *out, size_t max);
  void (*end)(void *context); /* called once, after the last read */
};
void http_reply_source(struct http_request *r, int status, const char *content_type, const struct http_source *source);
/* 200 with the body, or the error when rc is one or the body ran out of memory; body is empty afterwards either way. */
void http_reply_json_or_fail(struct http_request *r, enum rc rc, struct buf *body, struct err *err);
/* The text is copied. */
void http_reply_text(struct http_request *r, int status, const char *text);
/* The error body and the status of err->rc, or what the route makes of them; Retry-After: 1 with 429 and 503,
 * x-should-retry: false with 501. */
void http_fail(struct http_request *r, const struct err *err);
/* Appends the body that http_fail would answer: what fails in a stream is told as an event. */
void http_write_error(const struct http_request *r, struct buf *out, const struct err *err);
/* Sends a file's bytes without reading it into memory. RC_NOT_FOUND answers 404 itself. */
void http_reply_file(struct http_request *r, const char *content_type, const char *path);
/* Adds a response header; call before the reply. */
void http_set_header(struct http_request *r, const char *name, const char *value);

/* --- suspending --- */
enum http_cancel { HTTP_CANCEL_DEADLINE, HTTP_CANCEL_HANGUP, HTTP_CANCEL_SHUTDOWN };
/* The callback runs on the watcher thread, at most once, without a lock of this module.  It must lead to exactly one
 * reply (from there or elsewhere), after a hang-up too (the reply is then discarded, and the request freed).  No
 * callback starts once a reply has returned, but one may be running while another thread replies, so cancel_context
 * must outlive the callback; memory of http_arena does, because the request is kept while the callback runs.  The
 * thread that takes the request out of the application's own list, under the application's lock, replies. */
typedef void (*http_cancelled)(struct http_request *r, enum http_cancel why, void *cancel_context);
/* Call in the handler, before the request is published to another thread (under the application's lock if the
 * callback needs to find it).  deadline_ms from now (<= LIMIT_WAIT_MS_MAX + 10000, or 24 h for streams). */
void http_suspend(struct http_request *r, int64_t deadline_ms, http_cancelled cancelled, void *cancel_context);

/* --- streaming --- */
/* Sends the header now (chunked); the request must have been suspended. */
void http_stream_begin(struct http_request *r, int status, const char *content_type);
/* Queues bytes (copied). RC_FULL when more than 4 MiB are unsent (a slow reader); RC_GONE after a hang-up. */
enum rc http_stream_write(struct http_request *r, const char *bytes, size_t len);
/* Bytes queued that the connection has not taken yet: a writer holds back while a slow reader leaves many. */
size_t http_stream_unsent(struct http_request *r);
void http_stream_end(struct http_request *r); /* the request is invalid afterwards */

/* The standard routes' handlers for the services' tables. */
void http_handle_metrics(struct http_request *r, void *context); /* GET /metrics */
void http_handle_healthz(struct http_request *r, void *context); /* GET /healthz: 200 {"status":"ok"} */

#endif

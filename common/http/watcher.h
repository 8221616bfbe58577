/* Suspended requests: watched for hang-ups and deadlines, cancelled by the watcher's thread (watcher.c).
 *
 * All functions are called with server->lock held, except watcher_start and watcher_stop. */
#ifndef LEASEHOLD_HTTP_WATCHER_H
#define LEASEHOLD_HTTP_WATCHER_H

#include "common/http/server_state.h"

enum rc watcher_start(struct http_server *s, struct err *err);
void watcher_stop(struct http_server *s);
/* The watcher looks at deadlines no later than at_ms (monotonic). */
void watcher_wake_by(struct http_server *s, int64_t at_ms);
/* http_suspend, with the lock held. */
void request_suspend(struct http_request *r, int64_t deadline_ms, http_cancelled cancelled, void *cancel_context);
/* A connection was opened: its hang-up will be heard of until libmicrohttpd closes it. */
void watcher_follow(struct http_server *s, struct http_connection *c);
void watcher_add(struct http_request *r, int64_t deadline_ms);
bool watcher_watches(const struct http_request *r); /* false too once it is cancelled */
void watcher_remove(struct http_request *r);
/* The request leaves the table; its callback is going to be called on the watcher's thread. */
void watcher_cancel(struct http_request *r, enum http_cancel why);
void watcher_cancel_all(struct http_server *s, enum http_cancel why);

#endif

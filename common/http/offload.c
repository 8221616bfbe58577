/* Runs handlers on threads of a pool: those that take long (http_route.offload) and those of requests with large
 * bodies, so that libmicrohttpd's threads stay free for quick ones.
 *
 *   libmicrohttpd's thread --offload_submit: suspends--> queue --> a thread of the pool calls the handler
 *
 * The watcher treats a queued request like any suspended one, with the pool as its application: the thread that takes
 * it out of the queue, under the lock, answers it.  A hang-up, a wait of QUEUE_WAIT_MS or the end of the server takes
 * it out with 503.  Once its handler runs nothing is watched until the handler suspends or replies.  The connection
 * stays parked in libmicrohttpd all the while, so http_suspend has nothing left to suspend and the reply resumes it.
 *
 * Stopping: the queue has been cancelled by then; handlers that still run are waited for, while libmicrohttpd is up,
 * because they read its headers. */
#include "common/http/offload.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/http/request.h"
#include "common/http/route.h"
#include "common/http/watcher.h"

enum { QUEUE_WAIT_MS = 30000 };

/* --- the queue; server->lock held --- */

static void queue_append(struct http_server *s, struct http_request *r) {
  r->next_queued = NULL;
  *s->pool.queue_tail = r;
  s->pool.queue_tail = &r->next_queued;
  s->pool.queue_length++;
}

static bool queue_remove(struct http_server *s, struct http_request *r) {
  struct http_request **link = &s->pool.queue_head;
  while (*link != NULL && *link != r) link = &(*link)->next_queued;
  if (*link == NULL) return false;
  *link = r->next_queued;
  if (*link == NULL) s->pool.queue_tail = link;
  s->pool.queue_length--;
  return true;
}

static void refuse(struct http_request *r, const char *why) {
  struct err err;
  err_set(&err, RC_UNAVAILABLE, NULL, "%s", why);
  http_fail(r, &err);
}

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct http_server *s = context;
  pthread_mutex_lock(&s->lock);
  const bool mine = queue_remove(s, r);
  pthread_mutex_unlock(&s->lock);
  if (!mine) return;
  refuse(r, why == HTTP_CANCEL_SHUTDOWN ? "the service is stopping"
            : why == HTTP_CANCEL_HANGUP ? "the client ended its side of the connection while the request waited"
                                        : "too many slow requests came before this one");
}

bool offload_submit(struct http_request *r) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  const bool stopping = s->stopping, room = s->pool.queue_length < s->limits.handler_queue_max;
  if (!stopping && room) {
    request_suspend(r, QUEUE_WAIT_MS, on_cancelled, s);
    queue_append(s, r);
    pthread_cond_signal(&s->pool.queued);
  }
  pthread_mutex_unlock(&s->lock);
  if (stopping) refuse(r, "the service is stopping");
  if (!stopping && !room) refuse(r, "the queue of slow requests is full");
  return !stopping && room;
}

/* --- the threads --- */

/* server->lock held.  False when the request was cancelled in the queue and its callback is still to come. */
static bool begin(struct http_request *r) {
  const bool wanted = watcher_watches(r);
  if (!wanted) return false;
  watcher_remove(r);
  r->cancelled = NULL;
  r->state = HTTP_HANDLING;
  return true;
}

static void *handler_main(void *argument) {
  struct http_server *s = argument;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (s->pool.queue_head == NULL && !s->pool.stop) pthread_cond_wait(&s->pool.queued, &s->lock);
    struct http_request *r = s->pool.queue_head;
    if (r == NULL) break;
    queue_remove(s, r);
    const bool wanted = begin(r);
    pthread_mutex_unlock(&s->lock);
    if (!wanted) {
      refuse(r, "the request was given up while it waited");
      pthread_mutex_lock(&s->lock);
      continue;
    }
    route_run(r);
    pthread_mutex_lock(&s->lock);
    request_unref_unlock(r); /* the queue's, which has kept it while the handler ran */
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

enum rc offload_start(struct http_server *s, struct err *err) {
  const int wanted = (int)s->limits.handler_threads;
  s->pool.queue_tail = &s->pool.queue_head;
  s->pool.threads = calloc((size_t)wanted, sizeof *s->pool.threads);
  if (s->pool.threads == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for %d handler threads", wanted);
  for (; s->pool.size < wanted; s->pool.size++) {
    errno = pthread_create(&s->pool.threads[s->pool.size], NULL, handler_main, s);
    if (errno != 0) return err_set_errno(err, RC_IO, "handler thread %d of %d", s->pool.size + 1, wanted);
  }
  return RC_OK;
}

void offload_stop(struct http_server *s) {
  pthread_mutex_lock(&s->lock);
  s->pool.stop = true;
  pthread_cond_broadcast(&s->pool.queued);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < s->pool.size; i++) pthread_join(s->pool.threads[i], NULL);
  s->pool.size = 0;
  free(s->pool.threads);
  s->pool.threads = NULL;
}

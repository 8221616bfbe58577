/* The handlers' threads: a request whose handler takes long (http_route.offload), or whose body is large, is worked on
 * here, so that libmicrohttpd's threads are free for those that do not.
 *
 *   libmicrohttpd's thread --offload_submit: suspends--> queue --> a thread of the pool calls the handler
 *
 * To the watcher a queued request is like any suspended one, and the pool is its application: who takes it out of the
 * queue, under the lock, answers it.  So a hang-up, a wait of QUEUE_WAIT_MS or the server's end takes it out with 503;
 * once its handler runs nothing is watched until that suspends or replies.  The connection stays parked in
 * libmicrohttpd all the while, hence http_suspend has nothing to suspend any more and the reply resumes it.
 *
 * Stopping: the queue has been cancelled by then, handlers that run are waited for (libmicrohttpd must be up still:
 * they read its headers). */
#include <errno.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/http/server_internal.h"

enum { QUEUE_WAIT_MS = 30000 };

/* --- the queue; server->lock held --- */

static void queue_append(struct http_server *s, struct http_request *r) {
  r->next_queued = NULL;
  *s->queue_tail = r;
  s->queue_tail = &r->next_queued;
  s->queue_length++;
}

static bool queue_remove(struct http_server *s, struct http_request *r) {
  struct http_request **link = &s->queue_head;
  while (*link != NULL && *link != r) link = &(*link)->next_queued;
  if (*link == NULL) return false;
  *link = r->next_queued;
  if (*link == NULL) s->queue_tail = link;
  s->queue_length--;
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
  if (mine)
    refuse(r, why == HTTP_CANCEL_SHUTDOWN ? "the service is stopping" : "too many slow requests came before this one");
}

bool offload_submit(struct http_request *r) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  const bool stopping = s->stopping, room = s->queue_length < s->limits.handler_queue_max;
  if (!stopping && room) {
    request_suspend(r, QUEUE_WAIT_MS, on_cancelled, s);
    queue_append(s, r);
    pthread_cond_signal(&s->queued);
  }
  pthread_mutex_unlock(&s->lock);
  if (stopping) refuse(r, "the service is stopping");
  if (!stopping && !room) refuse(r, "as many slow requests as are kept wait already");
  return !stopping && room;
}

/* --- the threads --- */

/* server->lock held.  False when it was cancelled in the queue, and its callback has yet to find that out. */
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
    while (s->queue_head == NULL && !s->pool_stop) pthread_cond_wait(&s->queued, &s->lock);
    struct http_request *r = s->queue_head;
    if (r == NULL) break;
    queue_remove(s, r);
    const bool wanted = begin(r);
    pthread_mutex_unlock(&s->lock);
    if (!wanted) {
      refuse(r, "the request was given up while it waited");
      pthread_mutex_lock(&s->lock);
      continue;
    }
    request_run(r);
    pthread_mutex_lock(&s->lock);
    request_unref_unlock(r); /* the queue's, which has kept it while the handler ran */
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

enum rc offload_start(struct http_server *s, struct err *err) {
  const int wanted = (int)s->limits.handler_threads;
  s->queue_tail = &s->queue_head;
  s->pool = calloc((size_t)wanted, sizeof *s->pool);
  if (s->pool == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for %d handler threads", wanted);
  for (; s->pool_size < wanted; s->pool_size++) {
    errno = pthread_create(&s->pool[s->pool_size], NULL, handler_main, s);
    if (errno != 0) return err_set_errno(err, RC_IO, "handler thread %d of %d", s->pool_size + 1, wanted);
  }
  return RC_OK;
}

void offload_stop(struct http_server *s) {
  pthread_mutex_lock(&s->lock);
  s->pool_stop = true;
  pthread_cond_broadcast(&s->queued);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < s->pool_size; i++) pthread_join(s->pool[i], NULL);
  s->pool_size = 0;
  free(s->pool);
  s->pool = NULL;
}

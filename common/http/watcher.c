/* Watches suspended requests for hang-ups and deadlines, which libmicrohttpd does not do.
 *
 * One thread epolls the sockets of all connections, each from its opening on, so that a request costs no call for it,
 * and keeps the deadlines of suspended requests.  A hang-up is told once; it is kept for a request that is suspended
 * later.  A request is watched, by way of its connection's entry (connections.c), from http_suspend (or
 * http_stream_begin) until it is replied to or cancelled, whichever comes first under the lock:
 *
 *     watched --reply--> gone from the table                    (no callback will start)
 *        +--hang-up, deadline, shutdown--> due --> callback     (at most once; the request is kept while it runs)
 *
 * The sockets are libmicrohttpd's.  Closing one takes it out of the epoll set: no dup() is needed.  An event may
 * outlive its connection, so it carries the entry's index and a generation, never a pointer.  The table is scanned for
 * deadlines: 4,096 entries take some microseconds, and the thread wakes only when a deadline or the sweep of
 * connections.c, which it also runs, is due. */
#include "common/http/watcher.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/http/request.h"

enum { WATCHER_EVENTS = 64, WATCHER_NAP_MS = 60000 };
static const uint64_t WAKE = UINT64_MAX;

/* In the place of the C library's, for the whole program, because of libmicrohttpd: no array is ever filled.
 *
 * After a call that fills its array of 128, libmicrohttpd 0.9.75 (Debian 12; MHD_epoll) asks for more before it works
 * on what it has, and is ready to wait as long as the first time.  When exactly that many connections had something to
 * say, and none comes after them, their requests lie unread until one does, or until they are late:
 *
 *   384 peers at once --> 128 events, 128, 128, then it waits --> 408 for all of them after head_timeout_ms
 *
 * What does not fit comes with the next call, which does not wait. */
int epoll_wait(int fd, struct epoll_event *events, int room, int timeout_ms) {
  return epoll_pwait(fd, events, room > 1 ? room - 1 : room, timeout_ms, NULL);
}

static void watcher_wake(struct http_server *s) {
  uint64_t one = 1;
  if (write(s->watcher.wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
    log_error("http: waking the watcher: %s", strerror(errno));
}

void watcher_wake_by(struct http_server *s, int64_t at_ms) {
  if (at_ms >= s->watcher.next_wake_ms) return;
  s->watcher.next_wake_ms = at_ms;
  watcher_wake(s);
}

static void make_due(struct http_request *r, enum http_cancel why) {
  struct http_server *s = r->server;
  r->cancel_why = why;
  r->next_due = NULL;
  r->refs++;
  if (s->watcher.due_head == NULL) watcher_wake(s);
  *s->watcher.due_tail = r;
  s->watcher.due_tail = &r->next_due;
}

void watcher_follow(struct http_server *s, struct http_connection *c) {
  c->generation++;
  c->hung_up = false;
  struct epoll_event event = {.events = EPOLLET | EPOLLRDHUP | EPOLLHUP | EPOLLERR,
                              .data.u64 = (uint64_t)c->generation << 32 | (uint32_t)(c - s->connections.entries)};
  if (epoll_ctl(s->watcher.epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
    log_warn("http: a hang-up will go unnoticed until the deadline: %s", strerror(errno));
}

void watcher_add(struct http_request *r, int64_t deadline_ms) {
  r->place->watched = r;
  r->deadline_ms = clock_monotonic_ms() + deadline_ms;
  watcher_wake_by(r->server, r->deadline_ms);
  if (r->place->hung_up) watcher_cancel(r, HTTP_CANCEL_HANGUP);
}

bool watcher_watches(const struct http_request *r) { return r->place != NULL && r->place->watched == r; }

void watcher_remove(struct http_request *r) {
  if (watcher_watches(r)) r->place->watched = NULL;
}

void watcher_cancel(struct http_request *r, enum http_cancel why) {
  if (!watcher_watches(r)) return;
  watcher_remove(r);
  if (why == HTTP_CANCEL_HANGUP || r->cancelled == NULL) r->gone = true;
  if (r->cancelled != NULL) make_due(r, why);
}

void watcher_cancel_all(struct http_server *s, enum http_cancel why) {
  for (struct http_request *r = s->requests; r != NULL; r = r->next) watcher_cancel(r, why);
}

/* Calls the due callbacks, each without the lock. */
static void run_due(struct http_server *s) {
  while (s->watcher.due_head != NULL) {
    struct http_request *r = s->watcher.due_head;
    s->watcher.due_head = r->next_due;
    if (s->watcher.due_head == NULL) s->watcher.due_tail = &s->watcher.due_head;
    if (r->state == HTTP_SUSPENDED || r->state == HTTP_STREAMING) {
      pthread_mutex_unlock(&s->lock);
      r->cancelled(r, r->cancel_why, r->cancel_context);
      pthread_mutex_lock(&s->lock);
    }
    request_unref_unlock(r);
    pthread_mutex_lock(&s->lock);
  }
}

static void scan_deadlines(struct http_server *s) {
  int64_t now_ms = clock_monotonic_ms();
  s->watcher.next_wake_ms = now_ms + WATCHER_NAP_MS;
  connections_sweep(&s->connections, &s->lock, now_ms);
  if (s->connections.top > 0 && s->connections.next_sweep_ms < s->watcher.next_wake_ms)
    s->watcher.next_wake_ms = s->connections.next_sweep_ms;
  for (int i = 0; i < s->connections.top; i++) {
    struct http_request *r = s->connections.entries[i].watched;
    if (r == NULL) continue;
    if (r->deadline_ms <= now_ms)
      watcher_cancel(r, HTTP_CANCEL_DEADLINE);
    else if (r->deadline_ms < s->watcher.next_wake_ms)
      s->watcher.next_wake_ms = r->deadline_ms;
  }
}

/* Ends what was opened with a token that is none of its route's any more: a stream would outlive it by hours. */
static void end_revoked(struct http_server *s) {
  struct tokens *tokens = s->access == NULL ? NULL : s->access->tokens;
  if (tokens == NULL || !tokens_wanted(tokens)) return;
  pthread_mutex_unlock(&s->lock); /* it may read files */
  const unsigned generation = tokens_generation(tokens);
  pthread_mutex_lock(&s->lock);
  if (generation == s->watcher.tokens_generation) return;
  s->watcher.tokens_generation = generation;
  for (struct http_request *r = s->requests; r != NULL; r = r->next) {
    if (!watcher_watches(r) || r->caller.roles == 0 || tokens_still(tokens, &r->token, r->route->roles | HTTP_ADMIN))
      continue;
    shutdown(r->place->fd, SHUT_RDWR);
    watcher_cancel(r, HTTP_CANCEL_HANGUP);
  }
}

static void handle_event(struct http_server *s, uint64_t data) {
  if (data == WAKE) {
    uint64_t count;
    if (read(s->watcher.wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
      log_error("http: the watcher's wake-up: %s", strerror(errno));
    return;
  }
  struct http_connection *c = &s->connections.entries[data & UINT32_MAX];
  if (c->generation != data >> 32) return;
  c->hung_up = true;
  if (c->watched != NULL) watcher_cancel(c->watched, HTTP_CANCEL_HANGUP);
}

static void *watcher_main(void *argument) {
  struct http_server *s = argument;
  struct epoll_event events[WATCHER_EVENTS];
  pthread_mutex_lock(&s->lock);
  for (;;) {
    end_revoked(s);
    scan_deadlines(s);
    run_due(s);
    if (s->watcher.stop) break;
    int64_t wait_ms =
        s->watcher.next_wake_ms - clock_monotonic_ms(); /* a wake-up between here and epoll_wait is kept in wake_fd */
    pthread_mutex_unlock(&s->lock);
    int n = epoll_wait(s->watcher.epoll_fd, events, WATCHER_EVENTS, wait_ms < 0 ? 0 : (int)wait_ms);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) handle_event(s, events[i].data.u64);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

enum rc watcher_start(struct http_server *s, struct err *err) {
  s->watcher.due_tail = &s->watcher.due_head;
  s->watcher.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  s->watcher.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE};
  enum rc rc = RC_OK;
  if (s->watcher.epoll_fd < 0 || s->watcher.wake_fd < 0 ||
      epoll_ctl(s->watcher.epoll_fd, EPOLL_CTL_ADD, s->watcher.wake_fd, &event) != 0)
    rc = err_set_errno(err, RC_IO, "the watcher's epoll");
  if (rc == RC_OK) {
    errno = pthread_create(&s->watcher.thread, NULL, watcher_main, s);
    if (errno != 0) rc = err_set_errno(err, RC_IO, "the watcher's thread");
  }
  if (rc != RC_OK) {
    if (s->watcher.epoll_fd >= 0) close(s->watcher.epoll_fd);
    if (s->watcher.wake_fd >= 0) close(s->watcher.wake_fd);
  }
  return rc;
}

void watcher_stop(struct http_server *s) {
  pthread_mutex_lock(&s->lock);
  s->watcher.stop = true;
  watcher_wake(s);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->watcher.thread, NULL);
  close(s->watcher.epoll_fd);
  close(s->watcher.wake_fd);
}

void request_suspend(struct http_request *r, int64_t deadline_ms, http_cancelled cancelled, void *cancel_context) {
  struct http_server *s = r->server;
  if (deadline_ms < 1) deadline_ms = 1;
  if (deadline_ms > HTTP_SUSPEND_MS_MAX) deadline_ms = HTTP_SUSPEND_MS_MAX;
  assert(r->state == HTTP_HANDLING && cancelled != NULL);
  r->state = HTTP_SUSPENDED;
  r->refs++;
  r->cancelled = cancelled;
  r->cancel_context = cancel_context;
  if (s->closing) { /* libmicrohttpd must have nothing suspended now: the connection is closed, the application told */
    r->abandoned = true;
    if (r->parked) MHD_resume_connection(r->connection);
    r->parked = false;
    make_due(r, HTTP_CANCEL_SHUTDOWN);
    return;
  }
  if (!r->parked) MHD_suspend_connection(r->connection); /* the pool's handlers find it parked */
  r->parked = true;
  r->was_suspended = true;
  watcher_add(r, deadline_ms);
  if (s->stopping) watcher_cancel(r, HTTP_CANCEL_SHUTDOWN);
}

void http_suspend(struct http_request *r, int64_t deadline_ms, http_cancelled cancelled, void *cancel_context) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  request_suspend(r, deadline_ms, cancelled, cancel_context);
  pthread_mutex_unlock(&s->lock);
}

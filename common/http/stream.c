/* Streams answers (server-sent events): any thread queues bytes, libmicrohttpd's thread sends them.
 *
 *     writers --http_stream_write--> unsent buffer --stream_read, on the connection's thread--> socket
 *
 * With nothing to send the reader suspends the connection (`parked`); the next write resumes it.  The watcher sees
 * hang-ups while it is parked, libmicrohttpd while it sends; both end in the cancelled callback, after which writes
 * are RC_GONE and the application still owes http_stream_end.  A slow reader costs at most HTTP_STREAM_UNSENT_MAX
 * bytes. */
#include <string.h>

#include "common/base/log.h"
#include "common/http/reply.h"
#include "common/http/request.h"
#include "common/http/watcher.h"

static ssize_t stream_read(void *context, uint64_t position, char *out, size_t max) {
  (void)position;
  struct http_request *r = context;
  struct http_server *s = r->server;
  ssize_t result = 0;
  pthread_mutex_lock(&s->lock);
  size_t n = r->unsent.len - r->sent;
  if (n > max) n = max;
  if (n > 0) {
    memcpy(out, r->unsent.data + r->sent, n);
    r->sent += n;
    result = (ssize_t)n;
  } else if (r->state != HTTP_STREAMING) {
    result = MHD_CONTENT_READER_END_OF_STREAM;
  } else if (s->closing || r->abandoned) {
    result = MHD_CONTENT_READER_END_WITH_ERROR;
  } else {
    r->parked = true;
    MHD_suspend_connection(r->connection);
  }
  pthread_mutex_unlock(&s->lock);
  return result;
}

static void unpark(struct http_request *r) {
  if (!r->parked) return;
  r->parked = false;
  MHD_resume_connection(r->connection);
}

void http_stream_begin(struct http_request *r, int status, const char *content_type) {
  struct http_server *s = r->server;
  http_set_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
  struct MHD_Response *response = reply_headers(
      r, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_STREAM_BLOCK, stream_read, r, NULL), content_type);
  pthread_mutex_lock(&s->lock);
  bool fresh = r->state == HTTP_HANDLING;
  if (!fresh && r->state != HTTP_SUSPENDED) {
    pthread_mutex_unlock(&s->lock);
    log_error("http: http_stream_begin on a request that has been answered");
    if (response != NULL) MHD_destroy_response(response);
    return;
  }
  if (fresh) { /* never suspended by the application: no callback, hang-ups show as RC_GONE */
    r->refs++;
    if (s->closing)
      r->abandoned = true;
    else
      watcher_add(r, HTTP_SUSPEND_MS_MAX);
  }
  r->state = HTTP_STREAMING;
  if (r->abandoned || response == NULL) r->gone = true;
  if (!r->abandoned) {
    r->status = status;
    r->response = response;
    response = NULL;
  }
  unpark(r);
  pthread_mutex_unlock(&s->lock);
  if (response != NULL) MHD_destroy_response(response);
}

/* Drops what has been sent once it is the larger part, so that bytes are moved at most about once. */
static void compact(struct http_request *r) {
  size_t left = r->unsent.len - r->sent;
  if (r->sent == 0 || r->sent < left) return;
  memmove(r->unsent.data, r->unsent.data + r->sent, left + 1);
  r->unsent.len = left;
  r->sent = 0;
}

enum rc http_stream_write(struct http_request *r, const char *bytes, size_t len) {
  struct http_server *s = r->server;
  enum rc rc = RC_OK;
  pthread_mutex_lock(&s->lock);
  size_t unsent = r->unsent.len - r->sent;
  if (r->state != HTTP_STREAMING || r->gone || r->abandoned || r->connection == NULL) {
    rc = RC_GONE;
  } else if (len > HTTP_STREAM_UNSENT_MAX - unsent) {
    rc = RC_FULL;
  } else if (len > 0) {
    compact(r);
    buf_append(&r->unsent, bytes, len);
    if (r->unsent.failed) {
      r->gone = true; /* the stream has a hole now: nothing may follow */
      rc = RC_NO_MEMORY;
    }
    unpark(r);
  }
  pthread_mutex_unlock(&s->lock);
  return rc;
}

size_t http_stream_unsent(struct http_request *r) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  const size_t unsent = r->unsent.len - r->sent;
  pthread_mutex_unlock(&s->lock);
  return unsent;
}

void http_stream_end(struct http_request *r) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  if (r->state != HTTP_STREAMING) { /* only possible from the cancelled callback, after another thread's end */
    pthread_mutex_unlock(&s->lock);
    return;
  }
  r->state = HTTP_REPLIED;
  watcher_remove(r);
  unpark(r);
  request_unref_unlock(r);
}

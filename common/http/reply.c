/* Answers requests: once each, from any thread.
 *
 * The response is made on the caller's thread, without the lock, and put into the request.  A request still in its
 * handler is answered when the handler returns; one that is parked in libmicrohttpd, because it is suspended or its
 * handler runs on a thread of the pool, leaves the watcher's table and is resumed, and libmicrohttpd's thread queues
 * the response.  After that the caller must not touch the request: it may already be freed. A reply that comes second
 * (only possible from the cancelled callback, whose request is kept) is dropped. */
#include "common/http/reply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/http/request.h"
#include "common/http/status.h"
#include "common/http/watcher.h"

void http_set_header(struct http_request *r, const char *name, const char *value) {
  if (r->reply_header_count == HTTP_REPLY_HEADERS_MAX) {
    log_error("http: header %s dropped: at most %d reply headers were expected", name, HTTP_REPLY_HEADERS_MAX);
    return;
  }
  struct http_pair pair = {arena_strdup(&r->arena, name), arena_strdup(&r->arena, value)};
  if (pair.name != NULL && pair.value != NULL) r->reply_headers[r->reply_header_count++] = pair;
}

struct MHD_Response *reply_headers(struct http_request *r, struct MHD_Response *response, const char *content_type) {
  if (response == NULL) {
    log_error("http: no memory for a response, its connection is closed");
    return NULL;
  }
  if (content_type != NULL) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
  if (r->id[0]) MHD_add_response_header(response, "x-request-id", r->id);
  for (int i = 0; i < r->reply_header_count; i++)
    if (MHD_add_response_header(response, r->reply_headers[i].name, r->reply_headers[i].value) != MHD_YES)
      log_error("http: header %s dropped: it is no valid header", r->reply_headers[i].name);
  return response;
}

/* Takes over the response; NULL closes the connection without an answer. */
static void reply_give(struct http_request *r, int status, struct MHD_Response *response) {
  struct http_server *s = r->server;
  pthread_mutex_lock(&s->lock);
  const bool handling = r->state == HTTP_HANDLING, suspended = r->state == HTTP_SUSPENDED;
  if (handling || (suspended && r->parked)) {
    r->status = status;
    r->response = response;
    response = NULL;
  }
  if (handling || suspended) {
    watcher_remove(r);
    r->state = HTTP_REPLIED;
    if (r->parked) MHD_resume_connection(r->connection);
    r->parked = false;
  }
  if (suspended)
    request_unref_unlock(r);
  else
    pthread_mutex_unlock(&s->lock);
  if (response != NULL) MHD_destroy_response(response); /* too late, or the peer is gone */
}

void http_reply(struct http_request *r, int status, const char *content_type, struct buf *body) {
  struct err err;
  if (buf_check(body, &err) != RC_OK) {
    buf_free(body);
    reply_error(r, http_status_of(err.rc), &err);
    return;
  }
  size_t len = 0;
  char *bytes = buf_take(body, &len);
  struct MHD_Response *response = bytes == NULL ? MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT)
                                                : MHD_create_response_from_buffer(len, bytes, MHD_RESPMEM_MUST_FREE);
  if (response == NULL) free(bytes);
  reply_give(r, status, reply_headers(r, response, content_type));
}

enum { SOURCE_BLOCK = 64 << 10 }; /* what is read of a source at once */

static ssize_t source_read(void *context, uint64_t at, char *out, size_t max) {
  const struct http_source *source = context;
  const size_t count = source->read(source->context, (size_t)at, out, max);
  return count > 0 ? (ssize_t)count : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void source_end(void *context) {
  struct http_source *source = context;
  source->end(source->context);
  free(source);
}

void http_reply_source(struct http_request *r, int status, const char *content_type, const struct http_source *source) {
  struct MHD_Response *response = NULL;
  struct http_source *kept = malloc(sizeof *kept);
  if (kept != NULL) {
    *kept = *source;
    response = MHD_create_response_from_callback(kept->len, SOURCE_BLOCK, source_read, kept, source_end);
  }
  if (response == NULL) { /* then source_end is not called */
    free(kept);
    source->end(source->context);
  }
  reply_give(r, status, reply_headers(r, response, content_type));
}

void http_reply_json(struct http_request *r, int status, struct buf *body) {
  http_reply(r, status, "application/json", body);
}

void http_reply_json_or_fail(struct http_request *r, enum rc rc, struct buf *body, struct err *err) {
  if (rc == RC_OK) rc = buf_check(body, err);
  if (rc == RC_OK) {
    http_reply_json(r, 200, body);
    return;
  }
  buf_free(body);
  http_fail(r, err);
}

void http_reply_text(struct http_request *r, int status, const char *text) {
  struct MHD_Response *response =
      MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
  reply_give(r, status, reply_headers(r, response, "text/plain; charset=utf-8"));
}

static void write_error(const struct http_request *r, struct buf *out, int *status, const struct err *err) {
  if (r->write_error != NULL)
    r->write_error(out, status, err);
  else
    http_error_body(out, err);
}

void http_write_error(const struct http_request *r, struct buf *out, const struct err *err) {
  int status = http_status_of(err->rc);
  write_error(r, out, &status, err);
}

void reply_error(struct http_request *r, int status, const struct err *err) {
  struct buf body = BUF_INIT;
  write_error(r, &body, &status, err);
  if (err->rc == RC_IO || err->rc == RC_CORRUPT || err->rc == RC_INTERNAL || err->rc == RC_NO_MEMORY)
    log_error("http: answered %d to x-request-id %s: %s", status, r->id, err->message);
  if (body.failed) { /* a constant text needs no allocation of ours */
    buf_free(&body);
    http_reply_text(r, status, "out of memory\n");
    return;
  }
  if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
    http_set_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
  if (status == MHD_HTTP_NOT_IMPLEMENTED) http_set_header(r, "x-should-retry", "false"); /* OpenAI's clients would */
  http_reply_json(r, status, &body);
}

void http_fail(struct http_request *r, const struct err *err) {
  struct err ours = *err;
  if (ours.rc == RC_OK) err_set(&ours, RC_INTERNAL, NULL, "a handler failed without an error code");
  reply_error(r, http_status_of(ours.rc), &ours);
}

void http_reply_file(struct http_request *r, const char *content_type, const char *path) {
  struct err err;
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    if (fd >= 0 || errno == ENOENT || errno == ENOTDIR)
      err_set(&err, RC_NOT_FOUND, NULL, "no such file");
    else
      err_set_errno(&err, RC_IO, "a readable file was expected");
    if (fd >= 0) close(fd);
    http_fail(r, &err);
    return;
  }
  struct MHD_Response *response = MHD_create_response_from_fd_at_offset64((uint64_t)st.st_size, fd, 0);
  if (response == NULL) close(fd);
  reply_give(r, MHD_HTTP_OK, reply_headers(r, response, content_type));
}

/* --- the standard routes --- */

void http_handle_metrics(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  metrics_render(&body);
  http_reply(r, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &body);
}

void http_handle_healthz(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  buf_puts(&body, "{\"status\":\"ok\"}");
  http_reply_json(r, MHD_HTTP_OK, &body);
}

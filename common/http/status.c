/* Maps result codes to HTTP statuses and back, writes the error body, tells bytes from JSON.
 *
 * One table, so that the client understands exactly what the server answers.  Pure functions, any thread. */
#include "common/http/status.h"

#include <string.h>
#include <strings.h>

#include "common/json/json.h"

int http_status_of(enum rc rc) {
  switch (rc) {
    case RC_OK: return 200;
    case RC_INVALID: return 422;
    case RC_NOT_FOUND: return 404;
    case RC_FORBIDDEN: return 403;
    case RC_CONFLICT: return 409;
    case RC_GONE: return 410;
    case RC_TOO_LARGE: return 413;
    case RC_FULL: return 429;
    case RC_UNAVAILABLE: return 503;
    case RC_TIMEOUT: return 504;
    case RC_UNSUPPORTED: return 501;
    case RC_NO_MEMORY: return 503;
    case RC_IO:
    case RC_CORRUPT:
    case RC_INTERNAL: return 500;
  }
  return 500;
}

enum rc http_rc_of_status(int status) {
  if (status >= 200 && status <= 299) return RC_OK;
  switch (status) {
    case 400:
    case 422: return RC_INVALID;
    case 401:
    case 403: return RC_FORBIDDEN;
    case 404: return RC_NOT_FOUND;
    case 405:
    case 501: return RC_UNSUPPORTED;
    case 408:
    case 504: return RC_TIMEOUT;
    case 409: return RC_CONFLICT;
    case 410: return RC_GONE;
    case 413:
    case 414:
    case 431: return RC_TOO_LARGE;
    case 429: return RC_FULL;
    case 502:
    case 503: return RC_UNAVAILABLE;
    default: return RC_INTERNAL;
  }
}

void http_error_body(struct buf *out, const struct err *err) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_key(&w, "error");
  json_object_begin(&w);
  json_kv_string(&w, "code", rc_name(err->rc));
  json_kv_string(&w, "message", err->message);
  json_kv_string(&w, "field", err->field);
  json_object_end(&w);
  json_object_end(&w);
}

/* Media types have no case. */
bool http_media_is_bytes(const char *content_type) {
  static const char name[] = "application/octet-stream";
  const size_t len = sizeof name - 1;
  return content_type && strncasecmp(content_type, name, len) == 0 && strchr(" \t;", content_type[len]) != NULL;
}

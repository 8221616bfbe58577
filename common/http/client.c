/* Calls HTTP servers: one blocking exchange at a time, each with a deadline, on connections kept alive between calls.
 *
 * A call runs on a libcurl multi handle with one easy handle, so that the cancel flag is looked at every CLIENT_TICK_MS
 * whatever the peer does, during name resolution too.  The answer is bounded; one that announces too many bytes is
 * refused at once.  The environment is not consulted (no proxies), redirects are not followed, and of https no peer is
 * heard whose certificate is not of its host or not signed by a trusted authority (tls_client.c).  One thread per
 * client; libcurl's global state is made once and lives until the process ends.
 *
 * Called by common/client, which knows the messages: nothing here retries, a failed exchange is reported once and its
 * connection dropped.  An answer's body is the caller's (http_answer_free). */
#include <assert.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/http/trust/access.h"
#include "common/http/client.h"
#include "common/http/status.h"
#include "common/http/trust/tls.h"
#include "common/http/trust/tls_client.h"
#include "common/http/trace.h"
#include "common/json/json.h"

enum {
  CLIENT_TICK_MS = 100,
  CLIENT_CONNECT_MS = 2000,
  CLIENT_TLS_CONNECT_MS = 5000, /* with the handshake, which both sides compute */
  CLIENT_KEPT_CONNECTIONS = 64,
  CLIENT_CA_FILE_BYTES = 16 << 20,
  CLIENT_ERROR_BODY_BYTES = 64 << 10
};

struct http_client {
  CURLM *multi;
  CURL *easy;
  char *authorization; /* a header line, or NULL */
  const atomic_bool *cancel;
  const struct http_access *access; /* borrowed; NULL: any host may be called */
  bool shows_access;                /* its token, as it is at the time of each call */
  bool strangers;      /* its peers are no part of the pool */
  const char *ca_file; /* borrowed; of strangers; "": the system's authorities are trusted */
};

/* One exchange in progress. */
struct exchange {
  const struct http_call *call;
  const struct hosts *hosts; /* NULL: any may be called */
  struct http_answer *answer;
  size_t bytes_max;
  int64_t end_ms;
  bool too_large, refused; /* refused: no connection was made, the host is none that may be called */
  size_t sent; /* of a body in parts */
  struct tls_client tls;
  char detail[CURL_ERROR_SIZE];
};

static CURLcode global_result = CURLE_FAILED_INIT;

static void global_init(void) { global_result = curl_global_init(CURL_GLOBAL_DEFAULT); }

enum rc http_client_create(struct http_client **out, const char *token, const atomic_bool *cancel, struct err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, global_init);
  if (global_result != CURLE_OK)
    return err_set(err, RC_INTERNAL, NULL, "libcurl: %s", curl_easy_strerror(global_result));
  struct http_client *c = calloc(1, sizeof *c);
  if (c == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for an http client");
  c->cancel = cancel;
  c->multi = curl_multi_init();
  c->easy = curl_easy_init();
  bool failed = c->multi == NULL || c->easy == NULL;
  if (token != NULL && token[0] != '\0' && asprintf(&c->authorization, "Authorization: Bearer %s", token) < 0) {
    c->authorization = NULL;
    failed = true;
  }
  if (failed) {
    http_client_destroy(c);
    return err_set(err, RC_NO_MEMORY, NULL, "no memory for an http client");
  }
  curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)CLIENT_KEPT_CONNECTIONS);
  *out = c;
  return RC_OK;
}

enum rc http_client_create_for(struct http_client **out, const struct http_access *access, const atomic_bool *cancel,
                               struct err *err) {
  const enum rc rc = http_client_create(out, NULL, cancel, err);
  if (rc != RC_OK) return rc;
  (*out)->access = access;
  (*out)->shows_access = access != NULL;
  return RC_OK;
}

void http_client_confine(struct http_client *c, const struct http_access *access) { c->access = access; }

void http_client_destroy(struct http_client *c) {
  if (c == NULL) return;
  if (c->easy != NULL) curl_easy_cleanup(c->easy);
  if (c->multi != NULL) curl_multi_cleanup(c->multi);
  free(c->authorization);
  free(c);
}

void http_client_of_strangers(struct http_client *c, const char *ca_file) {
  c->strangers = true;
  c->ca_file = ca_file != NULL ? ca_file : "";
}

enum rc http_ca_file_check(const char *ca_file, struct err *err) {
  static const char begin[] = "-----BEGIN CERTIFICATE-----";
  if (ca_file == NULL || ca_file[0] == '\0') return RC_OK;
  struct buf text = BUF_INIT;
  enum rc rc = file_read(&text, ca_file, CLIENT_CA_FILE_BYTES, err);
  if (rc == RC_OK && (text.len == 0 || memmem(text.data, text.len, begin, sizeof begin - 1) == NULL))
    rc = err_set(err, RC_INVALID, NULL, "%s: authorities' certificates in PEM were expected (\"%s\"), none was found",
                 ca_file, begin);
  buf_free(&text);
  return rc;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *context) {
  struct exchange *x = context;
  size_t len = size * count;
  if (len > x->bytes_max - x->answer->body.len) {
    x->too_large = true;
    return CURL_WRITEFUNC_ERROR;
  }
  buf_append(&x->answer->body, bytes, len);
  return x->answer->body.failed ? CURL_WRITEFUNC_ERROR : len;
}

/* Where the body goes on that is in parts. */
static size_t on_read(char *to, size_t size, size_t count, void *context) {
  struct exchange *x = context;
  size_t at = x->sent, room = size * count;
  for (size_t i = 0; i < x->call->part_count; i++) {
    const struct http_part *part = &x->call->parts[i];
    if (at >= part->len) {
      at -= part->len;
      continue;
    }
    const size_t len = part->len - at < room ? part->len - at : room;
    memcpy(to, (const char *)part->bytes + at, len);
    x->sent += len;
    return len;
  }
  return 0;
}

/* libcurl sends again what went to a connection that the peer had closed. */
static int on_seek(void *context, curl_off_t offset, int origin) {
  struct exchange *x = context;
  if (origin != SEEK_SET || offset < 0 || (size_t)offset > x->call->body_len) return CURL_SEEKFUNC_FAIL;
  x->sent = (size_t)offset;
  return CURL_SEEKFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t count, void *context) {
  static const char name[] = "X-Leasehold-Digest:";
  struct exchange *x = context;
  size_t len = size * count, i = sizeof name - 1;
  if (len < i || strncasecmp(line, name, i) != 0) return len;
  while (i < len && (line[i] == ' ' || line[i] == '\t')) i++;
  size_t end = len;
  while (end > i && strchr(" \t\r\n", line[end - 1]) != NULL) end--;
  if (end - i < sizeof x->answer->digest_header) { /* a longer one is no digest: left empty */
    memcpy(x->answer->digest_header, line + i, end - i);
    x->answer->digest_header[end - i] = '\0';
  }
  return len;
}

static bool append_header(struct curl_slist **list, const char *line) {
  struct curl_slist *longer = curl_slist_append(*list, line);
  if (longer == NULL) return false;
  *list = longer;
  return true;
}

/* Of what the calling thread works for. */
static bool append_trace(struct curl_slist **list) {
  char parent[sizeof "traceparent: " + TRACEPARENT_CHARS] = "traceparent: ";
  char state[sizeof "tracestate: " + TRACESTATE_CHARS];
  struct trace t;
  if (!trace_get(&t)) return true;
  traceparent_write(parent + strlen(parent), &t);
  if (!append_header(list, parent)) return false;
  if (!t.state[0]) return true;
  snprintf(state, sizeof state, "tracestate: %s", t.state);
  return append_header(list, state);
}

static enum rc make_headers(const struct http_client *c, const struct http_call *call, struct curl_slist **list,
                            struct err *err) {
  static const char bearer[] = "Authorization: Bearer ";
  char shown[sizeof bearer + TOKEN_BYTES_MAX];
  memcpy(shown, bearer, sizeof bearer);
  bool fine = c->authorization == NULL || append_header(list, c->authorization);
  if (c->shows_access && tokens_shown(c->access->tokens, shown + sizeof bearer - 1))
    fine = append_header(list, shown) && fine;
  explicit_bzero(shown, sizeof shown);
  if (call->body != NULL || call->parts != NULL) {
    char line[256];
    const char *type = call->content_type == NULL ? "application/json" : call->content_type;
    int len = snprintf(line, sizeof line, "Content-Type: %s", type);
    if (len < 0 || (size_t)len >= sizeof line)
      return err_set(err, RC_INVALID, NULL, "a content type below %zu bytes was expected, but \"%.64s...\" came",
                     sizeof line, type);
    fine = fine && append_header(list, line);
  }
  for (const char *const *header = call->headers; header != NULL && *header != NULL; header++)
    fine = fine && append_header(list, *header);
  fine = fine && append_trace(list);
  return fine ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "no memory for the request headers");
}

/* In the place of libcurl's own socket(): it is known here where the connection would go, whatever the name said
 * before. */
static curl_socket_t on_socket(void *context, curlsocktype purpose, struct curl_sockaddr *to) {
  struct exchange *x = context;
  char host[HOST_BYTES_MAX];
  (void)purpose;
  x->refused = !hosts_of_call(host, x->call->url) || !hosts_admit(x->hosts, host, &to->addr);
  return x->refused ? CURL_SOCKET_BAD : socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

static void set_options(struct http_client *c, struct exchange *x, struct curl_slist *headers) {
  const struct http_call *call = x->call;
  CURL *easy = c->easy;
  curl_easy_reset(easy); /* keeps connections, drops the last call's options */
  curl_easy_setopt(easy, CURLOPT_URL, call->url);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  tls_client_options(&x->tls, easy, call->url, c->strangers, c->ca_file);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  if (x->hosts != NULL) {
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, x);
  }
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  /* libcurl makes both buffers anew for every call; most calls are a few kilobytes */
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, x->bytes_max > LIMIT_BODY_BYTES ? 256L << 10 : 16L << 10);
  curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, call->body_len > 64u << 10 ? 512L << 10 : 16L << 10);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->deadline_ms);
  const int64_t connect_ms = strncasecmp(call->url, "https:", 6) == 0 ? CLIENT_TLS_CONNECT_MS : CLIENT_CONNECT_MS;
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(call->connect_ms > 0 ? call->connect_ms : connect_ms));
  if (call->stall_ms > 0) {
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)CLIENT_STALL_BYTES);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)((call->stall_ms + 999) / 1000));
  }
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, x->detail);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
  curl_easy_setopt(easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)x->bytes_max);
  if (call->parts != NULL) {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(easy, CURLOPT_READDATA, x);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, x);
  } else if (call->body != NULL || strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)(call->body == NULL ? 0 : call->body_len));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body == NULL ? "" : call->body);
  }
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
}

static enum rc explain(const struct http_client *c, const struct exchange *x, CURLcode code, struct err *err) {
  const struct http_call *call = x->call;
  const char *detail = x->detail[0] != '\0' ? x->detail : curl_easy_strerror(code);
  if (x->refused)
    return err_set(
        err, RC_FORBIDDEN, NULL,
        "%s %s: this service may not call that host; if it should, start it with --allow-hosts that name the host",
        call->method, call->url);
  if (x->too_large || code == CURLE_FILESIZE_EXCEEDED)
    return err_set(err, RC_TOO_LARGE, NULL, "%s %s: an answer of at most %zu bytes was expected, but a longer one came",
                   call->method, call->url, x->bytes_max);
  if (x->answer->body.failed || code == CURLE_OUT_OF_MEMORY) /* libcurl reports too long a header line this way, too */
    return err_set(err, RC_NO_MEMORY, NULL, "%s %s: no memory for the answer%s", call->method, call->url,
                   x->answer->body.failed ? "" : ", or one of its header lines has more than 100 KiB");
  curl_off_t connected_us = 0; /* 0: the fault came before there was a connection */
  curl_easy_getinfo(c->easy, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
  if (code == CURLE_OPERATION_TIMEDOUT && connected_us > 0 && clock_monotonic_ms() < x->end_ms && call->stall_ms > 0)
    return err_set(err, RC_TIMEOUT, NULL,
                   "%s %s: at least %d bytes a second were expected, fewer came for %lld ms (%zu bytes in all)",
                   call->method, call->url, CLIENT_STALL_BYTES, (long long)call->stall_ms, x->answer->body.len);
  if (code == CURLE_OPERATION_TIMEDOUT && (connected_us > 0 || clock_monotonic_ms() >= x->end_ms))
    return err_set(err, RC_TIMEOUT, NULL, "%s %s: a complete answer was expected within %lld ms", call->method,
                   call->url, (long long)call->deadline_ms);
  if (connected_us == 0 && (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL))
    return err_set(err, RC_INVALID, NULL, "an http:// or https:// URL was expected, but \"%s\" came: %s", call->url,
                   detail);
  const char *ca_file = c->strangers ? c->ca_file : http_tls_ca();
  if (code == CURLE_PEER_FAILED_VERIFICATION)
    return err_set(err, RC_UNAVAILABLE, NULL,
                   "%s %s: its certificate is refused: %s (authorities that are trusted: %s)", call->method, call->url,
                   detail, ca_file[0] ? ca_file : "the system's");
  if (code == CURLE_SSL_CONNECT_ERROR) {
    const bool ended = strstr(detail, "SSL_ERROR_SYSCALL") != NULL; /* it may have said so, and reset the connection
                                                                     * behind it */
    return err_set(err, RC_UNAVAILABLE, NULL,
                   "%s %s: no connection by TLS could be made: %s%s", call->method, call->url, detail,
                   strstr(detail, "wrong version number") != NULL ? "; that port speaks plain http"
                   : ended                                        ? "; that port may speak plain http"
                                                                  : "");
  }
  return err_set(err, RC_UNAVAILABLE, NULL, "%s %s: %s", call->method, call->url, detail);
}

/* Drives the exchange to its end. */
static enum rc drive(struct http_client *c, const struct exchange *x, struct err *err) {
  const struct http_call *call = x->call;
  for (;;) {
    int running = 0;
    CURLMcode code = curl_multi_perform(c->multi, &running);
    if (code != CURLM_OK) return err_set(err, RC_INTERNAL, NULL, "libcurl: %s", curl_multi_strerror(code));
    if (running == 0) break;
    if (c->cancel != NULL && atomic_load(c->cancel))
      return err_set(err, RC_UNAVAILABLE, NULL, "%s %s: cancelled, this service is stopping", call->method, call->url);
    if (clock_monotonic_ms() >=
        x->end_ms + CLIENT_TICK_MS) /* libcurl keeps the deadline; this is for when it does not */
      return err_set(err, RC_TIMEOUT, NULL, "%s %s: a complete answer was expected within %lld ms", call->method,
                     call->url, (long long)call->deadline_ms);
    code = curl_multi_poll(c->multi, NULL, 0, CLIENT_TICK_MS, NULL);
    if (code != CURLM_OK) return err_set(err, RC_INTERNAL, NULL, "libcurl: %s", curl_multi_strerror(code));
  }
  int left = 0;
  const CURLMsg *message = curl_multi_info_read(c->multi, &left);
  if (message == NULL || message->msg != CURLMSG_DONE)
    return err_set(err, RC_INTERNAL, NULL, "%s %s: libcurl ended without a result", call->method, call->url);
  return message->data.result == CURLE_OK ? RC_OK : explain(c, x, message->data.result, err);
}

enum rc http_client_call(struct http_client *c, const struct http_call *call, struct http_answer *answer,
                         struct err *err) {
  assert(call->deadline_ms > 0);
  memset(answer, 0, sizeof *answer);
  if (c->cancel != NULL && atomic_load(c->cancel))
    return err_set(err, RC_UNAVAILABLE, NULL, "%s %s: cancelled, this service is stopping", call->method, call->url);
  struct exchange x = {
      .call = call,
      .hosts = c->access == NULL ? NULL : c->access->hosts,
      .answer = answer,
      .bytes_max = call->response_bytes_max == 0 ? LIMIT_BODY_BYTES : call->response_bytes_max,
      .end_ms = clock_monotonic_ms() + call->deadline_ms,
  };
  struct curl_slist *headers = NULL;
  enum rc rc = make_headers(c, call, &headers, err);
  if (rc == RC_OK) {
    set_options(c, &x, headers);
    CURLMcode code = curl_multi_add_handle(c->multi, c->easy);
    if (code == CURLM_OK) {
      rc = drive(c, &x, err);
      curl_multi_remove_handle(c->multi, c->easy); /* an unfinished exchange's connection is closed by this */
    } else {
      rc = err_set(err, RC_INTERNAL, NULL, "libcurl: %s", curl_multi_strerror(code));
    }
  }
  if (rc == RC_OK) {
    long status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    answer->status = (int)status;
    const char *type = NULL;
    curl_easy_getinfo(c->easy, CURLINFO_CONTENT_TYPE, &type);
    answer->is_bytes = http_media_is_bytes(type);
  } else {
    http_answer_free(answer);
  }
  curl_easy_reset(c->easy); /* nothing may point at this call's memory any more */
  curl_slist_free_all(headers);
  tls_client_end(&x.tls);
  return rc;
}

void http_answer_free(struct http_answer *a) {
  if (a == NULL) return;
  buf_free(&a->body);
  a->status = 0;
  a->digest_header[0] = '\0';
}

static const char *string_member(const struct json *object, const char *key) {
  return object == NULL ? NULL : json_word(json_get(object, key));
}

enum rc http_answer_error(const struct http_answer *a, const char *what, struct err *err) {
  enum rc rc = http_rc_of_status(a->status);
  if (rc == RC_OK) rc = RC_INTERNAL; /* the caller took a success for an error: our mistake, not the peer's */
  struct json *root = NULL;
  if (a->body.len > 0 && a->body.len <= CLIENT_ERROR_BODY_BYTES) json_parse(&root, a->body.data, a->body.len, 0, NULL);
  const struct json *error = root == NULL ? NULL : json_get(root, "error");
  const char *code = string_member(error, "code"), *message = string_member(error, "message"),
             *field = string_member(error, "field");
  for (int known = RC_INVALID; code != NULL && known <= RC_INTERNAL; known++)
    if (strcmp(code, rc_name((enum rc)known)) == 0) rc = (enum rc)known;
  if (message != NULL)
    err_set(err, rc, field, "%s: status %d: %s", what, a->status, message);
  else
    err_set(err, rc, NULL, "%s: status %d came without an error body", what, a->status);
  json_free(root);
  return rc;
}

void http_url_escape(struct buf *url, const char *text) {
  char *escaped = curl_easy_escape(NULL, text, 0);
  if (escaped == NULL)
    url->failed = true;
  else
    buf_puts(url, escaped);
  curl_free(escaped);
}

/* The HTTP client: blocking calls with deadlines; the only user of libcurl.  One http_client per thread (it keeps
 * connections alive). */
#ifndef LEASEHOLD_HTTP_CLIENT_H
#define LEASEHOLD_HTTP_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

struct http_access;
struct http_client;

/* A transfer below this rate is stalled (for calls with a stall_ms). */
enum { CLIENT_STALL_BYTES = 1024 };

/* token NULL or "": none.  cancel may be NULL; when *cancel becomes true, running calls end with RC_UNAVAILABLE
 * within 200 ms. */
enum rc http_client_create(struct http_client **out, const char *token, const atomic_bool *cancel, struct err *err);
/* A client for the other services: it shows the token that `access` names at the time of each call, and calls allowed
 * hosts only.  access NULL: as with no token. */
enum rc http_client_create_for(struct http_client **out, const struct http_access *access, const atomic_bool *cancel,
                               struct err *err);
void http_client_destroy(struct http_client *c);
/* From now on it calls allowed hosts only, and goes on showing its own token. */
void http_client_confine(struct http_client *c, const struct http_access *access);
/* Its https peers are no part of the pool: they are shown no certificate of ours, and theirs must be of the URL's host
 * and signed by an authority in ca_file (PEM), which the caller keeps; NULL or "": by one that the system trusts. */
void http_client_of_strangers(struct http_client *c, const char *ca_file);
/* RC_OK where the file can be read and has certificates, or where none is named; for a service's start. */
enum rc http_ca_file_check(const char *ca_file, struct err *err);

struct http_part {
  const void *bytes;
  size_t len;
};

struct http_call {
  const char *method;       /* "GET", "POST", "PUT" */
  const char *url;          /* http:// or https://host:port/path?query; of TLS 1.2 or newer, with what tls.h says */
  const char *content_type; /* NULL: application/json when there is a body */
  const void *body;         /* NULL: none */
  size_t body_len;
  const struct http_part *parts; /* in the place of body: it is these, one behind the other, body_len bytes in all */
  size_t part_count;
  const char *const *headers; /* extra "Name: value" lines, NULL-terminated; may be NULL */
  int64_t deadline_ms;        /* the whole exchange; must be > 0 */
  int64_t stall_ms;           /* 0: none; else RC_TIMEOUT after so long with less than CLIENT_STALL_BYTES a second */
  int64_t connect_ms;         /* 0: 2000, of https with its handshake 5000 */
  size_t response_bytes_max;  /* 0: LIMIT_BODY_BYTES; a longer answer is RC_TOO_LARGE */
};

struct http_answer {
  int status;
  struct buf body;        /* the caller frees with http_answer_free */
  char digest_header[80]; /* X-Leasehold-Digest, or "" */
  bool is_bytes;          /* its Content-Type says application/octet-stream */
};

/* RC_OK whenever a complete answer arrived, whatever its status; RC_UNAVAILABLE (cannot connect, reset, cancelled),
 * RC_TIMEOUT, RC_TOO_LARGE; RC_FORBIDDEN: the host may not be called, and nothing was sent. */
enum rc http_client_call(struct http_client *c, const struct http_call *call, struct http_answer *answer,
                         struct err *err);
void http_answer_free(struct http_answer *a);
/* For a non-2xx answer: fills err from the error body (or from the status when the body is not one) and returns its
 * code. */
enum rc http_answer_error(const struct http_answer *a, const char *what, struct err *err);

/* Appends text percent-encoded, as a path segment or a query value has to be; buf_check tells when memory ran out. */
void http_url_escape(struct buf *url, const char *text);

#endif

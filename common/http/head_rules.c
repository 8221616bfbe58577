/* Refuses heads that two readers could understand differently, and requests that a foreign web page has made.
 *
 * Of one meaning (400, and the connection ends, because where its next request begins is uncertain): one Host, one
 * Content-Length, no length beside a Transfer-Encoding, which is chunked, a Host of a host's letters, no NUL.
 * libmicrohttpd takes the first of several headers, where a proxy before it may take the last.
 *
 * Of this site (403), because a browser sends requests to loopback and to a private network for any page that asks it
 * to:
 *
 *   - what changes something has no Origin but the Host that it was sent to, and no Sec-Fetch-Site but same-origin or
 *   none;
 *   - where no token is asked for, Host is an address, localhost, a name without a dot or one of --allow-hosts.  A
 *     page's own name, led to 127.0.0.1 once the page is there (DNS rebinding), is none of these.  Where a token is
 *     asked for, such a page has none; where it is TLS, our certificate is not of its name.
 *
 * The Content-Type says nothing here: curl's -d sends that of a form.  Pure but for reading the connection's
 * headers. */
#include "common/http/head_rules.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "common/http/request.h"

static const char HOST_LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]%~";
static const char NAME_LETTERS[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"; /* a token's, RFC 9110 */

enum { VERSION_BYTES = 8, LINE_END_MAX = 2 }; /* "HTTP/1.1"; CR LF, or LF alone */

/* What is found while the headers are gone through. */
struct head {
  int hosts, lengths, encodings;
  bool odd_name; /* "Content-Length " is none that a proxy would take for a length */
  bool hidden;   /* bytes lie between two headers: behind a NUL, or in a line that goes on in the next one */
  const char *at; /* where the line that was read last ended */
};

/* libmicrohttpd 0.9 keeps a head where it was received and ends each text with a NUL in the place of its line's end, so
 * two neighbours are one or two bytes apart.  It tells lengths by strlen, so this is how a NUL of the peer's shows.
 * Later versions refuse NUL themselves, and may keep heads otherwise. */
static bool heads_lie_in_place(void) { return strncmp(MHD_get_version(), "0.9.", 4) == 0; }

static bool is_far(const char *from, const char *to, intptr_t least, intptr_t most) {
  const intptr_t gap = (intptr_t)to - (intptr_t)from;
  return gap < least || gap > most;
}

static enum MHD_Result read_header(void *context, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct head *h = context;
  (void)kind;
  h->hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
  h->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
  h->encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
  h->odd_name = h->odd_name || name[0] == '\0' || name[strspn(name, NAME_LETTERS)] != '\0';
  h->hidden = h->hidden || is_far(h->at, name, 1, LINE_END_MAX);
  h->at = value == NULL ? name + strlen(name) : value + strlen(value);
  return MHD_YES;
}

static struct head read_head(const struct http_request *r, const char *method) {
  struct head h = {.at = r->target_end + 1 + VERSION_BYTES};
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  MHD_get_connection_values(r->connection, MHD_HEADER_KIND, read_header, &h);
  if (info != NULL) h.hidden = h.hidden || is_far(h.at, method + info->header_size, 2, 2 * LINE_END_MAX);
  if (!heads_lie_in_place()) h.hidden = false;
  return h;
}

static enum rc check_meaning(const struct http_request *r, const char *method, struct err *err) {
  const struct head h = read_head(r, method);
  const char *encoding = http_header(r, MHD_HTTP_HEADER_TRANSFER_ENCODING),
             *host = http_header(r, MHD_HTTP_HEADER_HOST);
  if (h.hosts > 1) return err_set(err, RC_INVALID, "Host", "one Host header was expected, but %d came", h.hosts);
  if (h.lengths > 1)
    return err_set(err, RC_INVALID, "Content-Length", "one Content-Length was expected, but %d came", h.lengths);
  if (h.lengths + h.encodings > 1)
    return err_set(err, RC_INVALID, "Transfer-Encoding",
                   "a Content-Length or one Transfer-Encoding was expected, not both");
  if (encoding != NULL && strcasecmp(encoding, "chunked") != 0)
    return err_set(err, RC_INVALID, "Transfer-Encoding", "chunked was expected, but \"%.40s\" came", encoding);
  if (host != NULL && strspn(host, HOST_LETTERS) != strlen(host))
    return err_set(err, RC_INVALID, "Host", "a host and a port were expected, but \"%.100s\" came", host);
  if (h.odd_name)
    return err_set(err, RC_INVALID, NULL, "header names of letters, digits and -_ were expected, others came");
  if (h.hidden)
    return err_set(err, RC_INVALID, NULL, "a NUL byte, or a header of several lines, came where neither was expected");
  return RC_OK;
}

/* "https://a:1" of host "a:1" */
static bool origin_is_host(const char *origin, const char *host) {
  const char *authority = strstr(origin, "://");
  return authority != NULL && host != NULL && strcasecmp(authority + 3, host) == 0;
}

static enum rc check_page(const struct http_request *r, const char *method, struct err *err) {
  const char *origin = http_header(r, MHD_HTTP_HEADER_ORIGIN), *host = http_header(r, MHD_HTTP_HEADER_HOST);
  const char *site = http_header(r, "Sec-Fetch-Site");
  if (strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0) return RC_OK;
  if (origin != NULL && !origin_is_host(origin, host))
    return err_set(err, RC_FORBIDDEN, "Origin",
                   "a request of this site's own page was expected, but one of a page of \"%.100s\" came", origin);
  if (site != NULL && strcasecmp(site, "same-origin") != 0 && strcasecmp(site, "none") != 0)
    return err_set(err, RC_FORBIDDEN, "Sec-Fetch-Site",
                   "a request of this site's own page was expected, but one of another page came (%.40s)", site);
  return RC_OK;
}

/* The host of a Host header, without port and brackets; false: it has none. */
static bool host_name(char out[HOST_BYTES_MAX], const char *header) {
  const bool bracket = header[0] == '[';
  const char *begin = header + bracket;
  const size_t len = strcspn(begin, bracket ? "]" : ":");
  if (len == 0 || len >= HOST_BYTES_MAX) return false;
  memcpy(out, begin, len);
  out[len] = '\0';
  return true;
}

static bool is_address(const char *host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

static enum rc check_host(const struct http_request *r, struct err *err) {
  const struct http_access *access = r->server->access;
  const char *header = http_header(r, MHD_HTTP_HEADER_HOST);
  char host[HOST_BYTES_MAX];
  if (header == NULL || access == NULL || tokens_wanted(access->tokens) || r->server->tls) return RC_OK;
  if (host_name(host, header) && (is_address(host) || strchr(host, '.') == NULL || hosts_listed(access->hosts, host)))
    return RC_OK;
  return err_set(
      err, RC_FORBIDDEN, "Host",
      "an address, localhost, a name without a dot or one of --allow-hosts was expected, but \"%.100s\" came", header);
}

int head_rules_check(const struct http_request *r, const char *method, bool *ends, struct err *err) {
  *ends = check_meaning(r, method, err) != RC_OK;
  if (*ends) return MHD_HTTP_BAD_REQUEST;
  const enum rc rc = check_page(r, method, err);
  return rc == RC_OK && check_host(r, err) == RC_OK ? 0 : MHD_HTTP_FORBIDDEN;
}

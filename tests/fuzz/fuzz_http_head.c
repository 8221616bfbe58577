/* Heads of HTTP requests as libmicrohttpd hands them over: "METHOD target\nName: value\n...".  The head is judged, the
 * route found, path parameters, queries and claims are read; what is refused has a status and a sentence.
 *
 * Promised: nobody is let in without a token of a role that the route names, and no head with two lengths or hosts.
 * libmicrohttpd itself is not run: this file has its look-ups, which the program finds first. */
#include <string.h>
#include <strings.h>

#include "common/http/request.h"
#include "common/http/request_head.h"
#include "common/http/route.h"
#include "common/http/trust/access.h"
#include "common/wire/claim.h"
#include "tests/fuzz/fuzz.h"

enum { HEADERS_MAX = 16, HEAD_MAX = 8192 };
static struct http_pair headers[HEADERS_MAX];
static int header_count;

const char *MHD_lookup_connection_value(struct MHD_Connection *connection, enum MHD_ValueKind kind, const char *key) {
  (void)connection, (void)kind;
  for (int i = 0; i < header_count; i++)
    if (strcasecmp(headers[i].name, key) == 0) return headers[i].value;
  return NULL;
}

int MHD_get_connection_values(struct MHD_Connection *connection, enum MHD_ValueKind kind, MHD_KeyValueIterator read,
                              void *context) {
  (void)connection;
  for (int i = 0; i < header_count; i++)
    if (read(context, kind, headers[i].name, headers[i].value) == MHD_NO) return i + 1;
  return header_count;
}

/* No addresses, no sizes; and heads do not lie in one piece as those of 0.9 do. */
const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *connection,
                                                        enum MHD_ConnectionInfoType type, ...) {
  (void)connection, (void)type;
  return NULL;
}
const char *MHD_get_version(void) { return "1.0.0"; }

static void handler(struct http_request *r, void *context) { (void)r, (void)context; }

/* The shapes of the services' routes: literals, parameters, open ones, roles, small bodies. */
static const struct http_route routes[] = {
    {.method = "GET", .path = "/healthz", .handler = handler, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/", .handler = handler},
    {.method = "POST", .path = "/v1/runs", .handler = handler},
    {.method = "GET", .path = "/v1/runs/{id}", .handler = handler, .roles = HTTP_VIEWER},
    {.method = "POST",
     .path = "/v1/workers/{id}/heartbeat",
     .handler = handler,
     .body_bytes_max = 1 << 16,
     .roles = HTTP_WORKER},
    {.method = "PUT", .path = "/v1/leases/{id}/result", .handler = handler, .body_bytes_max = 1 << 20, .offload = true},
    {.method = "GET", .path = "/v1/{a}/{b}/{c}/{d}", .handler = handler},
};

/* Splits the text in place. */
static void split(char *head, char **method, char **target) {
  char *rest = NULL, *line = strtok_r(head, "\n", &rest);
  *method = line ? line : head;
  *target = line ? strchr(line, ' ') : NULL;
  if (*target)
    *(*target)++ = 0;
  else
    *target = *method + strlen(*method);
  for (header_count = 0; header_count < HEADERS_MAX && (line = strtok_r(NULL, "\n", &rest));) {
    char *colon = strchr(line, ':');
    if (!colon) continue;
    *colon = 0;
    headers[header_count++] = (struct http_pair){line, colon + 1 + strspn(colon + 1, " ")};
  }
}

static void read_all(struct http_request *r) {
  static const char *const names[] = {"wait_ms", "limit", "all", "id", "run"};
  struct err err = {0};
  int64_t n = 0;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const enum rc rc = http_query_i64(r, names[i], 5, 0, 60000, &n, &err);
    FUZZ_CHECK(rc != RC_OK || (n >= 0 && n <= 60000));
    if (r->route) http_param(r, names[i]);
  }
  for (int i = 0; i < r->query_count; i++) FUZZ_CHECK(http_query(r, r->query[i].name) == r->query[i].value);
  for (int i = 0; i < r->segment_count; i++) FUZZ_CHECK(r->segments[i]);
  struct claim claim;
  if (claim_read(&claim, http_header(r, CLAIM_EPOCH_HEADER), http_header(r, CLAIM_FENCE_HEADER),
                 http_header(r, CLAIM_WORKER_HEADER), &err) != RC_OK)
    FUZZ_CHECK(err.message[0]);
  http_body_is_bytes(r);
  request_has_body(r);
  request_answer_early(r);
}

static struct http_access *access_with(const char *token) {
  const struct program_settings settings = {.bind = "127.0.0.1", .token = token};
  struct http_access *access = NULL;
  struct err err = {0};
  FUZZ_CHECK(http_access_open(&access, &settings, 0, NULL, &err) == RC_OK);
  if (token) tokens_add(access->tokens, "secret-of-viewers", HTTP_VIEWER);
  return access;
}

static int headers_named(const char *name) {
  int n = 0;
  for (int i = 0; i < header_count; i++) n += strcasecmp(headers[i].name, name) == 0;
  return n;
}

static void check_admitted(const struct http_request *r, bool asks) {
  const unsigned roles = r->route->roles ? r->route->roles : HTTP_ADMIN;
  FUZZ_CHECK(!asks || (roles & HTTP_OPEN) ||
             (http_header(r, "Authorization") && (r->caller.roles & (roles | HTTP_ADMIN))));
  FUZZ_CHECK(headers_named("Host") <= 1 && headers_named("Content-Length") + headers_named("Transfer-Encoding") <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct http_server server = {
      .routes = routes, .route_count = sizeof routes / sizeof routes[0], .refs = 1, .lock = PTHREAD_MUTEX_INITIALIZER};
  static struct http_connection place;
  static struct http_access *access[2];
  char head[HEAD_MAX + 1], *method, *target;
  if (!access[1]) access[0] = access_with(NULL), access[1] = access_with("secret-of-admins");
  if (size > HEAD_MAX || size < 1) return 0;
  memcpy(head, data + 1, size - 1);
  head[size - 1] = 0;
  const bool asks = data[0] & 1;
  server.access = access[asks];
  split(head, &method, &target);
  struct http_request *r = request_create(&server, target, NULL);
  FUZZ_CHECK(r);
  r->place = &place;
  request_begin(r, (struct MHD_Connection *)&server, method);
  FUZZ_CHECK(r->refused_status == 0 || (r->refused_status >= 400 && r->refused_status < 600 && r->refused.message[0]));
  FUZZ_CHECK(r->refused_status != 0 || r->route);
  if (r->refused_status == 0) check_admitted(r, asks);
  read_all(r);
  r->connection = NULL;
  pthread_mutex_lock(&server.lock);
  request_unref_unlock(r);
  return 0;
}

/* Heads of HTTP requests as libmicrohttpd hands them over: "METHOD target\nName: value\n...".  The head is judged, the
 * route found, path parameters, queries and claims are read; what is refused has a status and a sentence.
 *
 * libmicrohttpd itself is not run: this file has its look-up of headers, which the program finds first. */
#include <string.h>
#include <strings.h>

#include "common/http/request.h"
#include "common/http/request_head.h"
#include "common/http/route.h"
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

static void handler(struct http_request *r, void *context) { (void)r, (void)context; }

/* The shapes of the services' routes: literals, parameters, open ones, small bodies. */
static const struct http_route routes[] = {
    {.method = "GET", .path = "/healthz", .handler = handler, .open = true, .health = true},
    {.method = "GET", .path = "/", .handler = handler},
    {.method = "POST", .path = "/v1/runs", .handler = handler},
    {.method = "GET", .path = "/v1/runs/{id}", .handler = handler},
    {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = handler, .body_bytes_max = 1 << 16},
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
  if (claim_read(&claim, http_header(r, CLAIM_EPOCH_HEADER), http_header(r, CLAIM_FENCE_HEADER), http_header(r, CLAIM_WORKER_HEADER), &err) != RC_OK)
    FUZZ_CHECK(err.message[0]);
  http_body_is_bytes(r);
  request_has_body(r);
  request_answer_early(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct http_server server = {.routes = routes, .route_count = sizeof routes / sizeof routes[0], .token = "secret", .refs = 1, .lock = PTHREAD_MUTEX_INITIALIZER};
  char head[HEAD_MAX + 1], *method, *target;
  if (size > HEAD_MAX || size < 1) return 0;
  memcpy(head, data + 1, size - 1);
  head[size - 1] = 0;
  server.token = data[0] & 1 ? "secret" : NULL;
  split(head, &method, &target);
  struct http_request *r = request_create(&server, target, NULL);
  FUZZ_CHECK(r);
  request_begin(r, (struct MHD_Connection *)&server, method);
  FUZZ_CHECK(r->refused_status == 0 || (r->refused_status >= 400 && r->refused_status < 600 && r->refused.message[0]));
  FUZZ_CHECK(r->refused_status != 0 || r->route);
  FUZZ_CHECK(r->refused_status != 0 || r->route->open || !server.token || http_header(r, "Authorization"));
  read_all(r);
  r->connection = NULL;
  pthread_mutex_lock(&server.lock);
  request_unref_unlock(r);
  return 0;
}

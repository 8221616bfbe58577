/* See server.h: ties the parts together.
 *
 * Order of starting: HTTP, which answers for its health only; leases, stager (and model, when a folder was named); then HTTP
 * opens, and the heartbeat begins.  Of stopping: leases are
 * handed back, plain requests finish, HTTP closes, then the stager and the engine, heartbeat and leases, the streamer,
 * last the replier: whoever hands work on outlives nobody that it hands to. */
#include "services/generation-server/server.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "services/generation-server/routes.h"
#include "services/generation-server/stream.h"

enum { HTTP_THREADS = 2, HTTP_DRAIN_MS = 2000, HAND_BACK_MS = 3000 };

struct host *server_host(struct server *s, bool ready, struct err *err) {
  struct policy active;
  struct host *h = atomic_load(&s->host);
  if (!h) {
    err_set(err, RC_UNAVAILABLE, NULL,
            "the model is not loaded yet: no run of the coordinator has named a trainer to fetch it from");
    return NULL;
  }
  if (!ready) return h;
  if (atomic_load(&s->draining)) {
    err_set(err, RC_UNAVAILABLE, NULL, "the server is draining");
    return NULL;
  }
  if (engine_failure(h->engine, err) != RC_OK) {
    err->rc = RC_UNAVAILABLE;
    return NULL;
  }
  if (!engine_policy(h->engine, &active)) {
    err_set(err, RC_UNAVAILABLE, NULL, "no weights are loaded yet");
    return NULL;
  }
  return h;
}

/* --- callbacks between the parts --- */

static void on_opened(void *context, struct host *host) {
  struct server *s = context;
  atomic_store(&s->host, host);
  if (s->leases) leases_set_engine(s->leases, host->engine, host->model);
}

static void on_activated(void *context) {
  struct server *s = context;
  struct heartbeat *beat = atomic_load(&s->beat);
  if (s->leases) leases_wake(s->leases);
  if (beat) heartbeat_poke(beat);
}

static void on_word(void *context, const struct current_version *current) {
  staging_word(((struct server *)context)->staging, current);
}

static void on_stale(void *context) {
  struct heartbeat *beat = atomic_load(&((struct server *)context)->beat);
  if (beat) heartbeat_stale(beat);
}

/* --- start --- */

static void make_routes(struct server *s) {
  const struct http_route routes[] = {
      {.method = "POST",
       .path = "/v1/generate",
       .handler = handle_generate,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "POST",
       .path = "/v1/completions",
       .handler = handle_completions,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "POST", .path = "/v1/push-weights", .handler = handle_push_weights, .body_limit = push_weights_limit},
      {.method = "GET", .path = "/v1/model", .handler = handle_model},
      {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .open = true, .health = true},
      {.method = "GET", .path = "/readyz", .handler = handle_readyz, .open = true, .health = true},
      {.method = "GET", .path = "/metrics", .handler = handle_metrics, .health = true},
  };
  _Static_assert(sizeof routes <= sizeof s->routes, "room for all routes");
  memcpy(s->routes, routes, sizeof routes);
  s->route_count = sizeof routes / sizeof routes[0];
}

/* "gen-<host>-<port>": two servers with one name would take each other's leases. */
static void make_name(struct server *s) {
  if (s->options.name && *s->options.name) {
    snprintf(s->name, sizeof s->name, "%s", s->options.name);
    return;
  }
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  for (char *c = host; *c; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' || *c == '-'))
      *c = '-';
  snprintf(s->name, sizeof s->name, "gen-%s-%d", host, server_port(s));
}

static enum rc start_http(struct server *s, struct err *err) {
  make_routes(s);
  const struct http_server_options http = {.bind_address = s->options.bind,
                                           .port = s->options.port,
                                           .token = s->options.token,
                                           .threads = HTTP_THREADS,
                                           .limits = s->options.limits,
                                           .routes = s->routes,
                                           .route_count = s->route_count,
                                           .closed = "the model is being loaded"};
  const enum rc rc = http_server_start(&s->http, &http, err);
  if (rc != RC_OK) return rc;
  log_info("listening on %s:%d", s->options.bind, server_port(s));
  make_name(s);
  if (s->options.advertise_url && *s->options.advertise_url)
    snprintf(s->url, sizeof s->url, "%s", s->options.advertise_url);
  else
    program_default_url(s->url, sizeof s->url, s->options.bind, server_port(s), s->options.coordinator);
  return RC_OK;
}

static struct worker_fabric told_of(const struct fabric *fabric, const char *name) {
  if (!fabric) return (struct worker_fabric){0};
  return (struct worker_fabric){.name = name, .kind = fabric->kind, .place = fabric->place};
}

static enum rc start_worker(struct server *s, struct err *err) {
  const bool fastest = s->options.host.device.exactness == EXACTNESS_FASTEST;
  const struct heartbeat_options beat = {.coordinator = s->options.coordinator,
                                         .token = s->options.token,
                                         .name = s->name,
                                         .advertise_url = s->url,
                                         .slots = s->options.host.slots,
                                         .exactness = fastest ? WORKER_FASTEST : WORKER_INVARIANT,
                                         .fabric = told_of(s->options.fabric, s->options.fabric_name),
                                         .leases = s->leases,
                                         .staging = s->staging,
                                         .activity = s->activity};
  const enum rc rc = heartbeat_start(&s->heartbeat, &beat, err);
  if (rc == RC_OK) atomic_store(&s->beat, s->heartbeat);
  return rc;
}

enum rc server_start(struct server **out, const struct server_options *options, struct err *err) {
  *out = NULL;
  struct server *s = calloc(1, sizeof *s);
  if (!s) return err_set(err, RC_NO_MEMORY, NULL, "the server was refused its memory");
  s->options = *options;
  s->start_seed = (uint64_t)clock_wall_ms() << 20 ^ (uint64_t)clock_monotonic_us();
  const bool worker = options->coordinator && *options->coordinator;
  enum rc rc = activity_create(&s->activity, err);
  s->options.host.activity = s->activity;
  const struct staging_options staging = {.token = options->token,
                                          .fabric = options->fabric,
                                          .standalone = !worker,
                                          .host = s->options.host,
                                          .opened = on_opened,
                                          .activated = on_activated,
                                          .context = s};
  const struct leases_options leases = {.coordinator = options->coordinator,
                                        .token = options->token,
                                        .slots = options->host.slots,
                                        .prefetch = options->prefetch,
                                        .word = on_word,
                                        .stale = on_stale,
                                        .context = s};
  if (rc == RC_OK) rc = start_http(s, err);
  if (rc == RC_OK) rc = queue_create(&s->finished, LIMIT_QUEUED_REQUESTS + 1, err);
  if (rc == RC_OK && pthread_create(&s->replier, NULL, replier_main, s) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the replier's thread could not be made");
  s->replier_started = rc == RC_OK;
  if (rc == RC_OK) rc = streamer_start(&s->streamer, s->finished, options->stream_stall_ms, err);
  if (rc == RC_OK && worker) rc = leases_start(&s->leases, &leases, err);
  if (rc == RC_OK) rc = staging_start(&s->staging, &staging, err);
  if (rc == RC_OK && options->model_dir && *options->model_dir) rc = staging_load(s->staging, options->model_dir, err);
  if (rc == RC_OK) http_server_open(s->http, s);
  if (rc == RC_OK && worker) rc = start_worker(s, err);
  if (rc != RC_OK) {
    server_stop(s);
    return rc;
  }
  *out = s;
  return RC_OK;
}

int server_port(const struct server *s) { return http_server_port(s->http); }

enum rc server_failure(struct server *s, struct err *err) {
  const struct host *h = atomic_load(&s->host);
  return h ? engine_failure(h->engine, err) : RC_OK;
}

/* --- stop --- */

static void wait_for_requests(struct server *s, int64_t ms) {
  const int64_t until_ms = clock_monotonic_ms() + ms;
  while (atomic_load(&s->requests_open) > 0 && clock_monotonic_ms() < until_ms) clock_sleep_ms(5);
}

void server_stop(struct server *s) {
  if (!s) return;
  atomic_store(&s->draining, true);
  if (s->heartbeat) heartbeat_drain(s->heartbeat);
  if (s->leases) leases_drain(s->leases, HAND_BACK_MS);
  if (s->heartbeat) heartbeat_leave(s->heartbeat);
  wait_for_requests(s, s->options.drain_ms);
  http_server_stop(s->http, HTTP_DRAIN_MS);
  atomic_store(&s->beat, NULL);
  if (s->staging) staging_stop(s->staging); /* with it the engine: its jobs end, their callbacks run */
  heartbeat_stop(s->heartbeat);
  leases_stop(s->leases);
  streamer_stop(s->streamer);
  if (s->finished) queue_close(s->finished);
  if (s->replier_started) pthread_join(s->replier, NULL);
  staging_free(s->staging);
  activity_free(s->activity);
  queue_destroy(s->finished);
  free(s);
}

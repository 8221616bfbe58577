/* Ties the parts of the server together: starts them, passes on what one tells the other, drains and stops them.
 *
 * Order of starting: HTTP, which answers for its health only; replier and streamer, leases, stager (and model, when a
 * folder was named); then HTTP opens, and the heartbeat begins.  Of stopping: leases are handed back, plain requests
 * finish, HTTP closes, then the stager and the engine stop, heartbeat and leases, the streamer, and last the replier.
 * Producers stop before their consumers. */
#include "services/generation-server/api/server.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "common/http/trust/access.h"
#include "common/http/trust/tls.h"
#include "services/generation-server/api/routes.h"
#include "services/generation-server/api/server_state.h"
#include "services/generation-server/shapes/openai_error.h"

enum { HTTP_THREADS = 2, HTTP_DRAIN_MS = 2000, HAND_BACK_MS = 3000 };

/* --- callbacks between the parts --- */

static void on_opened(void *context, struct loaded_model *loaded) {
  struct server *s = context;
  atomic_store(&s->admission.loaded, loaded);
  if (s->leases) leases_set_engine(s->leases, loaded->engine, loaded->model, loaded->files.tokenizer);
}

static void on_activated(void *context) {
  struct server *s = context;
  struct heartbeat *beat = atomic_load(&s->beat);
  if (s->leases) leases_wake(s->leases);
  if (beat) heartbeat_poke(beat);
}

static void on_told_current(void *context, const struct current_version *told) {
  staging_follow_current(((struct server *)context)->staging, told);
}

static void on_told_ahead(void *context, const char *run) {
  staging_expect_pushes(((struct server *)context)->staging, run);
}

static void on_stale(void *context) {
  struct heartbeat *beat = atomic_load(&((struct server *)context)->beat);
  if (beat) heartbeat_stale(beat);
}

/* --- start --- */

static void make_name(struct server *s) {
  if (s->options.name && *s->options.name)
    snprintf(s->name, sizeof s->name, "%s", s->options.name);
  else
    program_default_name(s->name, sizeof s->name, "gen", server_port(s));
}

static enum rc start_http(struct server *s, struct err *err) {
  size_t route_count;
  const struct http_route *routes = routes_all(&route_count);
  const struct http_server_options http = {.bind_address = s->options.bind,
                                           .port = s->options.port,
                                           .access = s->options.access,
                                           .threads = HTTP_THREADS,
                                           .limits = s->options.limits,
                                           .routes = routes,
                                           .route_count = route_count,
                                           .write_error = openai_error_write,
                                           .closed = "the model is being loaded"};
  const enum rc rc = http_server_start(&s->http, &http, err);
  if (rc != RC_OK) return rc;
  log_info("listening on %s:%d", s->options.bind, server_port(s));
  make_name(s);
  if (s->options.advertise_url && *s->options.advertise_url)
    snprintf(s->url, sizeof s->url, "%s", s->options.advertise_url);
  else
    program_default_url(s->url, sizeof s->url, s->options.bind, server_port(s), http_tls_serves(),
                        s->options.coordinator);
  return RC_OK;
}

/* The trainer shows it when it pushes: a new one for every start. */
static enum rc make_push_token(struct server *s, struct err *err) {
  unsigned char bytes[PUSH_TOKEN_BYTES];
  struct http_access *access = s->options.access;
  if (!access || !tokens_wanted(access->tokens)) return RC_OK;
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
    return err_set_errno(err, RC_IO, "the kernel gave no random bytes for the token of pushes");
  hex_write(s->push_token, bytes, sizeof bytes);
  tokens_add(access->tokens, s->push_token, HTTP_PUSH);
  return RC_OK;
}

static struct worker_fabric told_of(const struct fabric *fabric, const char *name) {
  if (!fabric) return (struct worker_fabric){0};
  return (struct worker_fabric){.name = name, .kind = fabric->kind, .place = fabric->place};
}

static enum rc start_worker(struct server *s, struct err *err) {
  const bool fastest = s->options.model.device.exactness == EXACTNESS_FASTEST;
  const struct heartbeat_options beat = {.coordinator = s->options.coordinator,
                                         .access = s->options.access,
                                         .name = s->name,
                                         .advertise_url = s->url,
                                         .push_token = s->push_token[0] ? s->push_token : NULL,
                                         .slots = s->options.model.slots,
                                         .exactness = fastest ? WORKER_FASTEST : WORKER_INVARIANT,
                                         .device = s->options.model.device.cuda ? WORKER_CUDA : WORKER_CPU,
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
  pthread_mutex_init(&s->update.mutex, NULL);
  s->admission.folder = options->model_dir;
  s->admission.start_seed = (uint64_t)clock_wall_ms() << 20 ^ (uint64_t)clock_monotonic_us();
  const bool worker = options->coordinator && *options->coordinator;
  enum rc rc = activity_create(&s->activity, err);
  s->options.model.activity = s->activity;
  const struct staging_options staging = {.access = options->access,
                                          .fabric = options->fabric,
                                          .standalone = !worker,
                                          .model = s->options.model,
                                          .opened = on_opened,
                                          .activated = on_activated,
                                          .context = s};
  const struct leases_options leases = {.coordinator = options->coordinator,
                                        .access = options->access,
                                        .slots = options->model.slots,
                                        .prefetch = options->prefetch,
                                        .told_current = on_told_current,
                                        .told_ahead = on_told_ahead,
                                        .stale = on_stale,
                                        .context = s};
  if (rc == RC_OK) rc = make_push_token(s, err);
  if (rc == RC_OK) rc = start_http(s, err);
  if (rc == RC_OK) rc = requests_start(&s->requests, &s->admission, options->stream_stall_ms, err);
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
  const struct loaded_model *loaded = atomic_load(&s->admission.loaded);
  return loaded ? engine_failure(loaded->engine, err) : RC_OK;
}

/* --- stop --- */

void server_stop(struct server *s) {
  if (!s) return;
  atomic_store(&s->admission.draining, true);
  if (s->heartbeat) heartbeat_drain(s->heartbeat);
  if (s->leases) leases_drain(s->leases, HAND_BACK_MS);
  if (s->heartbeat) heartbeat_leave(s->heartbeat);
  admission_wait_empty(&s->admission, s->options.drain_ms);
  http_server_stop(s->http, HTTP_DRAIN_MS);
  atomic_store(&s->beat, NULL);
  if (s->staging) staging_stop(s->staging); /* stops the engine too: its jobs end, their callbacks run */
  heartbeat_stop(s->heartbeat);
  leases_stop(s->leases);
  requests_stop(s->requests);
  staging_free(s->staging);
  activity_free(s->activity);
  pthread_mutex_destroy(&s->update.mutex);
  free(s);
}

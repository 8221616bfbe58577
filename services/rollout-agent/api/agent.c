/* Ties the parts of the agent together: starts them, passes on what one tells the other, drains and stops them.
 *
 * Order of starting: HTTP, which answers for its health only; the loader, the leases; then HTTP opens, and the
 * heartbeat begins.  Of stopping: leases are handed back, the agent deregisters, HTTP closes, then loader, heartbeat
 * and leases stop. */
#include "services/rollout-agent/api/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "common/http/trust/tls.h"
#include "services/rollout-agent/api/routes.h"

enum { HTTP_THREADS = 1, HTTP_DRAIN_MS = 1000, HAND_BACK_MS = 5000 };

static void on_changed(void *context) {
  struct agent *a = context;
  struct leases *leases = atomic_load(&a->wakes);
  struct heartbeat *beat = atomic_load(&a->beat);
  if (leases) leases_wake(leases);
  if (beat) heartbeat_poke(beat);
}

static void on_stale(void *context) {
  struct heartbeat *beat = atomic_load(&((struct agent *)context)->beat);
  if (beat) heartbeat_stale(beat);
}

static enum rc start_http(struct agent *a, struct err *err) {
  const struct agent_options *o = &a->options;
  size_t route_count;
  const struct http_route *routes = routes_all(&route_count);
  const struct http_server_options http = {.bind_address = o->bind,
                                           .port = o->port,
                                           .access = o->access,
                                           .threads = HTTP_THREADS,
                                           .limits = o->limits,
                                           .routes = routes,
                                           .route_count = route_count,
                                           .closed = "the agent is starting"};
  const enum rc rc = http_server_start(&a->http, &http, err);
  if (rc != RC_OK) return rc;
  log_info("listening on %s:%d", o->bind, agent_port(a));
  if (o->name && *o->name)
    snprintf(a->name, sizeof a->name, "%s", o->name);
  else
    program_default_name(a->name, sizeof a->name, "agent", agent_port(a));
  if (o->advertise_url && *o->advertise_url)
    snprintf(a->url, sizeof a->url, "%s", o->advertise_url);
  else
    program_default_url(a->url, sizeof a->url, o->bind, agent_port(a), http_tls_serves(), o->coordinator);
  return RC_OK;
}

/* Folders of this agent's own, so that several may share the folder above.  A relative one is of the folder that the
 * agent was started in, which the engine does not know. */
static enum rc make_folders(struct agent *a, struct err *err) {
  const char *mine = a->options.weights_dir, *theirs = a->options.engine_weights_dir;
  char here[LIMIT_PATH_MAX] = "";
  if (mine[0] != '/' && !getcwd(here, sizeof here)) return err_set_errno(err, RC_IO, "the folder this was started in");
  enum rc rc = path_format(a->folder, err, "%s%s%s/%s", here, *here ? "/" : "", mine, a->name);
  if (rc == RC_OK && *theirs) rc = path_format(a->engine_folder, err, "%s/%s", theirs, a->name);
  if (rc == RC_OK && !*theirs) rc = path_format(a->engine_folder, err, "%s", a->folder);
  return rc == RC_OK ? file_make_dirs(a->folder, err) : rc;
}

static enum rc start_parts(struct agent *a, struct err *err) {
  struct loader_options loader = a->options.loader;
  loader.folder = a->folder;
  loader.engine_folder = a->engine_folder;
  loader.changed = on_changed;
  loader.context = a;
  enum rc rc = loader_start(&a->loader, &loader, err);
  struct leases_options leases = a->options.leases;
  leases.loader = a->loader;
  leases.stale = on_stale;
  leases.context = a;
  if (rc == RC_OK) rc = leases_start(&a->leases, &leases, err);
  if (rc == RC_OK) atomic_store(&a->wakes, a->leases);
  if (rc != RC_OK) return rc;
  http_server_open(a->http, a);
  const struct heartbeat_options beat = {.coordinator = a->options.coordinator,
                                         .access = a->options.access,
                                         .name = a->name,
                                         .advertise_url = a->url,
                                         .slots = leases.slots,
                                         .leases = a->leases,
                                         .loader = a->loader};
  rc = heartbeat_start(&a->heartbeat, &beat, err);
  if (rc == RC_OK) atomic_store(&a->beat, a->heartbeat);
  return rc;
}

enum rc agent_start(struct agent **out, const struct agent_options *options, struct err *err) {
  *out = NULL;
  struct agent *a = calloc(1, sizeof *a);
  if (!a) return err_set(err, RC_NO_MEMORY, NULL, "the agent was refused its memory");
  a->options = *options;
  enum rc rc = start_http(a, err);
  if (rc == RC_OK) rc = make_folders(a, err);
  if (rc == RC_OK) rc = start_parts(a, err);
  if (rc != RC_OK) {
    agent_stop(a);
    return rc;
  }
  *out = a;
  return RC_OK;
}

int agent_port(const struct agent *a) { return http_server_port(a->http); }

void agent_stop(struct agent *a) {
  if (!a) return;
  atomic_store(&a->draining, true);
  if (a->heartbeat) heartbeat_drain(a->heartbeat);
  if (a->leases) leases_drain(a->leases, HAND_BACK_MS);
  if (a->heartbeat) heartbeat_leave(a->heartbeat);
  http_server_stop(a->http, HTTP_DRAIN_MS);
  if (a->loader) loader_stop(a->loader); /* wakes the slots that wait for a proof */
  atomic_store(&a->beat, NULL);
  heartbeat_stop(a->heartbeat);
  atomic_store(&a->wakes, NULL);
  leases_stop(a->leases);
  loader_free(a->loader);
  free(a);
}

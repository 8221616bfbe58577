/* An agent's options and its parts: the context of every route.  agent.c makes and frees them, the routes
 * only read. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_API_AGENT_STATE_H
#define LEASEHOLD_ROLLOUT_AGENT_API_AGENT_STATE_H

#include "common/http/server.h"
#include "services/rollout-agent/worker/heartbeat.h"

struct agent_options {
  const char *bind, *coordinator, *advertise_url, *name;
  const char *weights_dir, *engine_weights_dir; /* the second "": the same */
  int port;
  struct http_access *access; /* borrowed */
  struct service_limits limits;
  struct leases_options leases; /* without the loader and the callbacks */
  struct loader_options loader; /* without the folders and the callback */
};

struct agent {
  struct agent_options options;
  char url[LIMIT_URL_MAX], name[LIMIT_NAME_MAX], folder[LIMIT_PATH_MAX], engine_folder[LIMIT_PATH_MAX];
  struct loader *loader;
  struct leases *leases;
  struct heartbeat *heartbeat;
  struct http_server *http;
  _Atomic(struct leases *) wakes; /* the same two, for callbacks that may come before agent_start has returned */
  _Atomic(struct heartbeat *) beat;
  atomic_bool draining;
};

#endif

/* The parts of a running generation-server: the context of every route.  server.c makes and frees them, handlers only
 * use them; no other file includes this but tests. */
#ifndef LEASEHOLD_GENERATION_SERVER_API_SERVER_STATE_H
#define LEASEHOLD_GENERATION_SERVER_API_SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "services/generation-server/api/server_options.h"
#include "services/generation-server/requests/requests.h"
#include "services/generation-server/weights/staging.h"
#include "services/generation-server/worker/heartbeat.h"

/* A client's update of weights between its beginning and its end (route_weights.c). */
struct weight_update {
  pthread_mutex_t mutex; /* guards the others */
  bool begun;
  char dir[LIMIT_PATH_MAX]; /* "": none was named yet */
};

enum { PUSH_TOKEN_BYTES = 32 };

struct server {
  struct server_options options;
  struct weight_update update;
  char url[LIMIT_URL_MAX], name[LIMIT_NAME_MAX];
  char push_token[2 * PUSH_TOKEN_BYTES + 1]; /* "": none is asked for */
  struct activity *activity;
  struct staging *staging;
  struct leases *leases; /* NULL without a coordinator, as is heartbeat */
  struct heartbeat *heartbeat;
  struct http_server *http;
  struct admission admission;
  _Atomic(struct heartbeat *) beat; /* the same, for callbacks that may come before server_start has returned */
  struct requests *requests;
};

#endif

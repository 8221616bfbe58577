/* The generation-server as a whole: its parts, how they are tied together, start, drain and stop.
 *
 *   coordinator <--heartbeat.c, leases.c--> engine.c <--staging.c--> trainer
 *                                              ^
 *                        clients --route_*.c---+--streamer, replier--> answers
 *
 * Every route's context is this struct. */
#ifndef LEASEHOLD_GENERATION_SERVER_H
#define LEASEHOLD_GENERATION_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/queue.h"
#include "common/http/server.h"
#include "services/generation-server/heartbeat.h"

struct server_options {
  const char *bind, *coordinator, *advertise_url, *name, *model_dir, *token;
  struct service_limits limits;
  int port, prefetch, drain_ms, stream_stall_ms;
  struct fabric *fabric; /* borrowed; NULL: none */
  const char *fabric_name;
  struct host_options host;
};

struct streamer;

struct server {
  struct server_options options;
  char url[LIMIT_URL_MAX], name[LIMIT_NAME_MAX];
  struct http_route routes[16];
  size_t route_count;
  struct activity *activity;
  struct staging *staging;
  struct leases *leases; /* NULL without a coordinator, as is heartbeat */
  struct heartbeat *heartbeat;
  struct http_server *http;
  _Atomic(struct host *) host;      /* NULL while the model is unknown */
  _Atomic(struct heartbeat *) beat; /* for callbacks that may come before server_start has returned */
  atomic_bool draining;
  atomic_int requests_open; /* plain requests with the engine, the streamer or the replier */
  atomic_int samples_open;  /* of them */
  atomic_llong positions_open;
  atomic_ullong request_number;
  uint64_t start_seed; /* of requests that bring none */
  struct streamer *streamer;
  struct queue *finished; /* of struct generate_call: to the replier */
  pthread_t replier;
  bool replier_started;
};

enum rc server_start(struct server **out, const struct server_options *options, struct err *err);
int server_port(const struct server *s);
/* RC_OK, or why the engine computes no more (engine_failure). */
enum rc server_failure(struct server *s, struct err *err);
/* Hands leases back, lets plain requests finish up to drain_ms, stops everything and frees it. NULL is fine. */
void server_stop(struct server *s);

/* The loaded model, or NULL and a reason (RC_UNAVAILABLE). With `ready`, weights must be active and the server not
 * draining. */
struct host *server_host(struct server *s, bool ready, struct err *err);

#endif

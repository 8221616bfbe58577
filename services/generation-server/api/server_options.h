/* The options of a generation-server.  Declarations only; main.c fills them from flags. */
#ifndef LEASEHOLD_GENERATION_SERVER_API_SERVER_OPTIONS_H
#define LEASEHOLD_GENERATION_SERVER_API_SERVER_OPTIONS_H

#include "common/base/service_limits.h"
#include "services/generation-server/engine/loaded_model.h"

struct fabric;
struct http_access;

struct server_options {
  const char *bind, *coordinator, *advertise_url, *name, *model_dir;
  int port, prefetch, drain_ms, stream_stall_ms;
  struct http_access *access; /* borrowed; NULL: no tokens, any host */
  struct fabric *fabric; /* borrowed; NULL: none */
  const char *fabric_name;
  struct service_limits limits;
  struct loaded_model_options model;
};

#endif

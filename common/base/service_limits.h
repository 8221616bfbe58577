/* The ceilings and deadlines of a service's HTTP server.  They are flags of every service (PROGRAM_OPTIONS in
 * program.h), and common/http enforces them.  0 stands for the default here. */
#ifndef LEASEHOLD_BASE_SERVICE_LIMITS_H
#define LEASEHOLD_BASE_SERVICE_LIMITS_H

#include <stdint.h>

#include "common/base/options.h"

struct service_limits {
  int64_t connections_max;            /* open at once, besides a reserve that answers the health routes only */
  int64_t incomplete_per_address_max; /* connections from one address whose request is still incomplete */
  int64_t head_timeout_ms;            /* from a request's first byte until its head is complete */
  int64_t body_timeout_ms;            /* how far a body, or the reading of an answer, may fall behind its pace */
  int64_t pace_bytes;                 /* that pace, per second */
  int64_t idle_timeout_ms;            /* between two requests of a connection */
  int64_t handler_threads;            /* for handlers that take long */
  int64_t handler_queue_max;          /* requests that wait for them */
};

#define SERVICE_CONNECTIONS_MAX            4096
#define SERVICE_INCOMPLETE_PER_ADDRESS_MAX 1024
#define SERVICE_HEAD_TIMEOUT_MS            10000
#define SERVICE_BODY_TIMEOUT_MS            60000
#define SERVICE_PACE_BYTES                 4096
#define SERVICE_IDLE_TIMEOUT_MS            60000
#define SERVICE_HANDLER_THREADS            2
#define SERVICE_HANDLER_QUEUE_MAX          1024

#define SERVICE_TEXT(number)  SERVICE_TEXT_(number)
#define SERVICE_TEXT_(number) #number

#define SERVICE_LIMIT_OPTIONS(limits)                                                                                 \
  {"connections-max",                                                                                                 \
   OPTION_INT,                                                                                                        \
   &(limits)->connections_max,                                                                                        \
   SERVICE_TEXT(SERVICE_CONNECTIONS_MAX),                                                                             \
   8,                                                                                                                 \
   65536,                                                                                                             \
   "open connections; 64 more are kept for /healthz, /readyz and /metrics"},                                          \
      {"incomplete-per-address-max",                                                                                  \
       OPTION_INT,                                                                                                    \
       &(limits)->incomplete_per_address_max,                                                                         \
       SERVICE_TEXT(SERVICE_INCOMPLETE_PER_ADDRESS_MAX),                                                              \
       1,                                                                                                             \
       65536,                                                                                                         \
       "connections from one address whose request is still incomplete"},                                             \
      {"head-timeout-ms",                                                                                             \
       OPTION_INT,                                                                                                    \
       &(limits)->head_timeout_ms,                                                                                    \
       SERVICE_TEXT(SERVICE_HEAD_TIMEOUT_MS),                                                                         \
       10,                                                                                                            \
       3600000,                                                                                                       \
       "how long a request's line and headers may take to arrive"},                                                   \
      {"body-timeout-ms",                                                                                             \
       OPTION_INT,                                                                                                    \
       &(limits)->body_timeout_ms,                                                                                    \
       SERVICE_TEXT(SERVICE_BODY_TIMEOUT_MS),                                                                         \
       10,                                                                                                            \
       3600000,                                                                                                       \
       "how far the sender of a body, or the reader of an answer, may fall behind --pace-bytes"},                     \
      {"pace-bytes",                                                                                                  \
       OPTION_INT,                                                                                                    \
       &(limits)->pace_bytes,                                                                                         \
       SERVICE_TEXT(SERVICE_PACE_BYTES),                                                                              \
       1,                                                                                                             \
       1 << 30,                                                                                                       \
       "the slowest pace allowed for a body and for an answer, in bytes per second"},                                 \
      {"idle-timeout-ms",                                                                                             \
       OPTION_INT,                                                                                                    \
       &(limits)->idle_timeout_ms,                                                                                    \
       SERVICE_TEXT(SERVICE_IDLE_TIMEOUT_MS),                                                                         \
       10,                                                                                                            \
       3600000,                                                                                                       \
       "how long a connection without a request stays open"},                                                         \
      {"handler-threads",                                                                                             \
       OPTION_INT,                                                                                                    \
       &(limits)->handler_threads,                                                                                    \
       SERVICE_TEXT(SERVICE_HANDLER_THREADS),                                                                         \
       1,                                                                                                             \
       256,                                                                                                           \
       "threads for requests that take long to work on"},                                                             \
  {                                                                                                                   \
    "handler-queue-max", OPTION_INT, &(limits)->handler_queue_max, SERVICE_TEXT(SERVICE_HANDLER_QUEUE_MAX), 1, 65536, \
        "requests that may wait for those threads; further ones get 503"                                              \
  }

#endif

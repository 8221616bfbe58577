/* The table of open connections: who may hold one, and how long a request may take to come (connections.c).
 *
 * Everything in it is guarded by the server's lock, which the caller holds, except in create and free.  The table knows
 * neither requests nor libmicrohttpd: server.c reports to it what happens on a socket, the watcher lets it sweep. */
#ifndef LEASEHOLD_HTTP_CONNECTIONS_H
#define LEASEHOLD_HTTP_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/metrics.h"
#include "common/base/rc.h"
#include "common/base/service_limits.h"

struct gnutls_session_int;
struct http_request;
struct tls_material;

enum connection_state { CONNECTION_HEAD, CONNECTION_BODY, CONNECTION_BUSY, CONNECTION_SENDING, CONNECTION_IDLE };

/* One open connection; its index is its entry's. */
struct http_connection {
  int fd; /* -1: the entry is free */
  enum connection_state state;
  bool reserve;        /* beyond connections_max, or beyond its address's share */
  bool doomed;         /* shut down from here, and counted no more; libmicrohttpd closes it soon */
  int address;         /* in connections->addresses */
  int64_t deadline_ms; /* monotonic; none while BUSY */
  int64_t gone_ms;     /* HEAD, BODY: since when the peer is known to send no more; 0: it may send */
  uint64_t bytes;      /* IDLE: received by the end of the last request; SENDING: acknowledged at the last sweep */
  uint64_t unpaid;     /* bytes moved for which the deadline is yet to be put off */
  int next_free;
  bool secure;                  /* TLS: nothing may be sent past libmicrohttpd */
  struct tls_material *tls;     /* tls_server.c's, one reference; NULL where it is not secure */
  struct { /* tls_server.c's */
    struct gnutls_session_int *session;
    bool greeted, came, shaken; /* bytes have come; and with the last reading too; the handshake is complete */
    bool alert;                 /* the last record is an alert that is not encrypted */
    bool known, told;           /* its client's certificate is fine; that it is not was counted */
    int failure;                /* what it counts as, should it end before it is shaken: enum tls_failure */
  } shake;
  struct http_request *watched; /* the watcher's: NULL, or the suspended request on this connection */
  uint32_t generation;          /* the watcher's: counts the connections that the entry has been */
  bool hung_up;                 /* the watcher's: the peer has, or the connection was ended from here */
};

struct http_address {
  unsigned char bytes[9]; /* family, then all of an IPv4 address or the first half of an IPv6 one */
  int connections, incomplete;
  int next; /* in its bucket, or free; ends with -1 */
};

struct connections {
  const struct service_limits *limits;
  struct http_connection *entries;
  int count, first_free;
  int top; /* all used entries lie below */
  int used, reserve_used;
  struct http_address *addresses;
  int *address_buckets, address_free;
  uint64_t address_seed;
  int64_t sweep_ms, next_sweep_ms;
  struct metric *dropped[4]; /* by reason */
};

/* The limits are kept by reference. */
enum rc connections_create(struct connections *t, const struct service_limits *limits, struct err *err);
void connections_free(struct connections *t); /* after a create that failed, too */
/* Never NULL: libmicrohttpd accepts no more connections than the table has entries.  The table must be swept within
 * sweep_ms from now. */
struct http_connection *connection_open(struct connections *t, int fd, const struct sockaddr *name);
void connection_close(struct connections *t, struct http_connection *c);
/* The head of the connection's request is complete.  RC_UNAVAILABLE: the connection is in the reserve and has to stay
 * there; RC_FULL: too many bodies of its address are still coming. */
enum rc connection_admit(struct connections *t, struct http_connection *c, bool body, struct err *err);
void connection_received(struct connections *t, struct http_connection *c, size_t bytes); /* of a body */
void connection_busy(struct connections *t, struct http_connection *c);                   /* the request is complete */
void connection_sending(struct connections *t, struct http_connection *c); /* the whole answer is queued */
void connection_idle(struct connections *t, struct http_connection *c);    /* the answer was sent */
/* Ends the connections whose time is up, if a sweep is due.  Lets go of the lock now and then. */
void connections_sweep(struct connections *t, pthread_mutex_t *lock, int64_t now_ms);
/* Ends them all; libmicrohttpd closes them soon. */
void connections_end(struct connections *t);
bool connections_none(const struct connections *t);

#endif

/* Loads the peers: one record in hand on every connection, for so many seconds, durably accepted.
 *
 *   health   GET /healthz of any of our services: a handler that does nothing
 *   floor    one poll of `asked` bytes, then `puts` results of `bytes`, again and again: tests/bench/floor/http.c
 *   redis    XADD of one record to one stream
 *   etcd     a put of one record, over gRPC (HTTP/2 by hand: one stream at a time on each connection) */
#ifndef LEASEHOLD_BENCH_PEERS_H
#define LEASEHOLD_BENCH_PEERS_H

#include <stddef.h>
#include <stdint.h>

struct peer_load {
  const char *kind; /* "health", "floor", "redis", "etcd" */
  int port, pid, connections;
  double seconds;
  size_t bytes; /* of a record */
  size_t asked; /* floor: of a poll's body */
  int puts;     /* floor: results of a poll */
};

/* Prints one line of JSON. */
void peer_measure(const struct peer_load *load);

#endif

/* The server's end of the fabric: receives a pushed version's bytes by broadcast.  Called by the
 * stager's thread alone, without its mutex.  A push brings its communicator's token: if the server has joined that
 * communicator already, it receives over it again; otherwise it leaves the old one and joins the new one.  A
 * communicator that failed is not used again.
 *
 * Previous hop: trainer-server/publish/pool_fabric.c.  Next: staging.c fills weights from the bytes as from a
 * body's. */
#ifndef LEASEHOLD_GENERATION_SERVER_WEIGHTS_BROADCAST_INTAKE_H
#define LEASEHOLD_GENERATION_SERVER_WEIGHTS_BROADCAST_INTAKE_H

#include "common/comm/fabric.h"
#include "common/wire/training.h"

struct broadcast_intake {
  struct fabric *fabric; /* borrowed; NULL: none */
  struct comm *comm;     /* NULL: none is joined */
  char token[FABRIC_TOKEN_MAX];
};

/* A push's query, copied. */
struct broadcast_offer {
  char token[FABRIC_TOKEN_MAX];
  int rank, size;
  size_t bytes;
  int64_t wait_ms;
};

/* RC_INVALID for an offer that no server could accept; names the field. */
enum rc broadcast_intake_check(const struct fabric *fabric, const struct broadcast_offer *offer, size_t bytes_max,
                               struct err *err);
/* Receives offer->bytes of the broadcast into bytes, within offer->wait_ms or until *cancel. */
enum rc broadcast_intake_receive(struct broadcast_intake *i, const struct broadcast_offer *offer, void *bytes,
                                 const atomic_bool *cancel, struct err *err);
/* Leaves the communicator. */
void broadcast_intake_leave(struct broadcast_intake *i);

#endif

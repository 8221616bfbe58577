/* The second seam of common/comm: processes of different services join a group in which one sends bytes to all.  They
 * agree on the group by HTTP.
 *
 *   fabric_mpi.c    processes that one mpirun has started       built where MPI is (make mpi)
 *   fabric_nccl.c   GPUs that NCCL connects                     built where NCCL is (make nccl, make cuda NCCL=1); never run yet
 *   fabric_token.c  the texts by which members find each other  always built; pure
 *
 *   root:    token --(by HTTP, with rank and size)--> every member
 *   all:     join --> a struct comm: broadcast, as often as wanted --> free
 *
 * A communicator is made for a group once and kept while the group stays the same.  It has broadcast (from rank 0),
 * check, give_up and free.  It fails as comm.h describes, with two differences: after a failed call the buffers belong
 * to the caller again, and free is not collective and does not wait for others.  A member learns of another's loss by
 * its own deadline, or by `cancel`, which is set by a thread that hears of the loss in another way.
 *
 * Memory: a communicator has a window of its own that bytes pass through in pieces.  A window that a dead or frozen
 * member may still access is left behind until it is released.
 *
 * Threading: one thread joins and broadcasts; cancel, check and give_up are any thread's. */
#ifndef LEASEHOLD_COMM_FABRIC_H
#define LEASEHOLD_COMM_FABRIC_H

#include <stdatomic.h>

#include "common/comm/comm.h"

enum {
  FABRIC_TOKEN_MAX = 264, /* bytes of a token's text, NUL included */
  FABRIC_GROUP_MAX = 1025 /* a trainer and 1,024 generation-servers */
};

/* A member's part in a group. */
struct fabric_seat {
  const char *token;
  int rank, size;            /* rank 0 is the root */
  const int64_t *places;     /* [size] of all members, by rank; the root's, NULL for others */
  const atomic_bool *cancel; /* while it is true, join and every call of its comm fail; outlives the comm */
};

struct fabric {
  const char *kind; /* "mpi", "nccl": fabrics of different kinds do not meet */
  int64_t place;    /* where this process is in it; 0 where the kind has no places */
  int machines;     /* on which its processes run, by their hosts' names; 0 where that is not known */

  /* The root's: a fresh token. */
  enum rc (*token)(struct fabric *, char out[FABRIC_TOKEN_MAX], struct err *);
  /* Collective over the group; a process has one communicator of a fabric at a time.  RC_INVALID, at once, for an
   * impossible seat; RC_UNAVAILABLE when not all members came within wait_ms, or when cancelled. */
  enum rc (*join)(struct fabric *, struct comm **out, const struct fabric_seat *seat, int64_t wait_ms, struct err *);
  /* After the last comm was freed. */
  void (*free)(struct fabric *);
};

/* Joins the processes of both services that mpirun started.  If a trainer's ranks have taken MPI before, they must have
 * taken it for several threads (comm_mpi_options). */
enum rc fabric_mpi_create(struct fabric **out, bool trainer, int64_t start_ms, struct err *err);
/* device: the CUDA device that bytes go through. */
enum rc fabric_nccl_create(struct fabric **out, int device, struct err *err);

/* --- fabric_token.c --- */
/* "SERIAL.PLACE", of a root at PLACE. */
void fabric_token_write_place(char out[FABRIC_TOKEN_MAX], uint64_t serial, int64_t place);
enum rc fabric_token_read_place(const char *token, uint64_t *serial, int64_t *place, int64_t places, struct err *err);
/* Bytes in hexadecimal; count is at most (FABRIC_TOKEN_MAX - 1) / 2. */
void fabric_token_write_bytes(char out[FABRIC_TOKEN_MAX], const void *bytes, size_t count);
enum rc fabric_token_read_bytes(const char *token, void *bytes, size_t count, struct err *err);
/* The checks that hold for every kind: a text of [0-9a-f.] that is not too long, and 0 <= rank < size <=
 * FABRIC_GROUP_MAX. */
enum rc fabric_seat_check(const char *token, int64_t rank, int64_t size, struct err *err);

#endif

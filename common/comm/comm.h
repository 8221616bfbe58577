/* The seam between the ranks of one trainer: a table of collective calls over whatever carries the bytes.
 *
 *   comm_self.c   one rank: nothing to carry                          always built
 *   comm_mpi.c    processes under mpirun                              built where MPI is (make mpi)
 *   comm_staged.c device memory by way of another comm, in pieces     always built
 *   comm_nccl.c   device memory by NCCL, all else by another comm     built where NCCL is (make nccl, cuda); never run yet
 *
 * A call is collective: every rank makes the same calls in the same order with the same sizes, and gets RC_OK once its
 * part is done.  Results do not depend on the carrier: bytes are copied, integers are added, and floating
 * point numbers are never added here.
 *
 * Failure.  No call waits without bound: it ends with RC_UNAVAILABLE when wait_ms are over, when a rank has been silent
 * for the comm's own silence_ms (ranks send each other signs of life also while they compute), when a rank gave
 * up (give_up), or when this one did.  Then the comm is lost for good: every later call fails at once with the same
 * message, and the process can only end.  The content of a failed call's buffers is undefined, and they belong to the
 * comm until it is freed.
 *
 * Threading: one thread (the engine's) makes collective calls at a time; check and give_up may come from any thread.
 */
#ifndef LEASEHOLD_COMM_COMM_H
#define LEASEHOLD_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"

enum comm_reduction { COMM_SUM, COMM_MIN, COMM_MAX };

struct comm {
  const char *name; /* "self", "mpi", "staged", "nccl" */
  int rank, size;   /* 0 <= rank < size */
  int local;        /* its place among the ranks on its machine, from 0 */
  int machines;     /* on which the ranks run, by their hosts' names */

  /* bytes[count] of rank `root` to all. */
  enum rc (*broadcast)(struct comm *, void *bytes, size_t count, int root, int64_t wait_ms, struct err *);
  /* Rank r's part is bytes[begin[r] .. begin[r + 1]) of its own buffer; afterwards every buffer holds all parts.
   * begin[size + 1] ascends from 0; parts may be empty. */
  enum rc (*all_gather)(struct comm *, void *bytes, const size_t *begin, int64_t wait_ms, struct err *);
  /* sums[begin[r] .. begin[r + 1]) of rank r becomes the sum of these elements over all ranks, in 64-bit integers; the
   * rest of its buffer is undefined afterwards.  begin[size + 1] as above, in elements. */
  enum rc (*reduce_scatter)(struct comm *, int64_t *sums, const size_t *begin, int64_t wait_ms, struct err *);
  /* values[count] become the sum, least or largest over all ranks, the same on each. */
  enum rc (*all_reduce)(struct comm *, int64_t *values, size_t count, enum comm_reduction how, int64_t wait_ms,
                        struct err *);
  enum rc (*barrier)(struct comm *, int64_t wait_ms, struct err *);

  /* RC_OK while the comm is whole, else the loss as a call would report it; at once, from any thread. */
  enum rc (*check)(struct comm *, struct err *);
  /* Gives up: tells the other ranks as far as they can be told, and ends the call in hand.  Any thread. */
  void (*give_up)(struct comm *);
  /* After the last call.  Collective while the comm is whole: the ranks part once all of them have called this, within
   * silence_ms. */
  void (*free)(struct comm *);
};

/* Rank 0 of 1.  Static: free does nothing. */
struct comm *comm_self(void);

struct comm_mpi_options {
  int64_t start_ms;     /* how long the ranks may take to find each other */
  int64_t silence_ms;   /* a rank that has not been heard of for so long is dead */
  bool several_threads; /* another thread of this process will call MPI as well: see fabric.h */
};
/* The comm of the ranks that mpirun started, maybe beside processes of other services.  Once in a process, because MPI
 * can be started only once.  RC_UNAVAILABLE when the processes did not find each other. */
enum rc comm_mpi_create(struct comm **out, const struct comm_mpi_options *options, struct err *err);

/* How a comm reaches memory that is not the host's.  On return the host's side of the copy is complete; the copy comes
 * after all writes to the same memory that were issued before it. */
struct comm_copies {
  void *context;
  enum rc (*to_host)(void *context, void *host, const void *device, size_t bytes, struct err *err);
  enum rc (*to_device)(void *context, void *device, const void *host, size_t bytes, struct err *err);
};
/* Over the ranks of `host`, which stays the caller's, must outlive this, and is called by the same thread.  Arrays that
 * are broadcast, gathered and scattered lie in memory that `copies` reaches, and pass through a buffer of bounce_bytes,
 * the same on all ranks; values of all_reduce are in the host's memory.  A copy that fails ends the call with its own
 * error, and this rank gives up. */
enum rc comm_staged_create(struct comm **out, struct comm *host, const struct comm_copies *copies, size_t bounce_bytes,
                           struct err *err);

/* Over the ranks of `host`, which stays the caller's, must outlive this, and is called by the same thread.
 * Memory of the calling thread's CUDA device travels by NCCL, after all pending writes to it; everything else goes by
 * `host`, which also finds lost ranks.  RC_UNSUPPORTED on all ranks when one of them has no device. */
enum rc comm_nccl_create(struct comm **out, struct comm *host, int64_t start_ms, struct err *err);

#endif

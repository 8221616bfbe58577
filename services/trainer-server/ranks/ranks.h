/* The ranks of one trainer: several processes of which rank 0 is the trainer-server that the coordinator knows, and
 * the others compute what it tells them.  This module is how they talk to each other, and how they end together.
 *
 *   rank 0:       job --> ranks_tell(order) --> the order's part --> the rest of the job     (engine/trainer.c)
 *   other ranks:          ranks_hear        --> the order's part --> ranks_hear ..           (engine/follow.c)
 *
 * A process alone is one rank: then orders go nowhere and cost nothing, and only the end is kept here.  A call that
 * failed has lost the comm for good, so it ends the engine, and with it the other ranks; mpirun's supervisor starts
 * all of them again.
 *
 * The engine's thread calls all of it, before it runs trainer_create's; ranks_stop, ranks_stopping and ranks_lost are
 * any thread's.  The arrays of bounds are allocated at start. */
#ifndef LEASEHOLD_TRAINER_SERVER_RANKS_RANKS_H
#define LEASEHOLD_TRAINER_SERVER_RANKS_RANKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/comm/comm.h"
#include "common/model/device.h"
#include "common/model/ops.h"
#include "common/model/shard.h"

struct ranks_options {
  struct comm *comm; /* of the ranks, borrowed until trainer_stop; NULL: this process alone */
  /* Joins ranks that have a device each, as comm_nccl_create; NULL: this build has nothing that does. */
  enum rc (*link_devices)(struct comm **out, struct comm *host, int64_t start_ms, struct err *err);
  int64_t wait_ms; /* the longest that ranks wait for each other's work, e.g. a large group's */
};

/* A rank's report on its device, as it lies in memory. */
struct rank_place {
  unsigned char device[DEVICE_IDENTITY_BYTES];
  uint64_t links;         /* 1: its build can join devices */
  uint64_t planned, room; /* bytes of the device: planned by this rank, and found free by it */
};

struct ranks {
  struct ranks_options options;
  struct comm *comm;   /* takes what is the host's */
  struct comm *arrays; /* takes what is the table's: comm where that is the host's own memory, else devices_join's */
  int count;           /* of ranks, and */
  const char *over;    /* the name of `arrays`: for handlers, which may ask when the comms are gone */
  struct ops *ops;
  size_t parameters; /* elements of the model's */

  /* Where each rank's part of an array begins, [size + 1] each; NULL for a process alone. */
  size_t *elements;         /* of the parameters: these bound the shards.  The others are in bytes: */
  size_t *floats;           /* of an optimizer's array */
  size_t *operands;         /* of the weights in the kernels' format, row-major */
  size_t *squares;          /* of block_squares */
  size_t *verdicts;         /* of verdict */
  size_t *places;           /* of place */
  double *block_squares;    /* [shard_blocks(parameters)] */
  struct err *verdict;      /* [size + 1] a short word of every rank's: what failed, or the digest of its weights */
  struct rank_place *place; /* [size] */
  int64_t told_us;          /* rank 0: when it last told the others something */

  atomic_bool stopping;
  pthread_mutex_t lock; /* guards why */
  struct err why;       /* RC_OK unless a rank is lost, or the device */
};

/* The orders: what all ranks do next, together.  Sent as they lie in memory. */
enum order_kind {
  ORDER_MEET,    /* nothing but: is any rank asked to stop? */
  ORDER_OPEN,    /* payload: struct open_run */
  ORDER_RESUME,  /* payload: the run as it was opened; steps */
  ORDER_WEIGHTS, /* which: rank 0's current weights, or its frozen reference, to all */
  ORDER_SPREAD,  /* which: the optimizer's array from rank 0's gradient memory into the shards */
  ORDER_COLLECT, /* which: the shards of the optimizer's array into everybody's gradient memory */
  ORDER_BATCH,   /* payload: adds[groups], then struct submit_batch; first, kl_coefficient; steps as of ORDER_STEP */
  ORDER_STEP,    /* denominator, version; which: 1 for an inner step; steps: inner steps of the round before it */
  ORDER_REFER,   /* the current weights become the frozen reference */
  ORDER_CHECK,   /* everybody's digest of the weights must be rank 0's */
  ORDER_END
};
struct order {
  enum order_kind kind;
  int which;
  int64_t version, steps;
  double denominator, kl_coefficient;
  uint64_t groups, first, payload_bytes;
};

void ranks_init(struct ranks *r, const struct ranks_options *options);
/* The bounds of the parts; ops is borrowed. */
enum rc ranks_make(struct ranks *r, struct ops *ops, size_t parameters, struct err *err);
void ranks_free(struct ranks *r);
static inline bool ranks_alone(const struct ranks *r) { return r->comm->size == 1; }
/* The elements of the parameters whose optimizer state a rank holds; comm NULL: it is alone. */
struct shard ranks_shard(const struct comm *comm, size_t elements);

/* Must be the same on all ranks. */
struct rank_setup {
  int64_t chunk_tokens, context_max;
  const struct device *device;
};
/* All ranks, at start: do they hold one model, under the same options? */
enum rc ranks_compare(struct ranks *r, const struct rank_setup *mine, struct err *err);

/* --- the end --- */
/* Asks the engine of this rank to end; the others follow when they meet. */
void ranks_stop(struct ranks *r);
bool ranks_stopping(const struct ranks *r);
/* A rank is lost, or this one cannot go on: the engine ends, and so do the other ranks.  Returns why->rc. */
enum rc ranks_lose(struct ranks *r, const struct err *why);
/* Is a rank lost?  *why is RC_OK when not. */
bool ranks_lost(struct ranks *r, struct err *why);
/* After a failure of one of several ranks, rc: where its device has failed that rank is lost, and its job gets no
 * answer. Returns rc, or the device's. */
enum rc ranks_look_at_device(struct ranks *r, enum rc rc, struct err *err);

/* --- orders --- */
/* Rank 0 tells; payload may be NULL.  Then all ranks carry the order out, rank 0 included. */
enum rc ranks_tell(struct ranks *r, const struct order *order, const struct buf *payload, struct err *err);
/* The others are told; payload is overwritten. */
enum rc ranks_hear(struct ranks *r, struct order *order, struct buf *payload, struct err *err);
/* Rank 0, between jobs: now and then an ORDER_MEET, which also finds the lost. */
enum rc ranks_tick(struct ranks *r, struct err *err);
/* ORDER_MEET on all ranks: all stop where one is asked to. */
enum rc ranks_meet(struct ranks *r, struct err *err);

/* --- what all ranks call together; the host's memory --- */
/* Each rank's part, of bytes[begin[rank] .. begin[rank + 1]), to all. */
enum rc ranks_all_gather(struct ranks *r, void *bytes, const size_t *begin, struct err *err);
enum rc ranks_all_reduce(struct ranks *r, int64_t *values, size_t count, enum comm_reduction how, struct err *err);
/* The first failure of all ranks' rc, on every rank. */
enum rc ranks_agree(struct ranks *r, enum rc rc, struct err *err);
/* Every rank's bytes to all, rank after rank: begin[size + 1] says where each one's are in *all. */
enum rc ranks_exchange(struct ranks *r, const struct buf *mine, struct buf *all, size_t *begin, struct err *err);
/* ORDER_CHECK: RC_CORRUPT, and a lost rank, when one's digest is not rank 0's. */
enum rc ranks_check_digest(struct ranks *r, const struct digest *mine, struct err *err);

#endif

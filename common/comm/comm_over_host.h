/* The common part of the comms that carry a device's arrays (comm_staged.c, comm_nccl.c): each stands on a comm for the
 * host's memory, which does everything except arrays. */
#ifndef LEASEHOLD_COMM_COMM_OVER_HOST_H
#define LEASEHOLD_COMM_COMM_OVER_HOST_H

#include "common/comm/comm.h"

struct over_host {
  struct comm comm;  /* first: the table */
  struct comm *host; /* borrowed */
};

static inline struct comm *host_of(struct comm *c) { return ((struct over_host *)c)->host; }

static inline enum rc over_host_all_reduce(struct comm *c, int64_t *values, size_t count, enum comm_reduction how,
                                           int64_t wait_ms, struct err *err) {
  return host_of(c)->all_reduce(host_of(c), values, count, how, wait_ms, err);
}

static inline enum rc over_host_barrier(struct comm *c, int64_t wait_ms, struct err *err) {
  return host_of(c)->barrier(host_of(c), wait_ms, err);
}

static inline enum rc over_host_check(struct comm *c, struct err *err) { return host_of(c)->check(host_of(c), err); }

/* The call in hand sees it. */
static inline void over_host_give_up(struct comm *c) { host_of(c)->give_up(host_of(c)); }

/* The calls that carry arrays, and free, are the caller's to fill in. */
static inline struct over_host over_host_begin(const char *name, struct comm *host) {
  return (struct over_host){.comm = {.name = name,
                                     .rank = host->rank,
                                     .size = host->size,
                                     .local = host->local,
                                     .machines = host->machines,
                                     .all_reduce = over_host_all_reduce,
                                     .barrier = over_host_barrier,
                                     .check = over_host_check,
                                     .give_up = over_host_give_up},
                            .host = host};
}

#endif

/* The common part of a fabric's carriers (fabric_mpi.c, fabric_nccl.c): a member's state in a group, and its waits.
 *  The group struct of each carrier begins with it. */
#ifndef LEASEHOLD_COMM_FABRIC_MEMBERSHIP_H
#define LEASEHOLD_COMM_FABRIC_MEMBERSHIP_H

#include "common/base/clock.h"
#include "common/comm/fabric.h"
#include "common/comm/awake_timeout.h"
#include "common/comm/polling.h"

struct membership {
  struct comm comm; /* first: the table */
  const atomic_bool *cancel;
  atomic_bool given_up, lost;
};

static inline struct membership *membership_of(struct comm *c) { return (struct membership *)c; }

/* struct comm's check. */
static inline enum rc membership_check(struct comm *comm, struct err *err) {
  const struct membership *m = membership_of(comm);
  if (!atomic_load(&m->lost) && !atomic_load(&m->given_up)) return RC_OK;
  return err_set(err, RC_UNAVAILABLE, NULL, "the communicator of member %d of %d is lost", comm->rank, comm->size);
}

/* RC_OK when a broadcast from rank `root` may begin. */
static inline enum rc membership_broadcasts(struct comm *comm, int root, struct err *err) {
  if (root == 0) return membership_check(comm, err);
  return err_set(err, RC_UNSUPPORTED, NULL, "a group broadcasts from rank 0, not from %d", root);
}

/* struct comm's give_up: the call in hand sees it. */
static inline void membership_give_up(struct comm *comm) { atomic_store(&membership_of(comm)->given_up, true); }

/* Fills in all but broadcast and free, for a seat in a fabric of this kind. */
static inline void membership_begin(struct membership *m, const char *kind, const struct fabric_seat *seat) {
  m->comm = (struct comm){
      .name = kind, .rank = seat->rank, .size = seat->size, .check = membership_check, .give_up = membership_give_up};
  m->cancel = seat->cancel;
}

struct member_wait {
  struct awake_timeout timeout;
  int64_t wait_ms, moved_us; /* moved_us: when something last went ahead */
};

static inline struct member_wait member_wait_start(int64_t wait_ms) {
  const int64_t now_us = clock_monotonic_us();
  return (struct member_wait){.timeout = awake_timeout_start(wait_ms, now_us), .wait_ms = wait_ms, .moved_us = now_us};
}

/* Rests before the next poll: RC_OK to go on, or the reason to stop. */
static inline enum rc member_wait_on(struct member_wait *w, const struct membership *m, bool moved, const char *what,
                                     struct err *err) {
  const int64_t now_us = clock_monotonic_us();
  if (moved) w->moved_us = now_us;
  if (atomic_load(&m->given_up) || atomic_load(m->cancel))
    return err_set(err, RC_UNAVAILABLE, NULL, "%s was given up by member %d of %d", what, m->comm.rank, m->comm.size);
  if (awake_timeout_expired(&w->timeout, now_us))
    return err_set(err, RC_UNAVAILABLE, NULL, "%s by member %d of %d did not end within %lld ms", what, m->comm.rank,
                   m->comm.size, (long long)w->wait_ms);
  polling_rest(now_us - w->moved_us);
  return RC_OK;
}

#endif

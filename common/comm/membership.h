/* What a fabric's carriers have in common: a member's part in a group, and its waits.  A carrier's group begins with it. */
#ifndef LEASEHOLD_COMM_MEMBERSHIP_H
#define LEASEHOLD_COMM_MEMBERSHIP_H

#include "common/base/clock.h"
#include "common/comm/fabric.h"
#include "common/comm/patience.h"
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

/* May a broadcast from rank `root` begin? */
static inline enum rc membership_broadcasts(struct comm *comm, int root, struct err *err) {
  if (root == 0) return membership_check(comm, err);
  return err_set(err, RC_UNSUPPORTED, NULL, "a group broadcasts from rank 0, not from %d", root);
}

/* struct comm's give_up: the call in hand sees it. */
static inline void membership_give_up(struct comm *comm) { atomic_store(&membership_of(comm)->given_up, true); }

/* Of a seat, in a fabric of this kind; without broadcast and free. */
static inline void membership_begin(struct membership *m, const char *kind, const struct fabric_seat *seat) {
  m->comm = (struct comm){
      .name = kind, .rank = seat->rank, .size = seat->size, .check = membership_check, .give_up = membership_give_up};
  m->cancel = seat->cancel;
}

struct wait {
  struct patience patience;
  int64_t wait_ms, moved_us; /* moved_us: when something last went ahead */
};

static inline struct wait wait_of(int64_t wait_ms) {
  const int64_t now_us = clock_monotonic_us();
  return (struct wait){.patience = patience_of(wait_ms, now_us), .wait_ms = wait_ms, .moved_us = now_us};
}

/* Before another look, after a rest: RC_OK, or why there is to be none. */
static inline enum rc wait_on(struct wait *w, const struct membership *m, bool moved, const char *what,
                              struct err *err) {
  const int64_t now_us = clock_monotonic_us();
  if (moved) w->moved_us = now_us;
  if (atomic_load(&m->given_up) || atomic_load(m->cancel))
    return err_set(err, RC_UNAVAILABLE, NULL, "%s was given up by member %d of %d", what, m->comm.rank, m->comm.size);
  if (patience_over(&w->patience, now_us))
    return err_set(err, RC_UNAVAILABLE, NULL, "%s by member %d of %d did not end within %lld ms", what, m->comm.rank,
                   m->comm.size, (long long)w->wait_ms);
  polling_rest(now_us - w->moved_us);
  return RC_OK;
}

#endif

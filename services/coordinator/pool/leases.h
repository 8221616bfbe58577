/* Grants, renews and ends leases in the database. A lease binds samples of one group to a worker, a version range and a
 * digest of weights.  When it ends without a result its samples wait again, and the next grant carries a higher fence.
 *
 * Writer's thread only, inside the caller's savepoint; granted leases live in the caller's arena.  Leases are granted
 * only under the version that the worker holds, which is the current one or, in `inflight`, not too old (I2), and no
 * lease ends twice (states.c).
 *
 * Previous hop of a rollout: rounds/round.c.  Next: the poll's answer, api/route_leases.c. */
#ifndef LEASEHOLD_COORDINATOR_POOL_LEASES_H
#define LEASEHOLD_COORDINATOR_POOL_LEASES_H

#include "common/wire/lease.h"
#include "common/wire/worker.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/writer/core_state.h"

struct live_worker;

enum { FENCE_FIRST = 1 }; /* of a lease whose samples no worker held before */

struct lease_row {
  char id[LIMIT_NAME_MAX];
  int64_t fence, run, round, group, first, count, worker, version_min, version_max;
  enum lease_state state;
  uint64_t epoch;
  struct digest digest; /* of the weights */
  bool has_content;
  struct digest content; /* of the accepted result */
};

/* Grants the worker, one of `servers` ready ones, up to slots_free samples of the active run's open round, to be drawn
 * from `held`: the current version or, in `inflight`, one that is not too old and that the worker has loaded.  leases:
 * arena memory, room for LIMIT_LEASES_PER_REQUEST. *count may be 0. */
enum rc leases_grant(struct core *c, struct live_worker *w, int slots_free, int servers,
                     const struct current_version *held, struct lease *leases, size_t *count, struct arena *arena,
                     struct err *err);
/* The lease that a result names, through any connection.  fence NULL: the newest with this id; worker NULL: anybody's.
 * RC_NOT_FOUND: there is none, and out->run is 0.  RC_CONFLICT: *out, the newest, has another fence.  RC_FORBIDDEN:
 * *out is another worker's. */
enum rc lease_claimed(struct store *s, const char *id, const uint64_t *fence, const char *worker, struct lease_row *out,
                      struct err *err);
/* RC_OK while the lease is granted: only then is its result accepted.  RC_GONE when it expired, RC_CONFLICT when it
 * ended otherwise. */
enum rc lease_stands(const struct lease_row *l, struct err *err);
/* Moves the lease's deadline if it is granted, and to this worker; *held tells. */
enum rc lease_renew(struct core *c, const char *id, int64_t fence, int64_t worker, bool *held, struct err *err);
/* granted -> state; samples that are not done go back to waiting unless state is LEASE_DONE or LEASE_SUPERSEDED. */
enum rc lease_end(struct core *c, const struct lease_row *l, enum lease_state state, const struct digest *content,
                  struct err *err);
enum rc leases_lose_all(struct core *c, int64_t worker, struct err *err);
enum rc leases_expire(struct core *c, struct err *err);
/* Notes how many tokens a worker says it has sampled so far, and whether it holds leases.  If its tokens have stood
 * still for too long (expiry_stands_still), its leases go to others, and an incident says so; foreign engines are
 * exempt. A worker that holds none of the leases granted to it gets no more for a while, which an incident says too. */
enum rc leases_note_progress(struct core *c, struct live_worker *w, int64_t tokens_sampled, bool holds,
                             struct err *err);
/* A worker tells how many leases it has found in answers.  Those of the last answer, if that was lost, are ended, and
 * their samples wait again. */
enum rc leases_note_taken(struct core *c, struct live_worker *w, int64_t taken, struct err *err);
/* Puts the deadline of every granted lease off by so much. */
enum rc leases_put_off(struct core *c, int64_t ms, struct err *err);
/* Every granted lease of a run becomes superseded (its version is not current any more, or the run ended). */
enum rc leases_supersede(struct core *c, int64_t run, struct err *err);
/* Ends the granted leases that are valid for no version from `version` on; their samples wait again. */
enum rc leases_outdate(struct core *c, int64_t run, int64_t version, struct err *err);
/* Every granted lease of a group that has failed becomes superseded. */
enum rc leases_supersede_group(struct core *c, int64_t run, int64_t round, int64_t group, struct err *err);

#endif

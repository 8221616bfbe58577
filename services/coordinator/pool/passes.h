/* Passes in the database: a sealed group of a run with a KL term, leased to a preprocessor that computes the
 * reference's log-probabilities of it.
 *
 *   group sealed --passes_grant--> granted to a worker, fence n --pass_accept--> done: passes.logprobs
 *                       ^-- passes_lose_all, passes_expire, pass_give_back: fence n + 1 --'
 *
 * A group without a row has never been granted.  A row counts only while its group is sealed: when the trainer has
 * taken the group, or it was dropped, its pass is renewed no more, and the result is refused.  So no other file needs
 * to know of passes, and a batch does not change once it is planned.
 *
 * Writer's thread only, inside the caller's savepoint.  Without preprocessors nothing here is called.  Previous hop of
 * a rollout: rounds/group_seal.c.  Next: rounds/batch_passes.c lets a batch take the group. */
#ifndef LEASEHOLD_COORDINATOR_POOL_PASSES_H
#define LEASEHOLD_COORDINATOR_POOL_PASSES_H

#include "common/wire/passes.h"
#include "services/coordinator/decide/passes.h"
#include "services/coordinator/writer/core_state.h"

struct live_worker;

/* What the active run's passes are computed by: its version 0. */
struct pass_reference {
  bool has; /* a run with a KL term goes on, and a trainer is known that has it */
  int64_t run;
  struct digest digest;
  const char *weights_from;
};
/* Strings live in the arena. */
enum rc pass_reference_now(struct core *c, struct pass_reference *out, struct arena *arena, struct err *err);

struct granted_pass {
  int64_t round, group, samples, fence;
};
/* Up to `asked` passes for the worker, in the order in which the trainer will want them; out: room for
 * LIMIT_PASSES_PER_REQUEST. */
enum rc passes_grant(struct core *c, const struct live_worker *w, const struct pass_reference *reference, int asked,
                     struct granted_pass *out, int *count, struct err *err);

struct pass_row {
  int64_t run, round, group, fence, worker; /* worker 0: nobody's */
  enum pass_state state;
  bool sealed;  /* its group is, and no step has taken it */
  bool has_content;
  struct digest content; /* of the accepted result */
};
/* The pass that a result names, through any connection.  RC_NOT_FOUND: there is none, and out->run is 0.  RC_CONFLICT:
 * it has a higher fence.  RC_FORBIDDEN: another worker's. */
enum rc pass_claimed(struct store *s, const char *id, uint64_t fence, const char *worker, struct pass_row *out,
                     struct err *err);
/* RC_OK while it is granted and its group sealed: only then is a result taken. */
enum rc pass_stands(const struct pass_row *p, struct err *err);

enum rc pass_accept(struct core *c, const struct pass_row *p, const struct digest *weights,
                    const struct digest *content, const float *logprobs, size_t count, struct err *err);
/* PASS_WAITING: for others, and for its holder again where `again` says so.  PASS_REFUSED: for nobody. */
enum rc pass_give_back(struct core *c, const struct pass_row *p, enum pass_state state, bool again, struct err *err);
/* Is it this worker's, and still wanted?  Then its deadline moves. */
enum rc pass_renew(struct core *c, const char *id, int64_t fence, int64_t worker, bool *held, struct err *err);
/* The worker is gone. */
enum rc passes_lose_all(struct core *c, int64_t worker, struct err *err);
/* At the start of an epoch. */
enum rc passes_forget_all(struct core *c, struct err *err);
enum rc passes_expire(struct core *c, struct err *err);
enum rc passes_put_off(struct core *c, int64_t ms, struct err *err);

#endif

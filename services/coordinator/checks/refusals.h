/* Stores the samples of an `inflight` run's batch that the trainer refused, in the transaction of the batch's answer.
 *
 *   refused, its worker promised equal bits: sample_refused, the worker is accused (accused.h)
 *   inexact, it promised nothing: the run is paused too, if its on_inexact is fail
 *   inexact, it is past a bound while the policy moves fast (verdict.h): nobody is accused, and nothing is paused
 *
 * Either way the group, whose gradient is in no sum, leaves the step: filtered, and the next complete one takes its
 * place.
 *
 * So what is stored of a step is what was summed, and a replay needs no judgement.  A trainer that is sent a batch
 * again, since it or this coordinator was started again, refuses the same groups or knows of them: one that has left
 * the step is passed over.  No group may leave a step whose sums are complete: there the trainer contradicts an earlier
 * one, and the run is paused until people have looked into it.
 *
 * On the writer's thread, inside the caller's savepoint.  Previous hop of a rollout: driver/batch_verify.c.  Next:
 * none. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_REFUSALS_H
#define LEASEHOLD_COORDINATOR_CHECKS_REFUSALS_H

#include "common/wire/training.h"
#include "services/coordinator/checks/verdict.h"
#include "services/coordinator/writer/core_state.h"

struct refused_sample {
  int64_t round, group, sample;
  bool promised;        /* by all who drew of it: equal bits */
  int64_t lag;          /* of its oldest token */
  int32_t tokens;       /* trained ones */
  int32_t given;        /* at the refusal's position: the token that was sent */
  float given_logprob;  /* and what was recorded for it */
  const struct sample_refusal *why;
};
/* A worker's samples that held. */
struct held_samples {
  int64_t worker;
  int64_t count; /* with tokens that had to agree to the bit, and did */
  struct older_tokens older;
};
struct refusals {
  int64_t run; /* 0: the batch was not verified */
  int64_t round, number, version;
  struct refused_sample *refused; /* in the batch's order, so a group's are neighbours */
  size_t refused_count;
  struct held_samples *held; /* of the groups that stay */
  size_t held_count;
};

/* A batch that was answered before is left alone.  RC_CONFLICT: see above. */
enum rc refusals_settle(struct core *c, const struct refusals *m, struct arena *arena, struct err *err);

#endif

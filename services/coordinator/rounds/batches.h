/* Batches of a round in the database: planned, answered, and sent again when the trainer was lost.
 *
 *   groups sealed --batches_select--> a plan --batches_plan--> submitted ... at the trainer ... --batches_answered-->
 *   figures are added; with the round's last batch the step begins (round_step_when_trained)
 *
 * Under `update: minibatch` a batch holds groups of one optimizer step, and the batch with a full step's last groups
 * plans that inner step too.  Groups of later steps wait until then, so that the steps come in order.
 *
 * batches_select reads, on the driver's thread; the rest is the writer's, inside the caller's savepoint.  A plan is
 * stored before anything is sent, so that a restart sends the same batch.  A group is in one batch only (I5).
 *
 * Where the trainer has room the writer selects too, with the sealing itself (batches_plan_sealed): a batch then costs
 * one commit before it is sent.  It does the same in `inflight`: the groups that wait when a step begins are planned as
 * the first batch of the next round, so that the trainer has the batch before it has the version that computes it.
 * That round is not open yet: its groups name it and are as far ahead of the trainer as they were (stream.c), and the
 * batch is stored and counted with the round (batches_open).
 *
 * Previous hop of a rollout: group_seal.c.  Next: driver/batch_build.c makes the message. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_BATCHES_H
#define LEASEHOLD_COORDINATOR_ROUNDS_BATCHES_H

#include "common/wire/training.h"
#include "services/coordinator/decide/lag.h"
#include "services/coordinator/decide/mismatch.h"
#include "services/coordinator/rounds/batch_passes.h"
#include "services/coordinator/rounds/entropies.h"
#include "services/coordinator/rounds/inner_steps.h"
#include "services/coordinator/writer/core_state.h"

struct batch_plan {
  int64_t run, round, number; /* number: of the new batch */
  int groups;
  struct group_place *places; /* [groups] */
  int64_t tokens;             /* of its groups; prompts included */
  int64_t oldest;             /* `inflight`: groups with tokens of older versions are not taken */
  int64_t step;              /* inner steps of the round that come before it */
  int missing;               /* groups of its step that were in no batch before; 0: there are no inner steps */
  bool completes;            /* with it all groups of a full step are in batches; under `minibatch` this one: */
  struct inner_step_plan inner;
};

/* The trainer's answer to a batch. */
struct batch_answer {
  int64_t run, round, number, trainer_worker;
  bool by_tokens; /* the step's denominator counts tokens, not samples */
  struct batch_stats stats;
  struct mismatch mismatch;
  struct lag_sums lag;        /* in `inflight`; else of no tokens */
  const struct group_entropies *entropies; /* [entropy_groups] of the batch's groups */
  size_t entropy_groups;
  struct interval *intervals; /* what the trainer did since its last answer */
  size_t interval_count;
};

/* Chooses the groups of plan's round, whole and as many as fit tokens_max: in the order in which they were sealed or,
 * under `update: minibatch`, those of the next step (decide/membership.h) in the order of their ordinals.  In
 * `inflight` it chooses among all the run's groups, as many as the round's step still lacks, in the order that the run
 * asks for. plan->places lives in the arena; groups 0: none is sealed, or each waits for a preprocessor. */
enum rc batches_select(struct batch_plan *plan, struct store *s, struct run_context *x,
                       const struct batch_moment *moment, int64_t tokens_max, struct arena *arena, struct err *err);
/* The number of the round's next batch.  Any thread. */
enum rc batches_number(int64_t *out, struct store *s, int64_t run, int64_t round, struct err *err);
/* How many groups are worth a batch (decide/batching.h); the plan holds those that are sealed already. round_open:
 * groups of its round are still sampled. */
int batches_worth(const struct batch_plan *plan, const struct run_config *config, bool round_open, bool trainer_idle);
/* From this commit on, a restart takes the batch as submitted.  RC_CONFLICT when a group is not sealed, or the
 * number is taken. */
enum rc batches_plan(struct core *c, const struct batch_plan *m, struct err *err);
/* Called in the transaction that seals groups while the trainer has room: plans the batch that the driver would plan
 * next, so that the driver need only send it. *planned: there was one. */
enum rc batches_plan_sealed(struct core *c, bool trainer_idle, bool *planned, struct err *err);
/* `inflight`: gives a round that has just been opened its first batch, which was planned ahead, or is planned now if
 * groups wait. */
enum rc batches_open(struct core *c, int64_t run, int64_t round, struct err *err);
/* A repeat changes nothing.  The round's last batch begins the step. */
enum rc batches_answered(struct core *c, const struct batch_answer *m, struct err *err);
/* A group that the trainer has not summed. */
struct left_group {
  int64_t round, ordinal;
  const char *reason;
  bool left; /* result: it was in the batch until now */
};
struct leaving {
  int64_t run, round, number;
  struct left_group *groups; /* [count] */
  int count;
};
/* In `inflight`: groups of a batch leave their step, and others take their places: its round is open again if it was
 * not.  RC_CONFLICT when the step has begun: its sums contain them. */
enum rc batches_leave(struct core *c, const struct leaving *l, struct err *err);
/* A new incarnation of the trainer has lost the gradients that it had accumulated.  So all batches and inner steps of
 * the round are undone again, and those that the trainer does not know are sent again. */
enum rc batches_again(struct core *c, int64_t run, int64_t round, struct err *err);
/* The trainer holds the version that the round's step makes, so it has done all batches and inner steps: those that
 * another trainer was to do again are done too, with the figures of the answers that came. */
enum rc batches_taken(struct core *c, int64_t run, int64_t round, struct err *err);

#endif

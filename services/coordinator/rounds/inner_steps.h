/* The inner steps of a round in the database (update: minibatch): planned, answered, and taken again when the trainer
 * was lost.
 *
 *   the last group of a full step is put into a batch (batches.c) --inner_steps_plan, in the same commit--> a row
 *   --driver/inner_step.c--> ... at the trainer ... --inner_steps_answered--> its digest and figures; with the last answer
 *   of the round the round's own step begins (round_step_when_trained)
 *
 * So once all members of a step are in batches, its row is there too, and a restart takes the same step.  An inner step
 * makes no version.  Its digest is kept so that a step that is taken again, by a trainer that had lost it or in a
 * replay, can be compared with the first time.  inner_steps_look reads, on the driver's thread; the rest is the
 * writer's, inside the caller's savepoint. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_INNER_STEPS_H
#define LEASEHOLD_COORDINATOR_ROUNDS_INNER_STEPS_H

#include "common/base/digest.h"
#include "common/wire/interval.h"
#include "services/coordinator/writer/core_state.h"

struct inner_step_plan {
  int64_t step; /* how many come before it in the round */
  int groups;
  int64_t ordinal_end; /* behind its last group */
  double denominator;  /* trained tokens, or samples, of its groups */
};

/* What the trainer said of an inner step. */
struct inner_step_answer {
  int64_t run, round, step, trainer_worker;
  bool by_tokens; /* the round's denominator counts tokens, not samples */
  struct digest digest;
  double grad_norm, lr;
  bool skipped;
  int64_t step_us;
  struct interval *intervals; /* what the trainer did since its last answer */
  size_t interval_count;
};

/* How many the round has so far, and the ordinal at which the groups behind them begin. */
enum rc inner_steps_look(struct store *s, int64_t run, int64_t round, int64_t *count, int64_t *ordinal,
                         struct err *err);
enum rc inner_steps_plan(struct core *c, int64_t run, int64_t round, const struct inner_step_plan *m, struct err *err);
/* A repeat changes nothing.  Other weights than the first time are an incident. */
enum rc inner_steps_answered(struct core *c, const struct inner_step_answer *m, struct err *err);
/* A new incarnation of the trainer has lost them: all of the round are to be taken again. */
enum rc inner_steps_again(struct core *c, int64_t run, int64_t round, struct err *err);

#endif

/* The life of a round in the database: opening it with its groups and samples, refilling it, and what happens once all
 * groups are in.
 *
 *   group ordinals   0 .. R-1 the round's prompts | R .. R+refills-1 refills | evaluation (decide/ordinals.h)
 *   dataset order    dataset_first .. +R-1        | + R .. the next round begins behind the last refill
 *
 * Writer's thread only, inside the caller's savepoint.  Which prompts a round has is a function of the seed and of the
 * rounds before; it must not ask how many servers there are or which group was first.
 *
 * Previous hop: publish.c (or driver/start.c for round 0).  Next: leases.c grants its samples, group_seal.c seals its
 * groups, the driver trains it. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_ROUND_H
#define LEASEHOLD_COORDINATOR_ROUNDS_ROUND_H

#include "services/coordinator/run/run_config.h"
#include "services/coordinator/writer/core_state.h"

/* Opens round `round` of the active run at `version`: R groups in dataset order, then evaluation groups when due;
 * the round behind the run's last (round == rounds) has only evaluation groups. */
enum rc round_open(struct core *c, int64_t round, int64_t version, struct err *err);
/* A training group of an open round was filtered: the next prompt in dataset order joins the round, unless refill_max
 * have joined.  Exactly one for each, so which prompts a round has in the end does not depend on the order of
 * completion: the n-th refill exists once n groups were filtered, whichever they were, and it is the same prompt. */
enum rc round_refill(struct core *c, int64_t run, int64_t round, int64_t filtered, struct err *err);
/* The training group at `place` in the run's dataset order joins the round (`inflight`, see stream.h). */
enum rc round_issue(struct core *c, int64_t round, int64_t ordinal, int64_t place, struct err *err);
/* Called when all evaluation groups of the round are in: stores their figures, and sends them as an event. */
enum rc round_evaluated(struct core *c, int64_t run, int64_t round, struct err *err);
/* Called when all groups are sealed, filtered or evaluated: stores the round's figures; then the round waits for
 * training (in an evaluate run it is done, and the run completed). */
enum rc round_generated(struct core *c, int64_t run, int64_t round, struct err *err);
/* If the round is `training`, and the batches of all member groups and all inner steps are done, the round becomes
 * `stepping` and its denominator is fixed: the trained tokens, or samples, of its member groups, those of inner steps
 * too.  It is also decided then whether the round is exact, and decided again when batches of a `stepping` round had to
 * be computed again.  Otherwise nothing happens. */
enum rc round_step_when_trained(struct core *c, int64_t run, int64_t round, bool by_tokens, struct err *err);
/* Completes the run if its last round, and the evaluating one behind it, are done and their figures stored.  Otherwise
 * nothing happens. */
enum rc round_run_complete(struct core *c, int64_t run, struct err *err);
/* Any thread, with a store of its own: do samples of the run wait for a server? */
enum rc round_samples_wait(struct store *s, int64_t run, bool *out, struct err *err);
/* Pure: is an evaluation due in this round?  As the run's `evaluation` says; round `rounds`, which comes behind the
 * last one and trains nothing, is for the run's last version. */
bool round_evaluates(const struct run_config *config, int64_t round);
/* Moves the round's state, checked. */
enum rc round_move(struct core *c, int64_t run, int64_t round, int to, struct err *err);

#endif

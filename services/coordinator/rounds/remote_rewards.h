/* Terms of a reward that a server answers (verifiers/http_term.h): a finished sample waits for them, its group is
 * sealed with the last one.
 *
 *   the result is accepted    samples: done, with what the other terms are worth    remote_rewards: a row for each term, waiting
 *     the server answers      (rewards/, one transaction:)                          the row: its value
 *     all samples, all rows   group_seal: reward = the others' sum + weight x value of each row, in the terms' order
 *
 * So the ledger holds every answer before it counts, a reward is the same whenever its answer came, and a group that
 * was sealed late is like one that was sampled late: membership, refills and steps go by ordinals.  A row that waits is
 * asked about again after a restart; one that does not is never asked about, nor written, again.
 *
 * How long a group has waited outlives a restart as well: a clock of the run goes while it is running and something
 * waits, as rewards.c tells, and a group knows what it showed when its last sample came.
 *
 * Writer's thread only, inside the caller's savepoint; no memory of its own.  Called by group_seal.c, and where samples
 * or groups are given up. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_REMOTE_REWARDS_H
#define LEASEHOLD_COORDINATOR_ROUNDS_REMOTE_REWARDS_H

#include "services/coordinator/verifiers/reward.h"
#include "services/coordinator/writer/core_state.h"

struct reward_group {
  int64_t run, round, ordinal;
};

/* This sample of the group has finished: its remote terms are waited for. */
enum rc remote_rewards_await(struct core *c, const struct reward_group *g, int32_t sample,
                             const struct reward_rule *rule, struct err *err);
/* The run's clock goes on by so much. */
enum rc remote_rewards_count(struct core *c, int64_t run, int64_t passed_ms, struct err *err);
/* The run is resumed: groups that wait have not waited yet. */
enum rc remote_rewards_begin_anew(struct core *c, int64_t run, struct err *err);
/* The value of a term that is waited for, of a sample whose tokens have this digest; *stored false: it is not waited
 * for any more, and nothing was done.  missed: nobody answered, the value is 0. */
struct remote_reward {
  int32_t sample, term;
  const struct digest *digest;
  double value;
  bool missed;
};
enum rc remote_rewards_store(struct core *c, const struct reward_group *g, const struct remote_reward *r, bool *stored,
                             struct err *err);
/* How many terms, samples and checks the group still waits for. */
enum rc remote_rewards_open(struct core *c, const struct reward_group *g, int64_t *out, struct err *err);
/* Adds what was answered to rewards[count] of a group that waits for none, and to its samples' details.  values
 * [count][rule->count]: the answered terms' are set; NULL: the rule is no sum. */
enum rc remote_rewards_add(struct core *c, const struct reward_group *g, const struct reward_rule *rule,
                           double *rewards, double *values, int count, struct err *err);

/* The sample is drawn again; the group has failed; the run has ended: nothing of it is waited for any more. */
enum rc remote_rewards_forget_sample(struct core *c, const struct reward_group *g, int64_t sample, struct err *err);
enum rc remote_rewards_forget_group(struct core *c, const struct reward_group *g, struct err *err);
enum rc remote_rewards_forget_run(struct core *c, int64_t run, struct err *err);

#endif

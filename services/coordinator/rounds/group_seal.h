/* A group takes finished samples.  Each is decoded and verified as it comes.  With the last one the group gets its
 * rewards (shuffled in a control run), its advantages (from the rewards less the overlong penalty) and its filter, and
 * is sealed, filtered or evaluated in the same transaction (I4).  Where reward servers give a part of the rewards, this
 * happens with their last answer (remote_rewards.h); where the trainer checks samples (the run's verify_samples), not
 * before its verdict.
 *
 *   result --group_read--> head --group_verify, one sample--> done_sample --group_accept--> samples: done
 *                                              +-- the last one --> sealed | filtered (refilled) | evaluated
 *
 * For a reward that is a sum, the row keeps each term's value (samples.term_values). No digest covers these values, and
 * nothing is computed from them.
 *
 * Writer's thread only, except for the pure parts; one result's memory is the caller's arena, except for the texts.
 * Digest and advantages are functions of tokens, log-probabilities and the dataset: this file must not look at time,
 * worker or order of arrival.  Where one lease completes the group, as is usual, a sample's row is written once;
 * where several do, earlier rows are written again with their advantage.  With the round's last group,
 * round_generated is called.
 *
 * Previous hop: route_results.c.  Next: batches.c, then the driver's submit-batch (driver/train.c). */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_GROUP_SEAL_H
#define LEASEHOLD_COORDINATOR_ROUNDS_GROUP_SEAL_H

#include "common/wire/lease.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/verifiers/reward.h"
#include "services/coordinator/run/run_context.h"

/* A group before the result in hand. */
struct group_head {
  int64_t run, round, ordinal;
  int64_t leased_ms; /* 0: never */
  enum group_state state;
  enum lease_purpose purpose;
  int set;         /* of evaluation: which of the run's sets; else -1 */
  int64_t prompt;  /* the dataset's item */
  int count, open; /* all its samples; those that are not done */
  int max_new_tokens;
  const char *answer, *extra;
};

/* A finished sample of the result in hand. */
struct done_sample {
  const struct sample_result *result;
  struct digest digest;
  int64_t version_first, version_last;
  const char *text; /* [text_len] */
  size_t text_len;
  struct reward_verdict verdict;
};

/* Strings live in the arena. */
enum rc group_read(struct core *c, int64_t run, int64_t round, int64_t ordinal, struct group_head *out,
                   struct arena *arena, struct err *err);
/* Fills everything but `result`, which is set; its text lies in the arena. */
enum rc group_verify(const struct run_context *x, const struct group_head *g, struct arena *arena,
                     struct done_sample *s, struct err *err);
/* Samples leased under `fence` become done.  RC_CONFLICT when one of them is not. */
enum rc group_accept(struct core *c, const struct group_head *g, int64_t fence, const struct done_sample *done,
                     int count, struct arena *arena, struct err *err);

/* Seals, filters or evaluates an open group whose samples, reward servers' answers and check (checks/README.md) are all
 * in.  Does nothing to any other group. */
enum rc group_seal_when_judged(struct core *c, int64_t run, int64_t round, int64_t ordinal, struct arena *arena,
                               struct err *err);

/* Pure: permutes rewards[n] by Philox (RNG_REWARD), the control that must not learn. */
void rewards_shuffle(double *rewards, int n, uint64_t seed, uint32_t round, uint32_t group);
/* A group whose samples all have rewards. */
struct scored_group {
  int64_t round, ordinal;
  int count, max_new_tokens;
  const int32_t *lengths; /* [count] in tokens */
};
/* Pure: fills shaped[count], the rewards less what overlong samples lose, and advantages[count] from them. In a control
 * run both rewards[count], in place, and shaped are permuted. */
void group_advantages(const struct run_config *config, const struct scored_group *g, double *rewards, double *shaped,
                      float *advantages);
/* Pure: NULL when the group can be trained on, else the reason why it is filtered. */
const char *group_filter_reason(const struct run_config *config, const float *advantages, int n);

#endif

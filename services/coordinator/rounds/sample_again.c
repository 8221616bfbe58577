/* Makes a finished sample wait for another lease. */
#include "services/coordinator/rounds/sample_again.h"

#include "services/coordinator/decide/states.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/run/run_context.h"

#define OF_SAMPLE " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4"

enum rc sample_tokens_drop(struct core *c, int64_t run, const struct again_sample *s, struct err *err) {
  const struct bind binds[] = {b_int(run), b_int(s->round), b_int(s->group), b_int(s->sample)};
  enum rc rc = store_exec(c->store, err, "DELETE FROM rollouts" OF_SAMPLE, binds, 4);
  if (rc == RC_OK) rc = store_exec(c->store, err, "DELETE FROM segments" OF_SAMPLE, binds, 4);
  if (rc == RC_OK) rc = store_exec(c->store, err, "DELETE FROM handed_back" OF_SAMPLE, binds, 4);
  return rc == RC_OK ? store_exec(c->store, err, "DELETE FROM spans" OF_SAMPLE, binds, 4) : rc;
}

enum rc sample_again(struct core *c, int64_t run, const struct again_sample *s, struct err *err) {
  enum rc rc = sample_tokens_drop(c, run, s, err);
  if (rc == RC_OK && reward_remote_terms(&c->context->config.verifier) > 0)
    rc = remote_rewards_forget_sample(c, &(struct reward_group){run, s->round, s->group}, s->sample, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE samples SET state = ?5, tokens = 0, finish = NULL, reward = NULL, well_formed = NULL, "
                    "version_first = NULL, version_last = NULL, digest = NULL, detail = NULL" OF_SAMPLE,
                    BINDS(b_int(run), b_int(s->round), b_int(s->group), b_int(s->sample), b_int(SAMPLE_WAITING)));
  if (rc == RC_OK) /* of its siblings too: they were relative to its reward */
    rc = store_exec(c->store, err,
                    "UPDATE samples SET advantage = NULL WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3",
                    BINDS(b_int(run), b_int(s->round), b_int(s->group)));
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "UPDATE groups SET samples_open = samples_open + 1, samples_waiting = samples_waiting + 1, "
      "done_samples = done_samples - 1, done_tokens = done_tokens - ?4, waiting_ms = coalesce(waiting_ms, "
      "?5) WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
      BINDS(b_int(run), b_int(s->round), b_int(s->group), b_int(s->tokens), b_int(c->wall_ms)));
}

/* Adds closed groups to their round's sums, and makes its means of them. */
#include "services/coordinator/records/round_sums.h"

#include "services/coordinator/decide/stored.h"

/* Of training and of evaluation groups. */
struct part {
  int64_t groups, samples, well_formed, tokens;
  double rewards;
};

enum rc round_sums_group(struct core *c, const struct closed_group *g, struct err *err) {
  const struct part all = {.groups = 1,
                           .samples = g->samples,
                           .well_formed = g->well_formed,
                           .tokens = g->tokens,
                           .rewards = g->rewards},
                    none = {0};
  const bool trains = g->purpose == LEASE_TRAINING, taken_later = g->stream && g->state == GROUP_SEALED;
  const struct part t = trains && !taken_later ? all : none, e = trains ? none : all;
  const bool own = g->counts_for == g->round;
  const enum rc rc = own ? RC_OK
                         : store_exec(c->store, err,
                                      "UPDATE rounds SET groups_open = groups_open - 1 WHERE run = ?1 AND round = ?2",
                                      BINDS(b_int(g->run), b_int(g->round)));
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "UPDATE rounds SET groups_open = groups_open - ?18, groups_trained = groups_trained + ?3, groups_filtered = "
      "groups_filtered + ?4, sampled_tokens = sampled_tokens + ?5, groups_sealed = groups_sealed + ?3, groups_stale = "
      "groups_stale + (?3 AND (?6 <> version OR ?7 <> version)), first_sealed_ms = coalesce(first_sealed_ms, ?8), "
      "training_samples = training_samples + ?9, training_well_formed = training_well_formed + ?10, training_tokens = "
      "training_tokens + ?11, training_rewards = training_rewards + ?12, evaluation_groups = evaluation_groups + ?13, "
      "evaluation_samples = evaluation_samples + ?14, evaluation_well_formed = evaluation_well_formed + ?15, "
      "evaluation_tokens = evaluation_tokens + ?16, evaluation_rewards = evaluation_rewards + ?17 WHERE run = ?1 AND "
      "round = ?2",
      BINDS(b_int(g->run), b_int(g->counts_for), b_int(g->state == GROUP_SEALED && !g->stream),
            b_int(g->state == GROUP_FILTERED), b_int(g->tokens), b_int(g->version_first), b_int(g->version_last),
            b_int(c->wall_ms), b_int(t.samples), b_int(t.well_formed), b_int(t.tokens), b_real(t.rewards),
            b_int(e.groups), b_int(e.samples), b_int(e.well_formed), b_int(e.tokens), b_real(e.rewards), b_int(own)));
}

enum rc round_sums_taken(struct core *c, int64_t run, int64_t round, int64_t batch, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE rounds SET (training_samples, training_well_formed, training_tokens, training_rewards) = "
      "(SELECT training_samples + count(*), training_well_formed + coalesce(sum(s.well_formed), 0), "
      "training_tokens + coalesce(sum(s.tokens), 0), training_rewards + coalesce(sum(s.reward), 0.0) FROM "
      "groups g INDEXED BY groups_batch CROSS JOIN samples s ON s.run = g.run AND s.round = g.round AND "
      "s.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.trained_in = ?2 AND g.batch = ?3) WHERE run = ?1 "
      "AND round = ?2",
      BINDS(b_int(run), b_int(round), b_int(batch)));
}

enum rc round_sums_means(struct core *c, int64_t run, int64_t round, bool evaluates, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE rounds SET generated_ms = ?3, (reward_mean, well_formed_mean, completion_tokens_mean) = (SELECT "
      "rewards / samples, 1.0 * well_formed / samples, 1.0 * tokens / samples FROM (SELECT training_rewards + ?4 * "
      "evaluation_rewards AS rewards, training_well_formed + ?4 * evaluation_well_formed AS well_formed, "
      "training_tokens + ?4 * evaluation_tokens AS tokens, nullif(training_samples + ?4 * evaluation_samples, 0) AS "
      "samples FROM rounds WHERE run = ?1 AND round = ?2)) WHERE run = ?1 AND round = ?2",
      BINDS(b_int(run), b_int(round), b_int(c->wall_ms), b_int(evaluates)));
}

/* A sample of several versions counts by its oldest. */
enum rc round_sums_evaluation(struct core *c, int64_t run, int64_t round, struct err *err) {
  return store_exec(c->store, err,
                    "INSERT INTO evaluations (run, round, version, problems, samples, accuracy, well_formed, at_ms) "
                    "SELECT run, round, coalesce((SELECT min(version_first) FROM groups g WHERE g.run = ?1 AND g.round "
                    "= ?2 AND g.purpose = " SQL_PURPOSE_EVALUATION
                    "), version), evaluation_groups, evaluation_samples, evaluation_rewards / "
                    "evaluation_samples, 1.0 * evaluation_well_formed / evaluation_samples, ?3 FROM rounds WHERE run = "
                    "?1 AND round = ?2 AND evaluation_samples > 0",
                    BINDS(b_int(run), b_int(round), b_int(c->wall_ms)));
}

enum rc round_sums_undone(struct store *s, int64_t run, int64_t round, int64_t *out, struct err *err) {
  return store_int(s, out, err, "SELECT jobs_undone + groups_sealed FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
}

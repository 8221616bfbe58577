/* A run's configuration: JSON in, defaults resolved, every field bounded, unknown keys refused; stored resolved, and
 * hashed.
 *
 * Called by route_runs.c (an HTTP thread) and, on the stored text, by run_context.c: a written configuration must
 * read back to the same hash.  Strings live in the caller's arena.  It knows no database and no files; run_context.c
 * finds out whether the dataset exists. */
#ifndef LEASEHOLD_COORDINATOR_RUN_RUN_CONFIG_H
#define LEASEHOLD_COORDINATOR_RUN_RUN_CONFIG_H

#include "common/base/digest.h"
#include "common/json/json.h"
#include "common/model/learning/loss.h"
#include "common/wire/training.h"
#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/run/curriculum.h"
#include "services/coordinator/run/evaluation_config.h"
#include "services/coordinator/run/reading.h"
#include "services/coordinator/run/sampling_config.h"
#include "services/coordinator/verifiers/reward.h"

enum run_mode { MODE_SYNC, MODE_PIPELINED, MODE_INFLIGHT };
/* Which trainable groups a step takes first: those that were complete first, or those that were issued first. */
enum stream_order { ORDER_COMPLETION, ORDER_SUBMISSION };
enum filter_kind { FILTER_KEEP, FILTER_SHRINK, FILTER_REFILL };
/* What becomes of a group whose log-probabilities are too far from the trainer's, where no equality is promised. */
enum inexact_rule { INEXACT_MARK, INEXACT_DROP, INEXACT_FAIL };

/* How `start` names the version of a run. */
enum start_named { START_NUMBERED, START_BEST, START_LATEST };

/* A file of the dataset. */
struct dataset_source {
  const char *path;
  int32_t weight; /* of every sum-of-weights prompts this many come from here; 0 for all: as many as it has lines */
  struct reading reading;
};

/* "Left out" in these comments means that the written configuration does not have the key. */
struct run_config {
  const char *name;   /* free text, "" */
  const char *recipe; /* gives the values of fields that were not given (recipe.h); "", and left out: none */
  enum run_mode mode; /* "pipelined"; cross_entropy and evaluate runs are "sync" */
  /* "update": training.update.  "strict": one optimizer step a round over all its groups.  "minibatch": one for every
   * groups_per_step of them, in the order of their ordinals (decide/membership.h); the round's own step takes those
   * left.  Behaviour log-probabilities stay those of the round's version, which is superseded once the round is
   * consumed. */
  int32_t groups_per_step; /* "minibatch": 1 .. groups_per_round; "strict": 0, left out; "inflight": that */
  /* "inflight": a round is an optimizer step, which takes the first groups_per_step trainable groups by `order`, and
   * weights are swapped while samples are drawn.  Else 0, and left out. */
  int32_t max_lag;            /* versions that may come between a token and the step that trains on it */
  int32_t samples_ahead;      /* groups that may be issued and in no step yet */
  bool kv_recompute;          /* "kv": "recompute" instead of "keep": running samples' KV under every new version */
  enum stream_order order;
  /* "full": "drop_oldest" instead of "block": what happens when samples_ahead complete groups wait for a step */
  bool drops_oldest;
  uint64_t seed;
  int32_t rounds;           /* "evaluate": 1 */
  /* "dataset": {"path", "shuffle"} and how it is read (reading.h), or {"sources": [{"path", "weight", ...}], ...},
   * whose readings are the dataset's where they have none of their own.  Relative to the coordinator's data
   * directory. */
  struct dataset_source *sources;
  int source_count;
  bool is_mixture; /* `sources` were given */
  struct reading reading;
  bool dataset_shuffle;
  struct curriculum_config curriculum; /* "dataset": {"curriculum": {...}}; of sync and pipelined runs on rollouts */
  int32_t groups_per_round;  /* R; cross_entropy: gradient units per step; evaluate: 0 means the whole dataset */
  int32_t samples_per_group; /* G; cross_entropy: sequences per unit */
  int32_t lease_samples_max; /* a lease holds at most this many samples; 0: a whole group */
  struct sampling_config sampling;
  struct reward_rule verifier;   /* "verifier": {"kind": "numeric"|"math"|..., "shuffle_rewards": false}, or {"terms":
                                  * [...]}: verifiers/reward_config.h */
  bool shuffle_rewards;          /* the control: rewards permuted within each group by Philox (RNG_REWARD) */
  enum advantage_kind advantage; /* "advantage": {"kind", "epsilon"} */
  double advantage_epsilon;
  /* "overlong": {"buffer"}: completions within this many tokens of their longest length lose reward, see
   * decide/overlong.h; 0, and left out: none do. */
  int32_t overlong_buffer;
  bool mask_truncated; /* samples that ended by their length count in their group, and their tokens are not trained
                        * on */
  /* "filter": {"zero_advantage": "keep"|"shrink"|"refill", "refill_max"}: what becomes of a group whose advantages are
   * all zero.  keep: trained on, with a gradient of zero; shrink: left out of the step and its denominator; refill:
   * left out, and the next prompt in dataset order is added to the round, refill_max times at most (0:
   * groups_per_round). */
  enum filter_kind zero_advantage;
  int32_t refill_max;
  struct training_config training; /* "training": {...}; its objective decides what the run is */
  /* "evaluation": extra groups, sampled and verified, never trained on: run/evaluation_config.h */
  struct evaluation_config evaluation;
  /* dispatch: order only, never membership.  "frontier": "priority"|"gate"|"off"; "frontier_groups": its size, 0: from
   * the trainer's measured drain rate; "aging_ms": a group that waits longer goes first */
  enum frontier_kind frontier;
  int32_t frontier_groups, aging_ms;
  /* Samples are drawn again by the trainer, before their group is sealed or, in `inflight`, by the step's own pass
   * (checks/README.md); of runs on rollouts.  "on_inexact": "mark" | "drop" | "fail", of runs that are checked; "mark"
   * is left out. */
  bool verify_samples, says_verify_samples; /* says_: was it given?  Not in runs older than the checks */
  enum inexact_rule on_inexact;
  int32_t group_timeout_ms; /* from a group's first lease on; then it has failed, and the round is not exact */
  /* Where training.kl_coefficient is not 0: how long a group waits for a preprocessor that has begun it; 0, and left
   * out: RUN_PASS_TIMEOUT_MS (run_pass_timeout_ms). */
  int32_t pass_timeout_ms;
  int32_t stage_timeout_ms; /* pushing a version to one server */
  /* cross_entropy: rounds from one push of weights to the next; 0: only after the last.  Other objectives: always 1 */
  int32_t publish_every;
  /* Rollouts of this many of the newest consumed rounds are kept, and those that a replay may need; 0: of all
   * rounds. */
  int32_t keep_rounds;
  /* Checkpoints of the run that the trainer keeps: this many of the newest (0, and left out: as many as its
   * --keep-checkpoints says), and those of the versions whose evaluations had the best figures. */
  int32_t keep_last;
  struct keep_best keep_best;
  /* Where version 0's weights come from.  "model" for what trains, "current" for evaluate, where nothing is said. */
  struct run_start start;
  /* "start": {"run", "version": "best" | "latest"} as it was posted: kept_versions_find puts the number into `start`,
   * which is what is stored. */
  enum start_named start_named;
};

enum { RUN_PASS_TIMEOUT_MS = 10000 };
static inline int32_t run_pass_timeout_ms(const struct run_config *c) {
  return c->pass_timeout_ms ? c->pass_timeout_ms : RUN_PASS_TIMEOUT_MS;
}

/* A posted configuration.  Strings and arrays live in the arena. */
enum rc run_config_parse(struct run_config *out, const struct json *body, struct arena *arena, struct err *err);
/* A stored configuration.  One from before there was `start` keeps START_UNNAMED and is written as it came. */
enum rc run_config_parse_stored(struct run_config *out, const char *text, size_t len, struct arena *arena,
                                struct err *err);
/* The resolved configuration, in a fixed order.  Keys that are absent: `evaluation`, `recipe`, `mask_truncated`,
 * `overlong`, `keep_rounds`, `keep_last`, `keep_best`, `pass_timeout_ms`, `ignore_eos`, `on_inexact` "mark",
 * `groups_per_step`, `full` "block" and those of `inflight` where there is none, and `verify_samples` and
 * `tokenizer_eos` where they were not known, so that older configurations keep their hash.  A configuration that is
 * posted again as it was written stays the same, hash included. */
void run_config_write(const struct run_config *c, struct json_writer *w);
/* Are the same files read in the same way?  Then an item of one run's dataset is the same in the other's. */
bool run_config_same_dataset(const struct run_config *a, const struct run_config *b);
/* SHA-256 of run_config_write's bytes. */
void run_config_hash(const struct run_config *c, struct digest *out);

#endif

/* Reads, resolves, writes and hashes a run's configuration: one reader for every nested object, and one writer, whose
 * fixed order the hash covers. */
#include "services/coordinator/run/run_config.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/wire/fields.h"
#include "services/coordinator/run/other_names.h"
#include "services/coordinator/run/recipe.h"
#include "services/coordinator/verifiers/reward_config.h"

#define FIELDS(...) \
  (const struct json_field[]){__VA_ARGS__}, sizeof((const struct json_field[]){__VA_ARGS__}) / sizeof(struct json_field)

static const char *const mode_names[] = {"sync", "pipelined", "inflight"};
static const char *const update_names[] = {
    [UPDATE_STRICT] = "strict", [UPDATE_MINIBATCH] = "minibatch", [UPDATE_INFLIGHT] = "inflight"};
static const char *const order_names[] = {[ORDER_COMPLETION] = "completion", [ORDER_SUBMISSION] = "submission"};
static const char *const kv_names[] = {"keep", "recompute"};
static const char *const filter_names[] = {
    [FILTER_KEEP] = "keep", [FILTER_SHRINK] = "shrink", [FILTER_REFILL] = "refill"};
static const char *const frontier_names[] = {
    [FRONTIER_PRIORITY] = "priority", [FRONTIER_GATE] = "gate", [FRONTIER_OFF] = "off"};

static const char *const inexact_names[] = {[INEXACT_MARK] = "mark", [INEXACT_DROP] = "drop", [INEXACT_FAIL] = "fail"};
static const char *const full_names[] = {"block", "drop_oldest"};

static enum rc in_field(enum rc rc, const char *name, struct err *err) {
  if (rc != RC_OK) err_in_field(err, name);
  return rc;
}

/* A reading that is not named is its parent's, and stays out of what is written. */
static void inherit(struct reading *r, const struct reading *parent) {
  *r = *parent;
  r->named = false;
}

static enum rc read_source(struct dataset_source *s, const struct run_config *c, const struct json *v,
                           struct arena *arena, struct err *err) {
  struct reading_given given;
  reading_given_init(&given);
  inherit(&s->reading, &c->reading);
  const enum rc rc = json_fields(
      v,
      FIELDS({.name = "path",
              .kind = FIELD_STRING,
              .target = &s->path,
              .required = true,
              .min = 1,
              .max = LIMIT_PATH_MAX - 1},
             {.name = "weight", .kind = FIELD_I32, .target = &s->weight, .min = 1, .max = DATASET_WEIGHT_MAX},
             READING_FIELDS(&given)),
      UNKNOWN_REFUSED, arena, err);
  return rc == RC_OK ? reading_resolve(&s->reading, &given, arena, err) : rc;
}

static enum rc read_sources(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  const size_t n = json_type_of(v) == JSON_ARRAY ? json_length(v) : 0;
  int weighted = 0;
  if (n < 1 || n > DATASET_PARTS_MAX)
    return err_set(err, RC_INVALID, "sources", "expected an array of 1 to %d sources", DATASET_PARTS_MAX);
  c->sources = arena_alloc(arena, n, sizeof *c->sources);
  if (!c->sources) return err_set(err, RC_NO_MEMORY, NULL, "the dataset's sources were refused memory");
  for (size_t i = 0; i < n; i++) {
    char name[32];
    const enum rc rc = read_source(&c->sources[i], c, json_at(v, i), arena, err);
    snprintf(name, sizeof name, "sources[%zu]", i);
    if (rc != RC_OK) return in_field(rc, name, err);
    weighted += c->sources[i].weight > 0;
  }
  c->source_count = (int)n;
  c->is_mixture = true;
  if (weighted == 0 || weighted == c->source_count) return RC_OK;
  return err_set(err, RC_INVALID, "sources", "expected a `weight` in every source or in none, got %d of %d", weighted,
                 c->source_count);
}

static enum rc read_dataset(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  struct reading_given given;
  const struct json *sources = NULL, *curriculum = NULL;
  const char *path = NULL;
  reading_given_init(&given);
  enum rc rc = json_fields(
      v,
      FIELDS({.name = "path", .kind = FIELD_STRING, .target = &path, .min = 1, .max = LIMIT_PATH_MAX - 1},
             {.name = "sources", .kind = FIELD_VALUE, .target = &sources},
             {.name = "shuffle", .kind = FIELD_BOOL, .target = &c->dataset_shuffle},
             {.name = "curriculum", .kind = FIELD_VALUE, .target = &curriculum}, READING_FIELDS(&given)),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = curriculum_config_read(&c->curriculum, curriculum, arena, err);
  if (rc == RC_OK) rc = reading_resolve(&c->reading, &given, arena, err);
  if (rc == RC_OK && !path == !sources)
    rc = err_set(err, RC_INVALID, path ? "sources" : "path", "expected one of `path` and `sources`, got %s",
                 path ? "both" : "neither");
  if (rc == RC_OK && sources) rc = read_sources(c, sources, arena, err);
  if (rc == RC_OK && path) {
    c->sources = arena_alloc(arena, 1, sizeof *c->sources);
    if (!c->sources) return err_set(err, RC_NO_MEMORY, NULL, "the dataset's source was refused memory");
    c->sources[0].path = path;
    inherit(&c->sources[0].reading, &c->reading);
    c->source_count = 1;
  }
  return in_field(rc, "dataset", err);
}

static enum rc read_sampling(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  return in_field(sampling_config_read(&c->sampling, v, arena, err), "sampling", err);
}

static enum rc read_verifier(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  return in_field(reward_rule_read(&c->verifier, v, &c->shuffle_rewards, arena, err), "verifier", err);
}

static enum rc read_advantage(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  const char *kind = advantage_kind_name(c->advantage);
  enum rc rc =
      json_fields(v,
                  FIELDS({.name = "kind", .kind = FIELD_STRING, .target = &kind, .min = 1, .max = 32},
                         {.name = "epsilon", .kind = FIELD_F64, .target = &c->advantage_epsilon, .min = 0, .max = 1}),
                  UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = advantage_kind_parse(&c->advantage, kind, err);
  return in_field(rc, "advantage", err);
}

static enum rc read_overlong(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  const enum rc rc = json_fields(v,
                                 FIELDS({.name = "buffer",
                                         .kind = FIELD_I32,
                                         .target = &c->overlong_buffer,
                                         .required = true,
                                         .min = 0,
                                         .max = LIMIT_NEW_TOKENS}),
                                 UNKNOWN_REFUSED, arena, err);
  return in_field(rc, "overlong", err);
}

static enum rc read_filter(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  const char *name = filter_names[c->zero_advantage];
  int index = 0;
  enum rc rc = json_fields(
      v,
      FIELDS(
          {.name = "zero_advantage", .kind = FIELD_STRING, .target = &name, .min = 1, .max = 32},
          {.name = "refill_max", .kind = FIELD_I32, .target = &c->refill_max, .min = 0, .max = LIMIT_GROUPS_PER_ROUND}),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = name_index(&index, name, filter_names, 3, "zero_advantage", err);
  if (rc == RC_OK) c->zero_advantage = (enum filter_kind)index;
  return in_field(rc, "filter", err);
}

static enum rc read_start(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  static const char *const names[] = {[START_BEST - 1] = "best", [START_LATEST - 1] = "latest"};
  const struct json *version = json_get(v, "version");
  const char *name = "";
  int index = 0;
  if (!version || json_type_of(version) != JSON_STRING)
    return in_field(run_start_read(&c->start, v, arena, err), "start", err);
  c->start = (struct run_start){.from = START_CHECKPOINT};
  enum rc rc = json_fields(
      v,
      FIELDS({.name = "run",
              .kind = FIELD_STRING,
              .target = &c->start.run,
              .required = true,
              .min = 1,
              .max = LIMIT_NAME_MAX - 1},
             {.name = "version", .kind = FIELD_STRING, .target = &name, .required = true, .min = 1, .max = 32}),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = name_index(&index, name, names, 2, "version", err);
  c->start_named = (enum start_named)(index + 1);
  return in_field(rc, "start", err);
}

static void set_defaults(struct run_config *c) {
  *c = (struct run_config){.name = "",
                           .recipe = "",
                           .mode = MODE_PIPELINED,
                           .rounds = 100,
                           .dataset_shuffle = true,
                           .groups_per_round = 64,
                           .samples_per_group = 8,
                           .sampling = {.temperature = 1.0, .max_new_tokens = 256},
                           .advantage = ADVANTAGE_GROUP,
                           .advantage_epsilon = 1e-4,
                           .frontier = FRONTIER_PRIORITY,
                           .aging_ms = 30000,
                           .max_lag = -1, /* not given */
                           .group_timeout_ms = 1800000,
                           .stage_timeout_ms = 10000,
                           .publish_every = 1};
  reward_rule_of(&c->verifier, VERIFIER_NUMERIC);
  training_config_defaults(&c->training);
  reading_defaults(&c->reading);
  evaluation_config_defaults(&c->evaluation);
}

/* PipelineRL's values; its others are every run's defaults.  Ratios count as at most 5. */
static void set_inflight_defaults(struct run_config *c) {
  c->advantage = ADVANTAGE_LEAVE_ONE_OUT;
  c->training.objective = "reinforce";
  c->training.clip_high = 4;
  c->training.normalization = "samples";
}

static bool names_inflight(const struct json *body) {
  const struct json *mode = json_type_of(body) == JSON_OBJECT ? json_get(body, "mode") : NULL;
  return mode && json_type_of(mode) == JSON_STRING && strcmp(json_string(mode, NULL), mode_names[MODE_INFLIGHT]) == 0;
}

/* The values of the recipe that a posted configuration names, before its fields are read.  A name that is no text is
 * refused with the fields. *out NULL: it names none. */
static enum rc read_recipe(struct run_config *c, const struct recipe **out, const struct json *body, struct err *err) {
  const struct json *name = json_type_of(body) == JSON_OBJECT ? json_get(body, "recipe") : NULL;
  *out = NULL;
  if (!name || json_type_of(name) != JSON_STRING) return RC_OK;
  const enum rc rc = recipe_find(out, json_string(name, NULL), err);
  if (rc != RC_OK) return rc;
  const struct recipe *r = *out;
  c->training.objective = r->objective;
  c->training.normalization = r->normalization;
  c->training.clip_low = r->clip_low;
  c->training.clip_high = r->clip_high;
  c->training.kl_coefficient = r->kl_coefficient;
  c->training.kl_estimator = r->kl_estimator;
  c->training.kl_in = r->kl_in;
  if (r->lr > 0) c->training.lr = r->lr;
  c->advantage = r->advantage;
  c->zero_advantage = r->refills ? FILTER_REFILL : FILTER_KEEP;
  if (r->whole_round) c->mode = MODE_SYNC;
  if (r->teaches) reward_rule_of(&c->verifier, VERIFIER_NONE);
  return RC_OK;
}

static bool is_objective(const struct run_config *c, const char *objective) {
  return strcmp(c->training.objective, objective) == 0;
}

/* Fields whose value is one of a few names, as they were given; NULL: left out. */
struct choices {
  const char *mode, *update, *frontier, *kv, *order, *full, *on_inexact;
};

/* `inflight` is a mode and an update rule: one does not go without the other. */
static enum rc read_update(struct run_config *c, const char *given, struct err *err) {
  int update = UPDATE_STRICT;
  if (c->mode == MODE_INFLIGHT) update = UPDATE_INFLIGHT;
  if (!given) {
    c->training.update = (enum update_rule)update;
    return RC_OK;
  }
  const enum rc rc = name_index(&update, given, update_names, 3, "update", err);
  c->training.update = (enum update_rule)update;
  if (rc != RC_OK || (c->mode == MODE_INFLIGHT) == (update == UPDATE_INFLIGHT)) return rc;
  return err_set(err, RC_INVALID, "update", "update '%s' does not exist in mode '%s': leave `update` out", given,
                 mode_names[c->mode]);
}

static enum rc read_stream(struct run_config *c, const struct choices *given, struct err *err) {
  int kv = 0, order = ORDER_COMPLETION, full = 0;
  const char *const said = given->kv               ? "kv"
                           : given->order          ? "order"
                           : given->full           ? "full"
                           : c->max_lag >= 0       ? "max_lag"
                           : c->samples_ahead > 0 ? "samples_ahead"
                                                  : NULL;
  if (c->mode != MODE_INFLIGHT && said)
    return err_set(err, RC_INVALID, said, "`%s` is for mode 'inflight', this run's is '%s'", said, mode_names[c->mode]);
  enum rc rc = given->kv ? name_index(&kv, given->kv, kv_names, 2, "kv", err) : RC_OK;
  if (rc == RC_OK && given->order) rc = name_index(&order, given->order, order_names, 2, "order", err);
  if (rc == RC_OK && given->full) rc = name_index(&full, given->full, full_names, 2, "full", err);
  c->drops_oldest = full == 1;
  c->kv_recompute = kv == 1;
  c->order = (enum stream_order)order;
  return rc;
}

static enum rc read_choices(struct run_config *c, const struct choices *given, struct err *err) {
  int mode = 0, frontier = 0, inexact = 0;
  enum rc rc = name_index(&mode, given->mode, mode_names, 3, "mode", err);
  if (rc == RC_OK) rc = name_index(&frontier, given->frontier, frontier_names, 3, "frontier", err);
  if (rc == RC_OK && given->on_inexact)
    rc = name_index(&inexact, given->on_inexact, inexact_names, 3, "on_inexact", err);
  c->on_inexact = (enum inexact_rule)inexact;
  c->mode = (enum run_mode)mode;
  c->frontier = (enum frontier_kind)frontier;
  if (rc == RC_OK) rc = read_update(c, given->update, err); /* unless `training` says otherwise, which read_training
                                                             * refuses */
  return rc == RC_OK ? read_stream(c, given, err) : rc;
}

/* `training` is what the trainer gets, so its `update` is the run's. */
static enum rc read_training(struct run_config *c, const struct json *v, struct arena *arena, struct err *err) {
  const enum update_rule update = c->training.update;
  enum rc rc = training_config_read(&c->training, v, arena, err);
  if (rc == RC_OK && c->training.update != update)
    rc = err_set(err, RC_INVALID, "update", "expected '%s', as the run's own `update` says, got '%s'",
                 update_names[update], update_names[c->training.update]);
  return in_field(rc, "training", err);
}

enum { MAX_LAG = 8, STEPS_AHEAD = 2 }; /* as PipelineRL's published runs have it, about; and two steps' worth */

/* A step is a round, so both have as many groups; the default for either is the other. */
static enum rc resolve_stream(struct run_config *c, bool has_groups_per_round, struct err *err) {
  if (c->groups_per_step && !has_groups_per_round) c->groups_per_round = c->groups_per_step;
  if (!c->groups_per_step) c->groups_per_step = c->groups_per_round;
  if (c->groups_per_step != c->groups_per_round)
    return err_set(
        err, RC_INVALID, "groups_per_step",
        "in mode 'inflight' a round is a step: expected groups_per_round (%d), got %d; leave one of them out",
        c->groups_per_round, c->groups_per_step);
  if (c->max_lag < 0) c->max_lag = MAX_LAG;
  const int64_t step = (int64_t)c->groups_per_step * c->samples_per_group;
  const int64_t most = (int64_t)LIMIT_GROUPS_PER_ROUND * c->samples_per_group;
  if (c->samples_ahead == 0) c->samples_ahead = (int32_t)(STEPS_AHEAD * step < most ? STEPS_AHEAD * step : most);
  if (c->samples_ahead > most)
    return err_set(err, RC_INVALID, "samples_ahead", "expected at most %d groups, %lld samples, got %d",
                   LIMIT_GROUPS_PER_ROUND, (long long)most, c->samples_ahead);
  if (c->samples_ahead >= c->samples_per_group) return RC_OK;
  return err_set(err, RC_INVALID, "samples_ahead", "expected at least a group (%d samples), got %d",
                 c->samples_per_group, c->samples_ahead);
}

static enum rc resolve_update(const struct run_config *c, struct err *err) {
  if (c->mode == MODE_INFLIGHT) return RC_OK; /* resolve_stream */
  if (c->training.update == UPDATE_STRICT) {
    if (c->groups_per_step == 0) return RC_OK;
    return err_set(err, RC_INVALID, "groups_per_step",
                   "update 'strict' steps once a round, over all its groups: leave groups_per_step out, or set update "
                   "'minibatch'");
  }
  if (c->groups_per_step >= 1 && c->groups_per_step <= c->groups_per_round) return RC_OK;
  return err_set(err, RC_INVALID, "groups_per_step",
                 "update 'minibatch' steps once for every groups_per_step groups: expected 1 to groups_per_round "
                 "(%d), got %d",
                 c->groups_per_round, c->groups_per_step);
}

/* Optimizer steps of the run, when no group is filtered. */
static int32_t steps_in_all(const struct run_config *c) {
  if (c->groups_per_step == 0 || c->mode == MODE_INFLIGHT) return c->rounds;
  const int64_t steps = (int64_t)c->rounds * ((c->groups_per_round + c->groups_per_step - 1) / c->groups_per_step);
  return steps < INT32_MAX ? (int32_t)steps : INT32_MAX;
}

/* A curriculum needs rounds whose samples are all in before prompts of the next one are chosen. */
static enum rc resolve_curriculum(const struct run_config *c, struct err *err) {
  if (!c->curriculum.given) return RC_OK;
  if (c->mode == MODE_INFLIGHT)
    return err_set(
        err, RC_INVALID, "dataset.curriculum",
        "mode 'inflight' chooses prompts before the earlier ones are finished: expected mode 'sync' or 'pipelined'");
  if (is_objective(c, "evaluate") || is_objective(c, "cross_entropy"))
    return err_set(err, RC_INVALID, "dataset.curriculum", "objective '%s' goes over the dataset as it is",
                   c->training.objective);
  return RC_OK;
}

/* A mode or an objective may have nothing to keep, or nothing to evaluate at its end. */
static enum rc resolve_kept(const struct run_config *c, bool evaluates, struct err *err) {
  const bool inflight = c->mode == MODE_INFLIGHT;
  if (evaluates && (c->keep_last || c->keep_best.count))
    return err_set(err, RC_INVALID, c->keep_last ? "keep_last" : "keep_best",
                   "objective 'evaluate' makes no checkpoints: set it in the run that trains");
  if (inflight && c->keep_best.count)
    return err_set(
        err, RC_INVALID, "keep_best",
        "in mode 'inflight' an evaluation covers several versions, so none of them is the best: expected mode 'sync' "
        "or 'pipelined', or keep_last");
  if (inflight && c->evaluation.after)
    return err_set(err, RC_INVALID, "evaluation.after",
                   "mode 'inflight' ends with its last step: start a run with objective 'evaluate' afterwards");
  return RC_OK;
}

/* Advantages: what the mode, the filter and a KL term in the rewards need of their kind. */
static enum rc resolve_advantage(struct run_config *c, struct err *err) {
  const char *name = advantage_kind_name(c->advantage);
  const bool whole_round = c->advantage == ADVANTAGE_BATCH || c->advantage == ADVANTAGE_BATCH_CENTERED;
  const bool in_reward = strcmp(c->training.kl_in, "reward") == 0;
  c->training.advantage = in_reward ? name : "";
  c->training.length_max = strcmp(c->training.normalization, "length") == 0 ? c->sampling.max_new_tokens : 0;
  if (whole_round && c->mode != MODE_SYNC)
    return err_set(
        err, RC_INVALID, "mode",
        "advantage.kind '%s' needs the rewards of the whole round before the first gradient: set mode 'sync', got '%s'",
        name, mode_names[c->mode]);
  if (c->advantage == ADVANTAGE_BATCH && c->zero_advantage != FILTER_KEEP)
    return err_set(err, RC_INVALID, "filter.zero_advantage",
                   "advantage.kind 'batch' is not relative to its group, so no group's advantages are all zero: set "
                   "'keep', got '%s'",
                   filter_names[c->zero_advantage]);
  if (in_reward && !advantage_is_linear(c->advantage))
    return err_set(err, RC_INVALID, "advantage.kind",
                   "kl_in 'reward' needs an advantage that is linear in the rewards: 'leave_one_out' or "
                   "'group_centered', got '%s'",
                   name);
  return RC_OK;
}

static enum rc resolve_checks(struct run_config *c, bool trains_on_rollouts, struct err *err) {
  if (!trains_on_rollouts) c->verify_samples = c->says_verify_samples = false;
  if (!c->verify_samples && c->on_inexact != INEXACT_MARK)
    return err_set(err, RC_INVALID, "on_inexact", "expected verify_samples with '%s', which decides after a check",
                   inexact_names[c->on_inexact]);
  return RC_OK;
}

/* What depends on more than one field. */
static enum rc resolve(struct run_config *c, bool has_total_steps, bool has_groups_per_round, struct err *err) {
  bool evaluates = is_objective(c, "evaluate"), supervised = is_objective(c, "cross_entropy");
  if (c->mode == MODE_INFLIGHT && (evaluates || supervised))
    return err_set(err, RC_INVALID, "mode", "objective '%s' has nothing to overlap: leave `mode` out",
                   c->training.objective);
  if (!evaluates && c->groups_per_round < 1)
    return err_set(err, RC_INVALID, "groups_per_round",
                   "expected at least 1, got %d; 0 (the whole dataset) is for objective 'evaluate'",
                   c->groups_per_round);
  if (c->mode == MODE_INFLIGHT) {
    const enum rc rc = resolve_stream(c, has_groups_per_round, err);
    if (rc != RC_OK) return rc;
  } else {
    c->max_lag = 0;
  }
  if (c->training.update != UPDATE_STRICT && (evaluates || supervised)) /* named by a recipe: `training` is not read */
    return err_set(err, RC_INVALID, "update", "objective '%s' takes update 'strict', got '%s'", c->training.objective,
                   update_names[c->training.update]);
  if (evaluates) c->rounds = 1;
  if (evaluates || supervised) c->mode = MODE_SYNC; /* nothing to overlap */
  if (c->refill_max == 0) c->refill_max = c->groups_per_round;
  if (!evaluates && !supervised && !(c->sampling.temperature >= WIRE_TEMPERATURE_MIN)) { /* as the trainer has it */
    return err_set(err, RC_INVALID, "sampling.temperature",
                   "training needs a temperature of at least %g, so that log-probabilities can be repeated; got %g",
                   WIRE_TEMPERATURE_MIN, c->sampling.temperature);
  }
  if (supervised) {
    reward_rule_of(&c->verifier, VERIFIER_NONE);
    c->training.temperature = 1.0;
    c->training.cut = (struct sampling_cut){0};
  } else {
    c->publish_every = 1;
    const enum rc rc = sampling_config_resolve(&c->sampling, &c->training, err);
    if (rc != RC_OK) return rc;
  }
  if (!evaluates && !supervised && !c->training.teacher[0] && !c->verifier.is_sum &&
      c->verifier.terms[0].kind == VERIFIER_NONE)
    return err_set(err, RC_INVALID, "verifier.kind", "reinforcement learning needs a verifier");
  if (evaluates || supervised) { /* no reward is trained on */
    c->overlong_buffer = 0;
    c->mask_truncated = false;
  } else {
    const enum rc rc = resolve_advantage(c, err);
    if (rc != RC_OK) return rc;
  }
  if (c->overlong_buffer > c->sampling.max_new_tokens)
    return err_set(err, RC_INVALID, "overlong.buffer", "expected at most sampling.max_new_tokens (%d), got %d",
                   c->sampling.max_new_tokens, c->overlong_buffer);
  if (supervised && evaluation_wanted(&c->evaluation))
    return err_set(err, RC_INVALID, "evaluation",
                   "objective 'cross_entropy' has no evaluation; start a run with objective 'evaluate' afterwards");
  enum rc rc = resolve_kept(c, evaluates, err);
  if (rc == RC_OK) rc = resolve_checks(c, !evaluates && !supervised, err);
  if (rc == RC_OK) rc = resolve_update(c, err);
  if (rc == RC_OK) rc = resolve_curriculum(c, err);
  if (!has_total_steps) c->training.total_steps = steps_in_all(c);
  return rc;
}

/* A configuration's nested values, as they came; NULL: left out. */
struct nested {
  const struct json *dataset, *sampling, *verifier, *advantage, *overlong, *filter, *training, *evaluation, *keep_best,
      *start;
};

/* In this order, because the later ones are read by what the earlier ones say. recipe: NULL for none. */
static enum rc read_nested(struct run_config *c, const struct nested *n, const struct recipe *recipe,
                           struct arena *arena, struct err *err) {
  enum rc rc = read_dataset(c, n->dataset, arena, err);
  if (rc == RC_OK && n->sampling) rc = read_sampling(c, n->sampling, arena, err);
  if (rc == RC_OK && n->verifier) rc = read_verifier(c, n->verifier, arena, err);
  if (rc == RC_OK && n->advantage) rc = read_advantage(c, n->advantage, arena, err);
  if (rc == RC_OK && n->overlong) rc = read_overlong(c, n->overlong, arena, err);
  if (rc == RC_OK && n->filter) rc = read_filter(c, n->filter, arena, err);
  if (rc == RC_OK && n->training) rc = read_training(c, n->training, arena, err);
  if (rc == RC_OK) rc = evaluation_config_read(&c->evaluation, n->evaluation, &c->reading, arena, err);
  if (rc == RC_OK) evaluation_config_judge(&c->evaluation, &c->verifier);
  if (rc == RC_OK) rc = keep_best_read(&c->keep_best, n->keep_best, &c->evaluation, arena, err);
  if (rc == RC_OK && recipe && recipe->overlong_share && !n->overlong)
    c->overlong_buffer = c->sampling.max_new_tokens / recipe->overlong_share;
  if (rc == RC_OK && recipe && recipe->teaches && !c->training.teacher[0])
    rc = err_set(err, RC_INVALID, "training.teacher",
                 "recipe '%s' needs a teacher: the digest that a trainer-server with --role teach logs at its start",
                 recipe->name);
  return rc == RC_OK && n->start ? read_start(c, n->start, arena, err) : rc;
}

static enum rc parse(struct run_config *out, const struct json *body, bool posted, struct arena *arena,
                     struct err *err) {
  struct nested nested = {0};
  struct choices choices = {.frontier = "priority"};
  bool has_groups_per_round = false;
  struct run_config *c = out;
  set_defaults(c);
  if (names_inflight(body)) set_inflight_defaults(c);
  c->verify_samples = c->sampling.tokenizer_eos = posted; /* a stored one says both, where they were known */
  c->says_verify_samples = posted || (json_type_of(body) == JSON_OBJECT && json_get(body, "verify_samples"));
  const struct recipe *recipe = NULL;
  enum rc rc = posted ? read_recipe(c, &recipe, body, err) : RC_OK;
  choices.mode = mode_names[c->mode];
  if (rc != RC_OK) return rc;
  rc = json_fields(
      body,
      FIELDS(
          {.name = "name", .kind = FIELD_STRING, .target = &c->name, .min = 0, .max = LIMIT_NAME_MAX - 1},
          {.name = "recipe", .kind = FIELD_STRING, .target = &c->recipe, .min = 1, .max = 32},
          {.name = "mask_truncated", .kind = FIELD_BOOL, .target = &c->mask_truncated},
          {.name = "mode", .kind = FIELD_STRING, .target = &choices.mode, .min = 1, .max = 32},
          {.name = "update", .kind = FIELD_STRING, .target = &choices.update, .min = 1, .max = 32},
          {.name = "frontier", .kind = FIELD_STRING, .target = &choices.frontier, .min = 1, .max = 32},
          {.name = "kv", .kind = FIELD_STRING, .target = &choices.kv, .min = 1, .max = 32},
          {.name = "order", .kind = FIELD_STRING, .target = &choices.order, .min = 1, .max = 32},
          {.name = "full", .kind = FIELD_STRING, .target = &choices.full, .min = 1, .max = 32},
          {.name = "max_lag", .kind = FIELD_I32, .target = &c->max_lag, .min = 0, .max = LIMIT_LAG},
          {.name = "samples_ahead",
           .kind = FIELD_I32,
           .target = &c->samples_ahead,
           .min = 1,
           .max = LIMIT_GROUPS_PER_ROUND * LIMIT_SAMPLES_PER_GROUP},
          {.name = "frontier_groups",
           .kind = FIELD_I32,
           .target = &c->frontier_groups,
           .min = 0,
           .max = LIMIT_GROUPS_PER_ROUND},
          {.name = "aging_ms", .kind = FIELD_I32, .target = &c->aging_ms, .min = 1, .max = 86400000},
          {.name = "verify_samples", .kind = FIELD_BOOL, .target = &c->verify_samples},
          {.name = "on_inexact", .kind = FIELD_STRING, .target = &choices.on_inexact, .min = 1, .max = 32},
          {.name = "group_timeout_ms", .kind = FIELD_I32, .target = &c->group_timeout_ms, .min = 100, .max = 86400000},
          {.name = "seed", .kind = FIELD_U64, .target = &c->seed},
          {.name = "rounds", .kind = FIELD_I32, .target = &c->rounds, .min = 1, .max = LIMIT_ROUNDS},
          {.name = "dataset", .kind = FIELD_VALUE, .target = &nested.dataset, .required = true},
          {.name = "groups_per_round",
           .kind = FIELD_I32,
           .target = &c->groups_per_round,
           .present = &has_groups_per_round,
           .min = 0,
           .max = LIMIT_GROUPS_PER_ROUND},
          {.name = "groups_per_step",
           .kind = FIELD_I32,
           .target = &c->groups_per_step,
           .min = 0,
           .max = LIMIT_GROUPS_PER_ROUND},
          {.name = "samples_per_group",
           .kind = FIELD_I32,
           .target = &c->samples_per_group,
           .min = 1,
           .max = LIMIT_SAMPLES_PER_GROUP},
          {.name = "lease_samples_max",
           .kind = FIELD_I32,
           .target = &c->lease_samples_max,
           .min = 0,
           .max = LIMIT_SAMPLES_PER_GROUP},
          {.name = "sampling", .kind = FIELD_VALUE, .target = &nested.sampling},
          {.name = "verifier", .kind = FIELD_VALUE, .target = &nested.verifier},
          {.name = "advantage", .kind = FIELD_VALUE, .target = &nested.advantage},
          {.name = "overlong", .kind = FIELD_VALUE, .target = &nested.overlong},
          {.name = "filter", .kind = FIELD_VALUE, .target = &nested.filter},
          {.name = "training", .kind = FIELD_VALUE, .target = &nested.training},
          {.name = "evaluation", .kind = FIELD_VALUE, .target = &nested.evaluation},
          {.name = "stage_timeout_ms", .kind = FIELD_I32, .target = &c->stage_timeout_ms, .min = 10, .max = 3600000},
          {.name = "publish_every", .kind = FIELD_I32, .target = &c->publish_every, .min = 0, .max = LIMIT_ROUNDS},
          {.name = "pass_timeout_ms", .kind = FIELD_I32, .target = &c->pass_timeout_ms, .min = 0, .max = 86400000},
          {.name = "keep_rounds", .kind = FIELD_I32, .target = &c->keep_rounds, .min = 0, .max = LIMIT_ROUNDS},
          {.name = "keep_last", .kind = FIELD_I32, .target = &c->keep_last, .min = 0, .max = KEEP_LAST_MAX},
          {.name = "keep_best", .kind = FIELD_VALUE, .target = &nested.keep_best},
          {.name = "start", .kind = FIELD_VALUE, .target = &nested.start}),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = read_choices(c, &choices, err);
  if (rc == RC_OK) rc = read_nested(c, &nested, recipe, arena, err);
  const struct json *total_steps = nested.training ? json_get(nested.training, "total_steps") : NULL;
  if (rc == RC_OK)
    rc = resolve(c, total_steps && json_type_of(total_steps) != JSON_NULL, has_groups_per_round, err);
  return rc;
}

enum rc run_config_parse_stored(struct run_config *out, const char *text, size_t len, struct arena *arena,
                                struct err *err) {
  struct json *stored = NULL;
  enum rc rc = json_parse(&stored, text, len, 0, err);
  if (rc == RC_OK) rc = parse(out, stored, false, arena, err);
  json_free(stored);
  if (rc == RC_INVALID) err_in_file(err, "its configuration is of a coordinator of another version");
  return rc;
}

/* Every advantage of a group of one sample is zero, but in kind batch, which has no group's baseline.  A KL term or an
 * entropy in the loss trains without advantages, unless such groups are left out. */
static enum rc check_lone_samples(const struct run_config *c, bool trains_on_rollouts, struct err *err) {
  const bool kl = c->training.kl_coefficient != 0 && strcmp(c->training.kl_in, "reward") != 0;
  const bool kept = c->zero_advantage == FILTER_KEEP && (kl || c->training.entropy_coefficient != 0);
  if (!trains_on_rollouts || c->samples_per_group > 1 || c->advantage == ADVANTAGE_BATCH || kept) return RC_OK;
  return err_set(err, RC_INVALID, "samples_per_group",
                 "a sample alone in its group has no advantage, so nothing would be learned: expected at least 2, or "
                 "advantage.kind 'batch'; got 1");
}

/* Refuses configurations that could be run, but would do nothing.  Not for stored ones, which may be older than this
 * check. */
static enum rc check_purpose(const struct run_config *c, struct err *err) {
  const bool evaluates = is_objective(c, "evaluate"), rl = !evaluates && !is_objective(c, "cross_entropy");
  const bool earns = reward_earns(&c->verifier), taught = c->training.teacher[0];
  if (evaluates && c->evaluation.count)
    return err_set(err, RC_INVALID, "evaluation",
                   "objective 'evaluate' evaluates `dataset`, one set in a run: leave `evaluation` out");
  if (rl && !taught && !earns)
    return err_set(err, RC_INVALID, "verifier.terms",
                   "reinforcement learning needs a verifier: every term is of kind none or has weight 0");
  if (taught && !earns && !c->overlong_buffer && c->zero_advantage != FILTER_KEEP)
    return err_set(err, RC_INVALID, "filter.zero_advantage",
                   "without a verifier all rewards are equal, so every group would be left out, and the teacher's "
                   "signal with it: set 'keep', got '%s'",
                   filter_names[c->zero_advantage]);
  return check_lone_samples(c, rl, err);
}

enum rc run_config_parse(struct run_config *out, const struct json *body, struct arena *arena, struct err *err) {
  enum rc rc = other_names_refuse(body, err);
  if (rc == RC_OK) rc = parse(out, body, true, arena, err);
  if (rc == RC_OK) rc = check_purpose(out, err);
  if (rc == RC_OK && out->start.from == START_UNNAMED)
    out->start.from = is_objective(out, "evaluate") ? START_CURRENT : START_MODEL;
  return rc;
}

static void write_dataset(const struct run_config *c, struct json_writer *w) {
  if (!c->is_mixture) json_kv_string(w, "path", c->sources[0].path);
  if (c->is_mixture) {
    json_key(w, "sources");
    json_array_begin(w);
    for (int i = 0; i < c->source_count; i++) {
      json_object_begin(w);
      json_kv_string(w, "path", c->sources[i].path);
      if (c->sources[i].weight) json_kv_int(w, "weight", c->sources[i].weight);
      reading_write(&c->sources[i].reading, w);
      json_object_end(w);
    }
    json_array_end(w);
  }
  json_kv_bool(w, "shuffle", c->dataset_shuffle);
  curriculum_config_write(&c->curriculum, w);
  reading_write(&c->reading, w);
}

static void files_write(const struct run_config *c, struct buf *out) {
  struct run_config files = *c;
  struct json_writer w;
  files.dataset_shuffle = false;
  files.curriculum.given = false;
  json_writer_init(&w, out);
  json_object_begin(&w);
  write_dataset(&files, &w);
  json_object_end(&w);
}

bool run_config_same_dataset(const struct run_config *a, const struct run_config *b) {
  struct buf first = BUF_INIT, second = BUF_INIT;
  files_write(a, &first);
  files_write(b, &second);
  const bool same =
      !first.failed && !second.failed && first.len == second.len && memcmp(first.data, second.data, first.len) == 0;
  buf_free(&first);
  buf_free(&second);
  return same;
}

void run_config_write(const struct run_config *c, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "name", c->name);
  if (c->recipe[0]) json_kv_string(w, "recipe", c->recipe);
  json_kv_string(w, "mode", mode_names[c->mode]);
  json_kv_string(w, "update", update_names[c->training.update]);
  json_kv_string(w, "frontier", frontier_names[c->frontier]);
  json_kv_int(w, "frontier_groups", c->frontier_groups);
  json_kv_int(w, "aging_ms", c->aging_ms);
  json_kv_int(w, "group_timeout_ms", c->group_timeout_ms);
  if (c->says_verify_samples) json_kv_bool(w, "verify_samples", c->verify_samples);
  if (c->on_inexact != INEXACT_MARK) json_kv_string(w, "on_inexact", inexact_names[c->on_inexact]);
  json_kv_u64(w, "seed", c->seed);
  json_kv_int(w, "rounds", c->rounds);
  json_key(w, "dataset");
  json_object_begin(w);
  write_dataset(c, w);
  json_object_end(w);
  json_kv_int(w, "groups_per_round", c->groups_per_round);
  if (c->groups_per_step) json_kv_int(w, "groups_per_step", c->groups_per_step);
  if (c->mode == MODE_INFLIGHT) {
    json_kv_int(w, "max_lag", c->max_lag);
    json_kv_int(w, "samples_ahead", c->samples_ahead);
    json_kv_string(w, "kv", kv_names[c->kv_recompute]);
    json_kv_string(w, "order", order_names[c->order]);
    if (c->drops_oldest) json_kv_string(w, "full", full_names[true]);
  }
  json_kv_int(w, "samples_per_group", c->samples_per_group);
  json_kv_int(w, "lease_samples_max", c->lease_samples_max);
  json_key(w, "sampling");
  json_object_begin(w);
  sampling_config_write(&c->sampling, w);
  json_object_end(w);
  json_key(w, "verifier");
  json_object_begin(w);
  reward_rule_write(&c->verifier, w);
  json_kv_bool(w, "shuffle_rewards", c->shuffle_rewards);
  json_object_end(w);
  json_key(w, "advantage");
  json_object_begin(w);
  json_kv_string(w, "kind", advantage_kind_name(c->advantage));
  json_kv_f64(w, "epsilon", c->advantage_epsilon);
  json_object_end(w);
  if (c->mask_truncated) json_kv_bool(w, "mask_truncated", true);
  if (c->overlong_buffer) {
    json_key(w, "overlong");
    json_object_begin(w);
    json_kv_int(w, "buffer", c->overlong_buffer);
    json_object_end(w);
  }
  json_key(w, "filter");
  json_object_begin(w);
  json_kv_string(w, "zero_advantage", filter_names[c->zero_advantage]);
  json_kv_int(w, "refill_max", c->refill_max);
  json_object_end(w);
  json_key(w, "training");
  training_config_write(&c->training, w);
  evaluation_config_write(&c->evaluation, w);
  json_kv_int(w, "stage_timeout_ms", c->stage_timeout_ms);
  json_kv_int(w, "publish_every", c->publish_every);
  if (c->pass_timeout_ms) json_kv_int(w, "pass_timeout_ms", c->pass_timeout_ms);
  if (c->keep_rounds) json_kv_int(w, "keep_rounds", c->keep_rounds);
  if (c->keep_last) json_kv_int(w, "keep_last", c->keep_last);
  keep_best_write(&c->keep_best, w);
  if (c->start.from != START_UNNAMED) {
    json_key(w, "start");
    run_start_write(&c->start, w);
  }
  json_object_end(w);
}

void run_config_hash(const struct run_config *c, struct digest *out) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  run_config_write(c, &w);
  digest_of(out, text.data, text.len);
  buf_free(&text);
}

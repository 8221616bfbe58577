/* Encodes and decodes a run's training configuration, its start, and its opening at the trainer.
 *
 * The configuration is read over defaults: those of PipelineRL's published setup, with a constant learning rate and
 * PPO's clip range.  Every number is bounded and every name is checked here, so that the coordinator refuses a
 * configuration that the trainer could not run. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/wire/fields.h"
#include "common/wire/training.h"

static const char *const OBJECTIVES[] = {"grpo",          "reinforce", "ppo",           "gspo",    "cispo",
                                         "decoupled_ppo", "tis",       "cross_entropy", "evaluate"};
static const char *const NORMALIZATIONS[] = {"tokens", "samples", "sequences", "length"};
static const char *const KL_ESTIMATORS[] = {"k3", "k1", "k2"};
static const char *const KL_PLACES[] = {"loss", "reward"};
static const char *const LINEAR_ADVANTAGES[] = {"leave_one_out", "group_centered"};
static const char *const SCHEDULES[] = {"constant", "linear", "cosine"};
static const char *const MOMENTS[] = {"32bit", "8bit"};
static const char *const UPDATES[] = {
    [UPDATE_STRICT] = "strict", [UPDATE_MINIBATCH] = "minibatch", [UPDATE_INFLIGHT] = "inflight"};
static const char *const OPEN_STATES[] = {"ready", "replaying"};

static const double BETA_MAX = 0.99999994; /* the arithmetic is in 32 bits, where more may be 1 */
enum { KL_HORIZON = 10000 }; /* samples: Ziegler et al.'s */

const char *training_moments_name(bool moments8) { return MOMENTS[moments8]; }

void training_config_defaults(struct training_config *c) {
  *c = (struct training_config){
      .objective = "grpo",
      .clip_low = 0.2,
      .clip_high = 0.2,
      .kl_estimator = "k3",
      .kl_in = "loss",
      .advantage = "",
      .teacher = "",
      .normalization = "tokens",
      .lr = 1e-6,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .weight_decay = 0.01,
      .clip_norm = 0.3,
      .schedule = "constant",
      .temperature = 1,
      .chunk_tokens = 4096,
      .checkpoint_every = 1,
  };
}

void training_config_write(const struct training_config *c, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "objective", c->objective);
  json_kv_f64(w, "clip_low", c->clip_low);
  json_kv_f64(w, "clip_high", c->clip_high);
  if (c->importance_cap != 0) json_kv_f64(w, "importance_cap", c->importance_cap);
  json_kv_f64(w, "kl_coefficient", c->kl_coefficient);
  if (strcmp(c->kl_estimator, KL_ESTIMATORS[0]) != 0) json_kv_string(w, "kl_estimator", c->kl_estimator);
  if (strcmp(c->kl_in, KL_PLACES[0]) != 0) json_kv_string(w, "kl_in", c->kl_in);
  if (c->advantage[0]) json_kv_string(w, "advantage", c->advantage);
  if (c->kl_target != 0) json_kv_f64(w, "kl_target", c->kl_target);
  if (c->kl_target != 0) json_kv_int(w, "kl_horizon", c->kl_horizon);
  if (c->teacher[0]) json_kv_string(w, "teacher", c->teacher);
  if (c->reference_every != 0) json_kv_int(w, "reference_every", c->reference_every);
  if (c->entropy_coefficient != 0) json_kv_f64(w, "entropy_coefficient", c->entropy_coefficient);
  if (c->length_max != 0) json_kv_int(w, "length_max", c->length_max);
  json_kv_string(w, "normalization", c->normalization);
  json_kv_f64(w, "lr", c->lr);
  json_kv_f64(w, "beta1", c->beta1);
  json_kv_f64(w, "beta2", c->beta2);
  json_kv_f64(w, "eps", c->eps);
  json_kv_f64(w, "weight_decay", c->weight_decay);
  json_kv_f64(w, "clip_norm", c->clip_norm);
  json_kv_f64(w, "lr_min_ratio", c->lr_min_ratio);
  json_kv_string(w, "schedule", c->schedule);
  json_kv_int(w, "warmup_steps", c->warmup_steps);
  json_kv_int(w, "total_steps", c->total_steps);
  json_kv_f64(w, "temperature", c->temperature);
  sampling_cut_write(&c->cut, w);
  json_kv_int(w, "chunk_tokens", c->chunk_tokens);
  json_kv_int(w, "checkpoint_every", c->checkpoint_every);
  if (c->moments8) json_kv_string(w, "optimizer_moments", training_moments_name(true));
  if (c->update != UPDATE_STRICT) json_kv_string(w, "update", UPDATES[c->update]);
  json_object_end(w);
}

enum rc training_config_check_cut(const struct training_config *c, struct err *err) {
  const char *name = sampling_cut_name(&c->cut);
  if (!name || c->entropy_coefficient == 0) return RC_OK;
  return err_set(err, RC_INVALID, name,
                 "training.entropy_coefficient %g is of the whole vocabulary's entropy, and a cut row has another: "
                 "expected one of the two",
                 c->entropy_coefficient);
}

static bool takes_policies(const struct training_config *c) {
  return strcmp(c->objective, "evaluate") != 0 && strcmp(c->objective, "cross_entropy") != 0;
}

/* What changes the KL term from round to round. */
static enum rc kl_schedule_check(const struct training_config *c, struct err *err) {
  const char *said = c->kl_target != 0         ? "kl_target"
                     : c->reference_every != 0 ? "reference_every"
                     : c->teacher[0]           ? "teacher"
                                               : NULL;
  struct digest teacher;
  if (said && (!takes_policies(c) || !((float)c->kl_coefficient > 0)))
    return err_set(err, RC_INVALID, said, "`%s` is for a KL term: objective '%s' with kl_coefficient %g has none", said,
                   c->objective, c->kl_coefficient);
  if (c->teacher[0] && !digest_from_hex(&teacher, c->teacher))
    return err_set(err, RC_INVALID, "teacher", "expected the digest of a teacher's weights, 64 hexadecimal digits");
  if (c->teacher[0] && c->reference_every != 0)
    return err_set(err, RC_INVALID, "reference_every", "the reference is the teacher, which stays: leave it out");
  if (c->kl_target == 0 && c->kl_horizon != 0)
    return err_set(err, RC_INVALID, "kl_horizon", "`kl_horizon` is for `kl_target`, which is left out; got %d",
                   c->kl_horizon);
  if (c->reference_every % c->checkpoint_every == 0) return RC_OK;
  return err_set(err, RC_INVALID, "reference_every",
                 "a reference comes back from its checkpoint: expected a multiple of checkpoint_every (%d), got %d",
                 c->checkpoint_every, c->reference_every);
}

/* The KL term's, the entropy's and the length's fields, and what they need of each other. */
static enum rc terms_check(const struct training_config *c, struct err *err) {
  int index;
  const bool in_reward = strcmp(c->kl_in, "reward") == 0, by_length = strcmp(c->normalization, "length") == 0;
  enum rc rc = wire_choice(&index, "kl_estimator", c->kl_estimator, KL_ESTIMATORS, WIRE_COUNT(KL_ESTIMATORS), err);
  if (rc == RC_OK) rc = wire_choice(&index, "kl_in", c->kl_in, KL_PLACES, WIRE_COUNT(KL_PLACES), err);
  if (rc == RC_OK && in_reward && c->advantage[0])
    rc = wire_choice(&index, "advantage", c->advantage, LINEAR_ADVANTAGES, WIRE_COUNT(LINEAR_ADVANTAGES), err);
  if (rc != RC_OK) return rc;
  if (!in_reward && c->advantage[0])
    return err_set(err, RC_INVALID, "advantage",
                   "the trainer is told the kind of advantage with kl_in 'reward' only, got '%s'", c->advantage);
  if (in_reward && !takes_policies(c))
    return err_set(err, RC_INVALID, "kl_in", "objective '%s' has no rewards", c->objective);
  if (c->entropy_coefficient != 0 && strcmp(c->objective, "evaluate") == 0)
    return err_set(err, RC_INVALID, "entropy_coefficient", "objective 'evaluate' has no loss");
  if (!by_length && c->length_max != 0)
    return err_set(err, RC_INVALID, "length_max", "normalization '%s' divides by no length, 'length' does; got %d",
                   c->normalization, c->length_max);
  return RC_OK;
}

/* Checks that the bounds of a field table cannot express: open ends, names, and combinations.  A number counts as
 * positive if it stays so where subnormal numbers are flushed to zero. */
static enum rc training_config_check(const struct training_config *c, struct err *err) {
  int index;
  enum rc rc = wire_choice(&index, "objective", c->objective, OBJECTIVES, WIRE_COUNT(OBJECTIVES), err);
  if (rc == RC_OK)
    rc = wire_choice(&index, "normalization", c->normalization, NORMALIZATIONS, WIRE_COUNT(NORMALIZATIONS), err);
  if (rc == RC_OK) rc = wire_choice(&index, "schedule", c->schedule, SCHEDULES, WIRE_COUNT(SCHEDULES), err);
  if (rc) return rc;
  if (strcmp(c->objective, "tis") == 0 && !(c->importance_cap >= 1))
    return err_set(err, RC_INVALID, "importance_cap",
                   "objective 'tis' needs the most that an importance weight counts, at least 1 (2 is usual), got %g",
                   c->importance_cap);
  if (strcmp(c->objective, "tis") != 0 && c->importance_cap != 0)
    return err_set(err, RC_INVALID, "importance_cap", "objective '%s' caps no importance weight, 'tis' does; got %g",
                   c->objective, c->importance_cap);
  rc = terms_check(c, err);
  if (rc == RC_OK) rc = kl_schedule_check(c, err);
  if (rc != RC_OK) return rc;
  if (c->update != UPDATE_STRICT && !takes_policies(c))
    return err_set(err, RC_INVALID, "update",
                   "objective '%s' compares no policy with the one that sampled; expected update 'strict'",
                   c->objective);
  if (!(c->beta1 <= BETA_MAX))
    return err_set(err, RC_INVALID, "beta1", "expected 0 to %.8g, the largest below 1 that 32 bits hold, got %.17g",
                   BETA_MAX, c->beta1);
  if (!(c->beta2 <= BETA_MAX))
    return err_set(err, RC_INVALID, "beta2", "expected 0 to %.8g, the largest below 1 that 32 bits hold, got %.17g",
                   BETA_MAX, c->beta2);
  if (!(c->eps >= (double)FLT_MIN))
    return err_set(err, RC_INVALID, "eps", "expected at least %g, the smallest that 32 bits hold, got %g",
                   (double)FLT_MIN, c->eps);
  if (strcmp(c->objective, "evaluate") != 0 && !(c->temperature >= WIRE_TEMPERATURE_MIN))
    return err_set(err, RC_INVALID, "temperature", "expected a temperature of at least %g for training, got %g",
                   WIRE_TEMPERATURE_MIN, c->temperature);
  if (strcmp(c->objective, "evaluate") != 0 && c->chunk_tokens < 2)
    return err_set(err, RC_INVALID, "chunk_tokens", "expected at least 2 for training, got %d", c->chunk_tokens);
  return training_config_check_cut(c, err);
}

enum rc training_config_read(struct training_config *c, const struct json *value, struct arena *arena,
                             struct err *err) {
#define OPTIONAL_NAME(key, lvalue) \
  { .name = (key), .kind = FIELD_STRING, .target = &(lvalue), .min = 1, .max = WIRE_NAME_BYTES }
#define OPTIONAL_F64(key, lvalue, high) \
  { .name = (key), .kind = FIELD_F64, .target = &(lvalue), .min = 0, .max = (high) }
#define OPTIONAL_I32(key, lvalue, low, high) \
  { .name = (key), .kind = FIELD_I32, .target = &(lvalue), .min = (low), .max = (high) }
  const char *update = UPDATES[c->update], *moments = MOMENTS[c->moments8];
  const struct json_field fields[] = {
      OPTIONAL_NAME("objective", c->objective),
      OPTIONAL_F64("clip_low", c->clip_low, 1),
      OPTIONAL_F64("clip_high", c->clip_high, 1e6),
      OPTIONAL_F64("importance_cap", c->importance_cap, 1e6),
      OPTIONAL_F64("kl_coefficient", c->kl_coefficient, 1e6),
      OPTIONAL_NAME("kl_estimator", c->kl_estimator),
      OPTIONAL_NAME("kl_in", c->kl_in),
      OPTIONAL_NAME("advantage", c->advantage),
      OPTIONAL_F64("kl_target", c->kl_target, 1e6),
      OPTIONAL_I32("kl_horizon", c->kl_horizon, 0, INT32_MAX),
      OPTIONAL_NAME("teacher", c->teacher),
      OPTIONAL_I32("reference_every", c->reference_every, 0, LIMIT_ROUNDS),
      OPTIONAL_F64("entropy_coefficient", c->entropy_coefficient, 1e6),
      OPTIONAL_I32("length_max", c->length_max, 0, LIMIT_SEQUENCE_TOKENS),
      OPTIONAL_NAME("normalization", c->normalization),
      OPTIONAL_F64("lr", c->lr, 1000),
      OPTIONAL_F64("beta1", c->beta1, 1),
      OPTIONAL_F64("beta2", c->beta2, 1),
      OPTIONAL_F64("eps", c->eps, 1),
      OPTIONAL_F64("weight_decay", c->weight_decay, 1000),
      OPTIONAL_F64("clip_norm", c->clip_norm, 1e12),
      OPTIONAL_F64("lr_min_ratio", c->lr_min_ratio, 1),
      OPTIONAL_NAME("schedule", c->schedule),
      OPTIONAL_I32("warmup_steps", c->warmup_steps, 0, INT32_MAX),
      OPTIONAL_I32("total_steps", c->total_steps, 0, INT32_MAX),
      OPTIONAL_F64("temperature", c->temperature, WIRE_TEMPERATURE_MAX),
      SAMPLING_CUT_FIELDS(&c->cut),
      OPTIONAL_I32("chunk_tokens", c->chunk_tokens, 1, LIMIT_SEQUENCE_TOKENS),
      OPTIONAL_I32("checkpoint_every", c->checkpoint_every, 1, LIMIT_ROUNDS),
      OPTIONAL_NAME("optimizer_moments", moments),
      OPTIONAL_NAME("update", update),
  };
#undef OPTIONAL_NAME
#undef OPTIONAL_F64
#undef OPTIONAL_I32
  int index = 0;
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&index, "update", update, UPDATES, WIRE_COUNT(UPDATES), err);
  if (rc != RC_OK) return rc;
  c->update = (enum update_rule)index;
  rc = wire_choice(&index, "optimizer_moments", moments, MOMENTS, WIRE_COUNT(MOMENTS), err);
  if (rc != RC_OK) return rc;
  c->moments8 = index == 1;
  if (c->kl_target != 0 && c->kl_horizon == 0) c->kl_horizon = KL_HORIZON;
  return training_config_check(c, err);
}

void run_start_write(const struct run_start *s, struct json_writer *w) {
  if (s->from != START_CHECKPOINT) {
    json_write_string(w, s->from == START_MODEL ? "model" : "current");
    return;
  }
  json_object_begin(w);
  json_kv_string(w, "run", s->run);
  json_kv_int(w, "version", s->version);
  json_object_end(w);
}

enum rc run_start_read(struct run_start *s, const struct json *value, struct arena *arena, struct err *err) {
  *s = (struct run_start){.from = START_CHECKPOINT};
  if (json_type_of(value) == JSON_OBJECT) {
    const struct json_field fields[] = {WIRE_NAME("run", s->run), WIRE_I64("version", s->version)};
    return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  }
  const char *word = json_word(value);
  if (word && strcmp(word, "model") == 0)
    s->from = START_MODEL;
  else if (word && strcmp(word, "current") == 0)
    s->from = START_CURRENT;
  else
    return err_set(err, RC_INVALID, NULL,
                   "expected \"model\", \"current\" or {\"run\": ..., \"version\": ...}, got %.40s",
                   word ? word : json_type_name(json_type_of(value)));
  return RC_OK;
}

static void kv_start(struct json_writer *w, const struct run_start *s) {
  if (s->from == START_UNNAMED) return;
  json_key(w, "start");
  run_start_write(s, w);
}

/* value NULL: it was left out. */
static enum rc read_start(struct run_start *s, const struct json *value, struct arena *arena, struct err *err) {
  const enum rc rc = value ? run_start_read(s, value, arena, err) : RC_OK;
  if (rc != RC_OK) err_in_field(err, "start");
  return rc;
}

enum rc training_config_complete(const struct training_config *c, struct err *err) {
  if (strcmp(c->normalization, "length") == 0 && c->length_max < 1)
    return err_set(err, RC_INVALID, "length_max",
                   "normalization 'length' needs the longest that a completion may be, got %d", c->length_max);
  if (strcmp(c->kl_in, "reward") == 0 && !c->advantage[0])
    return err_set(err, RC_INVALID, "advantage", "kl_in 'reward' needs the kind of advantage, got none");
  return RC_OK;
}

static enum rc read_training(struct training_config *c, const struct json *value, struct arena *arena,
                             struct err *err) {
  training_config_defaults(c);
  enum rc rc = training_config_read(c, value, arena, err);
  if (rc == RC_OK) rc = training_config_complete(c, err);
  if (rc != RC_OK) err_in_field(err, "training");
  return rc;
}

void open_run_encode(const struct open_run *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "run", m->run);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  json_kv_u64(&w, "seed", m->seed);
  json_kv_int(&w, "current_version", m->current_version);
  kv_start(&w, &m->start);
  json_key(&w, "training");
  training_config_write(&m->training, &w);
  json_object_end(&w);
}

enum rc open_run_decode(struct open_run *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct open_run){0};
  const struct json *start = NULL, *training = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("run", m->run),
      WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),
      WIRE_U64("seed", m->seed),
      {.name = "current_version", .kind = FIELD_I64, .target = &m->current_version, .min = 0, .max = WIRE_EXACT_MAX},
      {.name = "start", .kind = FIELD_VALUE, .target = &start},
      WIRE_VALUE("training", training),
  };
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = read_start(&m->start, start, arena, err);
  if (rc == RC_OK) rc = read_training(&m->training, training, arena, err);
  return rc;
}

void check_run_encode(const struct check_run *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  kv_start(&w, &m->start);
  json_key(&w, "training");
  training_config_write(&m->training, &w);
  json_object_end(&w);
}

enum rc check_run_decode(struct check_run *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct check_run){0};
  const struct json *start = NULL, *training = NULL;
  const struct json_field fields[] = {{.name = "start", .kind = FIELD_VALUE, .target = &start},
                                      WIRE_VALUE("training", training)};
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = read_start(&m->start, start, arena, err);
  if (rc == RC_OK) rc = read_training(&m->training, training, arena, err);
  return rc;
}

void check_run_answer_encode(const struct check_run_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_int(&w, "context_max", m->context_max);
  json_object_end(&w);
}

enum rc check_run_answer_decode(struct check_run_answer *m, const struct json *body, struct arena *arena,
                                struct err *err) {
  *m = (struct check_run_answer){0};
  const struct json_field fields[] = {WIRE_I32("context_max", m->context_max, 1, INT32_MAX)};
  return wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
}

void open_run_answer_encode(const struct open_run_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "run", m->run);
  json_kv_int(&w, "version", m->version);
  wire_kv_digest(&w, "digest", &m->digest);
  json_kv_string(&w, "state", OPEN_STATES[m->replaying]);
  json_object_end(&w);
}

enum rc open_run_answer_decode(struct open_run_answer *m, const struct json *body, struct arena *arena,
                               struct err *err) {
  *m = (struct open_run_answer){0};
  const char *state = NULL;
  int index = 0;
  const struct json_field fields[] = {WIRE_NAME("run", m->run), WIRE_I64("version", m->version),
                                      WIRE_DIGEST("digest", m->digest), WIRE_NAME("state", state)};
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&index, "state", state, OPEN_STATES, WIRE_COUNT(OPEN_STATES), err);
  m->replaying = index == 1;
  return rc;
}

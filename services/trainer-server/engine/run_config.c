/* Checks a run's configuration, turns it into the model module's, and keeps it. */
#include "services/trainer-server/engine/run_config.h"

#include <inttypes.h>
#include <string.h>

bool run_config_trains(const struct training_config *c) { return strcmp(c->objective, "evaluate") != 0; }

bool run_config_takes_behaviour(const struct training_config *c) { return c->update == UPDATE_INFLIGHT; }

bool run_config_takes_reference(const struct training_config *c) {
  return run_config_trains(c) && (float)c->kl_coefficient != 0;
}

struct frozen_weights run_config_frozen(const struct training_config *c) {
  const bool trains = run_config_trains(c);
  return (struct frozen_weights){.reference = trains && (float)c->kl_coefficient != 0 && !c->teacher[0],
                                 .behaviour = trains && c->update == UPDATE_MINIBATCH,
                                 .versions = trains && c->update == UPDATE_INFLIGHT};
}

enum rc run_config_map(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
                       struct err *err) {
  *o = (struct optimizer_config){.lr = c->lr,
                                 .beta1 = c->beta1,
                                 .beta2 = c->beta2,
                                 .eps = c->eps,
                                 .weight_decay = c->weight_decay,
                                 .clip_norm = c->clip_norm,
                                 .warmup_steps = c->warmup_steps,
                                 .total_steps = c->total_steps,
                                 .lr_min_ratio = c->lr_min_ratio,
                                 .grad_scale_log2 = 32};
  *unit = (struct unit_config){.temperature = (float)c->temperature,
                               .cut = {.top_k = c->cut.top_k,
                                       .top_p = (float)c->cut.top_p,
                                       .min_p = (float)c->cut.min_p},
                               .loss = {.clip_low = (float)c->clip_low,
                                        .clip_high = (float)c->clip_high,
                                        .importance_cap = (float)c->importance_cap,
                                        .kl_coefficient = (float)c->kl_coefficient,
                                        .kl_in_reward = strcmp(c->kl_in, "reward") == 0,
                                        .entropy_coefficient = (float)c->entropy_coefficient,
                                        .length_max = c->length_max}};
  unit->loss.cut = sampling_cut_name(&c->cut) != NULL;
  enum rc rc = run_config_trains(c) ? loss_kind_parse(&unit->loss.kind, c->objective, err) : RC_OK;
  if (rc == RC_OK) rc = loss_normalization_parse(&unit->loss.normalization, c->normalization, err);
  if (rc == RC_OK) rc = kl_estimator_parse(&unit->loss.kl_estimator, c->kl_estimator, err);
  if (rc == RC_OK) rc = training_config_complete(c, err);
  if (rc == RC_OK && unit->loss.kl_in_reward) rc = advantage_kind_parse(&unit->advantage, c->advantage, err);
  if (rc == RC_OK) rc = schedule_kind_parse(&o->schedule, c->schedule, err);
  if (rc == RC_OK) rc = optimizer_config_check(o, err);
  return rc;
}

enum rc run_config_check(const struct trainer_options *options, const struct open_run *m, struct err *err) {
  const struct training_config *c = &m->training;
  struct unit_config unit;
  struct optimizer_config o;
  if (run_config_trains(c) && (c->chunk_tokens < CHUNK_TOKENS_MIN || c->chunk_tokens > options->chunk_tokens)) {
    return err_set(err, RC_INVALID, "training.chunk_tokens", "expected %d to %" PRId64 " (--chunk-tokens), got %d",
                   CHUNK_TOKENS_MIN, options->chunk_tokens, c->chunk_tokens);
  }
  if (run_config_trains(c) && c->moments8 != options->moments8)
    return err_set(err, RC_INVALID, "training.optimizer_moments",
                   "this trainer keeps %s moments: expected that, or a trainer started with --optimizer-moments %s",
                   training_moments_name(options->moments8), training_moments_name(c->moments8));
  if (!run_config_trains(c) && m->current_version > 0)
    return err_set(err, RC_INVALID, "current_version", "run %s evaluates, it has no version but 0, got %" PRId64,
                   m->run, m->current_version);
  enum rc rc = run_config_map(c, &unit, &o, err);
  if (rc != RC_OK) err_in_field(err, "training");
  return rc;
}

enum rc run_config_digest(struct digest *out, const struct open_run *m, struct err *err) {
  struct open_run content = *m;
  struct buf canonical = BUF_INIT;
  content.epoch = content.fence = 0;
  content.current_version = 0;
  open_run_encode(&content, &canonical);
  enum rc rc = buf_check(&canonical, err);
  if (rc == RC_OK) digest_of(out, canonical.data, canonical.len);
  buf_free(&canonical);
  return rc;
}

enum rc run_config_keep(struct current_run *run, const struct open_run *m, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct training_config kept = m->training;
  struct run_start start = m->start;
  kept.objective = arena_strdup(&arena, kept.objective);
  kept.normalization = arena_strdup(&arena, kept.normalization);
  kept.schedule = arena_strdup(&arena, kept.schedule);
  kept.kl_estimator = arena_strdup(&arena, kept.kl_estimator);
  kept.kl_in = arena_strdup(&arena, kept.kl_in);
  kept.advantage = arena_strdup(&arena, kept.advantage);
  kept.teacher = arena_strdup(&arena, kept.teacher);
  start.run = arena_strdup(&arena, start.run ? start.run : "");
  if (!kept.objective || !kept.normalization || !kept.schedule || !kept.kl_estimator || !kept.kl_in ||
      !kept.advantage || !kept.teacher || !start.run) {
    arena_free(&arena);
    return err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  arena_free(&run->arena);
  run->arena = arena;
  run->training = kept;
  run->start = start;
  return RC_OK;
}

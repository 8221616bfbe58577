/* Opening a run: its configuration for the model module, the frozen reference, version 0.  Engine's thread, but for the
 * checks that handlers make. */
#include "services/trainer-server/engine/trainer_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

enum rc trainer_map_config(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
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
                               .loss = {.clip_low = (float)c->clip_low,
                                        .clip_high = (float)c->clip_high,
                                        .importance_cap = (float)c->importance_cap,
                                        .kl_coefficient = (float)c->kl_coefficient}};
  enum rc rc = trainer_trains(c) ? loss_kind_parse(&unit->loss.kind, c->objective, err) : RC_OK;
  if (rc == RC_OK) rc = loss_normalization_parse(&unit->loss.normalization, c->normalization, err);
  if (rc == RC_OK) rc = schedule_kind_parse(&o->schedule, c->schedule, err);
  if (rc == RC_OK) rc = optimizer_config_check(o, err);
  return rc;
}

enum rc trainer_check_run(const struct trainer *t, const struct open_run *m, struct err *err) {
  const struct training_config *c = &m->training;
  struct unit_config unit;
  struct optimizer_config o;
  if (trainer_trains(c) && (c->chunk_tokens < CHUNK_TOKENS_MIN || c->chunk_tokens > t->options.chunk_tokens)) {
    return err_set(err, RC_INVALID, "training.chunk_tokens", "expected %d to %" PRId64 " (--chunk-tokens), got %d",
                   CHUNK_TOKENS_MIN, t->options.chunk_tokens, c->chunk_tokens);
  }
  if (trainer_trains(c) && !(c->temperature > 0))
    return err_set(err, RC_INVALID, "training.temperature", "training needs a temperature above 0, got %g",
                   c->temperature);
  if (!trainer_trains(c) && m->current_version > 0)
    return err_set(err, RC_INVALID, "current_version", "run %s evaluates, it has no version but 0, got %" PRId64,
                   m->run, m->current_version);
  if (!trainer_trains(c) && (m->start.from == START_MODEL || m->start.from == START_CHECKPOINT))
    return err_set(err, RC_INVALID, "start", "expected \"current\": a run that evaluates changes no weights");
  enum rc rc = trainer_map_config(c, &unit, &o, err);
  if (rc != RC_OK) err_in_field(err, "training");
  return rc;
}

enum rc trainer_foresee_run(struct trainer *t, const struct open_run *m, struct err *err) {
  struct trainer_view v;
  trainer_view(t, &v);
  enum rc rc = trainer_check_run(t, m, err);
  if (rc == RC_OK) rc = trainer_check_start(t, &m->start, err);
  if (rc != RC_OK || !trainer_trains(&m->training) || m->training.kl_coefficient == 0) return rc;
  struct err cause = {0};
  if (trainer_foresee_reference(t, v.has_reference, &cause) == RC_OK) return RC_OK;
  return err_set(err, RC_INVALID, "training.kl_coefficient", "%s", cause.message);
}

enum rc trainer_check_batch(struct trainer *t, const struct submit_batch *m, struct err *err) {
  struct trainer_view v;
  trainer_view(t, &v);
  for (size_t g = 0; g < m->group_count; g++) {
    char path[ERR_FIELD_MAX];
    enum rc rc = unit_check(t->model, v.chunk_tokens, &m->groups[g], err);
    if (rc == RC_OK) continue;
    snprintf(path, sizeof path, "groups[%zu]", g);
    err_in_field(err, path);
    return rc;
  }
  return RC_OK;
}

enum rc trainer_run_digest(struct digest *out, const struct open_run *m, struct err *err) {
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

enum rc trainer_keep_config(struct trainer *t, const struct open_run *m, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct training_config kept = m->training;
  struct run_start start = m->start;
  kept.objective = arena_strdup(&arena, kept.objective);
  kept.normalization = arena_strdup(&arena, kept.normalization);
  kept.schedule = arena_strdup(&arena, kept.schedule);
  start.run = arena_strdup(&arena, start.run ? start.run : "");
  if (!kept.objective || !kept.normalization || !kept.schedule || !start.run) {
    arena_free(&arena);
    return err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  arena_free(&t->run_arena);
  t->run_arena = arena;
  t->training = kept;
  t->start = start;
  return RC_OK;
}

enum rc trainer_learner_for(struct trainer *t, int chunk_tokens, struct err *err) {
  if (t->learner && t->learner_chunk == chunk_tokens) return RC_OK;
  learner_free(t->learner); /* first: start-up has planned memory for one */
  t->learner = NULL;
  t->learner_chunk = chunk_tokens;
  const struct learner_options options = trainer_learner_options(&t->options, chunk_tokens);
  return learner_create(&t->learner, t->model, &options, err);
}

/* The frozen reference of the KL term: the weights that the run starts from. */
static enum rc reference_freeze(struct trainer *t, struct err *err) {
  weights_free(t->reference);
  t->reference = NULL;
  if (t->unit.loss.kl_coefficient == 0) return RC_OK;
  enum rc rc = trainer_check_reference(t, err);
  if (rc == RC_OK) rc = weights_create(&t->reference, t->model, false, err);
  if (rc == RC_OK) {
    t->grads_clear = false; /* they serve as scratch between units */
    weights_to_masters(t->weights, t->grads);
    weights_from_masters(t->reference, t->grads);
  }
  return rc;
}

enum rc training_prepare(struct trainer *t, struct err *err) {
  enum rc rc = trainer_learner_for(t, t->training.chunk_tokens, err);
  if (rc == RC_OK) rc = reference_freeze(t, err);
  return rc == RC_OK ? RC_OK : ranks_look_at_device(t, rc, err);
}

/* A run depends on the weights it starts from, and on nothing older. */
void training_begin(struct trainer *t, const struct optimizer_config *o) {
  const struct shard s = optimizer_shard(t->optimizer);
  optimizer_reset(t->optimizer, o);
  t->grads_clear = false; /* they serve as scratch between units */
  weights_to_masters(t->weights, t->grads);
  t->ops->copy(t->ops, optimizer_masters(t->optimizer), t->grads + s.begin, shard_count(s) * sizeof *t->grads);
}

/* On all ranks, or on none when one refuses. */
static enum rc training_open(struct trainer *t, const struct open_run *in, const struct optimizer_config *o,
                             const struct digest *digest, struct err *err) {
  struct buf payload = BUF_INIT;
  if (!ranks_alone(t)) open_run_encode(in, &payload);
  enum rc rc = buf_check(&payload, err);
  if (rc == RC_OK) rc = ranks_begin(t, digest, err);
  if (rc == RC_OK) rc = ranks_tell(t, &(struct command){.order = ORDER_OPEN}, &payload, err);
  buf_free(&payload);
  if (rc != RC_OK) return rc;
  rc = training_prepare(t, err);
  rc = ranks_agree(t, rc, err);
  if (rc == RC_OK) training_begin(t, o);
  return rc;
}

static enum rc open_answer(struct trainer *t, struct job *job) {
  struct trainer_view v;
  trainer_attach(t, job->id, job->in.open.current_version, &v);
  trainer_accepted(t, job->in.open.epoch, job->in.open.fence);
  job->out.open = (struct open_run_answer){
      .run = job->id, .version = v.version, .digest = v.digest, .replaying = trainer_view_replaying(&v)};
  return RC_OK;
}

enum rc trainer_job_open_run(struct trainer *t, struct job *job, struct err *err) {
  const struct open_run *in = &job->in.open;
  struct optimizer_config o;
  struct unit_config unit;
  struct weights_blob *b = NULL;
  struct trainer_view v;
  trainer_view(t, &v);
  if (strcmp(v.run, in->run) == 0) return open_answer(t, job); /* opened since the handler looked */
  enum rc rc = trainer_map_config(&in->training, &unit, &o, err);
  if (rc != RC_OK) return rc;
  trainer_run_end(t);
  t->unit = unit;
  t->seed = in->seed;
  rc = trainer_start_weights(t, &in->start, err);
  if (rc == RC_OK) rc = trainer_blob_make(t, in->run, 0, &b, err);
  if (rc == RC_OK) rc = trainer_keep_config(t, in, err);
  if (rc == RC_OK && trainer_trains(&t->training)) {
    rc = training_open(t, in, &o, &b->digest, err);
    if (rc == RC_OK) rc = trainer_write_checkpoint(t, b, NULL, err);
  }
  if (rc != RC_OK) {
    weights_blob_release(b);
    trainer_weights_back(t);
    return rc;
  }
  trainer_run_set(t, &job->request, t->training.chunk_tokens);
  log_info("run %s opened (%s), version 0", in->run, in->training.objective);
  trainer_version_set(t, b);
  return open_answer(t, job);
}

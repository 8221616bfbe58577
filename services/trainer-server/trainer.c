/* The trainer's engine: see trainer.h. */
#include "services/trainer-server/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/metrics.h"
#include "services/trainer-server/checkpoint.h"
#include "services/trainer-server/publisher.h"
#include "services/trainer-server/unit.h"

enum { QUEUE_JOBS = 1024, POLL_MS = 200, HISTORY_STEP = 256, HISTORY_MAX = 65536, CHUNK_TOKENS_MIN = 2 };

/* A group whose gradient is in the sums.  Its batch failed afterwards, for want of memory, unless answered: then only
 * its log-probabilities are still owed. */
struct accumulated {
  char id[LIMIT_NAME_MAX];
  bool answered;
};

struct trainer {
  /* set by trainer_create, constant afterwards */
  struct trainer_options options;
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct learner *learner;
  struct jobs *jobs;
  struct queue *queue;
  struct publisher *publisher;
  pthread_t thread;
  bool thread_runs;
  atomic_bool stopping;

  /* the engine thread's */
  struct weights *weights, *reference; /* current; frozen for the KL term or NULL */
  struct optimizer *optimizer;
#ifdef LEASEHOLD_FAULTS
  bool fault_struck;
#endif
  int learner_chunk; /* tokens per chunk that learner was made for */
  float *grads;      /* one unit */
  struct training_config training;
  struct arena run_arena; /* the strings of training */
  struct unit_config unit;
  uint64_t seed;
  struct accumulated *accumulated; /* groups since the last step */
  size_t accumulated_count;
  bool step_pending; /* weights hold a step that is not durable yet: see step_apply */
  char pending_step[LIMIT_NAME_MAX];
  struct step_result pending;
  struct round_record *history; /* the newest HISTORY_MAX / 2 rounds at least */
  size_t history_count, history_cap;
  double step_loss; /* of the units since the last step */
  int64_t step_tokens;

  pthread_mutex_t lock; /* guards view and blob */
  struct trainer_view view;
  struct weights_blob *blob; /* the current version's bytes */

  struct metric *metric_tokens, *metric_steps, *metric_skipped, *metric_compute, *metric_version, *metric_units;
};

void weights_blob_release(struct weights_blob *b) {
  if (!b || atomic_fetch_sub(&b->users, 1) != 1) return;
  buf_free(&b->bytes);
  free(b);
}

/* ---- what handlers ask ---- */

void trainer_view(struct trainer *t, struct trainer_view *out) {
  pthread_mutex_lock(&t->lock);
  *out = t->view;
  pthread_mutex_unlock(&t->lock);
}

struct jobs *trainer_jobs(struct trainer *t) {
  return t->jobs;
}
const struct model_config *trainer_model_config(const struct trainer *t) { return &t->config; }
const char *trainer_model_dir(const struct trainer *t) { return t->options.model_dir; }
void trainer_set_publisher(struct trainer *t, struct publisher *p) { t->publisher = p; }

enum rc trainer_weights_blob(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                             struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&t->lock);
  if (run[0] && strcmp(run, t->view.run) != 0) {
    rc = err_set(err, RC_NOT_FOUND, "run", "this trainer holds run '%s', not '%s'", t->view.run, run);
  } else if (version != t->view.version) {
    rc = err_set(err, version < t->view.version ? RC_CONFLICT : RC_NOT_FOUND, "version",
                 "version %" PRId64 " is not the current one, %" PRId64, version, t->view.version);
  } else {
    atomic_fetch_add(&t->blob->users, 1);
    *out = t->blob;
  }
  pthread_mutex_unlock(&t->lock);
  return rc;
}

void trainer_learn_epoch(struct trainer *t, uint64_t epoch, uint64_t fence) {
  pthread_mutex_lock(&t->lock);
  if (epoch > t->view.epoch) t->view.epoch = epoch;
  if (fence > t->view.fence) t->view.fence = fence;
  pthread_mutex_unlock(&t->lock);
}

enum rc trainer_check_authority(struct trainer *t, uint64_t epoch, uint64_t fence, struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&t->lock);
  if (epoch < t->view.epoch) {
    rc = err_set(err, RC_CONFLICT, "epoch", "epoch %" PRIu64 " is stale, the newest seen is %" PRIu64, epoch,
                 t->view.epoch);
  } else if (fence < t->view.fence) {
    rc = err_set(err, RC_CONFLICT, "fence", "fence %" PRIu64 " is stale, the newest seen is %" PRIu64, fence,
                 t->view.fence);
  } else {
    t->view.epoch = epoch;
    t->view.fence = fence;
  }
  pthread_mutex_unlock(&t->lock);
  return rc;
}

enum rc trainer_check_version(struct trainer *t, const char *run, int64_t version, struct err *err) {
  struct trainer_view v;
  trainer_view(t, &v);
  if (strcmp(run, v.run) != 0)
    return err_set(err, RC_CONFLICT, "run", "this trainer works on run '%s', not on '%s'", v.run, run);
  if (version != v.version)
    return err_set(err, RC_CONFLICT, "version", "version %" PRId64 " is not the current one, %" PRId64, version,
                   v.version);
  return RC_OK;
}

enum rc trainer_enqueue(struct trainer *t, struct job *job, struct err *err) {
  enum rc rc = queue_push(t->queue, job);
  if (rc == RC_FULL) err_set(err, rc, NULL, "%d jobs are queued already; try again", QUEUE_JOBS);
  if (rc == RC_UNAVAILABLE) err_set(err, rc, NULL, "the trainer is stopping");
  return rc;
}

/* ---- versions ---- */

static void run_set(struct trainer *t, const struct digest *run_digest, int chunk_tokens) {
  pthread_mutex_lock(&t->lock);
  t->view.run_digest = *run_digest;
  t->view.chunk_tokens = chunk_tokens;
  pthread_mutex_unlock(&t->lock);
}

/* From here on no message of the old run is taken, whatever becomes of the new one. */
static void run_end(struct trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->view.run[0] = 0;
  pthread_mutex_unlock(&t->lock);
  t->step_pending = false;
  t->accumulated_count = 0;
  t->history_count = 0;
  t->step_loss = 0;
  t->step_tokens = 0;
  optimizer_discard(t->optimizer);
}

/* Serializes the current weights and makes them the version that handlers see. */
static enum rc blob_make(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                         struct err *err) {
  struct weights_blob *b = calloc(1, sizeof *b);
  if (!b) return err_set(err, RC_NO_MEMORY, NULL, "a weights record was refused memory");
  atomic_init(&b->users, 1);
  snprintf(b->run, sizeof b->run, "%s", run);
  b->version = version;
  enum rc rc = weights_digest(&b->digest, t->weights, err);
  char hex[DIGEST_HEX_MAX], number[32];
  digest_hex(hex, &b->digest);
  snprintf(number, sizeof number, "%" PRId64, version);
  const char *const metadata[] = {"leasehold.run", run, "leasehold.version", number, "leasehold.digest", hex, NULL};
  if (rc == RC_OK) rc = weights_to_safetensors(&b->bytes, t->weights, metadata, err);
  if (rc == RC_OK) rc = buf_check(&b->bytes, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  *out = b;
  return RC_OK;
}

static void version_set(struct trainer *t, struct weights_blob *b) {
  pthread_mutex_lock(&t->lock);
  struct weights_blob *old = t->blob;
  t->blob = b;
  snprintf(t->view.run, sizeof t->view.run, "%s", b->run);
  t->view.version = b->version;
  t->view.digest = b->digest;
  pthread_mutex_unlock(&t->lock);
  weights_blob_release(old);
  metric_set(t->metric_version, (double)b->version);
}

static bool trains(const struct training_config *c) { return strcmp(c->objective, "evaluate") != 0; }

/* step NULL: version 0. */
static enum rc write_checkpoint(struct trainer *t, const struct weights_blob *b, const struct job *step,
                                struct err *err) {
  struct checkpoint_meta meta = {.version = b->version,
                                 .digest = b->digest,
                                 .seed = t->seed,
                                 .optimizer_steps = optimizer_step_count(t->optimizer),
                                 .training = t->training,
                                 .history = t->history,
                                 .history_count = t->history_count};
  struct trainer_view v;
  trainer_view(t, &v);
  snprintf(meta.run, sizeof meta.run, "%s", b->run);
  if (step) {
    snprintf(meta.step_id, sizeof meta.step_id, "%s", step->id);
    meta.step_request = step->request;
  }
  meta.epoch = v.epoch;
  meta.fence = v.fence;
  enum rc rc =
      checkpoint_write(t->options.state_dir, t->options.model_dir, &meta, t->model, t->optimizer, &b->bytes, err);
  if (rc != RC_OK) return rc;
  struct err kept = {0};
  if (checkpoint_prune(t->options.state_dir, b->run, b->version, t->options.keep_checkpoints, &kept) != RC_OK)
    log_warn("an old checkpoint stays: %s", kept.message);
  return RC_OK;
}

/* ---- jobs ---- */

/* The wire's names and numbers as the model module's configurations; pure. */
static enum rc training_map(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
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
                                        .kl_coefficient = (float)c->kl_coefficient}};
  enum rc rc = trains(c) ? loss_kind_parse(&unit->loss.kind, c->objective, err) : RC_OK;
  if (rc == RC_OK) rc = loss_normalization_parse(&unit->loss.normalization, c->normalization, err);
  if (rc == RC_OK) rc = schedule_kind_parse(&o->schedule, c->schedule, err);
  if (rc == RC_OK) rc = optimizer_config_check(o, err);
  return rc;
}

enum rc trainer_check_config(const struct trainer *t, const struct training_config *c, struct err *err) {
  struct unit_config unit;
  struct optimizer_config o;
  if (trains(c) && (c->chunk_tokens < CHUNK_TOKENS_MIN || c->chunk_tokens > t->options.chunk_tokens)) {
    return err_set(err, RC_INVALID, "training.chunk_tokens", "expected %d to %" PRId64 " (--chunk-tokens), got %d",
                   CHUNK_TOKENS_MIN, t->options.chunk_tokens, c->chunk_tokens);
  }
  if (trains(c) && !(c->temperature > 0))
    return err_set(err, RC_INVALID, "training.temperature", "training needs a temperature above 0, got %g",
                   c->temperature);
  enum rc rc = training_map(c, &unit, &o, err);
  if (rc != RC_OK) err_in_field(err, "training");
  return rc;
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
  open_run_encode(&content, &canonical);
  enum rc rc = buf_check(&canonical, err);
  if (rc == RC_OK) digest_of(out, canonical.data, canonical.len);
  buf_free(&canonical);
  return rc;
}

/* Keeps a copy of the training config whose strings outlive the request. */
static enum rc training_keep(struct trainer *t, const struct training_config *c, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct training_config kept = *c;
  kept.objective = arena_strdup(&arena, c->objective);
  kept.normalization = arena_strdup(&arena, c->normalization);
  kept.schedule = arena_strdup(&arena, c->schedule);
  if (!kept.objective || !kept.normalization || !kept.schedule) {
    arena_free(&arena);
    return err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  arena_free(&t->run_arena);
  t->run_arena = arena;
  t->training = kept;
  return RC_OK;
}

static enum rc learner_for(struct trainer *t, int chunk_tokens, struct err *err) {
  if (t->learner && t->learner_chunk == chunk_tokens) return RC_OK;
  learner_free(t->learner); /* first: start-up has planned memory for one */
  t->learner = NULL;
  t->learner_chunk = chunk_tokens;
  return learner_create(&t->learner, t->model, chunk_tokens, err);
}

/* The frozen reference of the KL term: the weights that the run starts from. */
static enum rc reference_freeze(struct trainer *t, struct err *err) {
  weights_free(t->reference);
  t->reference = NULL;
  if (t->unit.loss.kl_coefficient == 0) return RC_OK;
  enum rc rc = weights_create(&t->reference, t->model, false, err);
  if (rc == RC_OK) {
    weights_to_masters(t->weights, t->grads); /* grads serve as scratch between units */
    weights_from_masters(t->reference, t->grads);
  }
  return rc;
}

/* What a training run starts with: weights as they are, everything else fresh. */
static enum rc training_begin(struct trainer *t, const struct optimizer_config *o, const struct weights_blob *b,
                              struct err *err) {
  enum rc rc = learner_for(t, t->training.chunk_tokens, err);
  if (rc == RC_OK) rc = reference_freeze(t, err);
  if (rc != RC_OK) return rc;
  optimizer_reset(t->optimizer, o);
  weights_to_masters(
      t->weights,
      optimizer_masters(t->optimizer)); /* a run depends on the weights it starts from, and on nothing older */
  return write_checkpoint(t, b, NULL, err);
}

static enum rc job_open_run(struct trainer *t, struct job *job, struct err *err) {
  const struct open_run *in = &job->in.open;
  struct optimizer_config o;
  struct unit_config unit;
  struct weights_blob *b = NULL;
  struct trainer_view v;
  trainer_view(t, &v);
  if (strcmp(v.run, in->run) == 0) { /* opened since the handler looked */
    job->out.open = (struct open_run_answer){.run = job->id, .version = v.version, .digest = v.digest};
    return RC_OK;
  }
  enum rc rc = training_map(&in->training, &unit, &o, err);
  if (rc == RC_OK) rc = blob_make(t, in->run, 0, &b, err);
  if (rc != RC_OK) return rc;
  run_end(t);
  t->unit = unit;
  t->seed = in->seed;
  rc = training_keep(t, &in->training, err);
  if (rc == RC_OK && trains(&t->training)) rc = training_begin(t, &o, b, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  job->out.open = (struct open_run_answer){.run = job->id, .version = 0, .digest = b->digest};
  run_set(t, &job->request, t->training.chunk_tokens);
  log_info("run %s opened (%s), version 0", in->run, in->training.objective);
  version_set(t, b);
  return RC_OK;
}

static struct accumulated *accumulated_find(const struct trainer *t, const char *group) {
  for (size_t i = 0; i < t->accumulated_count; i++) {
    if (strcmp(t->accumulated[i].id, group) == 0) return &t->accumulated[i];
  }
  return NULL;
}

static void stats_add(struct batch_stats *s, const struct unit_result *u, size_t samples) {
  s->loss += u->stats.loss;
  s->entropy_sum += u->entropy_sum;
  s->kl_reference_sum += u->stats.kl_reference;
  s->ratio_sum += u->stats.ratio_sum;
  s->ratio_squares += u->stats.ratio_squares;
  s->tokens += u->stats.tokens;
  s->clipped += u->stats.clipped;
  s->samples += (int64_t)samples;
  s->compute_us += u->compute_us;
}

/* Everything that can be wrong with a batch, before its first unit is accumulated. */
static enum rc batch_check(struct trainer *t, const struct submit_batch *in, struct err *err) {
  enum rc rc = trainer_check_version(t, in->run, in->version, err);
  if (rc == RC_OK) rc = trainer_check_batch(t, in, err);
  if (rc != RC_OK) return rc;
  if (!trains(&t->training)) return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no batches", in->run);
  if (t->step_pending)
    return err_set(err, RC_CONFLICT, "version", "step %s was taken and is not durable yet; submit it again first",
                   t->pending_step);
  for (size_t g = 0; g < in->group_count; g++) {
    const struct accumulated *known = accumulated_find(t, in->groups[g].id);
    if (known && known->answered)
      return err_set(err, RC_CONFLICT, "groups", "group %s has been accumulated since the last step", in->groups[g].id);
  }
  if (t->accumulated_count + in->group_count > LIMIT_GROUPS_PER_ROUND) {
    return err_set(err, RC_TOO_LARGE, "groups", "a step takes at most %d groups, %zu were accumulated and %zu came",
                   LIMIT_GROUPS_PER_ROUND, t->accumulated_count, in->group_count);
  }
  return RC_OK;
}

#ifdef LEASEHOLD_FAULTS
/* The mutant: once, from the second round on, the sign bit of the largest element of one unit's gradient. */
static void fault_flip_gradient(struct trainer *t) {
  float *largest = &t->grads[0];
  if (t->fault_struck || !t->options.fault || strcmp(t->options.fault, "flip-gradient") != 0 || t->history_count < 1)
    return;
  for (size_t i = 0; i < t->model->params.elements; i++) {
    if (__builtin_fabsf(t->grads[i]) > __builtin_fabsf(*largest)) largest = &t->grads[i];
  }
  if (*largest == 0) return; /* a group without advantages */
  *largest = -*largest;
  t->fault_struck = true;
  log_warn("fault: flipped the sign bit of gradient element %td", largest - t->grads);
}
#endif

/* One group: log-probabilities and gradient, and the gradient into the sums. */
static enum rc batch_unit(struct trainer *t, const struct batch_group *group, struct unit_result *unit, bool *poisoned,
                          struct arena *arena, struct err *err) {
  memset(t->grads, 0, t->model->params.elements * sizeof *t->grads);
  enum rc rc =
      unit_compute(t->learner, t->model, t->weights, t->reference, &t->unit, group, t->grads, unit, arena, err);
  if (rc != RC_OK) return rc;
#ifdef LEASEHOLD_FAULTS
  fault_flip_gradient(t);
#endif
  metric_add(t->metric_units, 1);
  if (accumulated_find(t, group->id)) return RC_OK;
  if (!optimizer_add_unit(t->optimizer, t->grads)) *poisoned = true;
  struct accumulated *a = &t->accumulated[t->accumulated_count++];
  snprintf(a->id, sizeof a->id, "%s", group->id);
  a->answered = false;
  t->step_loss += unit->stats.loss;
  t->step_tokens += unit->stats.tokens;
  return RC_OK;
}

static enum rc job_batch(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_batch *in = &job->in.batch;
  struct batch_status *out = &job->out.batch;
  enum rc rc = batch_check(t, in, err);
  if (rc != RC_OK) return rc;
  size_t samples = 0, at = 0;
  for (size_t g = 0; g < in->group_count; g++) samples += in->groups[g].sample_count;
  memset(out, 0, sizeof *out);
  out->samples = arena_alloc(&job->arena, samples + 1, sizeof *out->samples);
  if (!out->samples) return err_set(err, RC_NO_MEMORY, NULL, "the results of %zu samples were refused memory", samples);
  out->sample_count = samples;
  for (size_t g = 0; g < in->group_count; g++) {
    struct unit_result unit;
    if (atomic_load(&t->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the trainer is stopping");
    rc = batch_unit(t, &in->groups[g], &unit, &out->stats.poisoned, &job->arena, err);
    if (rc != RC_OK) return rc;
    memcpy(out->samples + at, unit.samples, in->groups[g].sample_count * sizeof *out->samples);
    at += in->groups[g].sample_count;
    stats_add(&out->stats, &unit, in->groups[g].sample_count);
  }
  for (size_t g = 0; g < in->group_count; g++) accumulated_find(t, in->groups[g].id)->answered = true;
  metric_add(t->metric_tokens, (double)out->stats.tokens);
  metric_add(t->metric_compute, (double)out->stats.compute_us * 1e-6);
  return RC_OK;
}

/* The checkpoint's file would grow without end: past HISTORY_MAX the older half goes. */
static enum rc history_add(struct trainer *t, const struct step_status *s, double denominator, struct err *err) {
  if (t->history_count == HISTORY_MAX) {
    t->history_count = HISTORY_MAX / 2;
    memmove(t->history, t->history + (HISTORY_MAX - HISTORY_MAX / 2), t->history_count * sizeof *t->history);
  }
  if (t->history_count == t->history_cap) {
    size_t cap = t->history_cap + HISTORY_STEP;
    struct round_record *grown = realloc(t->history, cap * sizeof *grown);
    if (!grown) return err_set(err, RC_NO_MEMORY, NULL, "a history of %zu rounds was refused memory", cap);
    t->history = grown;
    t->history_cap = cap;
  }
  t->history[t->history_count++] = (struct round_record){.version = s->version,
                                                         .digest = s->digest,
                                                         .grad_norm = s->grad_norm,
                                                         .lr = s->lr,
                                                         .skipped = s->skipped,
                                                         .loss = denominator > 0 ? t->step_loss / denominator : 0,
                                                         .tokens = t->step_tokens};
  return RC_OK;
}

static enum rc step_check(struct trainer *t, const struct submit_step *in, struct err *err) {
  enum rc rc = trainer_check_version(t, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!trains(&t->training)) return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no steps", in->run);
  if (t->step_pending) {
    if (strcmp(t->pending_step, in->step_id) == 0) return RC_OK;
    return err_set(err, RC_CONFLICT, "step_id", "step %s was taken and is not durable yet; expected it again, got %s",
                   t->pending_step, in->step_id);
  }
  if (in->group_count != t->accumulated_count) {
    return err_set(err, RC_CONFLICT, "groups", "the step names %zu groups, %zu were accumulated since the last step",
                   in->group_count, t->accumulated_count);
  }
  for (size_t g = 0; g < in->group_count; g++) { /* the decoder has refused a group that is named twice */
    if (!accumulated_find(t, in->groups[g]))
      return err_set(err, RC_CONFLICT, "groups", "group %s has not been accumulated", in->groups[g]);
  }
  return RC_OK;
}

/* Accumulators -> masters -> bf16, once: a step that is submitted again because its checkpoint failed finds it done. */
static void step_apply(struct trainer *t, const struct submit_step *in) {
  if (t->step_pending) return;
  struct step_result result = {.skipped = true};
  if (in->group_count > 0 && in->denominator > 0)
    optimizer_step(t->optimizer, in->denominator, &result);
  else
    optimizer_discard(t->optimizer);
  if (!result.skipped) weights_from_masters(t->weights, optimizer_masters(t->optimizer));
  t->accumulated_count = 0;
  t->step_pending = true;
  t->pending = result;
  snprintf(t->pending_step, sizeof t->pending_step, "%s", in->step_id);
}

/* Digest -> durable; then the version is ours and the publisher's, to whom the job belongs after RC_OK. */
static enum rc job_step(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct weights_blob *b = NULL;
  int64_t begun_us = clock_monotonic_us();
  enum rc rc = step_check(t, in, err);
  if (rc != RC_OK) return rc;
  step_apply(t, in);
  if ((rc = blob_make(t, in->run, in->version + 1, &b, err)) != RC_OK) return rc;
  *out = (struct step_status){.version = b->version,
                              .digest = b->digest,
                              .grad_norm = t->pending.grad_norm,
                              .lr = t->pending.lr,
                              .skipped = t->pending.skipped};
  if ((rc = history_add(t, out, in->denominator, err)) != RC_OK) goto out;
  out->step_us = clock_monotonic_us() - begun_us;
  if (in->last || b->version % t->training.checkpoint_every == 0) {
    int64_t write_us = clock_monotonic_us();
    if ((rc = write_checkpoint(t, b, job, err)) != RC_OK) {
      t->history_count--;
      goto out;
    }
    out->checkpoint_us = clock_monotonic_us() - write_us;
  }
  t->step_pending = false;
  t->step_loss = 0;
  t->step_tokens = 0;
  atomic_fetch_add(&b->users, 1); /* the publisher's reference */
  version_set(t, b);
  metric_add(out->skipped ? t->metric_skipped : t->metric_steps, 1);
  jobs_forget_before(t->jobs, in->version);
  publisher_submit(t->publisher, job, b);
  return RC_OK;
out:
  weights_blob_release(b);
  return rc;
}

static void engine_job(struct trainer *t, struct job *job) {
  const enum job_kind kind = job->kind;
  struct err err = {0};
  enum rc rc;
  jobs_running(t->jobs, job);
  switch (kind) {
    case JOB_OPEN_RUN: rc = job_open_run(t, job, &err); break;
    case JOB_BATCH: rc = job_batch(t, job, &err); break;
    default: rc = job_step(t, job, &err); break;
  }
  if (rc == RC_OK && kind == JOB_STEP) return; /* the publisher's since, and maybe dropped already */
  if (rc == RC_UNAVAILABLE && atomic_load(&t->stopping)) return;
  if (rc != RC_OK) log_warn("job %s failed: %s", job->id, err.message);
  jobs_finish(t->jobs, job, rc == RC_OK ? NULL : &err);
}

static void engine_busy(struct trainer *t, bool busy) {
  pthread_mutex_lock(&t->lock);
  t->view.busy = busy;
  pthread_mutex_unlock(&t->lock);
}

static void *engine_main(void *context) {
  struct trainer *t = context;
  void *item;
  pool_enter();
  while (!atomic_load(&t->stopping)) {
    if (queue_pop(t->queue, &item, POLL_MS) != RC_OK) continue;
    engine_busy(t, true);
    engine_job(t, item);
    engine_busy(t, false);
  }
  return NULL; /* what is queued stays in the job table, which frees it */
}

/* ---- start ---- */

static enum rc weights_initial(struct trainer *t, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  enum rc rc = path_format(path, err, "%s/model.safetensors", t->options.model_dir);
  if (rc != RC_OK) return rc;
  if (file_exists(path)) {
    rc = st_open_file(&file, path, err);
    if (rc == RC_OK) rc = weights_from_safetensors(t->weights, file, err);
    st_close(file);
    return rc;
  }
  if (t->options.random_init_seed < 0) {
    return err_set(err, RC_NOT_FOUND, NULL,
                   "%s does not exist, and --random-init gives no seed to start from random weights", path);
  }
  masters_random(t->model, t->grads, (uint64_t)t->options.random_init_seed);
  weights_from_masters(t->weights, t->grads);
  log_info("random initial weights, seed %" PRId64, t->options.random_init_seed);
  return RC_OK;
}

/* The frozen reference of a resumed run: its version 0, which pruning never removes. */
static enum rc reference_restore(struct trainer *t, const char *run, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  enum rc rc = path_format(path, err, "%s/%s/v0/model.safetensors", t->options.state_dir, run);
  if (rc == RC_OK) rc = weights_create(&t->reference, t->model, false, err);
  if (rc == RC_OK) rc = st_open_file(&file, path, err);
  if (rc == RC_OK) rc = weights_from_safetensors(t->reference, file, err);
  st_close(file);
  return rc;
}

/* The step that led to the restored version is known as done: the coordinator may have died, or been told nothing,
 * between its checkpoint and its announcement. */
static enum rc step_restore(struct trainer *t, const struct checkpoint_meta *meta, struct err *err) {
  struct job *job;
  bool fresh;
  if (!meta->step_id[0] || meta->history_count == 0) return RC_OK;
  const struct round_record *last = &meta->history[meta->history_count - 1];
  enum rc rc = jobs_begin(t->jobs, meta->step_id, JOB_STEP, &meta->step_request, meta->version - 1, &job, &fresh, err);
  if (rc != RC_OK) return rc;
  job->out.step = (struct step_status){.version = meta->version,
                                       .digest = meta->digest,
                                       .grad_norm = last->grad_norm,
                                       .lr = last->lr,
                                       .skipped = last->skipped};
  jobs_finish(t->jobs, job, NULL);
  return RC_OK;
}

static enum rc checkpoint_adopt(struct trainer *t, struct checkpoint *c, struct err *err) {
  struct optimizer_config o;
  struct weights_blob *b = NULL;
  struct digest run_digest;
  const struct open_run opened = {.run = c->meta.run, .seed = c->meta.seed, .training = c->meta.training};
  enum rc rc = training_map(&c->meta.training, &t->unit, &o, err);
  if (rc == RC_OK) rc = training_keep(t, &c->meta.training, err);
  if (rc == RC_OK) rc = trainer_run_digest(&run_digest, &opened, err);
  if (rc == RC_OK) rc = learner_for(t, c->meta.training.chunk_tokens, err);
  if (rc == RC_OK && t->unit.loss.kl_coefficient != 0) rc = reference_restore(t, c->meta.run, err);
  if (rc == RC_OK) rc = step_restore(t, &c->meta, err);
  if (rc == RC_OK) rc = blob_make(t, c->meta.run, c->meta.version, &b, err);
  if (rc != RC_OK) return rc;
  optimizer_configure(t->optimizer, &o);
  optimizer_set_step_count(t->optimizer, c->meta.optimizer_steps);
  t->seed = c->meta.seed;
  t->history = c->history;
  t->history_count = t->history_cap = c->meta.history_count;
  c->history = NULL;
  trainer_learn_epoch(t, c->meta.epoch, c->meta.fence);
  run_set(t, &run_digest, t->training.chunk_tokens);
  version_set(t, b);
  return RC_OK;
}

/* The newest checkpoint, or the model folder. */
static enum rc state_restore(struct trainer *t, struct err *err) {
  struct checkpoint c;
  enum rc rc = checkpoint_load(&c, t->options.state_dir, t->model, t->weights, t->optimizer, err);
  if (rc == RC_NOT_FOUND) {
    struct weights_blob *b = NULL;
    rc = weights_initial(t, err);
    if (rc == RC_OK) rc = blob_make(t, "", 0, &b, err);
    if (rc == RC_OK) version_set(t, b);
    return rc;
  }
  if (rc != RC_OK) return rc;
  rc = checkpoint_adopt(t, &c, err);
  if (rc == RC_OK) log_info("restored run %s at version %" PRId64 " from %s", c.meta.run, c.meta.version, c.dir);
  checkpoint_free(&c);
  return rc;
}

static enum rc memory_plan(const struct trainer *t, struct err *err) {
  size_t weights = weights_bytes(t->model, true), optimizer = optimizer_bytes(t->model),
         grads = t->model->params.elements * sizeof(float);
  size_t learner = learner_bytes(t->model, (int)t->options.chunk_tokens);
  size_t published = 2 * t->model->params.parameters *
                     sizeof(uint16_t); /* the current version's bytes, and the next one's while the last is pushed */
  size_t need = weights + optimizer + grads + learner + published, have = memory_available_bytes();
  log_info(
      "memory: weights %zu MiB, optimizer %zu MiB, gradients %zu MiB, activations %zu MiB, published versions %zu MiB "
      "of %zu MiB available",
      weights >> 20, optimizer >> 20, grads >> 20, learner >> 20, published >> 20, have >> 20);
  if (have && need > have)
    return err_set(err, RC_NO_MEMORY, NULL, "the trainer needs %zu MiB, of which %zu MiB are available", need >> 20,
                   have >> 20);
  return RC_OK;
}

static void metrics_make(struct trainer *t) {
  t->metric_tokens =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_tokens_total", "", "Tokens that were trained on");
  t->metric_units =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_units_total", "", "Gradient units (groups) computed");
  t->metric_steps = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_total", "", "Optimizer steps taken");
  t->metric_skipped = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_skipped_total", "",
                                       "Steps skipped: poisoned or without units");
  t->metric_compute =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_compute_seconds_total", "", "Time in forward and backward");
  t->metric_version = metrics_register(METRIC_GAUGE, "leasehold_trainer_version", "", "The current policy version");
}

enum rc trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err) {
  static const struct optimizer_config idle = {
      .lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale_log2 = 32};
  struct trainer *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the trainer's state was refused memory");
  t->options = *options;
  pthread_mutex_init(&t->lock, NULL);
  training_config_defaults(&t->training);
  enum rc rc = file_make_dirs(options->state_dir, err);
  if (rc == RC_OK) rc = model_config_load(&t->config, options->model_dir, err);
  if (rc == RC_OK) rc = pool_create(&t->pool, (int)options->threads, err);
  if (rc == RC_OK) rc = ops_cpu_create(&t->ops, FORMAT_BF16, options->isa, t->pool, err);
  if (rc == RC_OK) rc = model_create(&t->model, &t->config, t->ops, (int)options->context_max, err);
  if (rc == RC_OK) rc = memory_plan(t, err);
  if (rc == RC_OK) rc = weights_create(&t->weights, t->model, true, err);
  if (rc == RC_OK) rc = optimizer_create(&t->optimizer, t->model, &idle, err);
  if (rc == RC_OK) rc = learner_for(t, (int)options->chunk_tokens, err); /* the largest that a run may ask for */
  if (rc == RC_OK) rc = jobs_create(&t->jobs, err);
  if (rc == RC_OK) rc = queue_create(&t->queue, QUEUE_JOBS, err);
  if (rc == RC_OK) {
    t->grads = t->ops->alloc(t->ops, t->model->params.elements * sizeof *t->grads);
    t->accumulated = calloc(LIMIT_GROUPS_PER_ROUND, sizeof *t->accumulated);
    if (!t->grads || !t->accumulated)
      rc = err_set(err, RC_NO_MEMORY, NULL, "one unit's gradients need %zu bytes, which were refused",
                   t->model->params.elements * sizeof *t->grads);
  }
  metrics_make(t);
  if (rc == RC_OK) rc = state_restore(t, err);
  if (rc == RC_OK) {
    t->thread_runs = pthread_create(&t->thread, NULL, engine_main, t) == 0;
    if (!t->thread_runs) rc = err_set(err, RC_NO_MEMORY, NULL, "the engine's thread could not be started");
  }
  if (rc != RC_OK) {
    trainer_destroy(t);
    return rc;
  }
  *out = t;
  return RC_OK;
}

void trainer_stop(struct trainer *t) {
  atomic_store(&t->stopping, true);
  queue_close(t->queue);
  if (t->thread_runs) pthread_join(t->thread, NULL);
  t->thread_runs = false;
}

void trainer_destroy(struct trainer *t) {
  if (!t) return;
  if (t->thread_runs) trainer_stop(t);
  if (t->grads) t->ops->release(t->ops, t->grads);
  free(t->accumulated);
  free(t->history);
  weights_blob_release(t->blob);
  jobs_destroy(t->jobs);
  queue_destroy(t->queue);
  learner_free(t->learner);
  optimizer_free(t->optimizer);
  weights_free(t->reference);
  weights_free(t->weights);
  model_free(t->model);
  ops_free(t->ops);
  pool_destroy(t->pool);
  arena_free(&t->run_arena);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

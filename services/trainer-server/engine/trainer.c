/* The trainer's engine: start, the loop over its jobs, and what handlers ask.  See trainer.h. */
#include "services/trainer-server/engine/trainer_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

enum { QUEUE_JOBS = 1024, POLL_MS = 200 };

void weights_blob_release(struct weights_blob *b) {
  if (!b || atomic_fetch_sub(&b->users, 1) != 1) return;
  buf_free(&b->bytes);
  free(b);
}

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
int trainer_context_max(const struct trainer *t) { return t->model->context_max; }
const char *trainer_kernels(const struct trainer *t) { return t->ops->name; }
int trainer_ranks(const struct trainer *t) { return t->ranks.count; }
const char *trainer_ranks_over(const struct trainer *t) { return t->ranks.over; }
const char *trainer_device(const struct trainer *t) { return t->ops->device; }
void trainer_set_publisher(struct trainer *t, struct publisher *p) { t->publisher = p; }
void trainer_count_push(struct trainer *t, int64_t took_us) {
  metric_add(t->timeline.seconds[CAUSE_PUSH], (double)took_us * 1e-6);
}

enum rc trainer_weights_blob(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                             struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&t->lock);
  if (run[0] && strcmp(run, t->view.run) != 0) {
    rc = err_set(err, RC_NOT_FOUND, "run", "this trainer holds run '%s', not '%s'", t->view.run, run);
  } else if (version > t->view.version && version <= t->view.replay_to) {
    rc = err_set(err, RC_UNAVAILABLE, "version", "version %" PRId64 " is being replayed, %" PRId64 " is reached",
                 version, t->view.version);
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

/* After a job that failed: where the device has, no other will fare better, and the trainer ends. */
static void engine_look_at_device(struct trainer *t) {
  struct err err;
  if (t->ops->status(t->ops, &err) == RC_OK) return;
  log_error("the engine stops: %s", err.message);
  ranks_lose(t, &err);
}

static void engine_job(struct trainer *t, struct job *job) {
  const enum job_kind kind = job->kind;
  struct err err = {0}, lost;
  enum rc rc;
  jobs_running(t->jobs, job);
  switch (kind) {
    case JOB_OPEN_RUN: rc = trainer_job_open_run(t, job, &err); break;
    case JOB_BATCH: rc = trainer_job_batch(t, job, &err); break;
    default: rc = trainer_job_step(t, job, &err); break;
  }
  if (kind == JOB_OPEN_RUN) timeline_mark(&t->timeline, CAUSE_LOAD, clock_monotonic_us());
  if (rc == RC_OK && kind == JOB_STEP) return; /* ended, or the publisher's since: maybe dropped already */
  if (rc == RC_UNAVAILABLE && atomic_load(&t->stopping)) return;
  if (rc != RC_OK && trainer_lost(t, &lost)) return;
  if (rc != RC_OK) {
    log_warn("job %s failed: %s", job->id, err.message);
    engine_look_at_device(t);
  }
  jobs_finish(t->jobs, job, rc == RC_OK ? NULL : &err);
}

static void engine_busy(struct trainer *t, bool busy) {
  pthread_mutex_lock(&t->lock);
  t->view.busy = busy;
  pthread_mutex_unlock(&t->lock);
}

/* The wait that just ended, or goes on: for a run to be opened, for the first groups of a step, or for more of them. */
static void engine_waited(struct trainer *t) {
  struct trainer_view v;
  const int64_t now_us = clock_monotonic_us();
  trainer_view(t, &v);
  if (v.attached_us == 0 || !trainer_trains(&t->training)) {
    timeline_mark(&t->timeline, CAUSE_IDLE, now_us);
    return;
  }
  timeline_mark(&t->timeline, CAUSE_IDLE, v.attached_us);
  timeline_mark(&t->timeline, t->accumulated->count ? CAUSE_STARVED : CAUSE_FILL, now_us);
}

static void *engine_main(void *context) {
  struct trainer *t = context;
  void *item;
  pool_enter();
  while (!atomic_load(&t->stopping)) {
    struct err err = {0};
    const enum rc rc = queue_pop(t->queue, &item, POLL_MS);
    engine_waited(t);
    if (ranks_tick(t, &err) != RC_OK || rc != RC_OK) continue;
    engine_busy(t, true);
    engine_job(t, item);
    engine_busy(t, false);
  }
  struct err why;
  if (!trainer_lost(t, &why)) ranks_tell(t, &(struct command){.order = ORDER_END}, NULL, &why);
  atomic_store(&t->ended, true);
  return NULL; /* what is queued stays in the job table, which frees it */
}

bool trainer_lost(struct trainer *t, struct err *why) {
  pthread_mutex_lock(&t->lock);
  *why = t->why;
  pthread_mutex_unlock(&t->lock);
  return why->rc != RC_OK;
}

bool trainer_led(const struct trainer *t) { return atomic_load(&t->led); }

bool trainer_ended(struct trainer *t, struct err *why) {
  const bool ended = atomic_load(&t->ended); /* first: then `why` is final */
  trainer_lost(t, why);
  return ended;
}

static void metrics_make(struct trainer *t) {
  t->metric_tokens =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_tokens_total", "", "Tokens that were trained on");
  t->metric_units =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_units_total", "", "Gradient units (groups) computed");
  t->metric_steps = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_total", "", "Optimizer steps taken");
  t->metric_skipped = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_skipped_total", "",
                                       "Steps skipped: poisoned or without units");
  t->metric_version = metrics_register(METRIC_GAUGE, "leasehold_trainer_version", "", "The current policy version");
  metric_set(metrics_register(METRIC_GAUGE, "leasehold_trainer_ranks", "", "Processes that are this trainer"),
             trainer_ranks(t));
  t->metric_replaying = metrics_register(METRIC_GAUGE, "leasehold_trainer_replaying", "",
                                         "1 while the logged rounds of a recovery are replayed");
}

enum rc trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err) {
  static const struct optimizer_config idle = {
      .lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale_log2 = 32};
  struct trainer *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the trainer's state was refused memory");
  t->options = *options;
  t->ranks.comm = t->ranks.arrays = options->comm ? options->comm : comm_self();
  t->ranks.count = t->ranks.comm->size;
  t->ranks.over = t->ranks.comm->name;
  pthread_mutex_init(&t->lock, NULL);
  training_config_defaults(&t->training);
  metrics_make(t);
  timeline_begin(&t->timeline, clock_monotonic_us());
  const bool first = t->ranks.comm->rank == 0;
  enum rc rc = first ? file_make_dirs(options->state_dir, err) : RC_OK;
  if (rc == RC_OK) rc = model_config_load(&t->config, options->model_dir, err);
  if (rc == RC_OK) rc = pool_create(&t->pool, (int)options->threads, err);
  if (rc == RC_OK) rc = device_take_turn(&t->options.device, t->ranks.comm->local, err);
  if (rc == RC_OK) rc = ops_create(&t->ops, FORMAT_BF16, &t->options.device, t->pool, err);
  if (rc == RC_OK)
    log_info("on %s, kernels %s%s", t->ops->device, t->ops->name,
             options->device.isa && *options->device.isa ? " (forced)" : "");
  if (rc == RC_OK) rc = model_create(&t->model, &t->config, t->ops, (int)options->context_max, err);
  if (rc == RC_OK) rc = ranks_make(t, err);
  if (rc == RC_OK) rc = ranks_compare(t, err);
  if (rc == RC_OK) rc = devices_join(t, err);
  if (rc == RC_OK) rc = trainer_check_memory(t, err);
  if (rc == RC_OK) rc = weights_create(&t->weights, t->model, true, err);
  if (rc == RC_OK)
    rc = optimizer_create_shard(&t->optimizer, t->model, ranks_shard(options, t->model->params.elements), &idle, err);
  if (rc == RC_OK)
    rc = trainer_learner_for(t, (int)options->chunk_tokens, err); /* the largest that a run may ask for */
  if (rc == RC_OK) rc = jobs_create(&t->jobs, err);
  if (rc == RC_OK) rc = queue_create(&t->queue, QUEUE_JOBS, err);
  if (rc == RC_OK) {
    t->grads = optimizer_gradient(t->optimizer);
    t->accumulated = calloc(1, sizeof *t->accumulated);
    if (!t->accumulated)
      rc = err_set(err, RC_NO_MEMORY, NULL, "the table of a step's groups needs %zu bytes, which were refused",
                   sizeof *t->accumulated);
  }
  if (rc == RC_OK && first) rc = trainer_restore(t, err);
  timeline_mark(&t->timeline, CAUSE_LOAD, clock_monotonic_us());
  if (rc == RC_OK) {
    t->thread_runs = pthread_create(&t->thread, NULL, first ? engine_main : follow_main, t) == 0;
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
  devices_part(t);
}

void trainer_destroy(struct trainer *t) {
  if (!t) return;
  if (t->thread_runs) trainer_stop(t);
  devices_part(t);
  ranks_free(t);
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

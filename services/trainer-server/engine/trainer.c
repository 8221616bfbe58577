/* The trainer's start and end, the engine's loop over its jobs, and what handlers ask. */
#include "services/trainer-server/engine/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/threads/pool.h"
#include "services/trainer-server/engine/batch.h"
#include "services/trainer-server/engine/engine.h"
#include "services/trainer-server/engine/follow.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/memory.h"
#include "services/trainer-server/engine/open_run.h"
#include "services/trainer-server/engine/restore.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/start_weights.h"
#include "services/trainer-server/engine/step.h"
#include "services/trainer-server/engine/version.h"
#include "services/trainer-server/publish/state_lock.h"
#include "services/trainer-server/ranks/devices.h"

enum { QUEUE_JOBS = 1024, POLL_MS = 200 };

struct trainer {
  struct engine engine; /* its thread's, but for what stays after trainer_create; first: a test can break its ops */
  struct board board;
  struct model_config config;
  struct pool *pool;
  struct queue *queue;
  pthread_t thread;
  bool thread_runs;
  int state_lock;    /* of rank 0; -1: none */
  atomic_bool led;   /* see trainer_led */
  atomic_bool ended; /* the engine's thread is through, and why it ended is final */
};

struct board *trainer_board(struct trainer *t) {
  return &t->board;
}
struct jobs *trainer_jobs(struct trainer *t) {
  return t->engine.jobs;
}
const struct model_config *trainer_model_config(const struct trainer *t) { return &t->config; }
const char *trainer_state_dir(const struct trainer *t) { return t->engine.options.state_dir; }
const char *trainer_model_dir(const struct trainer *t) { return t->engine.options.model_dir; }
int trainer_context_max(const struct trainer *t) { return t->engine.model->context_max; }
int trainer_threads(const struct trainer *t) { return (int)t->engine.options.threads; }
const char *trainer_kernels(const struct trainer *t) { return t->engine.ops->name; }
int trainer_ranks(const struct trainer *t) { return t->engine.ranks.count; }
const char *trainer_ranks_over(const struct trainer *t) { return t->engine.ranks.over; }
const char *trainer_device(const struct trainer *t) { return t->engine.ops->device; }
void trainer_set_publisher(struct trainer *t, struct publisher *p) { t->engine.publisher = p; }

enum rc trainer_check_run(const struct trainer *t, const struct open_run *m, struct err *err) {
  return run_config_check(&t->engine.options, m, err);
}

enum rc trainer_run_digest(struct digest *out, const struct open_run *m, struct err *err) {
  return run_config_digest(out, m, err);
}

enum rc trainer_foresee_run(struct trainer *t, const struct open_run *m, struct err *err) {
  const struct engine *e = &t->engine;
  struct board_view v;
  board_view(&t->board, &v);
  enum rc rc = run_config_check(&e->options, m, err);
  if (rc == RC_OK) rc = start_weights_ask(&e->options, &m->start, err);
  if (rc != RC_OK) return rc;
  const struct frozen_weights needed = run_config_frozen(&m->training);
  struct err cause = {0};
  if (memory_foresee_frozen(e->model, &e->options, &needed, v.frozen_copies, &cause) == RC_OK) return RC_OK;
  return err_set(err, RC_INVALID,
                 needed.behaviour || needed.versions ? "training.update" : "training.kl_coefficient", "%s",
                 cause.message);
}

enum rc trainer_check_batch(struct trainer *t, const struct submit_batch *m, struct err *err) {
  struct board_view v;
  board_view(&t->board, &v);
  if (m->verify.wanted && !v.takes_behaviour)
    return err_set(
        err, RC_INVALID, "verify",
        "expected a batch of a run with update 'inflight', whose samples bring the data to judge them by; samples of "
        "other runs are judged by a check");
  for (size_t g = 0; g < m->group_count; g++) {
    char path[ERR_FIELD_MAX];
    enum rc rc = unit_check(t->engine.model, v.chunk_tokens, &m->groups[g], err);
    if (rc == RC_OK) rc = unit_check_behaviour(&m->groups[g], v.takes_behaviour, err);
    if (rc == RC_OK) rc = unit_check_reference(&m->groups[g], v.has_reference, err);
    if (rc == RC_OK) continue;
    snprintf(path, sizeof path, "groups[%zu]", g);
    err_in_field(err, path);
    return rc;
  }
  return RC_OK;
}

enum rc trainer_enqueue(struct trainer *t, struct job *job, struct err *err) {
  enum rc rc = queue_push(t->queue, job);
  if (rc == RC_FULL) err_set(err, rc, NULL, "%d jobs are queued already; try again", QUEUE_JOBS);
  if (rc == RC_UNAVAILABLE) err_set(err, rc, NULL, "the trainer is stopping");
  return rc;
}

/* After a job that failed: if the device has failed, no other job can succeed, and the trainer ends. */
static void engine_look_at_device(struct engine *e) {
  struct err err;
  if (e->ops->status(e->ops, &err) == RC_OK) return;
  log_error("the engine stops: %s", err.message);
  ranks_lose(&e->ranks, &err);
}

static void engine_job(struct engine *e, struct job *job) {
  const enum job_kind kind = job->kind;
  struct err err = {0}, lost;
  enum rc rc;
  jobs_running(e->jobs, job);
  log_debug("job %s begins", job->id);
  switch (kind) {
    case JOB_OPEN_RUN: rc = open_run_job(e, job, &err); break;
    case JOB_BATCH: rc = batch_job(e, job, &err); break;
    default: rc = step_job(e, job, &err); break;
  }
  if (kind == JOB_OPEN_RUN) timeline_mark(&e->timeline, CAUSE_LOAD, clock_monotonic_us());
  if (rc == RC_OK && kind == JOB_STEP) return; /* ended, or the publisher's since: maybe dropped already */
  if (rc == RC_UNAVAILABLE && ranks_stopping(&e->ranks)) return;
  if (rc != RC_OK && ranks_lost(&e->ranks, &lost)) return;
  if (rc != RC_OK) {
    log_warn("job %s failed: %s", job->id, err.message);
    engine_look_at_device(e);
  }
  jobs_finish(e->jobs, job, rc == RC_OK ? NULL : &err);
}

/* The wait that just ended, or goes on: for a run to be opened, for the first groups of a round, or for more of
 * them. */
static void engine_waited(struct engine *e) {
  struct board_view v;
  const int64_t now_us = clock_monotonic_us();
  board_view(e->board, &v);
  if (v.attached_us == 0 || !run_config_trains(&e->run.training)) {
    timeline_mark(&e->timeline, CAUSE_IDLE, now_us);
    return;
  }
  timeline_mark(&e->timeline, CAUSE_IDLE, v.attached_us);
  const bool begun = e->next_step.accumulated->count > 0 || e->round.inner_steps > 0;
  timeline_mark(&e->timeline, begun ? CAUSE_STARVED : CAUSE_FILL, now_us);
}

static void engine_serve(struct engine *e, struct queue *queue) {
  void *item;
  while (!ranks_stopping(&e->ranks)) {
    struct err err = {0};
    const enum rc rc = queue_pop(queue, &item, POLL_MS);
    engine_waited(e);
    if (ranks_tick(&e->ranks, &err) != RC_OK || rc != RC_OK) continue;
    board_busy(e->board, true);
    log_context_restore(&((const struct job *)item)->log);
    engine_job(e, item);
    log_context_clear();
    board_busy(e->board, false);
  }
  struct err why;
  if (!ranks_lost(&e->ranks, &why)) ranks_tell(&e->ranks, &(struct order){.kind = ORDER_END}, NULL, &why);
}

static void *engine_main(void *context) {
  struct trainer *t = context;
  pool_enter();
  if (t->engine.ranks.comm->rank == 0)
    engine_serve(&t->engine, t->queue);
  else
    follow_rank_0(&t->engine, &t->led);
  atomic_store(&t->ended, true);
  return NULL; /* what is queued stays in the job table, which frees it */
}

bool trainer_led(const struct trainer *t) { return atomic_load(&t->led); }

bool trainer_ended(struct trainer *t, struct err *why) {
  const bool ended = atomic_load(&t->ended); /* first: then *why is final */
  ranks_lost(&t->engine.ranks, why);
  return ended;
}

static void metrics_make(struct engine *e) {
  e->metric_tokens =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_tokens_total", "", "Tokens that were trained on");
  e->metric_units =
      metrics_register(METRIC_COUNTER, "leasehold_trainer_units_total", "", "Gradient units (groups) computed");
  e->metric_steps = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_total", "", "Optimizer steps taken");
  e->metric_skipped = metrics_register(METRIC_COUNTER, "leasehold_trainer_steps_skipped_total", "",
                                       "Steps skipped: poisoned or without units");
  gauge_set("leasehold_trainer_ranks", "Processes that are this trainer", e->ranks.count);
}

/* The model and what computes it: constant afterwards. */
static enum rc model_make(struct trainer *t, struct err *err) {
  struct engine *e = &t->engine;
  struct trainer_options *o = &e->options;
  enum rc rc = model_config_load(&t->config, o->model_dir, err);
  if (rc == RC_OK) rc = pool_create(&t->pool, (int)o->threads, err);
  if (rc == RC_OK) rc = device_take_turn(&o->device, e->ranks.comm->local, err);
  if (rc == RC_OK) rc = ops_create(&e->ops, FORMAT_BF16, &o->device, t->pool, err);
  if (rc == RC_OK)
    log_info("on %s, kernels %s%s, %lld threads", e->ops->device, e->ops->name,
             o->device.isa && *o->device.isa ? " (forced)" : "", (long long)o->threads);
  if (rc == RC_OK) rc = model_create(&e->model, &t->config, e->ops, (int)o->context_max, err);
  return rc;
}

/* The run of the newest checkpoint goes on at once, with what it keeps frozen. */
static struct frozen_weights frozen_of_checkpoint(const char *state_dir) {
  struct checkpoint c;
  struct frozen_weights frozen = {0};
  if (checkpoint_read_meta(&c, state_dir, NULL) != RC_OK) return frozen;
  frozen = run_config_frozen(&c.meta.training);
  checkpoint_free(&c);
  return frozen;
}

/* The ranks agree on what they are, and that all of it fits. */
static enum rc ranks_join(struct engine *e, struct err *err) {
  const struct trainer_options *o = &e->options;
  const struct rank_setup mine = {
      .chunk_tokens = o->chunk_tokens, .context_max = e->model->context_max, .device = &o->device};
  enum rc rc = ranks_make(&e->ranks, e->ops, e->model->params.elements, err);
  if (rc == RC_OK) rc = ranks_compare(&e->ranks, &mine, err);
  if (rc == RC_OK) rc = devices_join(&e->ranks, &o->device, err);
  if (rc == RC_OK && o->fit) {
    e->options.going_on = frozen_of_checkpoint(o->state_dir);
    memory_fit(&e->options, e->model, ranks_alone(&e->ranks), trainer_memory_plan_going_on);
  }
  memory_choose_lanes(&e->options, e->model, trainer_memory_plan);
  if (e->options.lanes > 1) log_info("%d gradient units side by side", e->options.lanes);
  if (rc == RC_OK) rc = memory_check(e->model, o, &e->ranks, err);
  return rc;
}

static enum rc optimizer_make(struct engine *e, const struct optimizer_config *config, struct err *err) {
  const struct trainer_options *o = &e->options;
  const char *dir = trainer_scratch_dir(o);
  const struct optimizer_place place = {.shard = ranks_shard(e->ranks.comm, e->model->params.elements),
                                        .scratch_dir = o->optimizer_mapped ? dir : NULL,
                                        .in_parts = o->lean,
                                        .moments8 = o->moments8};
  enum rc rc = o->optimizer_mapped || o->lean ? file_make_dirs(dir, err) : RC_OK;
  if (rc == RC_OK) rc = optimizer_create_at(&e->learning.optimizer, e->model, &place, config, err);
  if (rc == RC_OK && o->optimizer_mapped)
    log_info("masters and moments: %zu MiB in a scratch file in %s",
             optimizer_mapped_bytes(e->model, &place) >> 20, dir);
  return rc;
}

static enum rc learning_make(struct engine *e, struct err *err) {
  static const struct optimizer_config idle = {
      .lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale_log2 = 32};
  struct learning *l = &e->learning;
  enum rc rc = learning_check_memory(e, err);
  if (rc == RC_OK)
    rc = e->options.lean ? weights_create_without_transposes(&l->weights, e->model, err)
                         : weights_create(&l->weights, e->model, true, err);
  if (rc == RC_OK) rc = optimizer_make(e, &idle, err);
  if (rc == RC_OK) rc = learning_make_lanes(e, err);
  if (rc != RC_OK) return rc;
  e->next_step.accumulated = calloc(1, sizeof *e->next_step.accumulated);
  if (e->next_step.accumulated) return RC_OK;
  return err_set(err, RC_NO_MEMORY, NULL, "the table of a step's groups needs %zu bytes, which were refused",
                 sizeof *e->next_step.accumulated);
}

static enum rc trainer_make(struct trainer **out, const struct trainer_options *options, struct err *err) {
  struct trainer *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the trainer's state was refused memory");
  struct engine *e = &t->engine;
  t->state_lock = -1;
  e->options = *options;
  e->board = &t->board;
  ranks_init(&e->ranks, &options->ranks);
  board_init(&t->board, options->coordinator_url && options->coordinator_url[0]);
  training_config_defaults(&e->run.training);
  metrics_make(e);
  timeline_begin(&e->timeline, clock_monotonic_us());
  *out = t;
  return RC_OK;
}

enum rc trainer_open_model(struct trainer **out, const struct trainer_options *options, struct err *err) {
  struct trainer *t;
  *out = NULL;
  enum rc rc = trainer_make(&t, options, err);
  if (rc != RC_OK) return rc;
  if ((rc = model_make(t, err)) == RC_OK)
    *out = t;
  else
    trainer_destroy(t);
  return rc;
}

enum rc trainer_open_plan(struct trainer *t, struct memory_plan *plan, struct memory_room *room, struct err *refused) {
  struct engine *e = &t->engine;
  const enum rc rc = ranks_join(e, refused);
  trainer_memory_plan(plan, e->model, &e->options);
  memory_room_now(room, e->model, (size_t)e->options.memory_max);
  return rc;
}

enum rc trainer_open_learning(struct trainer *t, struct err *err) { return learning_make(&t->engine, err); }
struct engine *trainer_engine(struct trainer *t) { return &t->engine; }

enum rc trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err) {
  struct trainer *t;
  enum rc rc = trainer_make(&t, options, err);
  if (rc != RC_OK) return rc;
  struct engine *e = &t->engine;
  const bool first = e->ranks.comm->rank == 0;
  rc = first ? file_make_dirs(options->state_dir, err) : RC_OK;
  if (rc == RC_OK && first) rc = state_lock_take(&t->state_lock, options->state_dir, options->state_wait_ms, err);
  if (rc == RC_OK) rc = model_make(t, err);
  if (rc == RC_OK) rc = ranks_join(e, err);
  if (rc == RC_OK) rc = learning_make(e, err);
  if (rc == RC_OK) rc = jobs_create(&e->jobs, err);
  if (rc == RC_OK) rc = queue_create(&t->queue, QUEUE_JOBS, err);
  if (rc == RC_OK && first) rc = restore_state(e, err);
  timeline_mark(&e->timeline, CAUSE_LOAD, clock_monotonic_us());
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
  ranks_stop(&t->engine.ranks);
  queue_close(t->queue);
  if (t->thread_runs) pthread_join(t->thread, NULL);
  t->thread_runs = false;
  version_checkpoint_end(&t->engine);
  devices_part(&t->engine.ranks);
}

void trainer_destroy(struct trainer *t) {
  if (!t) return;
  if (t->thread_runs) trainer_stop(t);
  struct engine *e = &t->engine;
  devices_part(&e->ranks);
  ranks_free(&e->ranks);
  if (e->next_step.accumulated) accumulated_clear(e->next_step.accumulated);
  free(e->next_step.accumulated);
  arena_free(&e->run.arena);
  board_free(&t->board);
  jobs_destroy(e->jobs);
  queue_destroy(t->queue);
  learning_free_lanes(e);
  optimizer_free(e->learning.optimizer);
  weights_free(e->learning.reference);
  weights_free(e->learning.behaviour);
  weights_free(e->learning.weights);
  model_free(e->model);
  ops_free(e->ops);
  pool_destroy(t->pool);
  state_lock_release(t->state_lock);
  free(t);
}

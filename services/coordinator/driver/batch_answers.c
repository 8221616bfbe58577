/* Waits for the answers of batches and inner steps, one after the other, and has the writer store them.  One thread,
 * one mutex; only the thread touches the job in hand. */
#include "services/coordinator/driver/batch_answers.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/inner_steps.h"

enum { IDLE_MS = 1000 };

struct awaited {
  struct awaited *next;
  struct trainer_job job;
  struct log_context log; /* the driver's, when it sent the job */
};

struct batch_answers {
  struct core *core;
  struct http_client *http;
  void (*kick)(void *context);
  void *kick_context;
  pthread_t thread;
  bool started;
  atomic_bool cancel;   /* cuts the call in hand short */
  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t changed;
  struct awaited *head, **tail;
  bool in_hand;  /* a job is */
  bool computes; /* it is a batch that the trainer has not answered */
  bool resetting, stopping;
  enum rc failure;
  struct err error;
};

/* What was refused leaves the step before its round may go on to take it. */
struct answer_message {
  struct batch_answer answer;
  struct refusals refusals;
};

static enum rc answer_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct answer_message *m = cmd->message;
  const enum rc rc = m->refusals.run ? refusals_settle(c, &m->refusals, &cmd->arena, err) : RC_OK;
  return rc == RC_OK ? batches_answered(c, &m->answer, err) : rc;
}

static enum rc step_answer_execute(struct core *c, struct command *cmd, struct err *err) {
  return inner_steps_answered(c, cmd->message, err);
}

/* ---- an answer ---- */

/* A command for an answer that told intervals; *intervals is its copy of them.  NULL: memory was refused. */
static struct command *answer_command(command_execute execute, size_t message_bytes, const struct interval *from,
                                      size_t count, struct interval **intervals, struct err *err) {
  struct command *cmd = command_new(execute, message_bytes);
  if (!cmd) {
    err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
    return NULL;
  }
  if (intervals_copy(intervals, from, count, &cmd->arena, err) == RC_OK) return cmd;
  command_free(cmd);
  return NULL;
}

/* With what it points to, for a command that may outlive the batch. */
static enum rc refusals_copy(struct refusals *out, const struct refusals *from, struct arena *arena, struct err *err) {
  *out = *from;
  out->refused = arena_alloc(arena, from->refused_count + 1, sizeof *out->refused);
  out->held = arena_alloc(arena, from->held_count + 1, sizeof *out->held);
  struct sample_refusal *why = arena_alloc(arena, from->refused_count + 1, sizeof *why);
  if (!out->refused || !out->held || !why)
    return err_set(err, RC_NO_MEMORY, NULL, "what a batch was refused for was refused memory");
  for (size_t i = 0; i < from->refused_count; i++) {
    why[i] = *from->refused[i].why;
    why[i].id = NULL; /* round, group and sample say it */
    out->refused[i] = from->refused[i];
    out->refused[i].why = &why[i];
  }
  for (size_t i = 0; i < from->held_count; i++) out->held[i] = from->held[i];
  return RC_OK;
}

static enum rc answer_store(struct batch_answers *w, const struct batch *b, const struct batch_status *status,
                            const struct mismatch *mismatch, struct err *err) {
  struct interval *intervals;
  struct command *cmd = answer_command(answer_execute, sizeof(struct answer_message), status->intervals,
                                       status->interval_count, &intervals, err);
  if (!cmd) return RC_NO_MEMORY;
  struct group_entropies *entropies = NULL;
  size_t entropy_groups = 0;
  if (b->built.behaviour) { /* it is of rollouts */
    const enum rc rc = entropies_gather(&entropies, &entropy_groups, &b->built.message, status, &cmd->arena, err);
    if (rc != RC_OK) {
      command_free(cmd);
      return rc;
    }
  }
  struct answer_message *m = cmd->message;
  if (b->refusals.run) {
    const enum rc rc = refusals_copy(&m->refusals, &b->refusals, &cmd->arena, err);
    if (rc != RC_OK) {
      command_free(cmd);
      return rc;
    }
  }
  m->answer = (struct batch_answer){.run = b->run,
                                                               .round = b->round,
                                                               .number = b->number,
                                                               .trainer_worker = b->trainer_worker,
                                                               .by_tokens = b->by_tokens,
                                                               .stats = status->stats,
                                                               .mismatch = *mismatch,
                                                               .lag = b->built.lag,
                                                               .entropies = entropies,
                                                               .entropy_groups = entropy_groups,
                                                               .intervals = intervals,
                                                               .interval_count = status->interval_count};
  cmd->patient = batch_answers_pending(w) > 1;
  return core_call(w->core, cmd, err);
}

/* The trainer has begun its next batch, if it has one, so the driver need not wait until this answer is stored. */
static void note_answered(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  w->computes = false;
  pthread_mutex_unlock(&w->lock);
  w->kick(w->kick_context);
}

static enum rc take_batch_answer(struct batch_answers *w, struct batch *b, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct batch_status status = {0};
  struct mismatch mismatch;
  enum rc rc = batch_await(b, w->http, &w->cancel, &status, &mismatch, &arena, err);
  if (rc == RC_OK && b->refusals.refused_count > 0) fault_die(COORDINATOR_FAULT_DIE_BEFORE_REFUSAL, b->round);
  if (rc == RC_OK) note_answered(w);
  if (rc == RC_OK) rc = answer_store(w, b, &status, &mismatch, err);
  arena_free(&arena);
  return rc;
}

static enum rc step_answer_store(struct batch_answers *w, const struct inner_step *s, const struct step_status *status,
                                 struct err *err) {
  struct interval *intervals;
  struct command *cmd = answer_command(step_answer_execute, sizeof(struct inner_step_answer), status->intervals,
                                       status->interval_count, &intervals, err);
  if (!cmd) return RC_NO_MEMORY;
  *(struct inner_step_answer *)cmd->message = (struct inner_step_answer){.run = s->run,
                                                                         .round = s->round,
                                                                         .step = s->step,
                                                                         .trainer_worker = s->trainer_worker,
                                                                         .by_tokens = s->by_tokens,
                                                                         .digest = status->digest,
                                                                         .grad_norm = status->grad_norm,
                                                                         .lr = status->lr,
                                                                         .skipped = status->skipped,
                                                                         .step_us = status->step_us,
                                                                         .intervals = intervals,
                                                                         .interval_count = status->interval_count};
  cmd->patient = batch_answers_pending(w) > 1;
  return core_call(w->core, cmd, err);
}

static enum rc take_step_answer(struct batch_answers *w, const struct inner_step *s, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct step_status status = {0};
  enum rc rc = inner_step_await(s, w->http, &w->cancel, &status, &arena, err);
  if (rc == RC_OK) rc = step_answer_store(w, s, &status, err);
  arena_free(&arena);
  return rc;
}

/* ---- the thread ---- */

static void awaited_free(struct awaited *a) {
  if (!a) return;
  trainer_job_free(&a->job);
  free(a);
}

/* lock held */
static void drop_all(struct batch_answers *w) {
  while (w->head) {
    struct awaited *a = w->head;
    w->head = a->next;
    awaited_free(a);
  }
  w->tail = &w->head;
}

static struct awaited *take(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->stopping && (!w->head || w->resetting)) {
    const struct timespec deadline = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
  }
  struct awaited *a = w->stopping ? NULL : w->head;
  if (a) {
    w->head = a->next;
    if (!w->head) w->tail = &w->head;
    w->in_hand = true;
    w->computes = a->job.batch != NULL;
  }
  pthread_mutex_unlock(&w->lock);
  return a;
}

/* Returns whether the driver has something to see: nothing is pending any more, or something went wrong. */
static bool put_down(struct batch_answers *w, enum rc rc, const struct err *err) {
  pthread_mutex_lock(&w->lock);
  w->in_hand = w->computes = false;
  if (rc != RC_OK && !w->resetting && !w->stopping) {
    w->failure = rc;
    w->error = *err;
    drop_all(w);
  }
  const bool news = !w->head || rc != RC_OK;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  return news;
}

static void *batch_answers_main(void *context) {
  struct batch_answers *w = context;
  for (struct awaited *a; (a = take(w));) {
    struct err err = {0};
    log_context_restore(&a->log);
    const enum rc rc =
        a->job.batch ? take_batch_answer(w, a->job.batch, &err) : take_step_answer(w, a->job.inner, &err);
    awaited_free(a);
    log_context_clear();
    if (put_down(w, rc, &err)) w->kick(w->kick_context);
  }
  return NULL;
}

/* ---- for the driver ---- */

enum rc batch_answers_start(struct batch_answers **out, struct core *core,
                            void (*kick)(void *context), void *context, struct err *err) {
  struct batch_answers *w = calloc(1, sizeof *w);
  if (!w) return err_set(err, RC_NO_MEMORY, NULL, "the state for batches' answers was refused memory");
  w->core = core;
  w->kick = kick;
  w->kick_context = context;
  w->tail = &w->head;
  pthread_mutex_init(&w->lock, NULL);
  cond_init(&w->changed);
  enum rc rc = http_client_create_for(&w->http, core_options(core)->access, &w->cancel, err);
  if (rc == RC_OK && pthread_create(&w->thread, NULL, batch_answers_main, w) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the thread for batches' answers could not be started");
  w->started = rc == RC_OK;
  if (rc != RC_OK) {
    batch_answers_stop(w);
    return rc;
  }
  *out = w;
  return RC_OK;
}

void batch_answers_stop(struct batch_answers *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->stopping = true;
  atomic_store(&w->cancel, true);
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  if (w->started) pthread_join(w->thread, NULL);
  drop_all(w);
  http_client_destroy(w->http);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

enum rc batch_answers_add(struct batch_answers *w, struct trainer_job *job, struct err *err) {
  struct awaited *a = calloc(1, sizeof *a);
  if (!a) {
    trainer_job_free(job);
    return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  }
  a->job = *job;
  log_context_save(&a->log);
  *job = (struct trainer_job){0};
  pthread_mutex_lock(&w->lock);
  if (w->failure == RC_OK) {
    *w->tail = a;
    w->tail = &a->next;
    pthread_cond_broadcast(&w->changed);
    a = NULL;
  }
  pthread_mutex_unlock(&w->lock);
  awaited_free(a); /* after a failure it is dropped like those behind it */
  return RC_OK;
}

/* lock held */
static int queued(const struct batch_answers *w, bool batches_only) {
  int n = 0;
  for (const struct awaited *a = w->head; a; a = a->next) n += !batches_only || a->job.batch;
  return n;
}

int batch_answers_pending(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  const int n = queued(w, false) + w->in_hand;
  pthread_mutex_unlock(&w->lock);
  return n;
}

int batch_answers_at_trainer(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  const int n = queued(w, true) + w->computes;
  pthread_mutex_unlock(&w->lock);
  return n;
}

enum rc batch_answers_failure(struct batch_answers *w, struct err *err) {
  pthread_mutex_lock(&w->lock);
  const enum rc rc = w->failure;
  if (rc != RC_OK && err) *err = w->error;
  pthread_mutex_unlock(&w->lock);
  return rc;
}

/* The call in hand is cancelled and ends at once; without that it would end at its own deadline. */
void batch_answers_reset(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  w->resetting = true;
  atomic_store(&w->cancel, true);
  drop_all(w);
  while (w->in_hand) {
    const struct timespec deadline = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
  }
  atomic_store(&w->cancel, w->stopping);
  w->resetting = false;
  w->failure = RC_OK;
  pthread_mutex_unlock(&w->lock);
}

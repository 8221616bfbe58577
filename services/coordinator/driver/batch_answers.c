/* See batch_answers.h.  One thread, one mutex; the flight in hand is the thread's alone. */
#include "services/coordinator/driver/batch_answers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/client/trainer_client.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/rounds/exactness.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/pool/pool.h"

enum { POLL_MS = 2000, CALL_MS = 10000, IDLE_MS = 1000 };

struct collector {
  struct core *core;
  struct http_client *http;
  void (*kick)(void *context);
  void *kick_context;
  pthread_t thread;
  bool started;
  atomic_bool cancel;   /* ends the call in hand */
  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t changed;
  struct flight *head, **tail;
  bool in_hand, answered; /* answered: what is in hand is being recorded */
  bool resetting, stopping;
  enum rc failure;
  struct err error;
};

struct flight *flight_new(void) {
  return calloc(1, sizeof(struct flight));
}

void flight_free(struct flight *f) {
  if (!f) return;
  arena_free(&f->arena);
  free(f);
}

/* ---- the command ---- */

struct done_message {
  int64_t run, round, number, trainer_worker;
  bool by_tokens;
  struct batch_stats stats;
  struct mismatch mismatch;
  struct interval *intervals; /* what the trainer did since its last answer */
  size_t interval_count;
};

/* How fast the trainer takes groups while it has some: what the frontier is sized by. */
static void note_drain(struct core *c, const struct done_message *m, int64_t groups) {
  const int64_t us = m->stats.compute_us + m->stats.logprob_us;
  if (us > 0) rate_note(&c->pool->rates.drain, (double)groups, (double)us / 1e6, c->now_ms);
  if (c->context && c->context->config.frontier == FRONTIER_GATE) c->dispatch_due = true; /* it may reach further now */
}

static enum rc batch_note(struct core *c, const struct done_message *m, struct err *err) {
  const struct batch_stats *stats = &m->stats;
  const struct mismatch *d = &m->mismatch;
  return store_exec(
      c->store, err,
      "UPDATE batches SET done = 1, done_ms = ?4, loss = ?5, entropy_sum = ?6, trained_tokens = ?7, compute_us = ?8, "
      "poisoned = ?9, logprob_us = ?10, worker = ?11, logprob_max_abs_diff = ?12, logprob_unequal = ?13, "
      "logprob_nonfinite = ?14, logprob_abs_sum = ?15, logprob_k1_sum = ?16, logprob_k3_sum = ?17"
      " WHERE run = ?1 AND round = ?2 AND number = ?3 AND done = 0",
      BINDS(b_int(m->run), b_int(m->round), b_int(m->number), b_int(c->wall_ms), b_real(stats->loss),
            b_real(stats->entropy_sum), b_int(stats->tokens), b_int(stats->compute_us + stats->logprob_us),
            b_int(stats->poisoned), b_int(stats->logprob_us), b_int(m->trainer_worker), b_real(d->max_abs),
            b_int(d->unequal), b_int(d->nonfinite), b_real(d->abs_sum), b_real(d->k1_sum), b_real(d->k3_sum)));
}

/* The mismatch's sums are added in the batches' order, once all are done: exactness.c. */
static enum rc round_add(struct core *c, const struct done_message *m, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE rounds SET loss_sum = loss_sum + coalesce(?3, 0), entropy_sum = entropy_sum + coalesce(?4, 0), "
      "trained_tokens = trained_tokens + ?5, compute_us = compute_us + ?6, logprob_us = logprob_us + ?7, "
      "logprob_max_abs_diff = max(logprob_max_abs_diff, ?8), logprob_unequal = logprob_unequal + ?9, "
      "logprob_nonfinite = logprob_nonfinite + ?10 WHERE run = ?1 AND round = ?2",
      BINDS(b_int(m->run), b_int(m->round), b_real(m->stats.loss), b_real(m->stats.entropy_sum), b_int(m->stats.tokens),
            b_int(m->stats.compute_us + m->stats.logprob_us), b_int(m->stats.logprob_us), b_real(m->mismatch.max_abs),
            b_int(m->mismatch.unequal), b_int(m->mismatch.nonfinite)));
}

/* Where every kernel promises the same bits a difference is trouble, told at once; else the round tells of it. */
static enum rc mismatch_warn(struct core *c, const struct done_message *m, struct err *err) {
  bool promised = true;
  if (m->mismatch.unequal == 0) return RC_OK;
  metric_add(c->rounds->m_unequal, (double)m->mismatch.unequal);
  const enum rc rc = exactness_promised(c->store, m->run, m->round, &promised, err);
  if (rc == RC_OK && promised)
    log_warn("batch %s: %" PRId64 " log-probabilities differ from the sampler's, by %.3g at most",
             id_batch(m->run, m->round, m->number).text, m->mismatch.unequal, m->mismatch.max_abs);
  return rc;
}

/* A repeat changes nothing.  The round's last batch begins the step. */
static enum rc done_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct done_message *m = cmd->message;
  int64_t groups = 0;
  enum rc rc = batch_note(c, m, err);
  if (rc != RC_OK || store_changes(c->store) == 0) return rc;
  rc = round_add(c, m, err);
  if (rc == RC_OK) rc = mismatch_warn(c, m, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &groups, err, "SELECT groups FROM batches WHERE run = ?1 AND round = ?2 AND number = ?3",
                   BINDS(b_int(m->run), b_int(m->round), b_int(m->number)));
  if (rc == RC_OK) note_drain(c, m, groups);
  if (rc == RC_OK) rc = intervals_store(c, m->run, m->round, m->trainer_worker, m->intervals, m->interval_count, err);
  return rc == RC_OK ? round_step_when_trained(c, m->run, m->round, m->by_tokens, err) : rc;
}

/* ---- waiting ---- */

/* One long poll.  Whole log-probabilities travel only where their digest says that they differ. */
static enum rc ask(const struct trainer_client *t, const char *id, bool with_logprobs, struct batch_status *status,
                   struct arena *arena, struct err *err) {
  arena_free(arena);
  *arena = (struct arena)ARENA_INIT;
  const enum rc rc = trainer_batch_status(t, id, POLL_MS, with_logprobs, status, arena, POLL_MS + CALL_MS, err);
  if (rc != RC_OK || status->state != JOB_FAILED) return rc;
  return err_set(err, RC_CONFLICT, NULL, "the trainer failed batch %s: %.300s", id, status->error.message);
}

enum rc flight_await(const struct flight *f, struct http_client *http, const atomic_bool *cancel,
                     struct batch_status *status, struct mismatch *mismatch, struct arena *arena, struct err *err) {
  const struct trainer_client t = {.http = http, .base_url = f->url};
  const char *id = f->built.message.batch_id;
  bool whole = false;
  *mismatch = (struct mismatch){0};
  for (;;) {
    if (atomic_load(cancel)) return err_set(err, RC_UNAVAILABLE, NULL, "waiting for batch %s was given up", id);
    const enum rc rc = ask(&t, id, whole, status, arena, err);
    if (rc != RC_OK) return rc;
    if (status->state != JOB_DONE) continue;
    if (whole) return logprobs_compare(mismatch, &f->built, status, err);
    if (logprobs_agree(&f->built, &status->logprobs_sha256, arena)) return RC_OK;
    whole = true;
  }
}

static enum rc call_done(struct collector *c, const struct flight *f, const struct batch_status *status,
                         const struct mismatch *mismatch, struct err *err) {
  struct command *cmd = command_new(done_execute, sizeof(struct done_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct interval *intervals = arena_alloc(&cmd->arena, status->interval_count + 1, sizeof *intervals);
  if (!intervals) {
    command_free(cmd);
    return err_set(err, RC_NO_MEMORY, NULL, "%zu intervals were refused memory", status->interval_count);
  }
  if (status->interval_count) memcpy(intervals, status->intervals, status->interval_count * sizeof *intervals);
  *(struct done_message *)cmd->message = (struct done_message){.run = f->run,
                                                               .round = f->round,
                                                               .number = f->number,
                                                               .trainer_worker = f->trainer_worker,
                                                               .by_tokens = f->by_tokens,
                                                               .stats = status->stats,
                                                               .mismatch = *mismatch,
                                                               .intervals = intervals,
                                                               .interval_count = status->interval_count};
  cmd->patient = collector_pending(c) > 1;
  return core_call(c->core, cmd, err);
}

/* The trainer has begun its next batch, if it has one: the driver need not wait until this one is recorded. */
static void note_answered(struct collector *c) {
  pthread_mutex_lock(&c->lock);
  c->answered = true;
  pthread_mutex_unlock(&c->lock);
  c->kick(c->kick_context);
}

static enum rc collect(struct collector *c, const struct flight *f, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct batch_status status = {0};
  struct mismatch mismatch;
  enum rc rc = flight_await(f, c->http, &c->cancel, &status, &mismatch, &arena, err);
  if (rc == RC_OK) note_answered(c);
  if (rc == RC_OK) rc = call_done(c, f, &status, &mismatch, err);
  arena_free(&arena);
  return rc;
}

/* ---- the thread ---- */

/* lock held */
static void drop_all(struct collector *c) {
  while (c->head) {
    struct flight *f = c->head;
    c->head = f->next;
    flight_free(f);
  }
  c->tail = &c->head;
}

static struct flight *take(struct collector *c) {
  pthread_mutex_lock(&c->lock);
  while (!c->stopping && (!c->head || c->resetting)) {
    const struct timespec deadline = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&c->changed, &c->lock, &deadline);
  }
  struct flight *f = c->stopping ? NULL : c->head;
  if (f) {
    c->head = f->next;
    if (!c->head) c->tail = &c->head;
    c->in_hand = true;
  }
  pthread_mutex_unlock(&c->lock);
  return f;
}

/* Returns whether the driver has something to see: nothing is in flight any more, or something went wrong. */
static bool put_down(struct collector *c, enum rc rc, const struct err *err) {
  pthread_mutex_lock(&c->lock);
  c->in_hand = c->answered = false;
  if (rc != RC_OK && !c->resetting && !c->stopping) {
    c->failure = rc;
    c->error = *err;
    drop_all(c);
  }
  const bool news = !c->head || rc != RC_OK;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return news;
}

static void *collector_main(void *context) {
  struct collector *c = context;
  for (struct flight *f; (f = take(c));) {
    struct err err = {0};
    const enum rc rc = collect(c, f, &err);
    flight_free(f);
    if (put_down(c, rc, &err)) c->kick(c->kick_context);
  }
  return NULL;
}

/* ---- for the driver ---- */

enum rc collector_start(struct collector **out, struct core *core, const char *token, void (*kick)(void *context),
                        void *context, struct err *err) {
  struct collector *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the collector's state was refused memory");
  c->core = core;
  c->kick = kick;
  c->kick_context = context;
  c->tail = &c->head;
  pthread_mutex_init(&c->lock, NULL);
  cond_init(&c->changed);
  enum rc rc = http_client_create(&c->http, token, &c->cancel, err);
  if (rc == RC_OK && pthread_create(&c->thread, NULL, collector_main, c) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the collector's thread could not be started");
  c->started = rc == RC_OK;
  if (rc != RC_OK) {
    collector_stop(c);
    return rc;
  }
  *out = c;
  return RC_OK;
}

void collector_stop(struct collector *c) {
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  c->stopping = true;
  atomic_store(&c->cancel, true);
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  if (c->started) pthread_join(c->thread, NULL);
  drop_all(c);
  http_client_destroy(c->http);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

void collector_add(struct collector *c, struct flight *f) {
  pthread_mutex_lock(&c->lock);
  f->next = NULL;
  if (c->failure == RC_OK) {
    *c->tail = f;
    c->tail = &f->next;
    pthread_cond_broadcast(&c->changed);
    f = NULL;
  }
  pthread_mutex_unlock(&c->lock);
  flight_free(f); /* it would only be dropped */
}

/* lock held */
static int queued(const struct collector *c) {
  int n = 0;
  for (const struct flight *f = c->head; f; f = f->next) n++;
  return n;
}

int collector_pending(struct collector *c) {
  pthread_mutex_lock(&c->lock);
  const int n = queued(c) + c->in_hand;
  pthread_mutex_unlock(&c->lock);
  return n;
}

int collector_at_trainer(struct collector *c) {
  pthread_mutex_lock(&c->lock);
  const int n = queued(c) + (c->in_hand && !c->answered);
  pthread_mutex_unlock(&c->lock);
  return n;
}

enum rc collector_failure(struct collector *c, struct err *err) {
  pthread_mutex_lock(&c->lock);
  const enum rc rc = c->failure;
  if (rc != RC_OK && err) *err = c->error;
  pthread_mutex_unlock(&c->lock);
  return rc;
}

/* The call in hand ends within its own deadline, cancelled ones at once. */
void collector_reset(struct collector *c) {
  pthread_mutex_lock(&c->lock);
  c->resetting = true;
  atomic_store(&c->cancel, true);
  drop_all(c);
  while (c->in_hand) {
    const struct timespec deadline = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&c->changed, &c->lock, &deadline);
  }
  atomic_store(&c->cancel, c->stopping);
  c->resetting = false;
  c->failure = RC_OK;
  pthread_mutex_unlock(&c->lock);
}

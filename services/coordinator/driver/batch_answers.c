/* Waits for the answers of batches, one after the other, and has the writer store them.  One thread, one mutex; only the
 * thread touches the batch in hand. */
#include "services/coordinator/driver/batch_answers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "services/coordinator/rounds/batches.h"

enum { IDLE_MS = 1000 };

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
  struct batch *head, **tail;
  bool in_hand, answered; /* answered: the answer of the batch in hand is being stored */
  bool resetting, stopping;
  enum rc failure;
  struct err error;
};

static enum rc answer_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_answered(c, cmd->message, err);
}

/* ---- an answer ---- */

static enum rc answer_store(struct batch_answers *w, const struct batch *b, const struct batch_status *status,
                            const struct mismatch *mismatch, struct err *err) {
  struct command *cmd = command_new(answer_execute, sizeof(struct batch_answer));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct interval *intervals = arena_alloc(&cmd->arena, status->interval_count + 1, sizeof *intervals);
  if (!intervals) {
    command_free(cmd);
    return err_set(err, RC_NO_MEMORY, NULL, "%zu intervals were refused memory", status->interval_count);
  }
  if (status->interval_count) memcpy(intervals, status->intervals, status->interval_count * sizeof *intervals);
  *(struct batch_answer *)cmd->message = (struct batch_answer){.run = b->run,
                                                               .round = b->round,
                                                               .number = b->number,
                                                               .trainer_worker = b->trainer_worker,
                                                               .by_tokens = b->by_tokens,
                                                               .stats = status->stats,
                                                               .mismatch = *mismatch,
                                                               .intervals = intervals,
                                                               .interval_count = status->interval_count};
  cmd->patient = batch_answers_pending(w) > 1;
  return core_call(w->core, cmd, err);
}

/* The trainer has begun its next batch, if it has one, so the driver need not wait until this answer is stored. */
static void note_answered(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  w->answered = true;
  pthread_mutex_unlock(&w->lock);
  w->kick(w->kick_context);
}

static enum rc take_answer(struct batch_answers *w, const struct batch *b, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct batch_status status = {0};
  struct mismatch mismatch;
  enum rc rc = batch_await(b, w->http, &w->cancel, &status, &mismatch, &arena, err);
  if (rc == RC_OK) note_answered(w);
  if (rc == RC_OK) rc = answer_store(w, b, &status, &mismatch, err);
  arena_free(&arena);
  return rc;
}

/* ---- the thread ---- */

/* lock held */
static void drop_all(struct batch_answers *w) {
  while (w->head) {
    struct batch *b = w->head;
    w->head = b->next;
    batch_free(b);
  }
  w->tail = &w->head;
}

static struct batch *take(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->stopping && (!w->head || w->resetting)) {
    const struct timespec deadline = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
  }
  struct batch *b = w->stopping ? NULL : w->head;
  if (b) {
    w->head = b->next;
    if (!w->head) w->tail = &w->head;
    w->in_hand = true;
  }
  pthread_mutex_unlock(&w->lock);
  return b;
}

/* Returns whether the driver has something to see: no batch is pending any more, or something went wrong. */
static bool put_down(struct batch_answers *w, enum rc rc, const struct err *err) {
  pthread_mutex_lock(&w->lock);
  w->in_hand = w->answered = false;
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
  for (struct batch *b; (b = take(w));) {
    struct err err = {0};
    const enum rc rc = take_answer(w, b, &err);
    batch_free(b);
    if (put_down(w, rc, &err)) w->kick(w->kick_context);
  }
  return NULL;
}

/* ---- for the driver ---- */

enum rc batch_answers_start(struct batch_answers **out, struct core *core, const char *token,
                            void (*kick)(void *context), void *context, struct err *err) {
  struct batch_answers *w = calloc(1, sizeof *w);
  if (!w) return err_set(err, RC_NO_MEMORY, NULL, "the state for batches' answers was refused memory");
  w->core = core;
  w->kick = kick;
  w->kick_context = context;
  w->tail = &w->head;
  pthread_mutex_init(&w->lock, NULL);
  cond_init(&w->changed);
  enum rc rc = http_client_create(&w->http, token, &w->cancel, err);
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

void batch_answers_add(struct batch_answers *w, struct batch *b) {
  pthread_mutex_lock(&w->lock);
  b->next = NULL;
  if (w->failure == RC_OK) {
    *w->tail = b;
    w->tail = &b->next;
    pthread_cond_broadcast(&w->changed);
    b = NULL;
  }
  pthread_mutex_unlock(&w->lock);
  batch_free(b); /* after a failure it is dropped like those behind it */
}

/* lock held */
static int queued(const struct batch_answers *w) {
  int n = 0;
  for (const struct batch *b = w->head; b; b = b->next) n++;
  return n;
}

int batch_answers_pending(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  const int n = queued(w) + w->in_hand;
  pthread_mutex_unlock(&w->lock);
  return n;
}

int batch_answers_at_trainer(struct batch_answers *w) {
  pthread_mutex_lock(&w->lock);
  const int n = queued(w) + (w->in_hand && !w->answered);
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

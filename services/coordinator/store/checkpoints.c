/* The thread that copies the log, and the writer's share of it: see checkpoints.h. */
#include "services/coordinator/store/checkpoints.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"

enum {
  LOG_PAGES = 8000,      /* begin to copy: 32 MiB; the more, the fewer pages are copied that are written again */
  MORE_PAGES = 2000,     /* where readers keep the log from beginning anew: again after this many more */
  FEW_PAGES = 400,       /* may be left to the writer */
  LOG_PAGES_MAX = 24000, /* the writer is faster than the thread: it waits */
  PASSES_MAX = 4,        /* each copies what came during the one before */
  WAIT_MS = 1000
};

struct checkpoints {
  struct store *writer, *own;
  pthread_t thread;
  atomic_int pages;       /* of the log, at the last commit */
  atomic_bool due;        /* the writer's share is */
  int next_pages;         /* the writer's: when the thread is woken */
  pthread_mutex_t lock;   /* guards awake, stop */
  pthread_cond_t changed; /* either of them */
  bool awake, stop;
};

static void warn(const struct err *err) { log_warn("the log could not be copied into the database: %s", err->message); }

/* The thread's part; false: the log could not be copied. */
static bool copy_most(struct checkpoints *c) {
  struct err err = {0};
  int copied = 0;
  enum rc rc = RC_OK;
  for (int pass = 0; pass < PASSES_MAX && rc == RC_OK && atomic_load(&c->pages) - copied > FEW_PAGES; pass++) {
    const int before = copied;
    rc = store_checkpoint(c->own, &copied, &err);
    if (copied <= before) break; /* a reader holds the rest */
  }
  if (rc == RC_OK) rc = store_sync(c->own, &err);
  if (rc != RC_OK) warn(&err);
  return rc == RC_OK;
}

static void *copy_main(void *context) {
  struct checkpoints *c = context;
  pthread_mutex_lock(&c->lock);
  while (!c->stop) {
    if (!c->awake) {
      const struct timespec until = clock_deadline_in(WAIT_MS);
      pthread_cond_timedwait(&c->changed, &c->lock, &until);
      continue;
    }
    pthread_mutex_unlock(&c->lock);
    const bool done = copy_most(c);
    pthread_mutex_lock(&c->lock);
    c->awake = false;
    atomic_store(&c->due, done);
    pthread_cond_broadcast(&c->changed);
  }
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* Called by SQLite at every commit of the writer. */
static void committed(void *context, int pages) {
  struct checkpoints *c = context;
  if (pages < atomic_exchange(&c->pages, pages)) c->next_pages = LOG_PAGES; /* it began anew */
  if (pages < c->next_pages || atomic_load(&c->due)) return;
  c->next_pages = pages + MORE_PAGES;
  pthread_mutex_lock(&c->lock);
  c->awake = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void wait_for_thread(struct checkpoints *c) {
  const struct timespec until = clock_deadline_in(WAIT_MS);
  pthread_mutex_lock(&c->lock);
  while (c->awake && pthread_cond_timedwait(&c->changed, &c->lock, &until) == 0) continue;
  pthread_mutex_unlock(&c->lock);
}

void checkpoints_go_on(struct checkpoints *c) {
  struct err err = {0};
  int copied;
  if (!c) return;
  if (atomic_load(&c->pages) >= LOG_PAGES_MAX) wait_for_thread(c);
  if (!atomic_load(&c->due)) return;
  if (store_checkpoint(c->writer, &copied, &err) != RC_OK) warn(&err);
  atomic_store(&c->due, false);
}

enum rc checkpoints_start(struct checkpoints **out, struct store *writer, const char *path, struct err *err) {
  struct checkpoints *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the copying of the log was refused %zu bytes", sizeof *c);
  c->writer = writer;
  c->next_pages = LOG_PAGES;
  const enum rc rc = store_open(&c->own, path, false, err);
  if (rc != RC_OK) {
    free(c);
    return rc;
  }
  pthread_mutex_init(&c->lock, NULL);
  cond_init(&c->changed);
  if (pthread_create(&c->thread, NULL, copy_main, c) != 0) {
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    store_close(c->own);
    free(c);
    return err_set(err, RC_NO_MEMORY, NULL, "the thread that copies the log could not be started");
  }
  store_on_commit(writer, committed, c);
  *out = c;
  return RC_OK;
}

void checkpoints_stop(struct checkpoints *c) {
  if (!c) return;
  store_on_commit(c->writer, NULL, NULL);
  pthread_mutex_lock(&c->lock);
  c->stop = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  pthread_join(c->thread, NULL);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  store_close(c->own);
  free(c);
}

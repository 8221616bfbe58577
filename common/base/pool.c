/* Runs the parts of a job on a pool of threads.  Model operations last microseconds, so handing work over must cost
 * less:
 *
 *   caller:  job = {f, ctx, parts}; ticket++ for each worker that has parts; runs its own parts; waits for `pending` == 0
 *   worker:  spins on its own ticket for SPIN_US, then sleeps; runs its parts; pending--; the last one wakes the caller
 *
 * Each worker has a cache line, mutex and condition of its own, so that a job of two parts disturbs one worker only.
 * A sleeper announces itself (asleep = true) before it looks at the ticket a last time; the caller moves the ticket
 * before it looks at asleep.  Both are sequentially consistent, hence one of them sees the other.  `job` is plain
 * memory: written only while no worker has an unfinished ticket, published by the ticket, taken back by `pending`.
 * When there are more threads than CPUs nobody spins: a spinning thread would keep the working one from its CPU. */
#include "common/base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <xmmintrin.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/queue.h"

enum { SPIN_US = 20, SPIN_PAUSES = 8, SLEEP_MS = 1000 };
enum { MXCSR_FTZ = 0x8000, MXCSR_DAZ = 0x0040, MXCSR_ROUNDING = 0x6000 };

struct waiter {
  pthread_mutex_t mutex; /* guards nothing but the sleep itself */
  pthread_cond_t wake;
  atomic_bool asleep;
};

struct worker {
  _Alignas(64) atomic_uint ticket; /* jobs given to this worker so far */
  struct waiter waiter;
  struct pool *pool;
  int index; /* 1 .. threads-1 */
  pthread_t thread;
};

struct pool {
  int threads;
  int spin_us;
  void (*f)(void *ctx, int part); /* the job */
  void *ctx;
  int parts;
  atomic_bool stop;
  _Alignas(64) atomic_int pending; /* workers that have not finished the job */
  struct waiter caller;
  struct worker workers[]; /* threads-1 */
};

static void waiter_init(struct waiter *w) {
  pthread_mutex_init(&w->mutex, NULL);
  cond_init(&w->wake);
  atomic_init(&w->asleep, false);
}

static void waiter_destroy(struct waiter *w) {
  pthread_cond_destroy(&w->wake);
  pthread_mutex_destroy(&w->mutex);
}

static void waiter_wake(struct waiter *w) {
  if (!atomic_load(&w->asleep)) return;
  pthread_mutex_lock(&w->mutex);
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->mutex);
}

/* Returns once done(ctx) holds; spins first, then sleeps in timed steps. */
static void waiter_wait(struct waiter *w, int spin_us, bool (*done)(void *ctx), void *ctx) {
  if (done(ctx)) return;
  if (spin_us > 0) {
    const int64_t until = clock_monotonic_us() + spin_us;
    do {
      for (int i = 0; i < SPIN_PAUSES; i++) {
        _mm_pause();
        if (done(ctx)) return;
      }
    } while (clock_monotonic_us() < until);
  }
  pthread_mutex_lock(&w->mutex);
  atomic_store(&w->asleep, true);
  while (!done(ctx)) {
    const struct timespec until = clock_deadline_in(SLEEP_MS);
    pthread_cond_timedwait(&w->wake, &w->mutex, &until);
  }
  atomic_store(&w->asleep, false);
  pthread_mutex_unlock(&w->mutex);
}

void pool_enter(void) {
  const unsigned keep = _mm_getcsr() & ~(unsigned)MXCSR_ROUNDING;
  _mm_setcsr(keep | MXCSR_FTZ | MXCSR_DAZ);
}

struct ticket_wait {
  struct worker *worker;
  unsigned seen;
};

static bool ticket_moved(void *ctx) {
  const struct ticket_wait *t = ctx;
  return atomic_load(&t->worker->ticket) != t->seen;
}

static bool none_pending(void *ctx) {
  struct pool *p = ctx;
  return atomic_load(&p->pending) == 0;
}

static void *worker_main(void *arg) {
  struct worker *w = arg;
  struct pool *p = w->pool;
  pool_enter();
  struct ticket_wait t = {w, 0};
  for (;;) {
    waiter_wait(&w->waiter, p->spin_us, ticket_moved, &t);
    t.seen++;
    if (atomic_load(&p->stop)) return NULL;
    for (int part = w->index; part < p->parts; part += p->threads) p->f(p->ctx, part);
    if (atomic_fetch_sub(&p->pending, 1) == 1) waiter_wake(&p->caller);
  }
}

static int cpus_usable(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

enum rc pool_create(struct pool **out, int threads, struct err *err) {
  *out = NULL;
  if (threads < 1 || threads > LIMIT_THREADS)
    return err_set(err, RC_INVALID, "threads", "expected 1 to %d threads, got %d", LIMIT_THREADS, threads);
  size_t bytes = sizeof(struct pool) + (size_t)(threads - 1) * sizeof(struct worker);
  bytes = (bytes + 63) & ~(size_t)63;
  struct pool *p = aligned_alloc(64, bytes);
  if (!p)
    return err_set(err, RC_NO_MEMORY, NULL, "a pool of %d threads needs %zu bytes, memory was refused", threads, bytes);
  p->threads = 1; /* grows as threads start, so that pool_destroy can undo a half-made pool */
  p->spin_us = threads <= cpus_usable() ? SPIN_US : 0;
  p->f = NULL;
  p->ctx = NULL;
  p->parts = 0;
  atomic_init(&p->stop, false);
  atomic_init(&p->pending, 0);
  waiter_init(&p->caller);
  int started = 1;
  for (; started < threads; started++) {
    struct worker *w = &p->workers[started - 1];
    atomic_init(&w->ticket, 0);
    waiter_init(&w->waiter);
    w->pool = p;
    w->index = started;
    const int failed = pthread_create(&w->thread, NULL, worker_main, w);
    if (failed) {
      waiter_destroy(&w->waiter);
      p->threads = started;
      pool_destroy(p);
      return err_set(err, RC_UNAVAILABLE, "threads", "thread %d of %d could not be started: the system said error %d",
                     started + 1, threads, failed);
    }
  }
  p->threads = threads; /* workers read it only after their first ticket */
  pool_enter();
  *out = p;
  return RC_OK;
}

void pool_destroy(struct pool *p) {
  if (!p) return;
  atomic_store(&p->stop, true);
  for (int i = 0; i < p->threads - 1; i++) {
    struct worker *w = &p->workers[i];
    atomic_fetch_add(&w->ticket, 1);
    waiter_wake(&w->waiter);
    pthread_join(w->thread, NULL); /* it has no job and leaves at once */
    waiter_destroy(&w->waiter);
  }
  waiter_destroy(&p->caller);
  free(p);
}

int pool_threads(const struct pool *p) { return p->threads; }

void pool_run(struct pool *p, void (*f)(void *ctx, int part), void *ctx, int parts) {
  const int used = parts < p->threads ? parts : p->threads;
  if (used <= 1) {
    for (int part = 0; part < parts; part++) f(ctx, part);
    return;
  }
  p->f = f;
  p->ctx = ctx;
  p->parts = parts;
  atomic_store_explicit(&p->pending, used - 1, memory_order_relaxed);
  for (int i = 0; i < used - 1; i++) atomic_fetch_add(&p->workers[i].ticket, 1);
  for (int i = 0; i < used - 1; i++) waiter_wake(&p->workers[i].waiter);
  for (int part = 0; part < parts; part += p->threads) f(ctx, part);
  waiter_wait(&p->caller, p->spin_us, none_pending, p);
}

/* Runs the parts of a job on a pool of threads.  Model operations last microseconds, so handing work over must cost
 * less, and the cores may be shared with others, so no thread may be waited for that has not begun:
 *
 *   caller:  job = {f, ctx}; done = 0; a range of parts for each thread; wakes sleepers; works; waits for done == parts
 *   worker:  spins on its own range for a while, then sleeps; works
 *   works:   takes parts from the front of its own range, then from the back of the others'; done += their number;
 *            who adds the last ones wakes the caller
 *
 * A range is one atomic word, (end, next), on a cache line of its own, so that a job of two parts disturbs one worker
 * only.  `job` is plain memory: written only while every range is empty and no part is under way, published by the
 * ranges, and read only by a thread that has taken a part, without which the job cannot end.  So a worker that comes
 * late finds nothing, and nobody has waited for it.
 *
 * A sleeper announces itself (asleep = true) before it looks at its range a last time; the caller fills the range
 * before it looks at asleep.  Both are sequentially consistent, hence one of them sees the other.
 *
 * The scheduler takes a core from a thread in the middle of a part, and then all wait for that part.  So a worker
 * offers its core between two parts every OFFER_US, and when it waits: another process that waits for the core gets it
 * there, where nobody waits for the worker.  A thread that waits sleeps soon, so that its core can take over a thread
 * that has lost its own.  When there are more threads than cores no thread spins: it would keep the working one from
 * its core.  Which cores they run on: pool_cores.h. */
#include "common/threads/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <xmmintrin.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/machine.h"
#include "common/base/queue.h"
#include "common/threads/pool_cores.h"

enum { SPIN_US = 20, SPIN_PAUSES = 32, OFFER_US = 1000, SLEEP_MS = 1000 };
enum { MXCSR_FTZ = 0x8000, MXCSR_DAZ = 0x0040, MXCSR_ROUNDING = 0x6000 };

struct waiter {
  pthread_mutex_t mutex; /* guards nothing but the sleep itself */
  pthread_cond_t wake;
  atomic_bool asleep;
};

struct worker {
  _Alignas(64) _Atomic uint64_t range; /* parts that nobody has taken yet: end << 32 | next */
  struct waiter waiter;                /* of a worker, not of the caller */
  struct pool *pool;
  int spin_us;        /* the worker's own: how long it is worth waiting awake */
  int64_t offered_us; /* when it last offered its core */
  pthread_t thread;
};

struct pool {
  int threads;
  int spin_us;
  void (*f)(void *ctx, int part); /* the job */
  void *ctx;
  int parts;
  atomic_bool stop;
  _Alignas(64) atomic_int done; /* parts of the job that are finished */
  struct waiter caller;
  struct pool_cores cores;
  struct worker workers[]; /* [threads]; the first is the caller's */
};

/* The part at hand. */
static _Thread_local struct {
  const struct pool *pool;
  int thread;
} here;

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

/* Returns once ready(ctx) holds: spins first, then sleeps in timed steps. */
static void waiter_wait(struct waiter *w, int spin_us, bool (*ready)(void *ctx), void *ctx) {
  if (ready(ctx)) return;
  if (spin_us > 0) {
    const int64_t until = clock_monotonic_us() + spin_us;
    do {
      for (int i = 0; i < SPIN_PAUSES; i++) {
        _mm_pause();
        if (ready(ctx)) return;
      }
    } while (clock_monotonic_us() < until);
  }
  pthread_mutex_lock(&w->mutex);
  atomic_store(&w->asleep, true);
  while (!ready(ctx)) {
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

/* --- ranges --- */

static uint64_t range_of(int begin, int end) { return (uint64_t)(uint32_t)end << 32 | (uint32_t)begin; }
static int range_begin(uint64_t range) { return (int)(uint32_t)range; }
static int range_end(uint64_t range) { return (int)(range >> 32); }

/* A part from the range's front, or from its back; -1 when it is empty. */
static int range_take(_Atomic uint64_t *range, bool front) {
  uint64_t seen = atomic_load(range);
  while (range_begin(seen) < range_end(seen)) {
    const int begin = range_begin(seen), end = range_end(seen);
    const uint64_t rest = front ? range_of(begin + 1, end) : range_of(begin, end - 1);
    if (atomic_compare_exchange_weak(range, &seen, rest)) return front ? begin : end - 1;
  }
  return -1;
}

static int part_take(struct pool *p, int thread) {
  int part = range_take(&p->workers[thread].range, true);
  for (int i = 1; part < 0 && i < p->threads; i++)
    part = range_take(&p->workers[(thread + i) % p->threads].range, false);
  return part;
}

/* Parts count only here: until then the job lives, and p->parts with it. */
static void parts_done(struct pool *p, int *count) {
  if (*count == 0) return;
  const int parts = p->parts;
  if (atomic_fetch_add(&p->done, *count) + *count == parts) waiter_wake(&p->caller);
  *count = 0;
}

/* Another process that waits for this core gets it now, while nobody waits for this thread. */
static void offer_core(struct worker *w, int *count) {
  const int64_t now_us = clock_monotonic_us();
  if (now_us - w->offered_us < OFFER_US) return;
  parts_done(w->pool, count);
  sched_yield();
  w->offered_us = clock_monotonic_us();
  pool_cores_robbed(&w->pool->cores, (int)(w - w->pool->workers), w->offered_us - now_us);
}

static void work(struct pool *p, int thread) {
  int count = 0;
  for (int part; (part = part_take(p, thread)) >= 0;) {
    p->f(p->ctx, part);
    count++;
    if (thread > 0) offer_core(&p->workers[thread], &count);
  }
  parts_done(p, &count);
}

/* --- threads --- */

static bool has_work(void *ctx) {
  struct worker *w = ctx;
  const uint64_t range = atomic_load(&w->range);
  return range_begin(range) < range_end(range) || atomic_load(&w->pool->stop);
}

static bool all_done(void *ctx) {
  struct pool *p = ctx;
  return atomic_load(&p->done) == p->parts;
}

/* Waiting awake pays where the next job comes soon. */
static void worker_wait(struct worker *w) {
  const int64_t begun_us = clock_monotonic_us();
  waiter_wait(&w->waiter, w->spin_us, has_work, w);
  w->offered_us = clock_monotonic_us();
  const bool soon = w->offered_us - begun_us <= 2 * SPIN_US;
  w->spin_us = soon ? w->pool->spin_us : w->spin_us / 2;
}

static void *worker_main(void *arg) {
  struct worker *w = arg;
  struct pool *p = w->pool;
  pool_enter();
  here.pool = p;
  here.thread = (int)(w - p->workers);
  for (;;) {
    worker_wait(w);
    if (atomic_load(&p->stop)) return NULL;
    work(p, here.thread);
  }
}

/* started: threads that run, the caller's included. */
static void pool_end(struct pool *p, int started) {
  atomic_store(&p->stop, true);
  for (int i = 1; i < started; i++) {
    waiter_wake(&p->workers[i].waiter);
    pthread_join(p->workers[i].thread, NULL);
  }
  for (int i = 0; i < p->threads; i++) waiter_destroy(&p->workers[i].waiter);
  waiter_destroy(&p->caller);
  free(p);
}

enum rc pool_create(struct pool **out, int threads, struct err *err) {
  *out = NULL;
  if (threads < 1 || threads > LIMIT_THREADS)
    return err_set(err, RC_INVALID, "threads", "expected 1 to %d threads, got %d", LIMIT_THREADS, threads);
  const size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
  struct pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
  if (!p)
    return err_set(err, RC_NO_MEMORY, NULL, "a pool of %d threads needs %zu bytes, memory was refused", threads, bytes);
  *p = (struct pool){.threads = threads, .spin_us = threads <= cores_usable() ? SPIN_US : 0};
  pool_cores_init(&p->cores, threads);
  waiter_init(&p->caller);
  for (int i = 0; i < threads; i++) {
    struct worker *w = &p->workers[i];
    atomic_init(&w->range, 0);
    waiter_init(&w->waiter);
    w->pool = p;
    w->spin_us = p->spin_us;
    w->offered_us = 0;
  }
  for (int i = 1; i < threads; i++) {
    const int failed = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
    if (failed) {
      pool_end(p, i);
      return err_set(err, RC_UNAVAILABLE, "threads", "thread %d of %d could not be started: the system said error %d",
                     i + 1, threads, failed);
    }
    pool_cores_bind(&p->cores, i, p->workers[i].thread);
  }
  pool_enter();
  *out = p;
  return RC_OK;
}

void pool_destroy(struct pool *p) {
  if (p) pool_end(p, p->threads);
}

int pool_threads(const struct pool *p) { return p->threads; }

bool pool_in_part(const struct pool *p) { return here.pool == p; }

int pool_thread(const struct pool *p) { return pool_in_part(p) ? here.thread : 0; }

void pool_run(struct pool *p, void (*f)(void *ctx, int part), void *ctx, int parts) {
  const int used = parts < p->threads ? parts : p->threads;
  if (used <= 1 || pool_in_part(p)) {
    for (int part = 0; part < parts; part++) f(ctx, part);
    return;
  }
  const int moved = pool_cores_look(&p->cores);
  if (moved) pool_cores_bind(&p->cores, moved, p->workers[moved].thread);
  const struct pool *outer = here.pool;
  const int outer_thread = here.thread;
  here.pool = p;
  here.thread = 0;
  p->f = f;
  p->ctx = ctx;
  p->parts = parts;
  atomic_store_explicit(&p->done, 0, memory_order_relaxed);
  for (int i = used - 1; i >= 0; i--) {
    const int begin = (int)((int64_t)parts * i / used), end = (int)((int64_t)parts * (i + 1) / used);
    atomic_store(&p->workers[i].range, range_of(begin, end));
  }
  for (int i = 1; i < used; i++) waiter_wake(&p->workers[i].waiter);
  work(p, 0);
  waiter_wait(&p->caller, p->spin_us, all_done, p);
  here.pool = outer;
  here.thread = outer_thread;
}

/* Binds a pool's threads to cores, where the process may use as many cores as its pool has threads.
 *
 * As soon as another process keeps a core busy, the scheduler often wakes a worker on the caller's core: then two
 * threads of the pool share one core and the other process has one to itself.  So each worker is bound to a core.  The
 * caller's thread, which belongs to the pool's user, is not bound; it leaves the workers' cores to them.  A
 * worker gives its core away between two parts, where nobody waits for it; the caller has no such moment.  So when
 * another process takes time from the caller and none from a worker, these two change places.
 *
 *   caller, before a job: pool_cores_look --changed places--> pool_cores_bind of that worker
 *   worker, after it gave its core away: pool_cores_robbed
 *
 * A mask that somebody else has set for the caller's thread meanwhile is left as it is, and nothing is moved any
 * more. */
#ifndef LEASEHOLD_THREADS_POOL_CORES_H
#define LEASEHOLD_THREADS_POOL_CORES_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "common/base/limits.h"

struct pool_cores {
  int threads;                      /* 0: they have no cores of their own */
  cpu_set_t all;                    /* of the process */
  int core[LIMIT_THREADS];          /* of each thread; the first is left to the caller */
  atomic_int robbed[LIMIT_THREADS]; /* how often others took a worker's core for long, since the last look */
  int64_t looked_us, moved_us;
  long switches; /* that the caller's thread was forced to, at the last look */
};

/* By the calling thread's mask. */
void pool_cores_init(struct pool_cores *c, int threads);
/* Binds a worker to its core; called by the caller's thread, or by the one that makes the pool. */
void pool_cores_bind(const struct pool_cores *c, int worker, pthread_t thread);
/* Called by the caller's thread before a job; the worker that has got its core in exchange, or 0. */
int pool_cores_look(struct pool_cores *c);
/* Called by the worker: its core was away for so long. */
void pool_cores_robbed(struct pool_cores *c, int worker, int64_t us);

#endif

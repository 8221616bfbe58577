/* Keeps a pool's threads on cores of their own: see pool_cores.h. */
#include "common/threads/pool_cores.h"

#include <stdbool.h>
#include <sys/resource.h>

#include "common/base/clock.h"

enum {
  MOVE_US = 1000,  /* the caller leaves a worker's core at most so often */
  LOOK_US = 50000, /* time of which it is asked how often the caller lost its core */
  SWITCHES = 4,    /* so often: another process has about half of the core */
  ROBBED_US = 500  /* a worker's core was taken for so long: by another process, and not for a moment */
};

static cpu_set_t set_of(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)core, &set);
  return set;
}

void pool_cores_init(struct pool_cores *c, int threads) {
  int found = 0;
  *c = (struct pool_cores){.threads = 0};
  if (threads < 2 || sched_getaffinity(0, sizeof c->all, &c->all) != 0 || CPU_COUNT(&c->all) != threads) return;
  for (int core = 0; core < CPU_SETSIZE && found < threads; core++)
    if (CPU_ISSET((size_t)core, &c->all)) c->core[found++] = core;
  c->threads = threads;
}

void pool_cores_bind(const struct pool_cores *c, int worker, pthread_t thread) {
  if (c->threads == 0) return;
  const cpu_set_t own = set_of(c->core[worker]);
  pthread_setaffinity_np(thread, sizeof own, &own);
}

/* To the core that is left to the caller, to which it is not bound afterwards. */
static void go_home(struct pool_cores *c, int64_t now_us) {
  cpu_set_t mask;
  const cpu_set_t own = set_of(c->core[0]);
  c->moved_us = now_us;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0 || !CPU_EQUAL(&mask, &c->all))
    c->threads = 0;
  else if (sched_setaffinity(0, sizeof own, &own) == 0)
    sched_setaffinity(0, sizeof c->all, &c->all);
}

/* A worker from which nobody has taken its core; 0: there is none. */
static int undisturbed(struct pool_cores *c) {
  int found = 0;
  for (int worker = 1; worker < c->threads; worker++)
    if (atomic_exchange(&c->robbed[worker], 0) == 0 && found == 0) found = worker;
  return found;
}

/* Has the caller lost its core again and again? */
static bool caller_robbed(struct pool_cores *c, int64_t now_us) {
  struct rusage used;
  if (now_us - c->looked_us < LOOK_US || getrusage(RUSAGE_THREAD, &used) != 0) return false;
  const bool whole = now_us - c->looked_us < 2 * LOOK_US; /* otherwise the pool had nothing to do in between */
  const long switches = used.ru_nivcsw - c->switches;
  c->looked_us = now_us;
  c->switches = used.ru_nivcsw;
  return whole && switches >= SWITCHES;
}

int pool_cores_look(struct pool_cores *c) {
  if (c->threads == 0) return 0;
  const int64_t now_us = clock_monotonic_us();
  const int worker = caller_robbed(c, now_us) ? undisturbed(c) : 0;
  if (worker) {
    const int core = c->core[0];
    c->core[0] = c->core[worker];
    c->core[worker] = core;
  }
  if (sched_getcpu() != c->core[0] && now_us - c->moved_us >= MOVE_US) go_home(c, now_us);
  return c->threads ? worker : 0;
}

void pool_cores_robbed(struct pool_cores *c, int worker, int64_t us) {
  if (us >= ROBBED_US) atomic_fetch_add(&c->robbed[worker], 1);
}

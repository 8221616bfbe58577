/* Starts MPI, divides its world between the services, and ends it: once in a process, on a thread of its own. */
#include "common/comm/mpi_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/comm/awake_timeout.h"

enum { LOOK_MS = 20 };

enum keeping { KEEPING_NOTHING, KEEPING_STARTING, KEEPING_WORLD, KEEPING_ENDING, KEEPING_ENDED, KEEPING_FAILED };

static struct {
  pthread_mutex_t lock; /* guards everything here but `world`, which is constant from KEEPING_WORLD on */
  pthread_cond_t changed;
  pthread_t thread;
  enum keeping state;
  int users;
  bool lost;
  enum mpi_role role;
  struct err why; /* of KEEPING_FAILED */
  struct mpi_world world;
} keeper = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum rc mpi_answer(int answer, const char *what, struct err *err) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length;
  if (answer == MPI_SUCCESS) return RC_OK;
  MPI_Error_string(answer, text, &length);
  return err_set(err, RC_UNAVAILABLE, NULL, "%s by MPI failed: %.300s", what, text);
}

/* Machines go by their names, so containers on one of them are several: what they exchange takes a network too. */
static enum rc count_machines(MPI_Comm of, int *out, struct err *err) {
  enum { NAME_BYTES = 65 };
  char mine[NAME_BYTES] = "";
  int places = 0;
  *out = 0;
  gethostname(mine, sizeof mine - 1);
  MPI_Comm_size(of, &places);
  char *names = calloc((size_t)places, NAME_BYTES);
  if (!names)
    return err_set(err, RC_NO_MEMORY, NULL, "the names of %d processes' machines were refused memory", places);
  const enum rc rc = mpi_answer(MPI_Allgather(mine, NAME_BYTES, MPI_CHAR, names, NAME_BYTES, MPI_CHAR, of),
                                "telling the machines' names", err);
  for (int i = 0; i < places; i++) {
    int before = 0;
    while (before < i && memcmp(names + before * NAME_BYTES, names + i * NAME_BYTES, NAME_BYTES) != 0) before++;
    *out += before == i;
  }
  free(names);
  return rc;
}

/* Every process of every role does the same, in this order. */
static enum rc divide(struct mpi_world *w, enum mpi_role role, struct err *err) {
  MPI_Comm_rank(MPI_COMM_WORLD, &w->place);
  MPI_Comm_size(MPI_COMM_WORLD, &w->places);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  enum rc rc =
      mpi_answer(MPI_Comm_split(MPI_COMM_WORLD, (int)role, w->place, &w->peers), "dividing the processes", err);
  if (rc == RC_OK) rc = mpi_answer(MPI_Comm_dup(MPI_COMM_WORLD, &w->all), "dividing the processes", err);
  if (rc == RC_OK) rc = count_machines(w->peers, &w->peers_machines, err);
  return rc == RC_OK ? count_machines(w->all, &w->all_machines, err) : rc;
}

static enum rc start(struct mpi_world *w, enum mpi_role role, struct err *err) {
  const int wanted = w->several_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(NULL, NULL, wanted, &provided) != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED)
    return err_set(err, RC_UNAVAILABLE, NULL, "MPI could not be started");
  w->several_threads = provided == MPI_THREAD_MULTIPLE;
  return divide(w, role, err);
}

static void become(enum keeping state) {
  pthread_mutex_lock(&keeper.lock);
  keeper.state = state;
  pthread_cond_broadcast(&keeper.changed);
  pthread_mutex_unlock(&keeper.lock);
}

static void *keeper_main(void *unused) {
  (void)unused;
  const enum rc rc = start(&keeper.world, keeper.role, &keeper.why);
  become(rc == RC_OK ? KEEPING_WORLD : KEEPING_FAILED);
  if (rc != RC_OK) return NULL;
  pthread_mutex_lock(&keeper.lock);
  while (keeper.state != KEEPING_ENDING) {
    const struct timespec look = clock_deadline_in(AWAKE_TIMEOUT_STEP_MS);
    pthread_cond_timedwait(&keeper.changed, &keeper.lock, &look);
  }
  pthread_mutex_unlock(&keeper.lock);
  MPI_Finalize();
  become(KEEPING_ENDED);
  return NULL;
}

/* Waits until the keeper has left `from`; false when it has not within ms.  Lock held. */
static bool await(enum keeping from, int64_t ms) {
  struct awake_timeout timeout = awake_timeout_start(ms, clock_monotonic_us());
  while (keeper.state == from && !awake_timeout_expired(&timeout, clock_monotonic_us())) {
    const struct timespec look = clock_deadline_in(LOOK_MS);
    pthread_cond_timedwait(&keeper.changed, &keeper.lock, &look);
  }
  return keeper.state != from;
}

enum rc mpi_world_take(struct mpi_world **out, enum mpi_role role, bool several_threads, int64_t start_ms,
                       struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&keeper.lock);
  if (keeper.state == KEEPING_NOTHING) {
    cond_init(&keeper.changed);
    keeper.role = role;
    keeper.world.several_threads = several_threads;
    keeper.state = KEEPING_STARTING;
    if (pthread_create(&keeper.thread, NULL, keeper_main, NULL) != 0) {
      keeper.state = KEEPING_NOTHING;
      rc = err_set(err, RC_NO_MEMORY, NULL, "MPI's thread could not be started");
    }
  }
  if (rc == RC_OK && !await(KEEPING_STARTING, start_ms)) /* the keeper hangs in MPI_Init, and is left behind */
    rc = err_set(err, RC_UNAVAILABLE, NULL, "the processes that mpirun started did not find each other within %lld ms",
                 (long long)start_ms);
  if (rc == RC_OK && keeper.state == KEEPING_FAILED) {
    rc = keeper.why.rc;
    if (err) *err = keeper.why;
  } else if (rc == RC_OK && (keeper.state != KEEPING_WORLD || keeper.lost)) {
    rc = err_set(err, RC_UNAVAILABLE, NULL, "MPI cannot be started twice in a process");
  }
  if (rc == RC_OK) keeper.users++;
  pthread_mutex_unlock(&keeper.lock);
  *out = &keeper.world;
  return rc;
}

void mpi_world_give(struct mpi_world *world, bool lost, int64_t end_ms) {
  if (!world) return;
  pthread_mutex_lock(&keeper.lock);
  keeper.lost |= lost;
  const bool end = --keeper.users == 0 && !keeper.lost;
  bool ended = false;
  if (end) {
    keeper.state = KEEPING_ENDING;
    pthread_cond_broadcast(&keeper.changed);
    ended = await(KEEPING_ENDING, end_ms);
  }
  pthread_mutex_unlock(&keeper.lock);
  if (ended) pthread_join(keeper.thread, NULL);
  if (end && !ended) log_warn("MPI did not end within %lld ms; it is left behind", (long long)end_ms);
}

/* Carries the comm of a trainer's ranks over MPI.
 *
 *   engine's thread --operation--> carrier thread --nonblocking MPI calls, polled--> other ranks' carrier threads
 *
 * One thread of our own, the carrier, makes all MPI calls.  It carries out one operation at a time, and always, whether
 * its engine computes or waits, exchanges pulses: one byte to and from every other rank each PULSE_MS.  So a rank that
 * died or froze is found within silence_ms + PULSE_MS, whatever the others are doing; MPI's own launcher finds dead
 * ranks sooner, but not frozen ones.  The last pulse of a rank that gives up says so, and the others need not wait.
 *
 * Large arrays travel in pieces, so that MPI's own buffers stay small and counts fit an int.  Sums go by a reduction to
 * each part's owner, in place: there is no second copy of an accumulator.
 *
 * `lock` guards the state that the threads share; MPI's objects belong to the carrier.  After a loss MPI is left as it
 * is, because ending it in order would wait for the dead. */
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/comm/comm.h"
#include "common/comm/mpi_world.h"
#include "common/comm/awake_timeout.h"
#include "common/comm/message_pieces.h"
#include "common/comm/polling.h"

enum {
  PULSE_MS = 200,
  PULSE_TAG = 1,
  PIECE_BYTES = 4 << 20,
  WINDOW = 4,      /* pieces on their way at once */
  IDLE_MS = 20,    /* the carrier's rest without an operation */
  FAREWELL_MS = 50 /* for the last pulses to leave */
};
enum pulse { PULSE_NONE, PULSE_ALIVE, PULSE_GONE };

enum operation_kind { OP_BROADCAST, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BARRIER };
static const char *const operation_names[] = {"broadcast", "all_gather", "reduce_scatter", "all_reduce", "barrier"};

struct operation {
  enum operation_kind kind;
  void *data;                   /* the caller's buffer */
  int root;                     /* of a broadcast */
  size_t whole[2];              /* its one part */
  struct message_pieces pieces; /* but of OP_ALL_REDUCE and OP_BARRIER, which are one message */
  size_t count;                 /* values of OP_ALL_REDUCE */
  enum comm_reduction how;
  bool started; /* that one message */
  struct awake_timeout timeout;
  int64_t wait_ms, moved_us; /* moved_us: when something last went ahead */
  MPI_Request requests[WINDOW];
  int flying;
};

struct peer {
  MPI_Request sending, receiving;
  char pulse, heard; /* their buffers */
  struct awake_timeout silence;
};

enum life { LIFE_STARTING, LIFE_OPEN, LIFE_LOST, LIFE_ENDED };

struct comm_mpi {
  struct comm comm; /* first: the table */
  struct comm_mpi_options options;
  pthread_t thread;
  pthread_mutex_t lock; /* guards from here .. */
  pthread_cond_t wake;  /* the carrier: there is an operation, or the end is wanted */
  pthread_cond_t done;  /* the caller: life or operation changed */
  enum life life;
  struct operation *operation; /* NULL or &slot: the carrier's until it is NULL again */
  bool giving_up, closing;
  bool stuck;     /* the carrier does not come back from MPI, so its memory must stay */
  struct err why; /* .. to here: of the loss */

  struct operation slot; /* the caller's while `operation` is NULL */

  /* the carrier's */
  struct mpi_world *world;
  MPI_Comm work, pulse_comm;
  struct peer *peers; /* [size]; the own one unused */
  struct awake_timeout next_pulse;
};

static struct comm_mpi *mpi_of(struct comm *c) { return (struct comm_mpi *)c; }

/* --- the carrier --- */

/* The first loss counts. */
static void lose(struct comm_mpi *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void lose(struct comm_mpi *c, const char *format, ...) {
  char text[ERR_MESSAGE_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&c->lock);
  if (c->life != LIFE_LOST) {
    log_warn("%s", text);
    err_set(&c->why, RC_UNAVAILABLE, NULL, "%s", text);
  }
  c->life = LIFE_LOST;
  c->operation = NULL;
  pthread_cond_broadcast(&c->done);
  pthread_mutex_unlock(&c->lock);
}

/* Checks an answer of MPI: after an error the comm is lost and the result is false. */
static bool went_well(struct comm_mpi *c, int answer, const char *what) {
  struct err err;
  if (mpi_answer(answer, what, &err) == RC_OK) return true;
  lose(c, "rank %d of %d: %s", c->comm.rank, c->comm.size, err.message);
  return false;
}

static MPI_Op operator_of(enum comm_reduction how) {
  switch (how) {
    case COMM_MIN: return MPI_MIN;
    case COMM_MAX: return MPI_MAX;
    default: return MPI_SUM;
  }
}

static int start_piece(struct comm_mpi *c, struct operation *o, const struct message_piece *p, MPI_Request *request) {
  if (o->kind == OP_BROADCAST)
    return MPI_Ibcast((char *)o->data + p->begin, (int)p->count, MPI_BYTE, o->root, c->work, request);
  if (o->kind == OP_ALL_GATHER)
    return MPI_Ibcast((char *)o->data + p->begin, (int)p->count, MPI_BYTE, p->part, c->work, request);
  int64_t *sums = (int64_t *)o->data + p->begin;
  const bool mine = p->part == c->comm.rank;
  return MPI_Ireduce(mine ? MPI_IN_PLACE : sums, mine ? sums : NULL, (int)p->count, MPI_INT64_T, MPI_SUM, p->part,
                     c->work, request);
}

/* Starts messages until as many as allowed are on their way; none are when all are through. */
static bool operation_start(struct comm_mpi *c, struct operation *o) {
  struct message_piece piece;
  int answer = MPI_SUCCESS;
  if (o->kind == OP_ALL_REDUCE || o->kind == OP_BARRIER) {
    if (o->started) return true;
    o->started = true;
    answer = o->kind == OP_BARRIER ? MPI_Ibarrier(c->work, &o->requests[0])
                                   : MPI_Iallreduce(MPI_IN_PLACE, o->data, (int)o->count, MPI_INT64_T,
                                                    operator_of(o->how), c->work, &o->requests[0]);
    o->flying = 1;
  }
  while (answer == MPI_SUCCESS && o->flying < WINDOW && message_pieces_next(&o->pieces, &piece))
    answer = start_piece(c, o, &piece, &o->requests[o->flying++]);
  return went_well(c, answer, operation_names[o->kind]);
}

static void operation_finish(struct comm_mpi *c) {
  pthread_mutex_lock(&c->lock);
  c->operation = NULL;
  pthread_cond_broadcast(&c->done);
  pthread_mutex_unlock(&c->lock);
}

/* False when the operation belongs to the caller again. */
static bool operation_drive(struct comm_mpi *c, struct operation *o, int64_t now_us) {
  int all = 0;
  if (o->flying == 0 && !operation_start(c, o)) return false;
  if (o->flying == 0) {
    operation_finish(c);
    return false;
  }
  if (!went_well(c, MPI_Testall(o->flying, o->requests, &all, MPI_STATUSES_IGNORE), operation_names[o->kind]))
    return false;
  if (all) {
    o->flying = 0;
    o->moved_us = now_us;
  } else if (awake_timeout_expired(&o->timeout, now_us)) {
    lose(c, "%s on rank %d of %d did not end within %lld ms: another rank lives, but does not come to it",
         operation_names[o->kind], c->comm.rank, c->comm.size, (long long)o->wait_ms);
    return false;
  }
  return true;
}

/* One byte to every rank whose last one has left; none after PULSE_GONE. */
static void pulses_send(struct comm_mpi *c, enum pulse pulse) {
  for (int r = 0; r < c->comm.size; r++) {
    struct peer *p = &c->peers[r];
    int left = 1;
    if (r == c->comm.rank) continue;
    if (p->sending != MPI_REQUEST_NULL) MPI_Test(&p->sending, &left, MPI_STATUS_IGNORE);
    if (!left || p->pulse == PULSE_GONE) continue;
    p->pulse = (char)pulse;
    MPI_Isend(&p->pulse, 1, MPI_BYTE, r, PULSE_TAG, c->pulse_comm, &p->sending);
  }
}

static void pulse_listen(struct comm_mpi *c, int rank) {
  struct peer *p = &c->peers[rank];
  MPI_Irecv(&p->heard, 1, MPI_BYTE, rank, PULSE_TAG, c->pulse_comm, &p->receiving);
}

static void pulses_hear(struct comm_mpi *c, int64_t now_us) {
  for (int r = 0; r < c->comm.size; r++) {
    struct peer *p = &c->peers[r];
    int came = 0;
    if (r == c->comm.rank) continue;
    if (!went_well(c, MPI_Test(&p->receiving, &came, MPI_STATUS_IGNORE), "a pulse")) return;
    if (came && p->heard == PULSE_GONE) {
      lose(c, "rank %d of %d gave up", r, c->comm.size);
      return;
    }
    if (came) {
      p->silence = awake_timeout_start(c->options.silence_ms, now_us);
      pulse_listen(c, r);
    } else if (awake_timeout_expired(&p->silence, now_us)) {
      lose(c, "rank %d of %d has been silent for %lld ms", r, c->comm.size, (long long)c->options.silence_ms);
      return;
    }
  }
}

/* The operation in hand, after a rest: NULL without one, and *end when the carrier is to stop. */
static struct operation *carrier_rest(struct comm_mpi *c, struct operation *was, int64_t now_us, bool *end) {
  bool giving_up;
  if (was) polling_rest(now_us - was->moved_us);
  pthread_mutex_lock(&c->lock);
  if (!c->operation && !c->giving_up && !c->closing) {
    const struct timespec until = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&c->wake, &c->lock, &until);
  }
  struct operation *o = c->operation;
  giving_up = c->giving_up;
  *end = c->closing || c->life == LIFE_LOST;
  pthread_mutex_unlock(&c->lock);
  if (giving_up) {
    lose(c, "rank %d of %d gave up: this one", c->comm.rank, c->comm.size);
    *end = true;
  }
  return o;
}

/* The rank's place among the ranks of its machine, which are those that share a memory. */
static bool find_local(struct comm_mpi *c) {
  MPI_Comm machine;
  if (!went_well(c, MPI_Comm_split_type(c->work, MPI_COMM_TYPE_SHARED, c->comm.rank, MPI_INFO_NULL, &machine),
                 "starting MPI"))
    return false;
  MPI_Comm_rank(machine, &c->comm.local);
  return went_well(c, MPI_Comm_free(&machine), "starting MPI");
}

static bool carrier_start(struct comm_mpi *c) {
  MPI_Comm_rank(c->world->peers, &c->comm.rank);
  MPI_Comm_size(c->world->peers, &c->comm.size);
  c->comm.machines = c->world->peers_machines;
  if (!went_well(c, MPI_Comm_dup(c->world->peers, &c->work), "starting MPI") ||
      !went_well(c, MPI_Comm_dup(c->world->peers, &c->pulse_comm), "starting MPI") || !find_local(c))
    return false;
  if (!(c->peers = calloc((size_t)c->comm.size, sizeof *c->peers))) {
    lose(c, "the pulses of %d ranks were refused memory", c->comm.size);
    return false;
  }
  const int64_t now_us = clock_monotonic_us();
  for (int r = 0; r < c->comm.size; r++) {
    c->peers[r] = (struct peer){.sending = MPI_REQUEST_NULL,
                                .receiving = MPI_REQUEST_NULL,
                                .silence = awake_timeout_start(c->options.silence_ms, now_us)};
    if (r != c->comm.rank) pulse_listen(c, r);
  }
  c->next_pulse = awake_timeout_start(0, now_us);
  pthread_mutex_lock(&c->lock);
  c->life = LIFE_OPEN;
  pthread_cond_broadcast(&c->done);
  pthread_mutex_unlock(&c->lock);
  return true;
}

/* All ranks have agreed to part. */
static void carrier_finish(struct comm_mpi *c) {
  for (int r = 0; r < c->comm.size; r++) {
    if (c->peers[r].receiving == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&c->peers[r].receiving);
    MPI_Wait(&c->peers[r].receiving, MPI_STATUS_IGNORE);
  }
}

static void carrier_farewell(struct comm_mpi *c) {
  struct awake_timeout timeout = awake_timeout_start(FAREWELL_MS, clock_monotonic_us());
  do {
    pulses_send(c, PULSE_GONE);
    sched_yield();
  } while (!awake_timeout_expired(&timeout, clock_monotonic_us()));
}

static void *carrier_main(void *context) {
  struct comm_mpi *c = context;
  struct operation *o = NULL;
  bool end = !carrier_start(c);
  while (!end) {
    const int64_t now_us = clock_monotonic_us();
    if (o && !operation_drive(c, o, now_us)) o = NULL;
    pulses_hear(c, now_us);
    if (awake_timeout_expired(&c->next_pulse, now_us)) {
      pulses_send(c, PULSE_ALIVE);
      c->next_pulse = awake_timeout_start(PULSE_MS, now_us);
    }
    o = carrier_rest(c, o, now_us, &end);
  }
  pthread_mutex_lock(&c->lock);
  const bool lost = c->life == LIFE_LOST;
  pthread_mutex_unlock(&c->lock);
  if (lost && c->peers) carrier_farewell(c);
  if (!lost) carrier_finish(c);
  pthread_mutex_lock(&c->lock);
  if (!lost) c->life = LIFE_ENDED;
  pthread_cond_broadcast(&c->done);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* --- the callers --- */

/* The carrier keeps the operation's deadline; if it hangs within MPI, the caller does not wait for it forever. */
static enum rc carry(struct comm *comm, const struct operation *what, int64_t wait_ms, struct err *err) {
  struct comm_mpi *c = mpi_of(comm);
  const int64_t now_us = clock_monotonic_us();
  struct awake_timeout timeout = awake_timeout_start(wait_ms + 2 * c->options.silence_ms, now_us);
  pthread_mutex_lock(&c->lock);
  assert(!c->operation);
  if (c->life == LIFE_OPEN) {
    c->slot = *what;
    if (what->kind == OP_BROADCAST) c->slot.pieces.begin = c->slot.whole;
    c->slot.wait_ms = wait_ms;
    c->slot.timeout = awake_timeout_start(wait_ms, now_us);
    c->slot.moved_us = now_us;
    c->operation = &c->slot;
    pthread_cond_signal(&c->wake);
  }
  while (c->operation && !c->stuck) {
    const struct timespec look = clock_deadline_in(AWAKE_TIMEOUT_STEP_MS);
    pthread_cond_timedwait(&c->done, &c->lock, &look);
    if (!c->operation || !awake_timeout_expired(&timeout, clock_monotonic_us())) continue;
    err_set(&c->why, RC_UNAVAILABLE, NULL, "MPI on rank %d of %d does not come back from a call", comm->rank,
            comm->size);
    c->life = LIFE_LOST;
    c->stuck = true;
  }
  const enum rc rc = c->life == LIFE_LOST ? RC_UNAVAILABLE : RC_OK;
  if (rc != RC_OK && err) *err = c->why;
  pthread_mutex_unlock(&c->lock);
  return rc;
}

static enum rc mpi_broadcast(struct comm *c, void *bytes, size_t count, int root, int64_t wait_ms, struct err *err) {
  const struct operation o = {.kind = OP_BROADCAST,
                              .data = bytes,
                              .root = root,
                              .whole = {0, count},
                              .pieces = {.parts = 1, .most = PIECE_BYTES}};
  return carry(c, &o, wait_ms, err);
}

static enum rc mpi_all_gather(struct comm *c, void *bytes, const size_t *begin, int64_t wait_ms, struct err *err) {
  const struct operation o = {
      .kind = OP_ALL_GATHER, .data = bytes, .pieces = {.begin = begin, .parts = c->size, .most = PIECE_BYTES}};
  return carry(c, &o, wait_ms, err);
}

static enum rc mpi_reduce_scatter(struct comm *c, int64_t *sums, const size_t *begin, int64_t wait_ms,
                                  struct err *err) {
  const struct operation o = {.kind = OP_REDUCE_SCATTER,
                              .data = sums,
                              .pieces = {.begin = begin, .parts = c->size, .most = PIECE_BYTES / sizeof *sums}};
  return carry(c, &o, wait_ms, err);
}

static enum rc mpi_all_reduce(struct comm *c, int64_t *values, size_t count, enum comm_reduction how, int64_t wait_ms,
                              struct err *err) {
  assert(count <= PIECE_BYTES / sizeof *values);
  const struct operation o = {.kind = OP_ALL_REDUCE, .data = values, .count = count, .how = how};
  return carry(c, &o, wait_ms, err);
}

static enum rc mpi_barrier(struct comm *c, int64_t wait_ms, struct err *err) {
  const struct operation o = {.kind = OP_BARRIER};
  return carry(c, &o, wait_ms, err);
}

static enum rc mpi_check(struct comm *comm, struct err *err) {
  struct comm_mpi *c = mpi_of(comm);
  pthread_mutex_lock(&c->lock);
  const enum rc rc = c->life == LIFE_LOST ? RC_UNAVAILABLE : RC_OK;
  if (rc != RC_OK && err) *err = c->why;
  pthread_mutex_unlock(&c->lock);
  return rc;
}

static void mpi_give_up(struct comm *comm) {
  struct comm_mpi *c = mpi_of(comm);
  pthread_mutex_lock(&c->lock);
  c->giving_up = true;
  pthread_cond_signal(&c->wake);
  pthread_mutex_unlock(&c->lock);
}

/* Waits until the carrier has left `from`, within ms: false when it has not. */
static bool await(struct comm_mpi *c, enum life from, int64_t ms) {
  struct awake_timeout timeout = awake_timeout_start(ms, clock_monotonic_us());
  pthread_mutex_lock(&c->lock);
  while (c->life == from && !awake_timeout_expired(&timeout, clock_monotonic_us())) {
    const struct timespec look = clock_deadline_in(IDLE_MS);
    pthread_cond_timedwait(&c->done, &c->lock, &look);
  }
  const bool left = c->life != from;
  pthread_mutex_unlock(&c->lock);
  return left;
}

/* The carrier has ended or is about to; a carrier that hangs keeps its memory until the process ends. */
static void release(struct comm_mpi *c, bool lost) {
  if (!c->stuck) pthread_join(c->thread, NULL);
  mpi_world_give(c->world, lost || c->stuck, c->options.silence_ms);
  if (c->stuck) return;
  pthread_cond_destroy(&c->wake);
  pthread_cond_destroy(&c->done);
  pthread_mutex_destroy(&c->lock);
  free(c->peers);
  free(c);
}

static void mpi_free(struct comm *comm) {
  struct comm_mpi *c = mpi_of(comm);
  const bool whole = mpi_barrier(comm, c->options.silence_ms, NULL) == RC_OK;
  if (whole) {
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    c->stuck = !await(c, LIFE_OPEN, c->options.silence_ms);
    if (c->stuck) log_warn("MPI did not end within %lld ms; it is left behind", (long long)c->options.silence_ms);
  }
  release(c, !whole);
}

enum rc comm_mpi_create(struct comm **out, const struct comm_mpi_options *options, struct err *err) {
  struct comm_mpi *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the comm's state was refused memory");
  c->comm = (struct comm){.name = "mpi",
                          .broadcast = mpi_broadcast,
                          .all_gather = mpi_all_gather,
                          .reduce_scatter = mpi_reduce_scatter,
                          .all_reduce = mpi_all_reduce,
                          .barrier = mpi_barrier,
                          .check = mpi_check,
                          .give_up = mpi_give_up,
                          .free = mpi_free};
  c->options = *options;
  pthread_mutex_init(&c->lock, NULL);
  cond_init(&c->wake);
  cond_init(&c->done);
  enum rc rc = mpi_world_take(&c->world, MPI_ROLE_TRAINER, options->several_threads, options->start_ms, err);
  if (rc == RC_OK && pthread_create(&c->thread, NULL, carrier_main, c) != 0) {
    mpi_world_give(c->world, true, 0);
    rc = err_set(err, RC_NO_MEMORY, NULL, "the comm's thread could not be started");
  }
  if (rc != RC_OK) {
    free(c);
    return rc;
  }
  if (!await(c, LIFE_STARTING, options->start_ms)) /* the carrier hangs in MPI, and keeps its memory */
    return err_set(err, RC_UNAVAILABLE, NULL, "the ranks did not find each other within %lld ms",
                   (long long)options->start_ms);
  pthread_mutex_lock(&c->lock);
  const bool lost = c->life == LIFE_LOST;
  if (lost && err) *err = c->why;
  pthread_mutex_unlock(&c->lock);
  if (lost) {
    release(c, true);
    return RC_UNAVAILABLE;
  }
  *out = &c->comm;
  return RC_OK;
}

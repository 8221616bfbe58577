/* The writer's state, for the files whose code runs on the writer's thread: core.c, leases.c, round.c, group_seal.c,
 * publish.c, run_life.c, workers.c and the routes' execute functions.
 *
 * Owned by the one writer thread; the members under `lock`, the atomics, and what core.h offers are all that others
 * may touch.  Sized at start: workers_max workers, a bounded queue.  What must survive is in the database, and what
 * is here is either derived from it or means nothing after a restart.  An execute function that fails has its rows
 * undone but not what it changed here: change memory last. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_CORE_STATE_H
#define LEASEHOLD_COORDINATOR_WRITER_CORE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/limits.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/wire/training.h"
#include "services/coordinator/decide/clock_skew.h"
#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/decide/slot_time.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core.h"

/* What of a live worker changes too often, or means too little after a restart, to be read back from the database. */
struct live_worker {
  int64_t id;
  char name[LIMIT_NAME_MAX];
  enum worker_kind kind;
  int32_t slots;
  enum worker_exactness exactness;
  char identity[LIMIT_NAME_MAX]; /* a trainer's; "": none */
  bool holder;                   /* of the trainer's place: trainer_place.h */
  int64_t fence;                 /* the holder's */
  bool ready;
  int64_t seen_ms;           /* monotonic */
  int64_t busy_slot_us;      /* as last reported, less what is carried to the next heartbeat (slot_time.h) */
  int64_t accounted_ms;      /* until when its slots' time was accounted for: monotonic */
  int64_t skew_us;           /* its clock less ours (clock_skew.h) */
  int64_t positions_refused; /* it cannot run leases of so many positions or more; 0: none were refused */
};

/* What dispatch is told of the run's pace (frontier.h).  Order only depends on it. */
struct dispatch_rates {
  struct rate drain;   /* groups per second of the trainer's, while it has work */
  struct rate latency; /* seconds per group, from its first lease to its sealing */
  struct rate tokens;  /* per finished sample */
};

/* How the time-outs of open groups are counted: see group_timeout.h. */
struct group_clock {
  int64_t run;     /* whose; 0: none yet */
  int64_t at_ms;   /* the last look; 0: none yet */
  bool counting;   /* since then */
  int64_t owed_ms; /* time that does not count and is not yet taken off */
  int64_t due_ms;  /* nothing fails before: monotonic */
};

struct core {
  struct core_options options;
  struct readers *readers;
  struct hub *hub;
  struct queue *queue;
  pthread_t thread;
  bool started;
  atomic_bool stopping, broken, groups_awaited;
  uint64_t epoch;
  void (*kick)(void *context, int sealed);
  void *kick_context;

  /* the writer's */
  struct store *store;
  int64_t now_ms,
      wall_ms;           /* of the transaction in hand: monotonic, and what is stored (core_wall_us: it never steps) */
  int64_t wall_ahead_us; /* of the clock's wall time: the newest stored time lay ahead of it at the start */
  int64_t clock_off_ms;  /* the machine's clock less wall_ms, as last warned of */
  struct live_worker *workers; /* [options.workers_max] */
  int worker_count;
  char place_for[LIMIT_NAME_MAX]; /* since the start: the identity that the trainer's place is kept for; "": none */
  int64_t place_kept_until_ms;    /* monotonic */
  struct command *parked;
  bool dispatch_due; /* samples or versions changed: look at the parked polls again */
  bool kick_due;
  int sealed;                          /* groups, in the transaction in hand */
  struct event *events, **events_tail; /* of the transaction in hand */
  struct run_context *context;         /* of the active run; NULL: no leases, no results */
  int64_t next_expiry_ms, next_keep_alive_ms;
  bool store_failed; /* in the transaction in hand: it is not to be committed */
  struct dispatch_rates rates;
  struct group_clock group_clock;
  struct slot_window windows[SLOT_WINDOWS];           /* the newest run that samples, and the one before */
  struct verifying_notes verifying[VERIFYING_ROUNDS]; /* newest first */
  int lock_file;                                      /* held exclusively: one coordinator a database; -1: none */

  pthread_mutex_t lock;  /* guards request, ticket, waited and done of every command */
  pthread_cond_t called; /* a waited command is done */

  struct metric *m_commands, *m_commits, *m_refused, *m_granted, *m_lost, *m_samples, *m_tokens, *m_rounds, *m_parked,
      *m_workers, *m_incidents, *m_stale, *m_unequal;
};

/* Registered as an event of the transaction in hand; takes over text's memory. */
enum rc core_event(struct core *c, int64_t run, const char *type, struct buf *text, bool last, struct err *err);
enum rc core_incident(struct core *c, int64_t run, const char *kind, const char *subject, const char *detail,
                      struct err *err);
/* RC_CONFLICT for any epoch but this start's. */
enum rc core_check_epoch(const struct core *c, uint64_t epoch, struct err *err);
/* Has the caller of a parked command gone? */
bool command_orphaned(struct core *c, struct command *cmd);

#endif

/* The state that an execute function may touch: the database in its savepoint, the time of the transaction in hand,
 * the flags that say what is due after it, and the state of the rooms above.
 *
 * Owned by the one writer thread.  The queue, the lock and the parked polls are private to core.c.  Everything that
 * must survive is in the database; the state here is either derived from it or means nothing after a restart.  When
 * an execute function fails its rows are undone, but not its changes here: change memory last. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_CORE_STATE_H
#define LEASEHOLD_COORDINATOR_WRITER_CORE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "services/coordinator/store/store.h"
#include "services/coordinator/writer/core_options.h"

struct event;
struct metric;
struct pool;
struct rounds;
struct run_context;

struct core {
  struct core_options options;
  uint64_t epoch;
  struct store *store;
  int64_t now_ms;                      /* of the transaction in hand, monotonic */
  int64_t wall_ms;                     /* of the transaction in hand, as it is stored: it never steps (core_wall_us) */
  struct event *events, **events_tail; /* of the transaction in hand: journal.h */
  bool dispatch_due;                   /* rounds or versions changed: look at all parked polls again */
  bool samples_due;                    /* samples wait again: look at parked polls until nothing waits any more */
  bool passes_due;                     /* a pass waits, or another run's weights: look at parked polls of
                                        * preprocessors */
  bool nothing_waits;                  /* said by a poll that any sample would have been given to */
  bool kick_due;                       /* something changed that the driver may act on */
  int64_t undone;                      /* savepoints rolled back so far: memory that follows rows reads them again */
  int sealed;                          /* groups, in the transaction in hand */
  bool checks_due;                     /* a group waits for its check since it or, in mode sync, is sampled no more:
                                        * while others are, checks wait (checks/check_message.c) */
  struct run_context *context;         /* of the active run; NULL: no leases, no results */
  struct run_context *ended;           /* of a run that the savepoint in hand has ended: who called may read it still */
  struct pool *pool;                   /* pool/pool.h */
  struct rounds *rounds;               /* rounds/rounds.h */
  struct metric *m_incidents;
};

#endif

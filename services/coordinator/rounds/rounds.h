/* The rounds' state in memory: how the time-outs of open groups are counted, in which windows slots count as the run's,
 * how long verifying has taken so far, and the counters of its outcomes.
 *
 * The writer's thread only, but for rounds_context_keep and what checks fail with; core->rounds.  None of it survives a
 * restart: times count anew. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_ROUNDS_H
#define LEASEHOLD_COORDINATOR_ROUNDS_ROUNDS_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/metrics.h"
#include "services/coordinator/decide/slot_time.h"
#include "services/coordinator/writer/core_state.h"

/* How the time-outs of open groups are counted: see group_timeout.h. */
struct group_clock {
  int64_t run;     /* whose; 0: none yet */
  int64_t at_ms;   /* the last look; 0: none yet */
  bool counting;   /* since then */
  int64_t owed_ms; /* time that does not count and is not yet taken off */
  int64_t due_ms;  /* nothing fails before: monotonic */
};

/* Groups of the round were verified and sealed between first and last (wall clock): see intervals.h. */
struct verifying_notes {
  int64_t run, round, first_us, last_us, sum_us;
};
enum { VERIFYING_ROUNDS = 2 }; /* the one that seals, and one that is not stored yet */

/* How many groups of an `inflight` run may be issued, until something happens that changes it: see stream.c. */
struct stream_bound {
  bool known;
  int64_t undone; /* core's, when it was counted */
  int64_t allowed;
};

/* Checks of the run's samples come to nothing since then. */
struct failing_checks {
  int64_t run, since_ms; /* monotonic; run 0: they do not */
  char why[ERR_MESSAGE_MAX];
};

struct rounds {
  pthread_mutex_t shared_lock; /* guards shared and failing */
  struct run_context *shared;  /* core->context, for threads other than the writer's */
  struct failing_checks failing;
  struct group_clock group_clock;
  struct slot_window windows[SLOT_WINDOWS];           /* the newest run that samples, and the one before */
  struct verifying_notes verifying[VERIFYING_ROUNDS]; /* newest first */
  struct stream_bound stream;
  struct metric *m_rounds, *m_refused, *m_samples, *m_tokens, *m_unequal, *m_seconds;
};

enum rc rounds_create(struct core *c, struct err *err);
void rounds_destroy(struct core *c); /* also after a rounds_create that failed */
/* A result of the run was refused: counted, in the database too. */
enum rc rounds_result_refused(struct core *c, int64_t run, struct err *err);
/* core->context is another now. */
void rounds_context_changed(struct core *c);
/* The active run's, for any thread, to be released by the caller; NULL: there is none. */
struct run_context *rounds_context_keep(struct core *c);
/* Any thread.  why NULL: a check of the run has come to something. */
void rounds_checks_note(struct core *c, int64_t run, const char *why);
/* Any thread.  Do checks of the run fail since a moment?  why: with what. */
bool rounds_checks_failing(struct core *c, int64_t run, char why[ERR_MESSAGE_MAX]);

#endif

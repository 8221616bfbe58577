/* Bubble accounting: what every worker did when, kept in two forms.
 *
 *   trainer's batch and step answers --intervals_store(round)--+--> intervals: the picture, packed, oldest rows pruned
 *   servers' heartbeats              --intervals_beat----------+--> cause_times: the sums, kept with the rounds
 *   sealing on the writer's thread   --verifying_note----------> rounds.verify_us, and one interval a round
 *
 * Writer's thread only, inside the caller's savepoint.  The database is the state, except for the notes of rounds
 * that are still sealing (rounds.h).  The trainer names the round.  A heartbeat's intervals are given to rounds by
 * time and cut where a round ends; time in no round is dropped.  Times of a worker whose clock is off are
 * corrected (clock_skew.h). Nothing is decided by any of this.  Read by route_timeline.c, round_view.c and
 * run_view.c. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_INTERVALS_H
#define LEASEHOLD_COORDINATOR_ROUNDS_INTERVALS_H

#include "common/wire/interval.h"
#include "services/coordinator/decide/slot_time.h"
#include "services/coordinator/decide/stored.h"

struct core;

/* Rows of packed intervals: at most INTERVAL_ROW_ITEMS of one worker within INTERVAL_ROW_SPAN_US each. */
enum {
  INTERVAL_ROWS_MAX = 200000,
  INTERVAL_ROW_ITEMS = 64,
  INTERVAL_ROW_SPAN_US = 600000000,
  INTERVAL_PACKED_BYTES = 17
};

/* Stores a worker's intervals of a round; round -1: found by time.  Lanes may overlap.  The caller makes sure that no
 * interval comes twice. */
enum rc intervals_store(struct core *c, int64_t run, int64_t round, int64_t worker, const struct interval *items,
                        size_t count, struct err *err);
/* Stores the intervals of a heartbeat, of a generation-server (ACTOR_POOL) or a preprocessor, in order of time, without
 * those that were stored before.  accounts: its slots' time of this heartbeat, shared out among the rounds as its
 * computing was; NULL: it has no slots. */
enum rc intervals_beat(struct core *c, int64_t worker, enum time_actor actor, const struct interval *items,
                       size_t count, const struct slot_account *accounts, struct err *err);

/* Groups of the round were verified and sealed from begin to end (wall clock). */
void verifying_note(struct core *c, int64_t run, int64_t round, int64_t begin_us, int64_t end_us);
/* The round's notes are stored and forgotten: when it is published; of other rounds that are sealed, with the next
 * heartbeat. */
enum rc verifying_flush(struct core *c, int64_t run, int64_t round, struct err *err);

/* The n-th of a row's intervals; false behind the last. */
bool interval_unpack(struct interval *out, const void *packed, size_t bytes, size_t n);

#endif

/* Decides when a sealed group of a run with a KL term goes to the trainer: at once, or once a preprocessor has computed
 * the reference's log-probabilities of it (a pass).
 *
 *   waiting --granted--> granted --result--> done: the batch brings them
 *      ^-- holder lost --'   '-- refused, or longer than pass_timeout_ms after the first grant: the trainer computes them
 *
 * Who computes changes no bit, so all of this is about time only: a pass that is being computed is waited for, for a
 * bounded time; one that nobody has begun is left to the preprocessors as long as the trainer has something else to do.
 * So the trainer never stands still beside a group that nobody works on, and a preprocessor that dies holds up its own
 * groups for pass_timeout_ms at most.
 *
 * Pure, any thread, no memory.  Called by rounds/batch_passes.c (the trainer's side) and pool/passes.c (theirs). */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_PASSES_H
#define LEASEHOLD_COORDINATOR_DECIDE_PASSES_H

#include <stdbool.h>
#include <stdint.h>

/* passes.state; a sealed group without a row is PASS_WAITING. */
enum pass_state {
  PASS_WAITING, /* for a preprocessor */
  PASS_GRANTED,
  PASS_DONE,   /* its log-probabilities are stored */
  PASS_REFUSED /* a preprocessor said that it cannot be computed there: the trainer computes it */
};

struct pass_facts {
  enum pass_state state;
  bool granted_before;
  int64_t since_first_grant_ms; /* when it was */
};

/* Is the pass's time over?  Then it is granted to no worker any more, and not waited for. */
bool pass_is_late(const struct pass_facts *p, int64_t timeout_ms);

/* Which of these groups, in the order of their passes, a batch may take: take[n].  idle: the trainer has nothing to do;
 * then, when it could take none of them otherwise, it takes the last one that no preprocessor has begun.
 * preprocessors: that hold the reference; 0: nothing is waited for.  Returns how many may be taken. */
int passes_select(const struct pass_facts *passes, int n, int preprocessors, int64_t timeout_ms, bool idle, bool *take);

/* How many of the waiting passes a poll is granted: its share of them, at least one, at most what it asked for (>= 1).
 * A preprocessor that is not known to hold the reference gets one, from which it learns what to load. */
int passes_share(int waiting, int preprocessors, int asked, bool holds_reference);

#endif

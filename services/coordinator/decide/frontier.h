/* Decides which groups go first: frontier-group dispatch (FGD) as pure decisions, and the measurements that they use.
 *
 *   training groups of the open round, by ordinal:   0  1  2  [3]  4  [5] | 6  7  8 ...
 *   0, 1, 2 and 4 are sealed; [ ] is the frontier, here of two groups; 6 is its `end`, and what follows is backfill
 *
 * Order of service: groups overtaken for too long; the frontier, least expected remaining work first; later groups by
 * ordinal; evaluation groups.  Where admission.c has planned an order, a group's place in it stands for its ordinal,
 * and all of the round is the frontier.  Any group that is whole can be trained, so the one that lacks least is
 * finished first: in the simulation that beats longest-first and plain order, most where leases are lost.  A gate
 * (RolloutPipe, literally) stops behind the frontier and may leave slots empty; off is first come first served.
 *
 * Called by leases.c on the writer's thread for each poll, before dispatch.c cuts leases.  No database, no clock, no
 * memory of its own; times are of one clock, the caller's.  Predictions change the order only, never what is a member.
 * The content of a sample must not depend on any of this (randomness is keyed by position), only how long the round
 * takes.  Simulated by the thousand in tests/sim. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_FRONTIER_H
#define LEASEHOLD_COORDINATOR_DECIDE_FRONTIER_H

#include <stdbool.h>
#include <stdint.h>

/* The run configuration's words: "priority", "gate", "off". */
enum frontier_kind { FRONTIER_PRIORITY, FRONTIER_GATE, FRONTIER_OFF };

enum {
  FRONTIER_SIZE_DEFAULT = 2,    /* groups, while nothing is measured: the paper's F_w = U = 2 */
  FRONTIER_CANDIDATES_MAX = 512 /* groups that one poll looks at; the largest frontier */
};

/* A group of the open round with at least one waiting sample. */
struct waiting_group {
  int32_t ordinal;
  int32_t waiting, leased, done; /* its samples */
  int64_t done_tokens;           /* of the done ones */
  int64_t waiting_since_ms;      /* since when it has had waiting samples */
  int64_t overtaken_since_ms;    /* see frontier_overtaken; 0: no group went before it */
  int32_t place;                 /* in the planned order, from 1 (admission.h); 0: its ordinal counts */
  bool evaluation, begun;        /* begun: a sample of it was granted once; else all wait, with fence 0 */
};

struct frontier_policy {
  enum frontier_kind kind;
  int32_t end; /* ordinal of the first open training group behind the frontier; INT32_MAX: there is none */
  int64_t aging_ms, now_ms;
  int64_t tokens_prior; /* expected length of a sample of a group without finished ones; 0: not known */
  bool planned;         /* groups have places, which only their age overrides */
};

/* order: room for n; becomes the indices of the groups that may be granted now, first to be served first.  Returns how
 * many. */
int frontier_order(const struct waiting_group *groups, int n, const struct frontier_policy *p, int32_t *order);

/* After a grant of granted[i] samples of groups[i]: writes the indices (room for n) of the training groups that still
 * wait and were overtaken by it for the first time, a training group of a higher ordinal having been served.  The
 * caller notes the time for them, and forgets it once a group has no waiting samples left.  Returns how many.
 *
 * Age counts from here, not from when the samples began to wait: in a long round every group waits for longer than any
 * sensible bound, and one that has merely not come up yet must not go before the frontier's lost samples. */
int frontier_overtaken(const struct waiting_group *groups, int n, const int32_t *granted, int32_t *overtaken);

/* How many groups must be in flight so that the trainer does not wait: by Little's law as many as it takes in the time
 * that a group needs from its first lease to its sealing, and one more.  Between 1 and groups, at most
 * FRONTIER_CANDIDATES_MAX; a rate or a latency of 0 is not known. */
int frontier_size(double drain_groups_per_s, double group_latency_s, int groups);

/* A quotient of sums in which the past fades: the trainer's groups per busy second, seconds per group, tokens per
 * sample.  Zero-initialized: nothing is known. */
struct rate {
  double amount, per;
  int64_t at_ms;
};
/* The run's pace, as dispatch is told it.  Only the order depends on it. */
struct dispatch_rates {
  struct rate drain;   /* groups per second of the trainer's, while it has work */
  struct rate latency; /* seconds per group, from its first lease to its sealing */
  struct rate tokens;  /* per finished sample */
};
/* per: > 0 */
void rate_note(struct rate *r, double amount, double per, int64_t now_ms);
/* 0: nothing is known. */
double rate_value(const struct rate *r);

#endif

/* The open round's groups that have waiting samples, in memory, in the order in which dispatch looks at them: so that a
 * poll looks at the few that it can be given and reads none of them from the database.
 *
 *   rows of groups --waiting_read, once--> here --a grant, a result, a closed group: noted as it happens--> here
 *          ^-------- forgotten whenever samples come back, a group opens or a command is undone ------------+
 *
 * Called by leases.c and rounds/ on the writer's thread.  The database stays the truth: what is here is derived from
 * it, and whatever is not a plain grant or result throws it away.  Memory grows to the round's groups and is kept. */
#ifndef LEASEHOLD_COORDINATOR_POOL_WAITING_H
#define LEASEHOLD_COORDINATOR_POOL_WAITING_H

#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/writer/core_state.h"

struct waiting_entry {
  struct waiting_group group;
  int64_t positions; /* of a whole sample: prompt and new tokens */
};

struct waiting {
  bool known;
  bool by_arrival; /* else by ordinal */
  int64_t undone;  /* core's, when it was read */
  int64_t run, round;
  struct waiting_entry *items; /* [room]; items[first] to items[first + count - 1] */
  int first, count, room;
  int64_t samples;                              /* waiting, of all items */
  int32_t begun;                                /* of the round's training groups: a sample was leased once */
  uint64_t open[ORDINAL_EVALUATION_FIRST / 64]; /* a bit for each open training group, by ordinal */
};

/* Afterwards it tells of this round. */
enum rc waiting_read(struct waiting *w, struct core *c, int64_t run, int64_t round, struct err *err);
/* The next poll reads anew. */
void waiting_forget(struct waiting *w);
void waiting_granted(struct waiting *w, int64_t group, int64_t samples);
void waiting_overtaken(struct waiting *w, int64_t group, int64_t wall_ms);
/* Samples of a group that stays open were finished. */
void waiting_done(struct waiting *w, int64_t run, int64_t round, int64_t group, int64_t samples, int64_t tokens);
void waiting_closed(struct waiting *w, int64_t run, int64_t round, int64_t group);
/* Training groups that were begun and are not in yet. */
int32_t waiting_under_way(const struct waiting *w);
/* The ordinal of the first open training group behind the first `size` ones; INT32_MAX: there is none. */
int32_t waiting_frontier_end(const struct waiting *w, int size);
void waiting_free(struct waiting *w);

#endif

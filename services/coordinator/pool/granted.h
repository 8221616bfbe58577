/* The granted leases, in memory: so that a result's headers are judged, and its samples verified, without a look into
 * the database, whose pages every commit makes a reader read again.
 *
 *   leases.c --granted_note, granted_end--> here <--granted_find-- api/result_head.c, api/route_results.c
 *
 * The writer's thread notes, any thread asks; the lock is held for a copy at most.  It is a hint, like everything that
 * is known of a lease outside the writer: a lease that is not found is looked up in the database, and one that is found
 * may have ended just now.  The writer has the last word.  Memory: a block for each granted lease, GRANTED_MAX at most;
 * of groups with long answers nothing is noted. */
#ifndef LEASEHOLD_COORDINATOR_POOL_GRANTED_H
#define LEASEHOLD_COORDINATOR_POOL_GRANTED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/rc.h"

enum { GRANTED_MAX = 65536, GRANTED_TEXT_BYTES = 2048 };

struct granted;

struct granted_lease {
  const char *id;
  int64_t fence, run, worker;
  const char *answer, *extra; /* of its group, for the verifier; in granted_find: copies in the arena */
  int max_new_tokens, set;    /* set: -1 for training */
};

enum rc granted_create(struct granted **out, struct err *err);
void granted_destroy(struct granted *g); /* NULL is fine */
/* Takes the place of an earlier lease with this id. */
void granted_note(struct granted *g, const struct granted_lease *l);
/* Nothing happens when another fence has it by now. */
void granted_end(struct granted *g, const char *id, int64_t fence);
/* out->id is the caller's.  False: not known here, or the arena refused memory.  arena NULL: without the texts. */
bool granted_find(struct granted *g, const char *id, uint64_t fence, struct granted_lease *out, struct arena *arena);

#endif

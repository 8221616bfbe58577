/* Shows as JSON how a round's rewards, their terms' values, lengths and turns are spread over its samples, and what
 * became of its groups.
 *
 * Counted over the stored samples when it is asked for, so that nothing is added to what a run writes; the cost is that
 * of the asked rounds' samples, so few rounds are asked for at a time.  A round whose rollouts were dropped has none.
 *
 * HTTP threads, on a reader's snapshot.  Reads only.  The spelling is openapi/coordinator.yaml's. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_SPREAD_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_SPREAD_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/store/store.h"

enum { SPREAD_SAMPLES = 100000 }; /* after this many the rest is left to the next request */

/* The items of an array: `limit` rounds at most, from round `from` on.  *next: the round to go on with, -1: there is
 * none. */
enum rc spreads_write(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit, int64_t *next,
                      struct err *err);

#endif

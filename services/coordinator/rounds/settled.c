/* Sums closed rounds up, a few at a time. */
#include "services/coordinator/rounds/settled.h"

#include "services/coordinator/decide/stored.h"
#include "services/coordinator/views/run_sums.h"

/* The first round of which something may still change, at most `most`. */
static enum rc first_open(struct core *c, int64_t run, int64_t most, int64_t *out, struct err *err) {
  return store_int(c->store, out, err,
                   "SELECT min(?2, coalesce((SELECT round FROM rounds INDEXED BY rounds_unfinished WHERE run = ?1 AND "
                   "finished = 0 ORDER BY round LIMIT 1), ?2), coalesce((SELECT round FROM groups INDEXED BY "
                   "groups_open WHERE run = ?1 AND state = " SQL_GROUP_OPEN " ORDER BY round LIMIT 1), ?2))",
                   BINDS(b_int(run), b_int(most)));
}

enum rc settled_advance(struct core *c, int64_t run, int64_t round, struct err *err) {
  int64_t before = 0, settled = 0;
  if (round % SETTLED_STEP != SETTLED_STEP - 1) return RC_OK;
  enum rc rc = first_open(c, run, round + 1 - SETTLED_STEP, &before, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &settled, err,
                   "SELECT coalesce(max(before_round), 0) FROM settled_rounds WHERE run = ?1", BINDS(b_int(run)));
  if (rc != RC_OK || before <= settled) return rc;
  rc = store_exec(c->store, err,
                  "INSERT INTO settled_contributions (run, worker, samples, tokens) SELECT run, worker, sum(samples), "
                  "sum(tokens) FROM contributions WHERE run = ?1 AND round >= ?2 AND round < ?3 GROUP BY worker ON "
                  "CONFLICT DO UPDATE SET samples = samples + excluded.samples, tokens = tokens + excluded.tokens",
                  BINDS(b_int(run), b_int(settled), b_int(before)));
  return rc == RC_OK ? store_exec(c->store, err, run_sums_settle, BINDS(b_int(run), b_int(before))) : rc;
}

enum rc settled_add_times(struct core *c, int64_t run, int64_t round, int64_t wait_us, int64_t work_us,
                          struct err *err) {
  return store_exec(c->store, err,
                    "UPDATE settled_rounds SET wait_us = coalesce(wait_us, 0) + ?3, work_us = coalesce(work_us, 0) + "
                    "?4 WHERE run = ?1 AND before_round > ?2",
                    BINDS(b_int(run), b_int(round), b_int(wait_us), b_int(work_us)));
}

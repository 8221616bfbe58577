/* Marks the rounds whose rollouts are no longer needed when a step is done, and deletes them a piece at a time. */
#include "services/coordinator/records/retention.h"

#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/ids.h"

#define CURRICULUM_FROM "json_extract(config, '$.dataset.curriculum.from')"

/* ---- marking ---- */

/* Will a run that has not begun yet count the pass rates of this one? */
static enum rc is_awaited(struct store *s, int64_t run, bool *out, struct err *err) {
  int64_t awaited = 0;
  const enum rc rc = store_int(
      s, &awaited, err,
      "SELECT EXISTS (SELECT 1 FROM runs WHERE state IN (?2, ?3, ?4, ?5, ?6, ?7) AND ended_ms IS NULL AND "
      CURRICULUM_FROM " = ?1 AND NOT EXISTS (SELECT 1 FROM versions WHERE versions.run = runs.id))",
      BINDS(b_text(id_run(run).text), b_int(RUN_QUEUED), b_int(RUN_CHECKING), b_int(RUN_STARTING), b_int(RUN_RUNNING),
            b_int(RUN_PAUSED), b_int(RUN_STOPPING)));
  *out = awaited != 0;
  return rc;
}

enum rc retention_mark(struct store *s, int64_t run, int64_t keep_rounds, int64_t oldest_checkpoint, struct err *err) {
  bool awaited = false;
  if (keep_rounds == 0) return RC_OK;
  const enum rc rc = is_awaited(s, run, &awaited, err);
  if (rc != RC_OK || awaited) return rc;
  return store_exec(
      s, err,
      "UPDATE rounds INDEXED BY rounds_kept SET rollouts_state = ?5, first_sealed_ms = "
      "coalesce(first_sealed_ms, (SELECT min(sealed_ms) FROM groups WHERE groups.run = rounds.run AND groups.round = "
      "rounds.round)) WHERE run = ?1 AND rollouts_state = " SQL_ROLLOUTS_KEPT
      " AND finished = 1 AND version < ?2 AND round <= (SELECT round FROM rounds "
      "WHERE run = ?1 AND state = ?4 ORDER BY round DESC LIMIT 1) - ?3 AND NOT EXISTS (SELECT 1 FROM groups WHERE "
      "groups.run = rounds.run AND groups.round = rounds.round AND (groups.state IN (?6, ?7, ?8) OR "
      "groups.trained_in > rounds.round AND (SELECT later.version FROM rounds later WHERE later.run = groups.run AND "
      "later.round = groups.trained_in) >= ?2))",
      BINDS(b_int(run), b_int(oldest_checkpoint), b_int(keep_rounds), b_int(ROUND_DONE), b_int(ROLLOUTS_DROPPING),
            b_int(GROUP_OPEN), b_int(GROUP_SEALED), b_int(GROUP_SUBMITTED)));
}

enum rc retention_release(struct store *s, int64_t run, struct err *err) {
  struct rows q;
  bool row = false;
  int64_t from = 0, keep_rounds = 0, oldest = 0;
  enum rc rc = store_query(
      s, &q, err,
      "SELECT f.id, ifnull(json_extract(f.config, '$.keep_rounds'), 0), (SELECT ifnull(min(version), 0) FROM "
      "checkpoints WHERE run = f.id AND version > 0) FROM runs f WHERE f.ended_ms NOT NULL AND f.id = (SELECT "
      "CAST(substr(" CURRICULUM_FROM ", 2) AS INTEGER) FROM runs WHERE id = ?1)",
      BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    from = rows_int(&q, 0);
    keep_rounds = rows_int(&q, 1);
    oldest = rows_int(&q, 2);
  }
  rows_end(&q);
  return rc == RC_OK && row ? retention_mark(s, from, keep_rounds, oldest, err) : rc;
}

/* ---- dropping ---- */

struct place {
  int64_t run, round, group;
};

/* The next rows to drop; *found false: there are none. */
static enum rc marked_round(struct store *s, struct place *p, bool *found, struct err *err) {
  struct rows q;
  *found = false;
  enum rc rc = store_query(
      s, &q, err,
      "SELECT run, round FROM rounds INDEXED BY rounds_dropping WHERE rollouts_state = " SQL_ROLLOUTS_DROPPING
      " ORDER BY "
      "run, round LIMIT 1",
      NO_BINDS);
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found) {
    p->run = rows_int(&q, 0);
    p->round = rows_int(&q, 1);
  }
  rows_end(&q);
  return rc;
}

static enum rc first_group(struct store *s, struct place *p, bool *found, struct err *err) {
  const enum rc rc =
      store_int(s, &p->group, err, "SELECT ordinal FROM groups WHERE run = ?1 AND round = ?2 ORDER BY ordinal LIMIT 1",
                BINDS(b_int(p->run), b_int(p->round)));
  *found = rc == RC_OK;
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

/* How much a piece may still drop. */
struct budget {
  int64_t samples, bytes;
};

/* The last sample of the group that the budget reaches, at least its first; *whole: it is the group's last. */
static enum rc samples_within(struct store *s, const struct place *p, struct budget *left, int64_t *last, bool *whole,
                              struct err *err) {
  struct rows q;
  bool row = false;
  *last = -1;
  enum rc rc = store_query(s, &q, err,
                           "SELECT s.sample, coalesce(length(o.token_ids) + length(o.logprobs) + "
                           "coalesce(length(o.text), 0), 0) FROM samples "
                           "s LEFT JOIN rollouts o ON o.run = s.run AND o.round = s.round AND o.group_ordinal = "
                           "s.group_ordinal AND o.sample "
                           "= s.sample WHERE s.run = ?1 AND s.round = ?2 AND s.group_ordinal = ?3 ORDER BY s.sample",
                           BINDS(b_int(p->run), b_int(p->round), b_int(p->group)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  while (rc == RC_OK && row && left->samples > 0 && left->bytes > 0) {
    *last = rows_int(&q, 0);
    left->samples--;
    left->bytes -= rows_int(&q, 1);
    rc = rows_next(&q, &row, err);
  }
  *whole = rc == RC_OK && !row;
  rows_end(&q);
  return rc;
}

static enum rc samples_drop(struct store *s, const struct place *p, int64_t last, struct err *err) {
#define UP_TO_LAST " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample <= ?4"
  const struct bind binds[] = {b_int(p->run), b_int(p->round), b_int(p->group), b_int(last)};
  enum rc rc = store_exec(s, err, "DELETE FROM rollouts" UP_TO_LAST, binds, 4);
  if (rc == RC_OK) rc = store_exec(s, err, "DELETE FROM remote_rewards" UP_TO_LAST, binds, 4);
  if (rc == RC_OK) rc = store_exec(s, err, "DELETE FROM segments" UP_TO_LAST, binds, 4);
  if (rc == RC_OK) rc = store_exec(s, err, "DELETE FROM spans" UP_TO_LAST, binds, 4);
  return rc == RC_OK ? store_exec(s, err, "DELETE FROM samples" UP_TO_LAST, binds, 4) : rc;
}

static enum rc group_drop(struct store *s, const struct place *p, struct err *err) {
  const struct bind binds[] = {b_int(p->run), b_int(p->round), b_int(p->group)};
  enum rc rc = store_exec(s, err, "DELETE FROM refills WHERE run = ?1 AND round = ?2 AND ordinal = ?3", binds, 3);
  if (rc == RC_OK)
    rc = store_exec(s, err, "DELETE FROM passes WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3", binds, 3);
  if (rc == RC_OK)
    rc = store_exec(s, err, "DELETE FROM entropies WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3", binds, 3);
  if (rc == RC_OK)
    rc = store_exec(s, err, "DELETE FROM leases WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3", binds, 3);
  if (rc == RC_OK)
    rc = store_exec(s, err, "DELETE FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3", binds, 3);
  return rc;
}

enum rc retention_drop(struct store *s, bool *more, struct err *err) {
  struct budget left = {RETENTION_SAMPLES, RETENTION_BYTES};
  struct place p;
  bool group = true, whole = true;
  enum rc rc = marked_round(s, &p, more, err);
  while (rc == RC_OK && *more && group && left.samples > 0 && left.bytes > 0) {
    int64_t last = -1;
    rc = first_group(s, &p, &group, err);
    if (rc == RC_OK && group) rc = samples_within(s, &p, &left, &last, &whole, err);
    if (rc == RC_OK && group && last >= 0) rc = samples_drop(s, &p, last, err);
    if (rc == RC_OK && group && whole) rc = group_drop(s, &p, err);
    left.samples--; /* a group without samples costs something too */
  }
  if (rc != RC_OK || !*more || group) return rc;
  return store_exec(s, err, "UPDATE rounds SET rollouts_state = ?3 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(p.run), b_int(p.round), b_int(ROLLOUTS_DROPPED)));
}

/* Plans inner steps, stores their answers, and compares the digest of one that is taken again. */
#include "services/coordinator/rounds/inner_steps.h"

#include <stdio.h>

#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/journal.h"

enum rc inner_steps_look(struct store *s, int64_t run, int64_t round, int64_t *count, int64_t *ordinal,
                         struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(
      s, &q, err, "SELECT count(*), coalesce(max(ordinal_end), 0) FROM inner_steps WHERE run = ?1 AND round = ?2",
      BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  *count = rc == RC_OK && row ? rows_int(&q, 0) : 0;
  *ordinal = rc == RC_OK && row ? rows_int(&q, 1) : 0;
  rows_end(&q);
  return rc;
}

static enum rc undone_add(struct core *c, int64_t run, int64_t round, int more, struct err *err) {
  return store_exec(c->store, err, "UPDATE rounds SET jobs_undone = jobs_undone + ?3 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round), b_int(more)));
}

enum rc inner_steps_plan(struct core *c, int64_t run, int64_t round, const struct inner_step_plan *m, struct err *err) {
  const enum rc rc =
      store_exec(c->store, err,
                    "INSERT INTO inner_steps (run, round, step, groups, ordinal_end, denominator, planned_ms) VALUES "
                    "(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    BINDS(b_int(run), b_int(round), b_int(m->step), b_int(m->groups), b_int(m->ordinal_end),
                          b_real(m->denominator), b_int(c->wall_ms)));
  return rc == RC_OK ? undone_add(c, run, round, 1, err) : rc;
}

/* ---- answers ---- */

/* *waiting: the step is not done.  *known: it was once, with that digest. */
static enum rc step_read(struct core *c, const struct inner_step_answer *m, bool *waiting, bool *known,
                         struct digest *digest, struct err *err) {
  struct rows q;
  *known = false;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT digest FROM inner_steps WHERE run = ?1 AND round = ?2 AND step = ?3 AND done = 0",
                           BINDS(b_int(m->run), b_int(m->round), b_int(m->step)));
  if (rc == RC_OK) rc = rows_next(&q, waiting, err);
  if (rc == RC_OK && *waiting) *known = rows_digest(&q, 0, digest);
  rows_end(&q);
  return rc;
}

static enum rc difference_note(struct core *c, const struct inner_step_answer *m, const struct digest *recorded,
                               struct err *err) {
  char before[DIGEST_HEX_MAX], now[DIGEST_HEX_MAX], text[LIMIT_NAME_MAX + 100];
  const struct id_text id = id_inner_step(m->run, m->round, m->step);
  digest_hex(before, recorded);
  digest_hex(now, &m->digest);
  snprintf(text, sizeof text, "step %s was taken again and gave digest %.12s, the recorded one is %.12s", id.text, now,
           before);
  return journal_incident(c, m->run, "nondeterminism", id.text, text, err);
}

enum rc inner_steps_answered(struct core *c, const struct inner_step_answer *m, struct err *err) {
  struct digest recorded;
  bool waiting = false, known = false;
  enum rc rc = step_read(c, m, &waiting, &known, &recorded, err);
  if (rc != RC_OK || !waiting) return rc;
  if (known && !digest_equal(&recorded, &m->digest)) rc = difference_note(c, m, &recorded, err);
  if (rc == RC_OK)
    rc =
        store_exec(c->store, err,
                   "UPDATE inner_steps SET done = 1, done_ms = ?4, digest = ?5, grad_norm = ?6, lr = ?7, skipped = ?8, "
                   "step_us = ?9 WHERE run = ?1 AND round = ?2 AND step = ?3",
                   BINDS(b_int(m->run), b_int(m->round), b_int(m->step), b_int(c->wall_ms), b_digest(&m->digest),
                         b_real(m->grad_norm), b_real(m->lr), b_int(m->skipped), b_int(m->step_us)));
  if (rc == RC_OK) rc = undone_add(c, m->run, m->round, -1, err);
  if (rc == RC_OK) rc = intervals_store(c, m->run, m->round, m->trainer_worker, m->intervals, m->interval_count, err);
  return rc == RC_OK ? round_step_when_trained(c, m->run, m->round, m->by_tokens, err) : rc;
}

enum rc inner_steps_again(struct core *c, int64_t run, int64_t round, struct err *err) {
  return store_exec(c->store, err, "UPDATE inner_steps SET done = 0 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round)));
}

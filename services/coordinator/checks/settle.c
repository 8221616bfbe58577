/* Stores what checks found: see settle.h. */
#include "services/coordinator/checks/settle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/checks/accused.h"
#include "services/coordinator/checks/verdict.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/rounds/group_timeout.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/rounds/sample_again.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/trainer/trainer_target.h"
#include "services/coordinator/writer/journal.h"

enum { DETAIL_MAX = ACCUSED_DETAIL_MAX };

/* A sample of the check, and who drew it. */
struct judged_sample {
  const struct found_sample *found;
  bool still; /* it waits for this check */
  int64_t worker;
  char name[LIMIT_NAME_MAX];
  enum sample_verdict verdict;
};

struct settling {
  const struct settle_message *m;
  struct judged_sample *samples; /* [m->count] */
  bool trainer_invariant;
  int trainer_device; /* -1: unknown */
  struct accused accused;
};

/* ---- judging ---- */

static enum rc trainer_look(struct core *c, struct settling *s, struct err *err) {
  struct trainer_target t;
  const enum rc rc = trainer_target_read(c->store, &t, err);
  if (rc != RC_OK) return rc;
  const struct live_worker *w = t.found ? worker_live(c, t.worker) : NULL;
  s->trainer_invariant = t.found && !t.fastest;
  s->trainer_device = w ? (int)w->device : -1;
  return RC_OK;
}

/* The holder that drew the token at the first difference, or else the one that ended the sample. */
static enum rc sample_look(struct core *c, const struct settling *s, struct judged_sample *j, enum worker_exactness *exactness,
                           struct err *err) {
  const struct found_sample *f = j->found;
  struct rows q;
  struct digest digest;
  bool row = false;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT s.digest, w.id, w.name, w.exactness FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND "
      "g.ordinal = s.group_ordinal JOIN workers w ON w.id = coalesce((SELECT worker FROM handed_back h WHERE h.run = s.run "
      "AND h.round = s.round AND h.group_ordinal = s.group_ordinal AND h.sample = s.sample AND ?5 >= 0 AND h.tokens > ?5 "
      "ORDER BY h.tokens LIMIT 1), s.worker) WHERE s.run = ?1 AND s.round = ?2 AND s.group_ordinal = ?3 AND s.sample = ?4 "
      "AND s.state = " SQL_SAMPLE_DONE " AND g.unchecked = 1 AND g.state = " SQL_GROUP_OPEN,
      BINDS(b_int(s->m->run), b_int(s->m->round), b_int(f->group), b_int(f->sample), b_int(f->shown)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    j->still = rows_digest(&q, 0, &digest) && digest_equal(&digest, &f->digest);
    j->worker = rows_int(&q, 1);
    snprintf(j->name, sizeof j->name, "%s", rows_text(&q, 2, NULL));
    *exactness = (enum worker_exactness)rows_int(&q, 3);
  }
  rows_end(&q);
  return rc;
}

static enum rc sample_judge(struct core *c, const struct settling *s, struct judged_sample *j, struct err *err) {
  enum worker_exactness exactness = WORKER_INVARIANT;
  const struct found_sample *f = j->found;
  const enum rc rc = sample_look(c, s, j, &exactness, err);
  if (rc != RC_OK || !j->still) return rc;
  const struct live_worker *w = worker_live(c, j->worker);
  const bool one_device = !w || s->trainer_device < 0 || (int)w->device == s->trainer_device;
  const struct checked_sample facts = {
      .promised = s->trainer_invariant && exactness == WORKER_INVARIANT && one_device,
      .position = f->position,
      .unequal = f->mismatch.unequal,
      .nonfinite = f->mismatch.nonfinite,
      .mean_abs = mismatch_mean(f->mismatch.abs_sum, f->mismatch.nonfinite, f->tokens)};
  j->verdict = verdict_of_sample(&facts);
  return RC_OK;
}

/* ---- a sample that is refused ---- */

static void evidence(char *out, size_t size, const struct settling *s, const struct judged_sample *j) {
  const struct found_sample *f = j->found;
  if (f->position >= 0) {
    snprintf(out, size,
             "%s (%s) sent token %d with log-probability %.9g at position %d; version %" PRId64
             " draws token %d there, whose log-probability is %.9g; that of the token that was sent is %.9g",
             id_worker(j->worker).text, j->name, f->given, (double)f->given_logprob, f->shown, s->m->version, f->due,
             (double)f->due_logprob, (double)f->own_logprob);
    return;
  }
  snprintf(out, size,
           "%s (%s) sent log-probability %.9g for token %d at position %d; under version %" PRId64
           " it is %.9g, and %" PRId64 " of %d differ",
           id_worker(j->worker).text, j->name, (double)f->given_logprob, f->given, f->shown, s->m->version,
           (double)f->own_logprob, f->mismatch.unequal, f->tokens);
}

static enum rc refuse(struct core *c, struct settling *s, const struct judged_sample *j, struct err *err) {
  const struct found_sample *f = j->found;
  const struct again_sample again = {s->m->round, f->group, f->sample, f->tokens};
  char detail[DETAIL_MAX];
  evidence(detail, sizeof detail, s, j);
  accused_add(&s->accused, j->name, detail);
  const enum rc rc = journal_incident(c, s->m->run, "sample_refused",
                                      id_sample(s->m->run, s->m->round, f->group, f->sample).text, detail, err);
  return rc == RC_OK ? sample_again(c, s->m->run, &again, err) : rc;
}

/* ---- a group ---- */

/* again: the group's time begins anew. */
static enum rc group_checked(struct core *c, const struct settling *s, int64_t group, bool again, struct err *err) {
  const struct bind binds[] = {b_int(s->m->run), b_int(s->m->round), b_int(group), b_int(again), b_int(c->wall_ms)};
  enum rc rc = store_exec(c->store, err,
                          "UPDATE groups SET unchecked = 0, leased_ms = iif(?4, ?5, leased_ms) WHERE run = ?1 AND round = "
                          "?2 AND ordinal = ?3",
                          binds, 5);
  if (rc == RC_OK && !again)
    rc = store_exec(c->store, err, "DELETE FROM handed_back WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3", binds, 3);
  return rc;
}

static enum rc inexact_group(struct core *c, struct settling *s, const struct judged_sample *j, struct err *err) {
  const int64_t group = j->found->group;
  char reason[DETAIL_MAX];
  snprintf(reason, sizeof reason, "log-probabilities of %s are %.3g off the trainer's in the mean, at most %.3g were expected",
           j->name, mismatch_mean(j->found->mismatch.abs_sum, j->found->mismatch.nonfinite, j->found->tokens),
           VERDICT_MISMATCH_MOST);
  if (c->context->config.on_inexact == INEXACT_FAIL) {
    char why[DETAIL_MAX + 2 * LIMIT_NAME_MAX];
    snprintf(why, sizeof why, "group %s: %s", id_group(s->m->run, s->m->round, group).text, reason);
    return run_hold(c, s->m->run, why, err);
  }
  const struct group_failure failure = {"inexact", reason};
  const enum rc rc = group_checked(c, s, group, false, err);
  return rc == RC_OK ? group_fail(c, s->m->run, s->m->round, group, &failure, err) : rc;
}

/* Samples [begin, end) are a group's. */
static enum rc group_settle(struct core *c, struct settling *s, size_t begin, size_t end, struct arena *arena,
                            struct err *err) {
  const int64_t group = s->samples[begin].found->group;
  const struct judged_sample *inexact = NULL;
  bool refused = false;
  enum rc rc = RC_OK;
  for (size_t i = begin; i < end; i++)
    if (!s->samples[i].still || (s->samples[i].verdict == SAMPLE_REFUSED && !s->samples[i].found->confirmed)) return RC_OK;
  for (size_t i = begin; i < end && rc == RC_OK; i++) {
    const struct judged_sample *j = &s->samples[i];
    if (j->verdict == SAMPLE_INEXACT) inexact = j;
    refused |= j->verdict == SAMPLE_REFUSED;
    rc = accused_count(c, &s->accused, j->name, j->verdict == SAMPLE_HOLDS, j->verdict == SAMPLE_REFUSED, err);
    if (rc == RC_OK && j->verdict == SAMPLE_REFUSED) rc = refuse(c, s, j, err);
  }
  if (rc != RC_OK) return rc;
  if (inexact && !refused && c->context->config.on_inexact != INEXACT_MARK) return inexact_group(c, s, inexact, err);
  rc = group_checked(c, s, group, refused, err);
  if (rc != RC_OK) return rc;
  if (!refused) return group_seal_when_judged(c, s->m->run, s->m->round, group, arena, err);
  waiting_forget(&c->pool->waiting);
  c->samples_due = true;
  return RC_OK;
}

/* ---- the command ---- */

enum rc settle_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct settle_message *m = cmd->message;
  struct settling s = {.m = m,
                       .samples = arena_alloc(&cmd->arena, m->count + 1, sizeof *s.samples),
                       .accused = {.run = m->run, .round = m->round, .since = m->round}};
  enum run_state state = RUN_RUNNING;
  bool held = false;
  if (!s.samples) return err_set(err, RC_NO_MEMORY, NULL, "a check's verdicts were refused memory");
  if (!c->context || c->context->run != m->run)
    return err_set(err, RC_UNAVAILABLE, NULL, "run %s is not active just now", id_run(m->run).text);
  enum rc rc = run_state_of(c->store, m->run, &state, err);
  if (rc != RC_OK || state != RUN_RUNNING) return rc;
  rc = trainer_look(c, &s, err);
  for (size_t i = 0; i < m->count && rc == RC_OK; i++) {
    s.samples[i].found = &m->found[i];
    rc = sample_judge(c, &s, &s.samples[i], err);
  }
  for (size_t begin = 0, end; begin < m->count && rc == RC_OK; begin = end) {
    for (end = begin + 1; end < m->count && m->found[end].group == m->found[begin].group;) end++;
    rc = group_settle(c, &s, begin, end, &cmd->arena, err);
  }
  for (int i = 0; i < s.accused.count && rc == RC_OK && !held; i++)
    rc = accused_judge(c, &s.accused, s.accused.names[i], &held, err);
  return rc;
}

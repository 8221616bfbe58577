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

/* Who drew samples of the check, and how many of its groups that are settled. */
struct judged_worker {
  int64_t id;
  char name[LIMIT_NAME_MAX];
  bool promised; /* the bits that the trainer promises, too */
  int64_t held, refused;
};

struct judged_sample {
  const struct found_sample *found;
  bool still; /* it waits for this check */
  struct judged_worker *worker;
  enum sample_verdict verdict;
};

struct settling {
  const struct settle_message *m;
  struct judged_sample *samples; /* [m->count] */
  struct judged_worker *workers; /* [m->count] at most */
  size_t worker_count;
  bool trainer_invariant;
  int trainer_device; /* -1: unknown */
  struct accused accused;
};

/* ---- judging ---- */

static enum rc trainer_look(struct core *c, struct settling *s, struct err *err) {
  struct trainer_target t;
  const enum rc rc = trainer_target_read(c->store, &t, err);
  if (rc != RC_OK) return rc;
  if (!t.found || t.worker != s->m->trainer)
    return err_set(err, RC_UNAVAILABLE, NULL,
                   "%s, which checked samples of round %s, is no longer the trainer: they are checked again",
                   id_worker(s->m->trainer).text, id_round(s->m->run, s->m->round).text);
  const struct live_worker *w = worker_live(c, t.worker);
  s->trainer_invariant = !t.fastest;
  s->trainer_device = w ? (int)w->device : -1;
  return RC_OK;
}

static enum rc worker_read(struct core *c, const struct settling *s, struct judged_worker *out, int64_t id,
                           struct err *err) {
  struct rows q;
  bool row = false;
  enum worker_exactness exactness = WORKER_INVARIANT;
  const struct live_worker *w = worker_live(c, id);
  const bool one_device = !w || s->trainer_device < 0 || (int)w->device == s->trainer_device;
  *out = (struct judged_worker){.id = id};
  enum rc rc = store_query(c->store, &q, err, "SELECT name, exactness FROM workers WHERE id = ?1", BINDS(b_int(id)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    snprintf(out->name, sizeof out->name, "%s", rows_text(&q, 0, NULL));
    exactness = (enum worker_exactness)rows_int(&q, 1);
  }
  rows_end(&q);
  out->promised = s->trainer_invariant && exactness == WORKER_INVARIANT && one_device;
  return rc;
}

static enum rc worker_find(struct core *c, struct settling *s, struct judged_worker **out, int64_t id,
                           struct err *err) {
  for (size_t i = 0; i < s->worker_count; i++) {
    *out = &s->workers[i];
    if ((*out)->id == id) return RC_OK;
  }
  *out = &s->workers[s->worker_count];
  const enum rc rc = worker_read(c, s, *out, id, err);
  s->worker_count += rc == RC_OK;
  return rc;
}

static enum rc sample_judge(struct core *c, struct settling *s, struct judged_sample *j, int64_t worker,
                            struct err *err) {
  const struct found_sample *f = j->found;
  const struct drawn_token shown = {s->m->run, s->m->round, f->group, f->sample, f->shown};
  enum rc rc = f->shown >= 0 ? drawer_at(c, &shown, &worker, err) : RC_OK;
  if (rc == RC_OK) rc = worker_find(c, s, &j->worker, worker, err);
  if (rc != RC_OK) return rc;
  const struct checked_sample facts = {
      .promised = j->worker->promised,
      .position = f->position,
      .unequal = f->mismatch.unequal,
      .nonfinite = f->mismatch.nonfinite,
      .mean_abs = mismatch_mean(f->mismatch.abs_sum, f->mismatch.nonfinite, f->tokens)};
  j->verdict = verdict_of_sample(&facts);
  return RC_OK;
}

/* Samples [begin, end) are a group's, in order.  Those that are not found do not wait for this check any more. */
static enum rc group_judge(struct core *c, struct settling *s, size_t begin, size_t end, struct err *err) {
  struct rows q;
  struct digest digest;
  bool row;
  size_t i = begin;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT s.sample, s.digest, s.worker FROM groups g JOIN samples s ON s.run = g.run AND s.round = "
      "g.round AND s.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.round = ?2 AND g.ordinal = ?3 AND "
      "g.unchecked = 1 AND g.state = " SQL_GROUP_OPEN " AND s.state = " SQL_SAMPLE_DONE " ORDER BY s.sample",
      BINDS(b_int(s->m->run), b_int(s->m->round), b_int(s->m->found[begin].group)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    while (i < end && s->m->found[i].sample < rows_int(&q, 0)) i++;
    if (i == end || s->m->found[i].sample != rows_int(&q, 0)) continue;
    struct judged_sample *j = &s->samples[i];
    j->still = rows_digest(&q, 1, &digest) && digest_equal(&digest, &j->found->digest);
    if (j->still) rc = sample_judge(c, s, j, rows_int(&q, 2), err);
  }
  rows_end(&q);
  return rc;
}

static enum rc count_workers(struct core *c, const struct settling *s, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < s->worker_count && rc == RC_OK; i++) {
    const struct judged_worker *w = &s->workers[i];
    const struct checked_samples samples = {.held = w->held, .refused = w->refused};
    if (w->held + w->refused > 0) rc = checked_add(c, s->m->run, s->m->round, w->id, &samples, err);
  }
  return rc;
}

/* ---- a sample that is refused ---- */

static void evidence(char *out, size_t size, const struct settling *s, const struct judged_sample *j) {
  const struct found_sample *f = j->found;
  if (f->position >= 0) {
    snprintf(out, size,
             "%s (%s) sent token %d with log-probability %.9g at position %d; version %" PRId64
             " draws token %d there, whose log-probability is %.9g; that of the token that was sent is %.9g",
             id_worker(j->worker->id).text, j->worker->name, f->given, (double)f->given_logprob, f->shown,
             s->m->version, f->due, (double)f->due_logprob, (double)f->own_logprob);
    return;
  }
  snprintf(out, size,
           "%s (%s) sent log-probability %.9g for token %d at position %d; under version %" PRId64
           " it is %.9g, and %" PRId64 " of %d differ",
           id_worker(j->worker->id).text, j->worker->name, (double)f->given_logprob, f->given, f->shown, s->m->version,
           (double)f->own_logprob, f->mismatch.unequal, f->tokens);
}

static enum rc refuse(struct core *c, struct settling *s, const struct judged_sample *j, struct err *err) {
  const struct found_sample *f = j->found;
  const struct again_sample again = {s->m->round, f->group, f->sample, f->tokens};
  char detail[DETAIL_MAX];
  evidence(detail, sizeof detail, s, j);
  accused_add(&s->accused, j->worker->name, detail);
  const enum rc rc = journal_incident(c, s->m->run, "sample_refused",
                                      id_sample(s->m->run, s->m->round, f->group, f->sample).text, detail, err);
  return rc == RC_OK ? sample_again(c, s->m->run, &again, err) : rc;
}

/* ---- a group ---- */

/* again: the group's time begins anew. */
static enum rc group_checked(struct core *c, const struct settling *s, int64_t group, bool again, struct err *err) {
  return store_exec(
      c->store, err,
      "UPDATE groups SET unchecked = 0, leased_ms = iif(?4, ?5, leased_ms) WHERE run = ?1 AND round = ?2 AND "
      "ordinal = ?3",
      BINDS(b_int(s->m->run), b_int(s->m->round), b_int(group), b_int(again), b_int(c->wall_ms)));
}

static enum rc inexact_group(struct core *c, struct settling *s, const struct judged_sample *j, struct err *err) {
  const int64_t group = j->found->group;
  char reason[DETAIL_MAX];
  snprintf(reason, sizeof reason,
           "log-probabilities of %s are %.3g off the trainer's in the mean, at most %.3g were expected",
           j->worker->name, mismatch_mean(j->found->mismatch.abs_sum, j->found->mismatch.nonfinite, j->found->tokens),
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
    if (!s->samples[i].still || (s->samples[i].verdict == SAMPLE_REFUSED && !s->samples[i].found->confirmed))
      return RC_OK;
  for (size_t i = begin; i < end && rc == RC_OK; i++) {
    const struct judged_sample *j = &s->samples[i];
    if (j->verdict == SAMPLE_INEXACT) inexact = j;
    refused |= j->verdict == SAMPLE_REFUSED;
    j->worker->held += j->verdict == SAMPLE_HOLDS;
    j->worker->refused += j->verdict == SAMPLE_REFUSED;
    if (j->verdict == SAMPLE_REFUSED) rc = refuse(c, s, j, err);
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
                       .workers = arena_alloc(&cmd->arena, m->count + 1, sizeof *s.workers),
                       .accused = {.run = m->run, .round = m->round, .since = m->round}};
  enum run_state state = RUN_RUNNING;
  bool held = false;
  if (!s.samples || !s.workers) return err_set(err, RC_NO_MEMORY, NULL, "a check's verdicts were refused memory");
  if (!c->context || c->context->run != m->run)
    return err_set(err, RC_UNAVAILABLE, NULL, "run %s is not active just now", id_run(m->run).text);
  enum rc rc = run_state_of(c->store, m->run, &state, err);
  if (rc != RC_OK || state != RUN_RUNNING) return rc;
  rc = trainer_look(c, &s, err);
  for (size_t i = 0; i < m->count; i++) s.samples[i].found = &m->found[i];
  for (size_t begin = 0, end; begin < m->count && rc == RC_OK; begin = end) {
    for (end = begin + 1; end < m->count && m->found[end].group == m->found[begin].group;) end++;
    rc = group_judge(c, &s, begin, end, err);
    if (rc == RC_OK) rc = group_settle(c, &s, begin, end, &cmd->arena, err);
  }
  if (rc == RC_OK) rc = count_workers(c, &s, err);
  for (int i = 0; i < s.accused.count && rc == RC_OK && !held; i++)
    rc = accused_judge(c, &s.accused, s.accused.names[i], &held, err);
  return rc;
}

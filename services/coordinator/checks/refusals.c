/* Stores what the trainer refused of a batch in flight. */
#include "services/coordinator/checks/refusals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/checks/accused.h"
#include "services/coordinator/decide/lag.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/journal.h"

/* ---- a sample ---- */

struct drawer {
  int64_t worker;
  char name[LIMIT_NAME_MAX];
  bool accused; /* of what it sent; else that is inexact */
  struct older_tokens others; /* by which that was decided; none where the sample promised nothing */
};

static enum rc drawer_look(struct core *c, int64_t run, const struct refused_sample *r, struct drawer *out,
                           struct err *err) {
  const struct drawn_token shown = {run, r->round, r->group, r->sample, r->why->position};
  struct rows q;
  bool row = false;
  *out = (struct drawer){0};
  enum rc rc = drawer_at(c, &shown, &out->worker, err);
  if (rc == RC_OK)
    rc = store_query(c->store, &q, err, "SELECT name FROM workers WHERE id = ?1", BINDS(b_int(out->worker)));
  if (rc != RC_OK) return rc;
  rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) snprintf(out->name, sizeof out->name, "%s", rows_text(&q, 0, NULL));
  rows_end(&q);
  return rc;
}

/* One exact token tells; past a bound, what others of the step are off by. */
static enum rc drawer_accuse(struct core *c, const struct refusals *m, const struct refused_sample *r, struct drawer *d,
                             struct err *err) {
  struct rows q;
  bool row = false;
  d->accused = r->promised && (r->why->reason == REFUSED_TOKEN || r->why->reason == REFUSED_LOGPROB);
  if (!r->promised || d->accused) return RC_OK;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT sum(older_tokens), sum(older_lags), sum(older_distance) FROM checked WHERE run = ?1 AND "
                  "round = ?2 AND name <> ?3",
                  BINDS(b_int(m->run), b_int(m->round), b_text(d->name)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row)
    d->others = (struct older_tokens){
        .tokens = rows_int(&q, 0), .lags = rows_int(&q, 1), .distance = rows_real(&q, 2)};
  rows_end(&q);
  d->accused = verdict_is_calm(&d->others, r->lag);
  return rc;
}

static void evidence(char *out, size_t size, const struct refusals *m, const struct refused_sample *r,
                     const struct drawer *d) {
  const struct sample_refusal *why = r->why;
  const struct id_text worker = id_worker(d->worker);
  const int head = snprintf(out, size, "%s (%s) sent ", worker.text, d->name);
  if (head < 0 || (size_t)head >= size) return;
  out += head;
  size -= (size_t)head;
  switch (why->reason) {
    case REFUSED_TOKEN:
      snprintf(out, size,
               "token %d with log-probability %.9g at position %d; version %" PRId64
               " draws token %d there, whose log-probability is %.9g; that of the token that was sent is %.9g",
               r->given, (double)r->given_logprob, why->position, m->version, why->token, (double)why->token_logprob,
               (double)why->logprob);
      return;
    case REFUSED_LOGPROB:
      snprintf(out, size,
               "log-probability %.9g for token %d at position %d; under version %" PRId64
               ", which drew it, it is %.9g, and %d of %d differ",
               (double)r->given_logprob, r->given, why->position, m->version, (double)why->logprob, why->unequal,
               r->tokens);
      return;
    case REFUSED_DRAWS:
      snprintf(out, size,
               "tokens of which version %" PRId64
               " draws %d of %d only from uniforms more than %.3g off, first token %d in the place of %d at position "
               "%d; at most a share of %.3g was expected",
               m->version, why->far, r->tokens, VERDICT_LAG_DRAWS_NEAR, why->token, r->given, why->position,
               VERDICT_LAG_DRAWS_MOST);
      return;
    case REFUSED_MISMATCH:
      snprintf(out, size,
               "log-probabilities that are %.3g off those of version %" PRId64
               " in the mean, at most %.3g were expected; at position %d %.9g for token %d, and it is %.9g",
               why->mismatch, m->version, VERDICT_LAG_MISMATCH_MOST, why->position, (double)r->given_logprob, r->given,
               (double)why->logprob);
      return;
  }
}

/* Why a sample past a bound accuses nobody, behind its evidence. */
static void excuse(char *out, size_t size, const struct refused_sample *r, const struct drawer *d) {
  const size_t told = strlen(out);
  out += told;
  size -= told;
  if (!verdict_can_tell(&d->others))
    snprintf(out, size,
             "; nobody is accused: others' older tokens would tell whether the policy moves so fast; at least %d are "
             "needed, and the step has %" PRId64,
             VERDICT_CALM_TOKENS, d->others.lags > 0 ? d->others.tokens : 0);
  else
    snprintf(out, size,
             "; nobody is accused: the policy moves so fast that others' older tokens in the step would be %.3g off at "
             "%" PRId64 " versions behind, as it was",
             verdict_distance(&d->others, r->lag), r->lag);
}

/* ---- a batch ---- */

/* The groups of the refused samples, each once; drawers as the samples. */
static int groups_of(const struct refusals *m, const struct drawer *drawers, struct left_group *out) {
  int n = 0;
  for (size_t i = 0; i < m->refused_count; i++) {
    const struct refused_sample *r = &m->refused[i];
    if (n == 0 || out[n - 1].round != r->round || out[n - 1].ordinal != r->group)
      out[n++] = (struct left_group){.round = r->round, .ordinal = r->group, .reason = "inexact"};
    if (drawers[i].accused) out[n - 1].reason = "refused";
  }
  return n;
}

/* A policy that moves fast is nobody's fault, and no pause would mend it: on_inexact is about kernels that promise
 * nothing. */
static enum rc inexact(struct core *c, const struct refusals *m, const struct refused_sample *r, const char *detail,
                       struct err *err) {
  const struct id_text id = id_sample(m->run, r->round, r->group, r->sample);
  char why[ACCUSED_DETAIL_MAX + LIMIT_NAME_MAX + 16];
  const enum rc rc = journal_incident(c, m->run, "inexact", id.text, detail, err);
  if (rc != RC_OK || r->promised || !c->context || c->context->config.on_inexact != INEXACT_FAIL)
    return rc; /* NULL: it has ended */
  snprintf(why, sizeof why, "sample %s: %s", id.text, detail);
  return run_hold(c, m->run, why, err);
}

static enum rc drawers_find(struct core *c, const struct refusals *m, struct drawer *drawers, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < m->refused_count && rc == RC_OK; i++) {
    rc = drawer_look(c, m->run, &m->refused[i], &drawers[i], err);
    if (rc == RC_OK) rc = drawer_accuse(c, m, &m->refused[i], &drawers[i], err);
  }
  return rc;
}

static bool same_group(const struct refused_sample *a, const struct refused_sample *b) {
  return a->round == b->round && a->group == b->group;
}

static bool has_left(const struct leaving *l, const struct refused_sample *r) {
  for (int g = 0; g < l->count; g++)
    if (l->groups[g].round == r->round && l->groups[g].ordinal == r->group) return l->groups[g].left;
  return false;
}

static enum rc samples_settle(struct core *c, const struct refusals *m, const struct leaving *l,
                              const struct drawer *drawers, struct accused *accused, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < m->refused_count && rc == RC_OK; i++) {
    const struct refused_sample *r = &m->refused[i];
    const struct drawer *d = &drawers[i];
    char detail[ACCUSED_DETAIL_MAX];
    if (!has_left(l, r)) continue; /* it had before */
    evidence(detail, sizeof detail, m, r, d);
    if (!d->accused && r->promised) excuse(detail, sizeof detail, r, d);
    if (!d->accused) { /* a group's first is told of: where the policy has moved far, all of them are so */
      if (i == 0 || !same_group(r, r - 1)) rc = inexact(c, m, r, detail, err);
      continue;
    }
    accused_add(accused, d->name, detail);
    rc = checked_add(c, m->run, m->round, d->worker, &(struct checked_samples){.refused = 1}, err);
    if (rc == RC_OK)
      rc = journal_incident(c, m->run, "sample_refused", id_sample(m->run, r->round, r->group, r->sample).text, detail,
                            err);
  }
  return rc;
}

static enum rc held_count(struct core *c, const struct refusals *m, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < m->held_count && rc == RC_OK; i++) {
    const struct held_samples *h = &m->held[i];
    rc = checked_add(c, m->run, m->round, h->worker, &(struct checked_samples){.held = h->count, .older = h->older},
                     err);
  }
  return rc;
}

/* What was at the trainer and is in no step: a run that is being stopped has nothing to wait for any more. */
static enum rc when_stopping(struct core *c, const struct refusals *m, struct err *err) {
  enum run_state state = RUN_RUNNING;
  const enum rc rc = run_state_of(c->store, m->run, &state, err);
  return rc == RC_OK && state == RUN_STOPPING ? run_end(c, m->run, RUN_STOPPED, NULL, err) : rc;
}

static enum rc refused_settle(struct core *c, const struct refusals *m, struct arena *arena, struct err *err) {
  const int64_t since = lag_oldest(m->round, c->context->config.max_lag + 1);
  struct accused accused = {.run = m->run, .round = m->round, .since = since};
  struct left_group *left = arena_alloc(arena, m->refused_count + 1, sizeof *left);
  struct drawer *drawers = arena_alloc(arena, m->refused_count + 1, sizeof *drawers);
  bool held = false;
  if (!left || !drawers) return err_set(err, RC_NO_MEMORY, NULL, "what a batch was refused for was refused memory");
  enum rc rc = drawers_find(c, m, drawers, err);
  if (rc != RC_OK) return rc;
  const struct leaving leaving = {.run = m->run,
                                  .round = m->round,
                                  .number = m->number,
                                  .groups = left,
                                  .count = groups_of(m, drawers, left)};
  rc = batches_leave(c, &leaving, err);
  if (rc == RC_OK) rc = samples_settle(c, m, &leaving, drawers, &accused, err);
  for (int i = 0; i < accused.count && rc == RC_OK && !held && c->context; i++)
    rc = accused_judge(c, &accused, accused.names[i], &held, err);
  return rc == RC_OK ? when_stopping(c, m, err) : rc;
}

enum rc refusals_settle(struct core *c, const struct refusals *m, struct arena *arena, struct err *err) {
  int64_t done = 0;
  enum rc rc = store_int(c->store, &done, err, "SELECT done FROM batches WHERE run = ?1 AND round = ?2 AND number = ?3",
                         BINDS(b_int(m->run), b_int(m->round), b_int(m->number)));
  if (rc != RC_OK || done) return rc;
  if (!c->context || c->context->run != m->run)
    return err_set(err, RC_UNAVAILABLE, NULL, "run %s is not active just now", id_run(m->run).text);
  rc = held_count(c, m, err);
  return rc == RC_OK && m->refused_count > 0 ? refused_settle(c, m, arena, err) : rc;
}

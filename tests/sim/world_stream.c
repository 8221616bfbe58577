/* Promises of a run in flight, judged as messages pass and by what tokens say of themselves:
 *
 *   a lease is valid for max_lag versions from its oldest token on, or from what its server has loaded (I2)
 *   what is older than max_lag when a version is published is drawn again, or its group filtered: `lag`; nothing else
 *   is a step takes groups_per_step groups, each for the first time, none of their tokens older than max_lag (I5) every
 *   token is of the version that the ledger says drew it no more is open or sealed than samples_ahead allows, nor than
 *   the steps to come can take a parked poll has samples as soon as some wait or may be issued at the end nothing is
 *   left over, and the evaluations are in
 *
 * A token's log-probability tells which version drew it: the ledger's spans are held against that. */
#include <math.h>
#include <string.h>

#include "services/coordinator/decide/lag.h"
#include "services/coordinator/decide/ordinals.h"
#include "tests/sim/world_state.h"

/* Exact in float32: the part below 2 stays as it is. */
float stream_logprob(float logprob, int64_t version) { return logprob - 2 * (float)(version + 1); }
int64_t stream_drawn_by(float logprob) { return (int64_t)floorf(-logprob / 2) - 1; }

static int64_t oldest_allowed(const struct world *w) { return lag_oldest(w->version_count - 1, w->c.max_lag); }

/* ---- grants ---- */

/* Its tokens that somebody handed back are of the versions that the lease says. */
static void check_partial(struct world *w, const struct lease *l, const struct partial_sample *p, int64_t *first) {
  size_t at = 0;
  for (size_t k = 0; k < p->span_count; k++) {
    const struct version_span *s = &p->spans[k];
    if (s->version < *first) *first = s->version;
    if (s->start != (int32_t)at || s->count < 1)
      world_fault(w, "lease %s: the spans of sample %d have gaps", l->id, p->sample);
    for (int32_t t = 0; t < s->count && at < p->logprobs.count; t++, at++) {
      if (stream_drawn_by(p->logprobs.items[at]) != s->version)
        world_fault(w, "lease %s: token %zu of sample %d is said to be of version %lld, and is of %lld", l->id, at,
                    p->sample, (long long)s->version, (long long)stream_drawn_by(p->logprobs.items[at]));
    }
  }
  if (at != p->logprobs.count)
    world_fault(w, "lease %s: %zu of %zu tokens of sample %d have a version", l->id, at, p->logprobs.count, p->sample);
}

void stream_lease(struct world *w, const struct poll_message *p, const struct lease *l) {
  const int64_t current = w->version_count - 1;
  int64_t loaded = -1;
  for (int64_t v = oldest_allowed(w); v <= current; v++)
    if (p->has_loaded && digest_equal(&p->loaded, &w->versions[v])) loaded = v;
  if (loaded < 0)
    world_fault(w, "I2: lease %s is given to a server whose weights are too old, or none of the run's", l->id);
  int64_t first = loaded;
  for (size_t i = 0; i < l->partial_count; i++) check_partial(w, l, &l->partials[i], &first);
  if (l->version_min != first || l->version_max != first + w->c.max_lag || l->version_max < current)
    world_fault(w, "I2: lease %s is for versions %lld to %lld, its oldest token is of %lld, version %lld is current",
                l->id, (long long)l->version_min, (long long)l->version_max, (long long)first, (long long)current);
  if (loaded >= 0 && !digest_equal(&l->weights_digest, &w->versions[loaded]))
    world_fault(w, "I2: lease %s is for other weights than those of version %lld", l->id, (long long)loaded);
  if ((l->kv == LEASE_KV_RECOMPUTE) != w->c.recompute)
    world_fault(w, "lease %s: keys and values are treated otherwise", l->id);
}

/* ---- a version ---- */

static void sample_ages(struct world *w, struct group_books *b, struct mirror *m, bool training, int64_t version) {
  const int64_t oldest = oldest_allowed(w);
  if (m->granted && m->version_max < version) m->granted = false;
  if (b->closed || m->version_first >= oldest) return;
  if (!m->done) m->kept = 0;
  if (!m->done || !training) return;
  m->done = false;
  m->kept = 0;
  b->done--;
  w->r->again++;
}

static void group_ages(struct world *w, int64_t round, int place, int64_t version) {
  struct group_books *b = &w->blocks[round].books[place];
  struct mirror *m = &w->blocks[round].mirror[place * w->c.samples];
  for (int s = 0; s < w->c.samples; s++) sample_ages(w, b, &m[s], place >= w->c.evaluation_groups, version);
  if (!b->closed && b->done) {
    b->version_first = INT64_MAX;
    for (int s = 0; s < w->c.samples; s++)
      if (m[s].done && m[s].version_first < b->version_first) b->version_first = m[s].version_first;
  }
  if (!b->sealed || b->trained || b->lagged || b->version_first >= oldest_allowed(w)) return;
  b->lagged = true;
  w->r->lagged++;
}

/* What the round's step took: it did so before the version was made. */
static void groups_trained(struct world *w, int64_t round) {
  struct rows q;
  struct err err = {0};
  bool row;
  enum rc rc =
      store_query(w->core->store, &q, &err,
                  "SELECT round, ordinal, state FROM groups INDEXED BY groups_batch WHERE run = 1 AND trained_in = ?1",
                  BINDS(b_int(round)));
  int groups = 0;
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    struct group_books *b = books_of(w, rows_int(&q, 0), rows_int(&q, 1));
    groups++;
    if (!b || !b->sealed || b->trained || b->lagged || rows_int(&q, 2) != GROUP_CONSUMED)
      world_fault(w, "I5: group %lld.%lld is trained in round %lld, %s", (long long)rows_int(&q, 0),
                  (long long)rows_int(&q, 1), (long long)round,
                  b && b->trained  ? "and was before"
                  : b && b->lagged ? "too old"
                                   : "and was not sealed");
    if (b) b->trained = true;
  }
  rows_end(&q);
  if (rc != RC_OK) world_fault(w, "%.200s", err.message);
  if (groups != w->c.groups) world_fault(w, "I5: round %lld's step took %d groups", (long long)round, groups);
}

void stream_version(struct world *w, int64_t version) {
  if (version > 0) groups_trained(w, version - 1);
  for (int64_t round = 0; round <= w->round && round < WORLD_ROUNDS; round++) {
    for (int g = 0; g < w->blocks[round].room; g++) group_ages(w, round, g, version);
  }
}

/* ---- a step ---- */

/* version: the step's. */
static void check_sample(struct world *w, const struct rows *q, int64_t version) {
  size_t bytes = 0;
  const float *logprobs = rows_blob(q, 3, &bytes);
  const int64_t count = (int64_t)(bytes / sizeof *logprobs), first = rows_int(q, 4), last = rows_int(q, 5);
  int64_t oldest = INT64_MAX, newest = -1;
  for (int64_t t = 0; t < count; t++) {
    const int64_t v = stream_drawn_by(logprobs[t]);
    if (v < oldest) oldest = v;
    if (v > newest) newest = v;
  }
  if (oldest < version - w->c.max_lag || newest > version)
    world_fault(w, "the step of version %lld takes tokens of versions %lld to %lld", (long long)version,
                (long long)oldest, (long long)newest);
  if (oldest != first || newest != last)
    world_fault(w, "sample %lld.%lld.%lld is of versions %lld to %lld, the ledger says %lld to %lld",
                (long long)rows_int(q, 0), (long long)rows_int(q, 1), (long long)rows_int(q, 2), (long long)oldest,
                (long long)newest, (long long)first, (long long)last);
  w->r->mixed += newest > oldest;
}

/* The spans of all its samples, token by token. */
static void check_spans(struct world *w, const struct job *j) {
  static const char sql[] =
      "SELECT s.version, s.start, s.count, r.logprobs FROM groups g JOIN spans s ON s.run = g.run AND s.round = "
      "g.round AND "
      "s.group_ordinal = g.ordinal JOIN rollouts r ON r.run = s.run AND r.round = s.round AND r.group_ordinal = "
      "s.group_ordinal AND r.sample = s.sample WHERE g.run = 1 AND g.trained_in = ?1";
  struct rows q;
  struct err err = {0};
  bool row;
  enum rc rc = store_query(w->core->store, &q, &err, sql, BINDS(b_int(j->round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    size_t bytes = 0;
    const float *logprobs = rows_blob(&q, 3, &bytes);
    const int64_t end = rows_int(&q, 1) + rows_int(&q, 2);
    if (end > (int64_t)(bytes / sizeof *logprobs)) world_fault(w, "a span ends behind its sample");
    for (int64_t t = rows_int(&q, 1); t < end && !w->r->fault[0]; t++) {
      if (stream_drawn_by(logprobs[t]) != rows_int(&q, 0))
        world_fault(w, "a token of version %lld is recorded as of %lld", (long long)stream_drawn_by(logprobs[t]),
                    (long long)rows_int(&q, 0));
    }
  }
  rows_end(&q);
  if (rc != RC_OK) world_fault(w, "%.200s", err.message);
}

void stream_step(struct world *w, const struct job *j) {
  static const char sql[] =
      "SELECT s.round, s.group_ordinal, s.sample, r.logprobs, s.version_first, s.version_last FROM groups g JOIN "
      "samples s "
      "ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal JOIN rollouts r ON r.run = s.run AND "
      "r.round "
      "= s.round AND r.group_ordinal = s.group_ordinal AND r.sample = s.sample WHERE g.run = 1 AND g.trained_in = ?1";
  struct rows q;
  struct err err = {0};
  bool row;
  int64_t samples = 0;
  enum rc rc = store_query(w->core->store, &q, &err, sql, BINDS(b_int(j->round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    check_sample(w, &q, j->version);
    samples++;
  }
  rows_end(&q);
  if (rc != RC_OK) world_fault(w, "%.200s", err.message);
  if (j->count != w->c.groups || samples != (int64_t)w->c.groups * w->c.samples)
    world_fault(w, "a step takes %d groups and %lld samples", j->count, (long long)samples);
  check_spans(w, j);
}

/* ---- how far ahead ---- */

/* Ahead of a round that is not open: they are in its step, and ahead of the trainer. */
static int64_t groups_planned(struct world *w) {
  return WORLD_NUMBER(
      w,
      "SELECT count(*) FROM groups INDEXED BY groups_batch WHERE run = ?1 AND trained_in > (SELECT max(round) "
      "FROM rounds WHERE run = ?1)",
      b_int(1));
}

static int64_t groups_ahead(struct world *w) {
  return groups_planned(w) +
         WORLD_NUMBER(w,
                      "SELECT (SELECT count(*) FROM groups INDEXED BY groups_open WHERE run = 1 AND ordinal < ?1 AND "
                      "state = 0) + (SELECT count(*) FROM groups INDEXED BY groups_sealed WHERE run = 1 AND ordinal < "
                      "?1 AND state = 1)",
                      b_int(ORDINAL_EVALUATION_FIRST));
}

static int64_t most_ahead(const struct world *w) {
  const int64_t most = (w->c.samples_ahead ? w->c.samples_ahead : 2 * w->c.groups * w->c.samples) / w->c.samples;
  return most > 1 ? most : 1;
}

/* That the steps to come can take. */
static int64_t still_needed(struct world *w) {
  const int64_t rounds = w->c.rounds ? w->c.rounds : 1;
  return rounds * w->c.groups + groups_planned(w) -
         WORLD_NUMBER(w, "SELECT count(*) FROM groups WHERE run = ?1 AND trained_in NOT NULL", b_int(1));
}

bool stream_looks(const struct world *w) {
  const int64_t groups = most_ahead(w);
  return w->r->events % (groups > 32 ? groups / 8 : 4) == 0;
}

int64_t stream_grantable(struct world *w) {
  if (WORLD_NUMBER(w, "SELECT state FROM runs WHERE id = ?1", b_int(1)) != RUN_RUNNING) return 0;
  const int64_t waiting =
      WORLD_NUMBER(w,
                   "SELECT coalesce(sum(samples_waiting), 0) FROM groups INDEXED BY groups_waiting WHERE run = ?1 AND "
                   "state = 0 AND samples_waiting > 0",
                   b_int(1));
  if (waiting > 0 || w->trainer.durable_version == w->c.rounds) return waiting;
  const int64_t needed = still_needed(w), most = most_ahead(w), ahead = groups_ahead(w);
  const int64_t allowed = (most < needed ? most : needed) - ahead;
  return allowed > 0 ? allowed * w->c.samples : 0;
}

void stream_bounds(struct world *w) {
  const int64_t ahead = groups_ahead(w), needed = still_needed(w);
  if (ahead > most_ahead(w)) world_fault(w, "%lld groups are ahead of the trainer", (long long)ahead);
  if (ahead > needed)
    world_fault(w, "%lld groups are ahead, the steps to come can take %lld", (long long)ahead, (long long)needed);
  const int64_t lagged = WORLD_NUMBER(w, "SELECT count(*) FROM groups WHERE run = ?1 AND reason = 'lag'", b_int(1));
  if (lagged != w->r->lagged)
    world_fault(w, "%lld groups are left out for their age, %lld are too old", (long long)lagged,
                (long long)w->r->lagged);
  const int64_t counted =
      WORLD_NUMBER(w, "SELECT coalesce(sum(groups_lagged), 0) FROM rounds WHERE run = ?1", b_int(1));
  if (counted != lagged)
    world_fault(w, "%lld groups were too old, %lld are counted", (long long)lagged, (long long)counted);
}

/* ---- the end ---- */

void stream_end(struct world *w) {
  const int rounds = w->c.rounds ? w->c.rounds : 1;
  const int64_t left =
      WORLD_NUMBER(w, "SELECT count(*) FROM groups WHERE run = ?1 AND state NOT IN (3, 4, 6)", b_int(1));
  if (left)
    world_fault(
        w, "I5: %lld groups were neither trained nor filtered when the run ended, such as %lld.%lld", (long long)left,
        (long long)WORLD_NUMBER(w, "SELECT round FROM groups WHERE run = ?1 AND state NOT IN (3, 4, 6)", b_int(1)),
        (long long)WORLD_NUMBER(w, "SELECT ordinal FROM groups WHERE run = ?1 AND state NOT IN (3, 4, 6)", b_int(1)));
  if (w->version_count != rounds + 1) world_fault(w, "the run ended with %lld versions", (long long)w->version_count);
  const int64_t evaluations = WORLD_NUMBER(w, "SELECT count(*) FROM evaluations WHERE run = ?1", b_int(1));
  const int64_t wanted = !w->c.evaluation_groups ? 0 : rounds > 1 ? 2 : 1;
  if (evaluations != wanted)
    world_fault(w, "%lld evaluations are in, of %lld", (long long)evaluations, (long long)wanted);
}

/* Writes how rewards and lengths are spread over the samples of rounds. */
#include "services/coordinator/views/spread_view.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/wire/lease.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/views/reward_terms.h"

/* Of one round's training samples. */
struct spread {
  const struct reward_terms *terms;
  struct buf rewards, lengths, turns; /* doubles */
  struct buf values[REWARD_TERMS_MAX]; /* of the terms, where the reward is a sum */
  int64_t samples, truncated;
  int64_t groups[GROUP_ABANDONED + 1]; /* by state */
  int64_t level;                       /* complete groups whose rewards are all equal */
};

static void spread_free(struct spread *d) {
  buf_free(&d->rewards);
  buf_free(&d->lengths);
  buf_free(&d->turns);
  for (int i = 0; i < REWARD_TERMS_MAX; i++) buf_free(&d->values[i]);
}

static void value_add(struct buf *values, double value) { buf_append(values, &value, sizeof value); }

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The value that a share of the sorted ones does not exceed: the nearest rank. */
static double quantile(const double *sorted, int64_t n, double share) {
  const int64_t rank = (int64_t)ceil(share * (double)n) - 1;
  return sorted[rank < 0 ? 0 : rank];
}

static void values_write(struct json_writer *w, const char *key, struct buf *values) {
  const int64_t n = (int64_t)(values->len / sizeof(double));
  json_key(w, key);
  if (n == 0) {
    json_write_null(w);
    return;
  }
  double *v = (double *)(void *)values->data, sum = 0, squares = 0;
  qsort(v, (size_t)n, sizeof *v, compare);
  for (int64_t i = 0; i < n; i++) sum += v[i];
  for (int64_t i = 0; i < n; i++) squares += (v[i] - sum / (double)n) * (v[i] - sum / (double)n);
  json_object_begin(w);
  json_kv_f64(w, "mean", sum / (double)n);
  json_kv_f64(w, "std", sqrt(squares / (double)n));
  json_kv_f64(w, "min", v[0]);
  json_kv_f64(w, "p10", quantile(v, n, 0.1));
  json_kv_f64(w, "p50", quantile(v, n, 0.5));
  json_kv_f64(w, "p90", quantile(v, n, 0.9));
  json_kv_f64(w, "max", v[n - 1]);
  json_object_end(w);
}

/* One group's rewards, while its samples are read. */
struct level {
  int64_t ordinal, samples;
  double least, most;
};

static void level_end(struct spread *d, const struct level *g) {
  if (g->ordinal >= 0 && g->samples > 1 && g->least == g->most) d->level++;
}

static void terms_add(struct spread *d, const struct rows *q, int column) {
  double values[REWARD_TERMS_MAX];
  if (!reward_terms_values(d->terms, q, column, values)) return;
  for (int i = 0; i < d->terms->count; i++)
    if (isfinite(values[i])) value_add(&d->values[i], values[i]);
}

/* What the model has written is a turn; what others have written between is not trained on.  Segments are stored only
 * of samples that have several, or one that is not trained on: a single turn. */
#define SEGMENTS_OF_ROUND "SELECT EXISTS (SELECT 1 FROM segments WHERE run = ?1 AND round = ?2)"
#define TURNS                                                                                                       \
  "iif(?7, max(1, coalesce((SELECT sum(x.loss_mask) FROM segments x WHERE x.run = s.run AND x.round = s.round AND " \
  "x.group_ordinal = s.group_ordinal AND x.sample = s.sample), 1)), 1)"

static enum rc samples_read(struct store *s, struct spread *d, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  struct level g = {.ordinal = -1};
  int64_t segments = 0;
  enum rc rc = store_int(s, &segments, err, SEGMENTS_OF_ROUND, BINDS(b_int(run), b_int(round)));
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT g.ordinal, s.reward, s.tokens, s.finish, s.term_values, " TURNS
                   " FROM groups g CROSS JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = "
                   "g.ordinal WHERE g.run = ?1 AND g.round = ?2 AND g.purpose = ?3 AND g.state NOT IN (?4, ?5, ?6) AND "
                   "s.state = " SQL_SAMPLE_DONE
                   " ORDER BY g.ordinal, s.sample",
                   BINDS(b_int(run), b_int(round), b_int(LEASE_TRAINING), b_int(GROUP_OPEN), b_int(GROUP_FAILED),
                         b_int(GROUP_ABANDONED), b_int(segments)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const double reward = rows_real(&q, 1), length = rows_real(&q, 2);
    if (rows_int(&q, 0) != g.ordinal) {
      level_end(d, &g);
      g = (struct level){rows_int(&q, 0), 0, reward, reward};
    }
    g.samples++;
    g.least = fmin(g.least, reward);
    g.most = fmax(g.most, reward);
    value_add(&d->rewards, reward);
    value_add(&d->lengths, length);
    value_add(&d->turns, rows_real(&q, 5));
    terms_add(d, &q, 4);
    d->samples++;
    d->truncated += rows_int(&q, 3) == FINISH_LENGTH;
  }
  rows_end(&q);
  level_end(d, &g);
  if (rc == RC_OK) rc = buf_check(&d->rewards, err);
  if (rc == RC_OK) rc = buf_check(&d->lengths, err);
  if (rc == RC_OK) rc = buf_check(&d->turns, err);
  for (int i = 0; i < REWARD_TERMS_MAX && rc == RC_OK; i++) rc = buf_check(&d->values[i], err);
  return rc;
}

static enum rc groups_read(struct store *s, struct spread *d, int64_t run, int64_t round, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc = store_query(
      s, &q, err, "SELECT state, count(*) FROM groups WHERE run = ?1 AND round = ?2 AND purpose = ?3 GROUP BY state",
      BINDS(b_int(run), b_int(round), b_int(LEASE_TRAINING)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row)
    if (rows_int(&q, 0) <= GROUP_ABANDONED) d->groups[rows_int(&q, 0)] = rows_int(&q, 1);
  rows_end(&q);
  return rc;
}

/* One item for each term; none where the reward is one verifier's. */
static void terms_write(struct json_writer *w, struct spread *d) {
  json_key(w, "terms");
  json_array_begin(w);
  for (int i = 0; d->terms->is_sum && i < d->terms->count; i++) {
    json_object_begin(w);
    json_kv_string(w, "name", d->terms->items[i].name);
    json_kv_f64(w, "weight", d->terms->items[i].weight);
    values_write(w, "value", &d->values[i]);
    json_object_end(w);
  }
  json_array_end(w);
}

static enum rc spread_write(struct store *s, struct json_writer *w, const struct reward_terms *terms, int64_t run,
                            int64_t round, int64_t *samples, struct err *err) {
  struct spread d = {.terms = terms}; /* BUF_INIT is zero */
  int64_t refills = 0;
  enum rc rc = samples_read(s, &d, run, round, err);
  if (rc == RC_OK) rc = groups_read(s, &d, run, round, err);
  if (rc == RC_OK)
    rc = store_int(s, &refills, err, "SELECT count(*) FROM refills WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) {
    json_object_begin(w);
    json_kv_int(w, "round", round);
    json_kv_int(w, "samples", d.samples);
    json_kv_int(w, "truncated", d.truncated);
    values_write(w, "reward", &d.rewards);
    terms_write(w, &d);
    values_write(w, "tokens", &d.lengths);
    values_write(w, "turns", &d.turns);
    json_key(w, "groups");
    json_object_begin(w);
    json_kv_int(w, "trained", d.groups[GROUP_SEALED] + d.groups[GROUP_SUBMITTED] + d.groups[GROUP_CONSUMED]);
    json_kv_int(w, "filtered", d.groups[GROUP_FILTERED]);
    json_kv_int(w, "failed", d.groups[GROUP_FAILED] + d.groups[GROUP_ABANDONED]);
    json_kv_int(w, "open", d.groups[GROUP_OPEN]);
    json_kv_int(w, "refills", refills);
    json_kv_int(w, "without_signal", d.level);
    json_object_end(w);
    json_object_end(w);
    *samples += d.samples;
  }
  spread_free(&d);
  return rc;
}

enum rc spreads_write(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit, int64_t *next,
                      struct err *err) {
  struct rows q;
  struct reward_terms terms;
  bool row;
  int64_t samples = 0;
  *next = -1;
  enum rc rc = reward_terms_read(&terms, s, run, -1, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT round FROM rounds WHERE run = ?1 AND round >= ?2 AND state = " SQL_ROUND_DONE
      " AND closing = 0 AND rollouts_state = " SQL_ROLLOUTS_KEPT " ORDER BY round LIMIT ?3",
      BINDS(b_int(run), b_int(from), b_int(limit)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    if (samples >= SPREAD_SAMPLES) {
      *next = rows_int(&q, 0);
      break;
    }
    rc = spread_write(s, w, &terms, run, rows_int(&q, 0), &samples, err);
  }
  rows_end(&q);
  return rc;
}

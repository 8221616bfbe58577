/* Reads a round's samples, group after group, and adds their statistics up. */
#include "services/coordinator/trackers/sample_figures.h"

#include <math.h>

#include "services/coordinator/decide/stored.h"

/* ---- sums ---- */

/* Welford's sums. */
struct running {
  int64_t count;
  double mean, squares;
};

static void running_add(struct running *r, double value) {
  r->count++;
  const double d = value - r->mean;
  r->mean += d / (double)r->count;
  r->squares += d * (value - r->mean);
}

struct sums {
  int64_t groups, equal_groups, samples, cut, ended;
  double std, length, ended_length, prompt;
  struct running terms[REWARD_TERMS_MAX];
};

/* The group in hand. */
struct group {
  int64_t round, ordinal;
  struct running rewards;
};

static void group_end(struct sums *t, const struct group *g) {
  const struct running *r = &g->rewards;
  if (r->count == 0) return;
  t->groups++;
  t->equal_groups += r->squares == 0;
  t->std += r->count > 1 ? sqrt(r->squares / (double)(r->count - 1)) : 0;
}

/* Of one verifier the reward is its value. */
static void terms_add(const struct reward_terms *terms, struct sums *t, const struct rows *q) {
  double values[REWARD_TERMS_MAX] = {rows_real(q, 2)};
  if (terms->is_sum && !reward_terms_values(terms, q, 7, values)) return;
  for (int i = 0; i < terms->count; i++)
    if (isfinite(values[i])) running_add(&t->terms[i], values[i]);
}

/* fmin and fmax leave NaNs out. */
static void sample_add(struct sample_figures *f, struct sums *t, const struct rows *q) {
  const double reward = rows_real(q, 2), tokens = rows_real(q, 4), prompt = rows_real(q, 6);
  const double advantage = rows_null(q, 3) ? NAN : rows_real(q, 3);
  const bool cut = rows_int(q, 5) == FINISH_LENGTH;
  t->samples++;
  t->length += tokens;
  t->prompt += prompt;
  t->cut += cut;
  t->ended += !cut;
  t->ended_length += cut ? 0 : tokens;
  f->reward_min = fmin(f->reward_min, reward);
  f->reward_max = fmax(f->reward_max, reward);
  f->advantage_min = fmin(f->advantage_min, advantage);
  f->advantage_max = fmax(f->advantage_max, advantage);
  f->length_min = fmin(f->length_min, tokens);
  f->length_max = fmax(f->length_max, tokens);
  f->prompt_length_max = fmax(f->prompt_length_max, prompt);
}

static void means(struct sample_figures *f, const struct sums *t) {
  const double groups = (double)t->groups, samples = (double)t->samples;
  f->reward_std = t->std / groups;
  f->zero_std_share = (double)t->equal_groups / groups;
  f->length_mean = t->length / samples;
  f->cut_share = (double)t->cut / samples;
  f->ended_length_mean = t->ended ? t->ended_length / (double)t->ended : NAN;
  f->prompt_length_mean = t->prompt / samples;
  f->all_tokens = t->length + t->prompt;
  for (int i = 0; i < f->terms.count; i++) {
    const struct running *r = &t->terms[i];
    f->term_values[i].mean = r->count > 0 ? r->mean : NAN;
    f->term_values[i].std = r->count > 1 ? sqrt(r->squares / (double)(r->count - 1)) : NAN;
  }
}

/* ---- reading ---- */

#define SAMPLE_COLUMNS                                                                                             \
  "SELECT g.round, g.ordinal, x.reward, x.advantage, x.tokens, x.finish, length(g.prompt_ids) / 4, x.term_values " \
  "FROM groups g "
#define SAMPLES_OF \
  "CROSS JOIN samples x ON x.run = g.run AND x.round = g.round AND x.group_ordinal = g.ordinal WHERE g.run = ?1 AND "
#define SAMPLES_DONE \
  " AND g.purpose = " SQL_PURPOSE_TRAINING " AND x.state = " SQL_SAMPLE_DONE " AND x.reward IS NOT NULL"

/* Are all of them there?  A round that is being dropped loses its samples a piece at a time, and of a step's groups
 * those that an older round had issued go first. */
static enum rc samples_are_whole(struct store *s, int64_t run, int64_t round, bool *out, struct err *err) {
  int64_t whole = 0;
  const enum rc rc = store_int(
      s, &whole, err,
      "SELECT EXISTS (SELECT 1 FROM rounds r WHERE r.run = ?1 AND r.round = ?2 AND r.rollouts_state = "
      SQL_ROLLOUTS_KEPT " AND r.groups_trained = (SELECT count(*) FROM groups g INDEXED BY groups_batch JOIN rounds o "
      "ON o.run = g.run AND o.round = g.round WHERE g.run = ?1 AND g.trained_in = ?2 AND o.rollouts_state = "
      SQL_ROLLOUTS_KEPT "))",
      BINDS(b_int(run), b_int(round)));
  *out = whole != 0;
  return rc;
}

enum rc sample_figures_read(struct store *s, int64_t run, int64_t round, struct sample_figures *out, struct err *err) {
  struct rows q;
  struct sums t = {0};
  struct group g = {.round = -1};
  bool row = false, whole = false;
  *out = (struct sample_figures){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, {0}, {{0, 0}}};
  for (int i = 0; i < REWARD_TERMS_MAX; i++) out->term_values[i].mean = out->term_values[i].std = NAN;
  enum rc rc = reward_terms_read(&out->terms, s, run, -1, err);
  if (rc == RC_OK) rc = samples_are_whole(s, run, round, &whole, err);
  if (rc != RC_OK || !whole) return rc;
  rc = store_query(s, &q, err,
                           SAMPLE_COLUMNS "INDEXED BY groups_batch " SAMPLES_OF "g.trained_in = ?2" SAMPLES_DONE
                                          " UNION ALL " SAMPLE_COLUMNS SAMPLES_OF
                                          "g.round = ?2 AND g.state = ?3" SAMPLES_DONE " ORDER BY 1, 2",
                           BINDS(b_int(run), b_int(round), b_int(GROUP_FILTERED)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    if (rows_int(&q, 0) != g.round || rows_int(&q, 1) != g.ordinal) {
      group_end(&t, &g);
      g = (struct group){.round = rows_int(&q, 0), .ordinal = rows_int(&q, 1)};
    }
    running_add(&g.rewards, rows_real(&q, 2));
    terms_add(&out->terms, &t, &q);
    sample_add(out, &t, &q);
  }
  rows_end(&q);
  if (rc != RC_OK || t.samples == 0) return rc;
  group_end(&t, &g);
  means(out, &t);
  return RC_OK;
}

double sample_figure(const struct sample_figures *f, const char *name) {
  const struct {
    const char *name;
    double value;
  } all[] = {{"reward_min", f->reward_min},
             {"reward_max", f->reward_max},
             {"reward_std", f->reward_std},
             {"zero_std_share", f->zero_std_share},
             {"advantage_min", f->advantage_min},
             {"advantage_max", f->advantage_max},
             {"length_mean", f->length_mean},
             {"length_min", f->length_min},
             {"length_max", f->length_max},
             {"cut_share", f->cut_share},
             {"ended_length_mean", f->ended_length_mean},
             {"prompt_length_mean", f->prompt_length_mean},
             {"prompt_length_max", f->prompt_length_max},
             {"all_tokens", f->all_tokens}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (strcmp(all[i].name, name) == 0) return all[i].value;
  return NAN;
}

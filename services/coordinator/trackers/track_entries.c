/* Makes entries of rounds as the API shows them, of their samples' statistics, and of evaluations. */
#include "services/coordinator/trackers/track_entries.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/trackers/sample_figures.h"
#include "services/coordinator/views/round_view.h"

enum { EACH_MAX = TRACK_ENTRIES_MAX / 2, SETS_MAX = 64, FIGURES_PER_SET = 64 };

bool track_cursor_wants(const struct track_cursor *c, const struct track_entry *e) {
  return e->round >= (e->evaluation ? c->evaluation : c->training);
}

void track_cursor_pass(struct track_cursor *c, bool evaluation, int64_t round) {
  int64_t *next = evaluation ? &c->evaluation : &c->training;
  if (round >= *next) *next = round + 1;
}

void track_entries_free(struct track_entries *e) {
  arena_free(&e->arena);
  e->count = 0;
}

static enum rc no_memory(struct err *err) {
  return err_set(err, RC_NO_MEMORY, NULL, "a tracker's entry was refused memory");
}

/* Figures that are not finite are left out: trackers know no null. */
static enum rc figure_add(struct track_entries *out, struct track_entry *e, const struct buf *name, double value,
                          struct err *err) {
  if (!isfinite(value)) return RC_OK;
  const char *copy = arena_strndup(&out->arena, name->data, name->len);
  if (!copy || buf_check(name, NULL) != RC_OK) return no_memory(err);
  e->figures[e->count++] = (struct track_figure){copy, value};
  return RC_OK;
}

/* ---- a round's training ---- */

static enum rc terms_fill(const struct sample_figures *f, struct track_entry *e, enum track_naming naming,
                          struct track_entries *out, struct err *err) {
  struct buf name = BUF_INIT;
  enum rc rc = RC_OK;
  for (int i = 0; i < 2 * f->terms.count && rc == RC_OK; i++) {
    const bool std = i % 2;
    buf_clear(&name);
    track_term_name(&name, f->terms.items[i / 2].name, std, naming);
    rc = figure_add(out, e, &name, std ? f->term_values[i / 2].std : f->term_values[i / 2].mean, err);
  }
  buf_free(&name);
  return rc;
}

static enum rc training_fill(struct store *s, int64_t run, struct track_entry *e, enum track_naming naming,
                             struct track_entries *out, struct err *err) {
  static const char of_samples[] = "samples.";
  struct buf text = BUF_INIT, name = BUF_INIT;
  struct json *round = NULL;
  struct sample_figures samples;
  bool found = false;
  enum rc rc = round_text(s, run, e->round, &text, &found, err);
  if (rc == RC_OK && (rc = buf_check(&text, err)) == RC_OK) rc = json_parse(&round, text.data, text.len, 0, err);
  if (rc == RC_OK) rc = sample_figures_read(s, run, e->round, &samples, err);
  e->figures = arena_alloc(&out->arena, (size_t)track_name_count + 2 * REWARD_TERMS_MAX, sizeof *e->figures);
  if (rc == RC_OK && !e->figures) rc = no_memory(err);
  for (int i = 0; i < track_name_count && rc == RC_OK; i++) {
    const struct track_name *n = &track_names[i];
    const bool sampled = strncmp(n->figure, of_samples, strlen(of_samples)) == 0;
    const double value =
        sampled ? sample_figure(&samples, n->figure + strlen(of_samples)) : json_find_number(round, n->figure);
    buf_clear(&name);
    track_name_write(&name, n, naming);
    rc = figure_add(out, e, &name, value * n->scale, err);
  }
  if (rc == RC_OK) rc = terms_fill(&samples, e, naming, out, err);
  json_free(round);
  buf_free(&text);
  buf_free(&name);
  return rc;
}

/* ---- an evaluation ---- */

static enum rc set_figures(struct store *s, int64_t run, int64_t number, const struct track_evaluation *names,
                           struct track_entry *e, int most, enum track_naming naming, struct track_entries *out,
                           struct err *err) {
  struct rows q;
  struct buf name = BUF_INIT;
  bool row;
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT figure, value FROM evaluation_figures WHERE run = ?1 AND round = ?2 AND number = ?3 AND "
                  "figure <> 'accuracy' ORDER BY place",
                  BINDS(b_int(run), b_int(e->round), b_int(number)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && e->count < most) {
    const char *figure = rows_text(&q, 0, NULL);
    const bool pass = strncmp(figure, "pass@", 5) == 0;
    buf_clear(&name);
    track_evaluation_name(&name, names, pass ? TRACK_EVAL_PASS : TRACK_EVAL_MAJORITY,
                          pass ? strtoll(figure + 5, NULL, 10) : 0, naming);
    rc = figure_add(out, e, &name, rows_real(&q, 1), err);
  }
  rows_end(&q);
  buf_free(&name);
  return rc;
}

static enum rc set_means(const struct rows *q, const struct track_evaluation *names, struct track_entry *e,
                         enum track_naming naming, struct track_entries *out, struct err *err) {
  static const struct {
    enum track_evaluation_figure figure;
    int column;
  } means[] = {{TRACK_EVAL_REWARD, 4}, {TRACK_EVAL_LENGTH, 6}, {TRACK_EVAL_FORMED, 5}};
  struct buf name = BUF_INIT;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < sizeof means / sizeof means[0] && rc == RC_OK; i++) {
    buf_clear(&name);
    track_evaluation_name(&name, names, means[i].figure, 0, naming);
    rc = figure_add(out, e, &name, rows_real(q, means[i].column), err);
  }
  buf_free(&name);
  return rc;
}

static enum rc evaluation_fill(struct store *s, int64_t run, struct track_entry *e, enum track_naming naming,
                               struct track_entries *out, struct err *err) {
  struct rows q;
  int64_t sets = 0;
  bool row;
  enum rc rc = store_int(s, &sets, err, "SELECT count(*) FROM evaluation_sets WHERE run = ?1 AND round = ?2",
                         BINDS(b_int(run), b_int(e->round)));
  if (rc != RC_OK || sets == 0) return rc;
  const int most = (int)(sets < SETS_MAX ? sets : SETS_MAX) * FIGURES_PER_SET;
  e->figures = arena_alloc(&out->arena, (size_t)most, sizeof *e->figures);
  if (!e->figures) return no_memory(err);
  rc = store_query(
      s, &q, err,
      "SELECT number, name, problems, samples, accuracy, well_formed, tokens FROM evaluation_sets WHERE run = "
      "?1 AND round = ?2 ORDER BY number LIMIT ?3",
      BINDS(b_int(run), b_int(e->round), b_int(SETS_MAX)));
  for (int end = FIGURES_PER_SET; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row;
       end += FIGURES_PER_SET) {
    const char *set = rows_text(&q, 1, NULL);
    const int64_t problems = rows_int(&q, 2);
    const struct track_evaluation names = {.set = sets > 1 ? set : NULL,
                                           .set_always = set,
                                           .samples_per_problem = problems ? rows_int(&q, 3) / problems : 0};
    rc = set_means(&q, &names, e, naming, out, err);
    if (rc == RC_OK) rc = set_figures(s, run, rows_int(&q, 0), &names, e, end, naming, out, err);
  }
  rows_end(&q);
  return rc;
}

/* ---- which are next ---- */

/* Evaluations of the run's earlier rounds that are not in yet are waited for. */
static const char NEXT_EVALUATIONS[] =
    "SELECT e.round, e.at_ms FROM evaluations e WHERE e.run = ?1 AND e.round >= ?2 AND NOT EXISTS (SELECT 1 FROM "
    "groups g "
    "WHERE g.run = ?1 AND g.round < e.round AND g.ordinal >= ?4 AND g.state = " SQL_GROUP_OPEN
    ") ORDER BY e.round LIMIT ?3";
/* A round's gradient norm and learning rate come when its version is published already, with the answer to its step:
 * finished. */
static const char NEXT_TRAININGS[] =
    "SELECT r.round, coalesce(r.published_ms, r.opened_ms) FROM rounds r JOIN runs ON runs.id = r.run WHERE r.run = ?1 "
    "AND "
    "r.round >= ?2 AND r.state = " SQL_ROUND_DONE
    " AND r.closing = 0 AND objective <> 'evaluate' AND (ended_ms IS NOT NULL "
    "OR NOT EXISTS (SELECT 1 FROM rounds u WHERE u.run = ?1 AND u.finished = 0 AND u.round <= r.round)) ORDER BY "
    "r.round "
    "LIMIT ?3";

static enum rc next_of(struct store *s, int64_t run, int64_t from, bool evaluation, struct track_entry *items,
                       int *count, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc = evaluation
                   ? store_query(s, &q, err, NEXT_EVALUATIONS,
                                 BINDS(b_int(run), b_int(from), b_int(EACH_MAX), b_int(ORDINAL_EVALUATION_FIRST)))
                   : store_query(s, &q, err, NEXT_TRAININGS, BINDS(b_int(run), b_int(from), b_int(EACH_MAX)));
  for (*count = 0; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; ++*count) {
    const int64_t round = rows_int(&q, 0);
    items[*count] = (struct track_entry){
        .evaluation = evaluation, .round = round, .step = evaluation ? round : round + 1, .at_ms = rows_int(&q, 1)};
  }
  rows_end(&q);
  return rc;
}

static enum rc read_all(struct store *s, int64_t run, const struct track_cursor *from, enum track_naming naming,
                        struct track_entries *out, struct err *err) {
  struct track_entry evaluations[EACH_MAX], trainings[EACH_MAX];
  int e = 0, t = 0, ends_e = 0, ends_t = 0;
  enum rc rc = next_of(s, run, from->evaluation, true, evaluations, &ends_e, err);
  if (rc == RC_OK) rc = next_of(s, run, from->training, false, trainings, &ends_t, err);
  while (rc == RC_OK && (e < ends_e || t < ends_t)) {
    const bool evaluation = t == ends_t || (e < ends_e && evaluations[e].round <= trainings[t].round);
    struct track_entry *item = &out->items[out->count++];
    *item = evaluation ? evaluations[e++] : trainings[t++];
    rc = evaluation ? evaluation_fill(s, run, item, naming, out, err) : training_fill(s, run, item, naming, out, err);
  }
  return rc;
}

enum rc track_entries_read(struct readers *readers, int64_t run, const struct track_cursor *from,
                           enum track_naming naming, struct track_entries *out, struct err *err) {
  struct store *s = NULL;
  *out = (struct track_entries){.arena = ARENA_INIT};
  enum rc rc = readers_take(readers, &s, err);
  if (rc == RC_OK) rc = read_all(s, run, from, naming, out, err);
  readers_give(readers, s);
  return rc;
}

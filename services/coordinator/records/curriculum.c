/* Keeps pass rates, and walks along the dataset's order past the prompts that rest. */
#include "services/coordinator/records/curriculum.h"

#include <inttypes.h>

#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"

#define RATES_OF                                                                                                   \
  "FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal WHERE "     \
  "s.state = " SQL_SAMPLE_DONE " AND s.reward IS NOT NULL AND g.ordinal < ?3 AND "

/* 0.7 + 0.2 + 0.1 is less than 1 by its rounding, and a sample that earned all three has passed. */
static double least_passing(const struct curriculum_config *rule) { return rule->pass_reward - 1e-9; }

/* Of an item that has come before, what it has earned now stands. */
#define NEWEST                                                                                               \
  " ON CONFLICT (run, item) DO UPDATE SET samples = excluded.samples, passed = excluded.passed, epoch = " \
  "excluded.epoch"

static enum rc record_round(struct core *c, int64_t round, struct err *err) {
  const struct curriculum_config *rule = &c->context->config.curriculum;
  return store_exec(
      c->store, err,
      "INSERT INTO prompt_rates (run, item, samples, passed, epoch) SELECT g.run, g.dataset_index, count(*), "
      "sum(s.reward >= ?4), max(g.dataset_epoch) " RATES_OF
      "g.run = ?1 AND g.round = ?2 GROUP BY g.dataset_index" NEWEST,
      BINDS(b_int(c->context->run), b_int(round), b_int(ORDINAL_EVALUATION_FIRST), b_real(least_passing(rule))));
}

/* Items go by their numbers, so both runs must have read the same lines. */
static enum rc same_lines(struct core *c, int64_t from, const char *name, struct err *err) {
  int64_t same = 0;
  enum rc rc =
      store_int(c->store, &same, err,
                "SELECT a.dataset_counts IS b.dataset_counts FROM runs a, runs b WHERE a.id = ?1 AND b.id = ?2",
                BINDS(b_int(c->context->run), b_int(from)));
  if (rc == RC_OK && !same)
    rc = err_set(err, RC_CONFLICT, "dataset.curriculum.from",
                 "run %s did not begin, or its dataset had other lines: see `dataset` of both runs", name);
  return rc;
}

enum rc curriculum_countable(struct store *s, int64_t run, const char *name, struct err *err) {
  int64_t dropped = 0;
  const enum rc rc = store_int(s, &dropped, err,
                               "SELECT count(*) FROM rounds WHERE run = ?1 AND rollouts_state <> " SQL_ROLLOUTS_KEPT,
                               BINDS(b_int(run)));
  if (rc != RC_OK || dropped == 0) return rc;
  return err_set(err, RC_INVALID, "dataset.curriculum.from",
                 "run %s has dropped the rollouts of %" PRId64
                 " of its rounds (keep_rounds), so their pass rates are not known any more: name a run that keeps "
                 "them, such as one with objective evaluate",
                 name, dropped);
}

static enum rc record_earlier_run(struct core *c, struct err *err) {
  const struct curriculum_config *rule = &c->context->config.curriculum;
  int64_t from = 0;
  if (!rule->from[0]) return RC_OK;
  enum rc rc = id_parse_run(&from, rule->from, err);
  if (rc == RC_OK) rc = same_lines(c, from, rule->from, err);
  if (rc == RC_OK) rc = curriculum_countable(c->store, from, rule->from, err);
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "INSERT INTO prompt_rates (run, item, samples, passed, epoch) SELECT ?1, g.dataset_index, count(*), "
      "sum(s.reward >= ?4), -1 " RATES_OF "g.run = ?2 GROUP BY g.round, g.dataset_index ORDER BY g.round" NEWEST,
      BINDS(b_int(c->context->run), b_int(from), b_int(ORDINAL_EVALUATION_FIRST), b_real(least_passing(rule))));
}

enum rc curriculum_open(struct core *c, int64_t round, struct curriculum_walk *out, struct err *err) {
  *out = (struct curriculum_walk){0};
  if (round == 0) return record_earlier_run(c, err);
  const enum rc rc = record_round(c, round - 1, err);
  return rc == RC_OK
             ? store_int(c->store, &out->next, err, "SELECT dataset_next FROM rounds WHERE run = ?1 AND round = ?2 - 1",
                         BINDS(b_int(c->context->run), b_int(round)))
             : rc;
}

enum rc curriculum_resume(struct core *c, int64_t round, struct curriculum_walk *out, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct curriculum_walk){0};
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT dataset_next, prompts_passed_over FROM rounds WHERE run = ?1 AND round = ?2",
                           BINDS(b_int(c->context->run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) *out = (struct curriculum_walk){rows_int(&q, 0), rows_int(&q, 1)};
  rows_end(&q);
  return rc;
}

static enum rc record_of(struct core *c, int item, struct curriculum_record *out, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct curriculum_record){0};
  enum rc rc =
      store_query(c->store, &q, err, "SELECT samples, passed, epoch FROM prompt_rates WHERE run = ?1 AND item = ?2",
                  BINDS(b_int(c->context->run), b_int(item)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) *out = (struct curriculum_record){rows_int(&q, 0), rows_int(&q, 1), rows_int(&q, 2)};
  rows_end(&q);
  return rc;
}

enum rc curriculum_take(struct core *c, struct curriculum_walk *walk, struct dataset_place *out, struct err *err) {
  struct run_context *x = c->context;
  for (int looks = 0;; looks++) {
    struct curriculum_record record;
    *out = dataset_place(x->dataset, &x->writer_order, walk->next++);
    const enum rc rc = record_of(c, out->index, &record, err);
    if (rc != RC_OK || looks == CURRICULUM_LOOKS) return rc;
    if (!curriculum_rests(&x->config.curriculum.rule, &record, out->epoch)) return RC_OK;
    walk->passed_over++;
  }
}

enum rc curriculum_keep(struct core *c, int64_t round, const struct curriculum_walk *walk, struct err *err) {
  return store_exec(c->store, err,
                    "UPDATE rounds SET dataset_next = ?3, prompts_passed_over = ?4 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(c->context->run), b_int(round), b_int(walk->next), b_int(walk->passed_over)));
}

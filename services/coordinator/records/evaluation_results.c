/* Stores an evaluation's items, and makes its figures of them. */
#include "services/coordinator/records/evaluation_results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/decide/stored.h"
#include "services/coordinator/evaluation/interval.h"
#include "services/coordinator/evaluation/majority.h"
#include "services/coordinator/evaluation/pass_at_k.h"
#include "services/coordinator/records/kept_versions.h"

/* ---- one problem ---- */

struct item {
  int64_t index; /* of the line in its dataset */
  struct digest content;
  int64_t passed, well_formed, tokens;
  double rewards[LIMIT_SAMPLES_PER_GROUP];
  struct vote votes[LIMIT_SAMPLES_PER_GROUP];
  int count;
};

/* The same problem has it in every run, whatever file or line it is in. */
static enum rc item_head(struct core *c, const struct evaluated_group *g, struct item *out, struct err *err) {
  struct rows q;
  struct digest_state d;
  bool row = false;
  size_t len;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT dataset_index, prompt_ids, answer, extra FROM groups WHERE run = ?1 AND round = ?2 AND "
                  "ordinal = ?3",
                  BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    out->index = rows_int(&q, 0);
    digest_begin(&d);
    const void *ids = rows_blob(&q, 1, &len);
    digest_update_u64(&d, len);
    digest_update(&d, ids, len);
    digest_update_text(&d, rows_text(&q, 2, NULL));
    digest_update_text(&d, rows_text(&q, 3, NULL));
    digest_end(&out->content, &d);
  }
  rows_end(&q);
  return rc;
}

/* A first term that a server answers has passed when its answer is 1. */
static enum rc item_samples(struct core *c, const struct evaluated_group *g, struct item *out, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT reward, coalesce((SELECT r.value >= 1 FROM remote_rewards r WHERE r.run = s.run AND "
                  "r.round = s.round AND r.group_ordinal = s.group_ordinal AND r.sample = s.sample AND r.term = "
                  "0), passed), vote, well_formed, tokens FROM samples s WHERE run = ?1 AND round = ?2 AND "
                  "group_ordinal = ?3 AND state = " SQL_SAMPLE_DONE " ORDER BY sample",
                  BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && out->count < LIMIT_SAMPLES_PER_GROUP) {
    const bool passed = rows_int(&q, 1) != 0;
    out->rewards[out->count] = rows_real(&q, 0);
    out->votes[out->count++] = (struct vote){.answer = (uint64_t)rows_int(&q, 2), .passed = passed};
    out->passed += passed;
    out->well_formed += rows_int(&q, 3);
    out->tokens += rows_int(&q, 4);
  }
  rows_end(&q);
  return rc;
}

enum rc evaluation_item_store(struct core *c, const struct evaluated_group *g, struct err *err) {
  struct item item = {.count = 0};
  enum rc rc = item_head(c, g, &item, err);
  if (rc == RC_OK) rc = item_samples(c, g, &item, err);
  if (rc != RC_OK) return rc;
  const struct dataset *d = run_evaluates(&c->context->config) ? c->context->dataset : c->context->evaluation[g->set];
  const bool votes = item.count > 1 && reward_votes(run_rule(&c->context->config, g->set));
  return store_exec(
      c->store, err,
      "INSERT INTO evaluation_items (run, round, number, item, line, content, samples, passed, well_formed, "
      "tokens, majority, rewards) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->set), b_int(item.index),
            b_int(dataset_at(d, (int)item.index)->line), b_digest(&item.content), b_int(item.count), b_int(item.passed),
            b_int(item.well_formed), b_int(item.tokens),
            votes ? b_real(majority_value(item.votes, item.count)) : b_null(),
            b_blob(item.rewards, (size_t)item.count * sizeof item.rewards[0])));
}

/* ---- a set ---- */

/* All problems of a set have the same number of samples. */
struct set_sums {
  int64_t problems, samples, well_formed, tokens;
  double rewards;
  int64_t ks[PASS_KS_MAX];
  int k_count;
  struct item_sums pass[PASS_KS_MAX], majority;
};

static void add_item(struct set_sums *s, const struct rows *q) {
  const int64_t samples = rows_int(q, 0), passed = rows_int(q, 1);
  size_t len;
  const char *bytes = rows_blob(q, 5, &len);
  double rewards = 0, reward;
  if (s->problems++ == 0) s->k_count = pass_ks(samples, s->ks);
  s->samples += samples;
  s->well_formed += rows_int(q, 2);
  s->tokens += rows_int(q, 3);
  for (size_t at = 0; at + sizeof reward <= len; at += sizeof reward) {
    memcpy(&reward, bytes + at, sizeof reward);
    rewards += reward;
  }
  s->rewards += rewards;
  for (int i = 0; i < s->k_count; i++) item_sums_add(&s->pass[i], pass_at_k(samples, passed, s->ks[i]));
  if (!rows_null(q, 4)) item_sums_add(&s->majority, rows_real(q, 4));
}

static enum rc set_sum(struct core *c, int64_t run, int64_t round, int set, struct set_sums *s, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT samples, passed, well_formed, tokens, majority, rewards FROM evaluation_items WHERE "
                           "run = ?1 AND round = ?2 AND number = ?3 ORDER BY item",
                           BINDS(b_int(run), b_int(round), b_int(set)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) add_item(s, &q);
  rows_end(&q);
  return rc;
}

struct place {
  int64_t run, round;
  int set, figures;
};

static enum rc figure_store(struct core *c, struct place *p, enum figure_kind kind, int64_t k, struct figure f,
                            struct err *err) {
  char text[FIGURE_TEXT_MAX];
  figure_text(text, kind, k);
  return store_exec(
      c->store, err,
      "INSERT INTO evaluation_figures (run, round, number, place, figure, value, low, high) VALUES (?1, ?2, "
      "?3, ?4, ?5, ?6, ?7, ?8)",
      BINDS(b_int(p->run), b_int(p->round), b_int(p->set), b_int(p->figures++), b_text(text), b_real(f.value),
            b_real(f.low), b_real(f.high)));
}

/* An evaluate run's sets are its files; one that is there twice is told by its place. */
static void set_name(const struct run_config *config, int set, struct arena *arena, char *out, size_t size) {
  if (!run_evaluates(config)) {
    snprintf(out, size, "%s", config->evaluation.sets[set].name);
    return;
  }
  const char *path = config->sources[set].path, *name = evaluation_name_of(path, arena);
  bool again = false;
  for (int i = 0; i < config->source_count; i++) {
    const char *other = evaluation_name_of(config->sources[i].path, arena);
    again = again || (i != set && name && other && strcmp(name, other) == 0);
  }
  snprintf(out, size, again ? "%s#%d" : "%s", name ? name : path, set + 1);
}

static enum rc set_store(struct core *c, struct place *p, const struct set_sums *s, struct err *err) {
  char name[LIMIT_PATH_MAX + 16];
  struct arena arena = ARENA_INIT;
  const double samples = (double)s->samples, accuracy = s->rewards / samples;
  set_name(&c->context->config, p->set, &arena, name, sizeof name);
  arena_free(&arena);
  enum rc rc = store_exec(c->store, err,
                          "INSERT INTO evaluation_sets (run, round, number, name, problems, samples, accuracy, "
                          "well_formed, tokens) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                          BINDS(b_int(p->run), b_int(p->round), b_int(p->set), b_text(name), b_int(s->problems),
                                b_int(s->samples), b_real(accuracy), b_real((double)s->well_formed / samples),
                                b_real((double)s->tokens / samples)));
  if (rc == RC_OK) rc = figure_store(c, p, FIGURE_ACCURACY, 0, (struct figure){accuracy, NAN, NAN}, err);
  for (int i = 0; i < s->k_count && rc == RC_OK; i++) {
    const double draws = (double)s->problems * (double)(s->samples / s->problems / s->ks[i]);
    rc = figure_store(c, p, FIGURE_PASS, s->ks[i], figure_of(&s->pass[i], draws), err);
  }
  if (rc == RC_OK && s->majority.count)
    rc = figure_store(c, p, FIGURE_MAJORITY, 0, figure_of(&s->majority, (double)s->majority.count), err);
  return rc;
}

enum rc evaluation_close(struct core *c, int64_t run, int64_t round, struct err *err) {
  const struct run_config *config = &c->context->config;
  const int sets = run_evaluates(config) ? config->source_count : config->evaluation.count;
  enum rc rc = RC_OK;
  for (int set = 0; set < sets && rc == RC_OK; set++) {
    struct set_sums s = {0};
    struct place p = {.run = run, .round = round, .set = set};
    rc = set_sum(c, run, round, set, &s, err);
    if (rc == RC_OK && s.problems) rc = set_store(c, &p, &s, err);
  }
  return rc == RC_OK ? kept_versions_mark(c->store, config, run, err) : rc;
}

/* Shows an evaluation's problems, and compares two evaluations. */
#include "services/coordinator/api/route_evaluations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/evaluation/bootstrap.h"
#include "services/coordinator/evaluation/pass_at_k.h"
#include "services/coordinator/run/evaluation_config.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/evaluation_view.h"
#include "services/coordinator/writer/core.h"

/* ---- which evaluation ---- */

struct evaluation {
  int64_t run, round, version, set;
  char name[LIMIT_PATH_MAX + 16]; /* of the set */
};

/* round < 0: the run's newest. */
static enum rc evaluation_find(struct store *s, struct evaluation *e, const char *field, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err,
                           "SELECT round, version FROM evaluations WHERE run = ?1 AND (?2 < 0 OR round = ?2) ORDER BY "
                           "round DESC LIMIT 1",
                           BINDS(b_int(e->run), b_int(e->round)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    e->round = rows_int(&q, 0);
    e->version = rows_int(&q, 1);
  }
  rows_end(&q);
  if (rc != RC_OK || row) return rc;
  return err_set(err, RC_NOT_FOUND, field, "run %s has no finished evaluation%s%s", id_run(e->run).text,
                 e->round < 0 ? "" : " of round ", e->round < 0 ? "" : id_round(e->run, e->round).text);
}

/* name NULL: the evaluation's first. */
static enum rc set_find(struct store *s, struct evaluation *e, const char *name, const char *field, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT number, name FROM evaluation_sets WHERE run = ?1 AND round = ?2 AND (?3 IS NULL OR name "
                  "= ?3) ORDER BY number LIMIT 1",
                  BINDS(b_int(e->run), b_int(e->round), b_text(name)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    e->set = rows_int(&q, 0);
    snprintf(e->name, sizeof e->name, "%s", rows_text(&q, 1, NULL));
  }
  rows_end(&q);
  if (rc != RC_OK || row) return rc;
  return err_set(err, RC_NOT_FOUND, field, "the evaluation of round %s has no set%s%.200s%s",
                 id_round(e->run, e->round).text, name ? " '" : " with results", name ? name : "", name ? "'" : "");
}

/* ---- GET /v1/runs/{id}/evaluation ---- */

void handle_get_evaluation(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  struct evaluation e = {.round = -1};
  int64_t from, limit;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  enum rc rc = id_parse_run(&e.run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = http_query_i64(r, "round", -1, 0, LIMIT_ROUNDS, &e.round, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "from", 0, 0, INT32_MAX, &from, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", LIMIT_GROUPS_PER_ROUND, 1, LIMIT_GROUPS_PER_ROUND, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = evaluation_find(s, &e, "round", &err);
  if (rc == RC_OK) rc = set_find(s, &e, http_query(r, "set"), "set", &err);
  json_kv_string(&w, "run", id_run(e.run).text);
  json_kv_int(&w, "round", e.round);
  json_kv_int(&w, "version", e.version);
  json_kv_string(&w, "set", e.name);
  if (rc == RC_OK) rc = evaluation_items_write(s, &w, e.run, e.round, e.set, from, limit, &err);
  readers_give(readers, s);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* ---- GET /v1/compare ---- */

struct comparison {
  struct evaluation a, b;
  enum figure_kind figure;
  int64_t k, resamples, seed;
};

struct problem {
  unsigned char content[DIGEST_BYTES];
  int64_t item;
  double value;
};

struct problems {
  struct problem *items;
  size_t count;
};

static double mean_reward(const struct rows *q, int column) {
  size_t len;
  const char *bytes = rows_blob(q, column, &len);
  double sum = 0, reward;
  for (size_t at = 0; at + sizeof reward <= len; at += sizeof reward) {
    memcpy(&reward, bytes + at, sizeof reward);
    sum += reward;
  }
  return sum / (double)(len / sizeof reward);
}

static enum rc value_read(const struct comparison *c, const struct rows *q, double *out, struct err *err) {
  const int64_t samples = rows_int(q, 2), passed = rows_int(q, 3);
  if (c->figure == FIGURE_MAJORITY && rows_null(q, 4))
    return err_set(err, RC_INVALID, "figure", "a set has no majority: expected accuracy or pass@K");
  if (c->figure == FIGURE_PASS && c->k > samples)
    return err_set(err, RC_INVALID, "figure",
                   "a problem has %lld samples: expected pass@K with a K up to that, got %lld", (long long)samples,
                   (long long)c->k);
  *out = c->figure == FIGURE_MAJORITY ? rows_real(q, 4)
         : c->figure == FIGURE_PASS   ? pass_at_k(samples, passed, c->k)
                                      : mean_reward(q, 5);
  return RC_OK;
}

static int by_content(const void *x, const void *y) {
  const struct problem *a = x, *b = y;
  const int content = memcmp(a->content, b->content, DIGEST_BYTES);
  return content ? content : a->item < b->item ? -1 : a->item > b->item;
}

/* Sorted by content; problems that are there twice by their lines. */
static enum rc problems_read(struct store *s, const struct comparison *c, const struct evaluation *e,
                             struct problems *out, struct arena *arena, struct err *err) {
  struct rows q;
  struct digest content;
  bool row;
  out->items = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof *out->items);
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "a comparison was refused memory");
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT content, item, samples, passed, majority, rewards FROM evaluation_items WHERE run = ?1 "
                  "AND round = ?2 AND number = ?3 LIMIT ?4",
                  BINDS(b_int(e->run), b_int(e->round), b_int(e->set), b_int(LIMIT_GROUPS_PER_ROUND)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    struct problem *p = &out->items[out->count++];
    rows_digest(&q, 0, &content);
    memcpy(p->content, content.bytes, DIGEST_BYTES);
    p->item = rows_int(&q, 1);
    rc = value_read(c, &q, &p->value, err);
  }
  rows_end(&q);
  qsort(out->items, out->count, sizeof *out->items, by_content);
  return rc;
}

struct pairs {
  double *differences; /* in the order of the problems' contents */
  int64_t count, a_alone, b_alone, a_better, b_better;
  double a_sum, b_sum;
};

static void pair_add(struct pairs *p, double a, double b) {
  p->differences[p->count++] = b - a;
  p->a_sum += a;
  p->b_sum += b;
  p->a_better += a > b;
  p->b_better += b > a;
}

static void pairs_make(struct pairs *p, const struct problems *a, const struct problems *b) {
  size_t i = 0, k = 0;
  while (i < a->count && k < b->count) {
    const int order = memcmp(a->items[i].content, b->items[k].content, DIGEST_BYTES);
    if (order == 0)
      pair_add(p, a->items[i++].value, b->items[k++].value);
    else if (order < 0)
      p->a_alone++, i++;
    else
      p->b_alone++, k++;
  }
  p->a_alone += (int64_t)(a->count - i);
  p->b_alone += (int64_t)(b->count - k);
}

static enum rc pairs_check(const struct comparison *c, const struct pairs *p, struct err *err) {
  if (p->count == 0)
    return err_set(err, RC_INVALID, "b", "the two evaluations have no problem in common");
  if (c->resamples <= COMPARE_DRAWS_MAX / p->count) return RC_OK;
  return err_set(err, RC_INVALID, "resamples", "expected at most %lld for %lld problems, got %lld",
                 (long long)(COMPARE_DRAWS_MAX / p->count), (long long)p->count, (long long)c->resamples);
}

static enum rc side_write(struct store *s, struct json_writer *w, const char *key, const struct evaluation *e,
                          double value, struct err *err) {
  struct rows q;
  struct digest digest = {{0}};
  char hex[DIGEST_HEX_MAX];
  bool row = false;
  enum rc rc = store_query(s, &q, err, "SELECT digest FROM versions WHERE run = ?1 AND version = ?2",
                           BINDS(b_int(e->run), b_int(e->version)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) rows_digest(&q, 0, &digest);
  rows_end(&q);
  digest_hex(hex, &digest);
  json_key(w, key);
  json_object_begin(w);
  json_kv_string(w, "run", id_run(e->run).text);
  json_kv_int(w, "round", e->round);
  json_kv_int(w, "version", e->version);
  json_kv_string(w, "digest", row ? hex : NULL);
  json_kv_string(w, "set", e->name);
  json_kv_f64(w, "value", value);
  json_object_end(w);
  return rc;
}

static enum rc comparison_write(struct store *s, struct json_writer *w, const struct comparison *c, struct pairs *p,
                                struct arena *arena, struct err *err) {
  char figure[FIGURE_TEXT_MAX];
  double *means = arena_alloc(arena, (size_t)c->resamples, sizeof *means);
  if (!means) return err_set(err, RC_NO_MEMORY, NULL, "a comparison was refused memory");
  const struct bootstrap b = bootstrap_paired(p->differences, p->count, (uint64_t)c->seed, means, c->resamples);
  figure_text(figure, c->figure, c->k);
  json_object_begin(w);
  json_kv_string(w, "figure", figure);
  enum rc rc = side_write(s, w, "a", &c->a, p->a_sum / (double)p->count, err);
  if (rc == RC_OK) rc = side_write(s, w, "b", &c->b, p->b_sum / (double)p->count, err);
  json_kv_int(w, "problems", p->count);
  json_kv_int(w, "a_alone", p->a_alone);
  json_kv_int(w, "b_alone", p->b_alone);
  json_kv_int(w, "a_better", p->a_better);
  json_kv_int(w, "b_better", p->b_better);
  json_kv_int(w, "equal", p->count - p->a_better - p->b_better);
  json_kv_f64(w, "difference", b.difference);
  json_kv_f64(w, "low", b.low);
  json_kv_f64(w, "high", b.high);
  json_kv_f64(w, "p_value", b.p_value);
  json_kv_int(w, "resamples", c->resamples);
  json_kv_int(w, "seed", c->seed);
  json_object_end(w);
  return rc;
}

static enum rc compare(struct store *s, struct json_writer *w, struct comparison *c, struct arena *arena,
                       struct err *err) {
  struct problems a = {0}, b = {0};
  struct pairs p = {0};
  enum rc rc = problems_read(s, c, &c->a, &a, arena, err);
  if (rc == RC_OK) rc = problems_read(s, c, &c->b, &b, arena, err);
  if (rc != RC_OK) return rc;
  p.differences = arena_alloc(arena, a.count + 1, sizeof *p.differences);
  if (!p.differences) return err_set(err, RC_NO_MEMORY, NULL, "a comparison was refused memory");
  pairs_make(&p, &a, &b);
  rc = pairs_check(c, &p, err);
  return rc == RC_OK ? comparison_write(s, w, c, &p, arena, err) : rc;
}

/* "r1.5", or "r1" for its newest evaluation. */
static enum rc side_read(const struct http_request *r, const char *name, struct evaluation *e, struct err *err) {
  const char *text = http_query(r, name);
  if (!text) return err_set(err, RC_INVALID, name, "expected a round, such as r1.5, or a run, such as r1");
  e->round = -1;
  return strchr(text, '.') ? id_parse_round(&e->run, &e->round, text, err) : id_parse_run(&e->run, text, err);
}

static enum rc comparison_read(const struct http_request *r, struct comparison *c, struct err *err) {
  const char *figure = http_query(r, "figure");
  enum rc rc = side_read(r, "a", &c->a, err);
  if (rc == RC_OK) rc = side_read(r, "b", &c->b, err);
  if (rc == RC_OK) rc = figure_read(&c->figure, &c->k, figure ? figure : "accuracy", err);
  if (rc == RC_OK) rc = http_query_i64(r, "resamples", 10000, 100, COMPARE_RESAMPLES_MAX, &c->resamples, err);
  return rc == RC_OK ? http_query_i64(r, "seed", 0, 0, INT32_MAX, &c->seed, err) : rc;
}

void handle_compare(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct comparison c = {0};
  const char *set = http_query(r, "set"), *b_set = http_query(r, "b_set");
  json_writer_init(&w, &body);
  enum rc rc = comparison_read(r, &c, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = evaluation_find(s, &c.a, "a", &err);
  if (rc == RC_OK) rc = evaluation_find(s, &c.b, "b", &err);
  if (rc == RC_OK) rc = set_find(s, &c.a, set, "set", &err);
  if (rc == RC_OK) rc = set_find(s, &c.b, b_set ? b_set : c.a.name, b_set ? "b_set" : "set", &err);
  if (rc == RC_OK) rc = compare(s, &w, &c, &arena, &err);
  readers_give(readers, s);
  arena_free(&arena);
  http_reply_json_or_fail(r, rc, &body, &err);
}

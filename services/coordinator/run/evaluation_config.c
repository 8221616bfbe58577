/* Reads and writes what a run is evaluated on, and which checkpoints are kept for their figures. */
#include "services/coordinator/run/evaluation_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/evaluation/pass_at_k.h"
#include "services/coordinator/verifiers/reward_config.h"

#define FIELDS(...) \
  (const struct json_field[]){__VA_ARGS__}, sizeof((const struct json_field[]){__VA_ARGS__}) / sizeof(struct json_field)

bool evaluation_wanted(const struct evaluation_config *c) {
  return c->count > 0 && (c->every_rounds > 0 || c->before || c->after);
}

bool evaluation_due(const struct evaluation_config *c, int64_t rounds, int64_t round) {
  if (c->count == 0) return false;
  if (round >= rounds) return c->after;
  if (round == 0 && c->before) return true;
  return c->every_rounds > 0 && (round % c->every_rounds == 0 || round == rounds - 1);
}

void evaluation_config_defaults(struct evaluation_config *c) {
  *c = (struct evaluation_config){.base = {.samples = 1, .problems = 64, .temperature = 1.0}};
  reading_defaults(&c->base.reading);
}

const char *evaluation_name_of(const char *path, struct arena *arena) {
  const char *file = strrchr(path, '/');
  const char *name = file ? file + 1 : path;
  const char *dot = name[0] ? strchr(name + 1, '.') : NULL; /* it may begin with one */
  return arena_strndup(arena, path, dot ? (size_t)(dot - path) : strlen(path));
}

static enum rc read_verifier(struct evaluation_set *s, const struct json *value, struct arena *arena, struct err *err) {
  bool shuffle = false;
  enum rc rc = reward_rule_read(&s->verifier, value, &shuffle, arena, err);
  if (rc == RC_OK && shuffle)
    rc = err_set(err, RC_INVALID, "shuffle_rewards", "an evaluation's rewards are never shuffled");
  if (rc == RC_OK && reward_remote_terms(&s->verifier) > 0)
    rc = err_set(
        err, RC_INVALID, NULL,
        "a set's own verifier cannot be of kind 'http': choose another kind, or leave `verifier` out to use the "
        "run's");
  if (rc != RC_OK) err_in_field(err, "verifier");
  s->has_verifier = true;
  return rc;
}

static enum rc name_by_file(struct evaluation_set *s, struct arena *arena, struct err *err) {
  s->name = evaluation_name_of(s->path, arena);
  if (!s->name) return err_set(err, RC_NO_MEMORY, NULL, "a set's name was refused memory");
  const size_t len = strlen(s->name);
  if (len < LIMIT_NAME_MAX) return RC_OK;
  return err_set(err, RC_INVALID, "name", "expected a `name` of 1 to %d bytes, the file '%.100s' would give one of %zu",
                 LIMIT_NAME_MAX - 1, s->path, len);
}

static enum rc read_set(struct evaluation_set *s, const struct evaluation_set *base, const struct json *value,
                        struct arena *arena, struct err *err) {
  struct reading_given given;
  const struct json *verifier = NULL;
  reading_given_init(&given);
  *s = *base;
  s->reading.named = false;
  enum rc rc = json_fields(
      value,
      FIELDS({.name = "name", .kind = FIELD_STRING, .target = &s->name, .min = 1, .max = LIMIT_NAME_MAX - 1},
             {.name = "path",
              .kind = FIELD_STRING,
              .target = &s->path,
              .required = true,
              .min = 1,
              .max = LIMIT_PATH_MAX - 1},
             {.name = "samples", .kind = FIELD_I32, .target = &s->samples, .min = 1, .max = LIMIT_SAMPLES_PER_GROUP},
             {.name = "temperature", .kind = FIELD_F64, .target = &s->temperature, .min = 0, .max = 100},
             {.name = "problems", .kind = FIELD_I32, .target = &s->problems, .min = 1, .max = LIMIT_GROUPS_PER_ROUND},
             {.name = "verifier", .kind = FIELD_VALUE, .target = &verifier}, READING_FIELDS(&given)),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = reading_resolve(&s->reading, &given, arena, err);
  if (rc == RC_OK && verifier && json_type_of(verifier) != JSON_NULL) rc = read_verifier(s, verifier, arena, err);
  if (rc == RC_OK && !s->name) rc = name_by_file(s, arena, err);
  return rc;
}

/* Results are kept by the sets' names. */
static enum rc check_names(const struct evaluation_config *c, struct err *err) {
  for (int i = 0; i < c->count; i++)
    for (int k = 0; k < i; k++)
      if (strcmp(c->sets[i].name, c->sets[k].name) == 0)
        return err_set(err, RC_INVALID, "sets",
                       "expected sets of different names, got two '%.100s': give them a `name`", c->sets[i].name);
  return RC_OK;
}

static enum rc read_sets(struct evaluation_config *c, const struct json *value, struct arena *arena, struct err *err) {
  const size_t n = json_type_of(value) == JSON_ARRAY ? json_length(value) : 0;
  int64_t problems = 0;
  if (n < 1 || n > EVALUATION_SETS_MAX)
    return err_set(err, RC_INVALID, "sets", "expected an array of 1 to %d sets", EVALUATION_SETS_MAX);
  c->sets = arena_alloc(arena, n, sizeof *c->sets);
  if (!c->sets) return err_set(err, RC_NO_MEMORY, NULL, "the evaluation's sets were refused memory");
  for (size_t i = 0; i < n; i++) {
    char name[32];
    const enum rc rc = read_set(&c->sets[i], &c->base, json_at(value, i), arena, err);
    snprintf(name, sizeof name, "sets[%zu]", i);
    if (rc != RC_OK) err_in_field(err, name);
    if (rc != RC_OK) return rc;
    problems += c->sets[i].problems;
  }
  c->count = (int)n;
  c->is_list = true;
  if (problems > LIMIT_GROUPS_PER_ROUND)
    return err_set(err, RC_INVALID, "sets", "expected at most %d `problems` in all sets, got %" PRId64,
                   LIMIT_GROUPS_PER_ROUND, problems);
  return check_names(c, err);
}

/* The block itself is the set. */
static enum rc single_set(struct evaluation_config *c, const char *path, struct arena *arena, struct err *err) {
  c->sets = arena_alloc(arena, 1, sizeof *c->sets);
  const char *name = evaluation_name_of(path, arena);
  if (!c->sets || !name) return err_set(err, RC_NO_MEMORY, NULL, "the evaluation's set was refused memory");
  c->sets[0] = c->base;
  c->sets[0].path = path;
  c->sets[0].name = name;
  c->count = 1;
  return RC_OK;
}

static enum rc read_block(struct evaluation_config *c, const struct json *value, struct arena *arena, struct err *err) {
  struct evaluation_set *b = &c->base;
  struct reading_given given;
  const struct json *sets = NULL;
  const char *path = NULL;
  reading_given_init(&given);
  enum rc rc = json_fields(
      value,
      FIELDS({.name = "path", .kind = FIELD_STRING, .target = &path, .min = 1, .max = LIMIT_PATH_MAX - 1},
             {.name = "sets", .kind = FIELD_VALUE, .target = &sets},
             {.name = "every_rounds", .kind = FIELD_I32, .target = &c->every_rounds, .min = 0, .max = LIMIT_ROUNDS},
             {.name = "before", .kind = FIELD_BOOL, .target = &c->before},
             {.name = "after", .kind = FIELD_BOOL, .target = &c->after},
             {.name = "samples", .kind = FIELD_I32, .target = &b->samples, .min = 1, .max = LIMIT_SAMPLES_PER_GROUP},
             {.name = "temperature", .kind = FIELD_F64, .target = &b->temperature, .min = 0, .max = 100},
             {.name = "problems", .kind = FIELD_I32, .target = &b->problems, .min = 1, .max = LIMIT_GROUPS_PER_ROUND},
             READING_FIELDS(&given)),
      UNKNOWN_REFUSED, arena, err);
  if (sets && json_type_of(sets) == JSON_NULL) sets = NULL;
  if (rc == RC_OK) rc = reading_resolve(&b->reading, &given, arena, err);
  if (rc == RC_OK && !path == !sets)
    return err_set(err, RC_INVALID, path ? "sets" : "path", "expected one of `path` and `sets`, got %s",
                   path ? "both" : "neither");
  if (rc != RC_OK) return rc;
  return sets ? read_sets(c, sets, arena, err) : single_set(c, path, arena, err);
}

enum rc evaluation_config_read(struct evaluation_config *c, const struct json *value, const struct reading *dataset,
                               struct arena *arena, struct err *err) {
  if (!value || json_type_of(value) == JSON_NULL) return RC_OK;
  c->base.reading = *dataset;
  c->base.reading.named = false;
  const enum rc rc = read_block(c, value, arena, err);
  if (rc != RC_OK) err_in_field(err, "evaluation");
  return rc;
}

void evaluation_config_judge(struct evaluation_config *c, const struct reward_rule *verifier) {
  for (int i = 0; i < c->count; i++)
    if (!c->sets[i].has_verifier) c->sets[i].verifier = *verifier;
}

static void write_figures(const struct evaluation_set *s, struct json_writer *w) {
  json_kv_int(w, "samples", s->samples);
  json_kv_f64(w, "temperature", s->temperature);
  json_kv_int(w, "problems", s->problems);
}

static void write_set(const struct evaluation_set *s, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "name", s->name);
  json_kv_string(w, "path", s->path);
  write_figures(s, w);
  if (s->has_verifier) {
    json_key(w, "verifier");
    json_object_begin(w);
    reward_rule_write(&s->verifier, w);
    json_object_end(w);
  }
  reading_write(&s->reading, w);
  json_object_end(w);
}

void evaluation_config_write(const struct evaluation_config *c, struct json_writer *w) {
  if (c->count == 0) return;
  json_key(w, "evaluation");
  json_object_begin(w);
  if (!c->is_list) json_kv_string(w, "path", c->sets[0].path);
  json_kv_int(w, "every_rounds", c->every_rounds);
  if (c->before) json_kv_bool(w, "before", true);
  if (c->after) json_kv_bool(w, "after", true);
  write_figures(&c->base, w);
  reading_write(&c->base.reading, w);
  if (c->is_list) {
    json_key(w, "sets");
    json_array_begin(w);
    for (int i = 0; i < c->count; i++) write_set(&c->sets[i], w);
    json_array_end(w);
  }
  json_object_end(w);
}

/* ---- keep_best ---- */

enum rc figure_read(enum figure_kind *figure, int64_t *k, const char *text, struct err *err) {
  char again[FIGURE_TEXT_MAX];
  *k = 0;
  *figure = strcmp(text, "majority") == 0 ? FIGURE_MAJORITY : FIGURE_ACCURACY;
  if (*figure == FIGURE_MAJORITY || strcmp(text, "accuracy") == 0) return RC_OK;
  *figure = FIGURE_PASS;
  if (strncmp(text, "pass@", 5) == 0) *k = strtoll(text + 5, NULL, 10);
  figure_text(again, FIGURE_PASS, *k);
  if (*k >= 1 && *k <= LIMIT_SAMPLES_PER_GROUP && strcmp(again, text) == 0) return RC_OK;
  return err_set(err, RC_INVALID, "figure", "expected accuracy, majority or pass@K with a K from 1 to %d, got '%.40s'",
                 LIMIT_SAMPLES_PER_GROUP, text);
}

void figure_text(char out[FIGURE_TEXT_MAX], enum figure_kind figure, int64_t k) {
  if (figure == FIGURE_PASS)
    snprintf(out, FIGURE_TEXT_MAX, "pass@%" PRId64, k);
  else
    snprintf(out, FIGURE_TEXT_MAX, "%s", figure == FIGURE_MAJORITY ? "majority" : "accuracy");
}

/* Will that set's evaluations have that figure? */
static enum rc check_figure(const struct keep_best *k, const struct evaluation_set *s, struct err *err) {
  if (k->figure == FIGURE_MAJORITY && (s->samples < 2 || !reward_votes(&s->verifier)))
    return err_set(err, RC_INVALID, "figure",
                   "set '%.100s' has no majority: that takes two `samples` and a verifier that reads answers", s->name);
  if (k->figure != FIGURE_PASS || pass_k_shown(s->samples, k->k)) return RC_OK;
  return err_set(err, RC_INVALID, "figure",
                 "set '%.100s' has %d samples of a problem: expected pass@K with K a power of two up to that number, "
                 "or the number itself",
                 s->name, s->samples);
}

static enum rc find_set(struct keep_best *k, const struct evaluation_config *c, struct err *err) {
  if (!evaluation_wanted(c))
    return err_set(err, RC_INVALID, NULL, "expected an `evaluation` in some rounds: its figures decide which "
                                          "checkpoint is the best");
  if (!k->set && c->count == 1) k->set = c->sets[0].name;
  for (int i = 0; k->set && i < c->count; i++)
    if (strcmp(k->set, c->sets[i].name) == 0) return check_figure(k, &c->sets[i], err);
  return err_set(err, RC_INVALID, "set", "expected the name of one of the %d sets of `evaluation`, got '%.100s'",
                 c->count, k->set ? k->set : "");
}

enum rc keep_best_read(struct keep_best *k, const struct json *value, const struct evaluation_config *c,
                       struct arena *arena, struct err *err) {
  const char *figure = "accuracy";
  if (!value || json_type_of(value) == JSON_NULL) return RC_OK;
  k->count = 1;
  enum rc rc = json_fields(
      value,
      FIELDS({.name = "count", .kind = FIELD_I32, .target = &k->count, .min = 1, .max = KEEP_BEST_MAX},
             {.name = "set", .kind = FIELD_STRING, .target = &k->set, .min = 1, .max = LIMIT_PATH_MAX - 1},
             {.name = "figure", .kind = FIELD_STRING, .target = &figure, .min = 1, .max = FIGURE_TEXT_MAX - 1}),
      UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = figure_read(&k->figure, &k->k, figure, err);
  if (rc == RC_OK) rc = find_set(k, c, err);
  if (rc != RC_OK) err_in_field(err, "keep_best");
  return rc;
}

void keep_best_write(const struct keep_best *k, struct json_writer *w) {
  char figure[FIGURE_TEXT_MAX];
  if (k->count == 0) return;
  figure_text(figure, k->figure, k->k);
  json_key(w, "keep_best");
  json_object_begin(w);
  json_kv_int(w, "count", k->count);
  json_kv_string(w, "set", k->set);
  json_kv_string(w, "figure", figure);
  json_object_end(w);
}

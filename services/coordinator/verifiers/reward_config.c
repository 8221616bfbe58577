/* Reads and writes rules. */
#include "services/coordinator/verifiers/reward_config.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/verifiers/format.h"
#include "services/coordinator/verifiers/json_schema.h"
#include "services/coordinator/verifiers/regex.h"

#define WEIGHT_MAX 1000.0

static const char *const default_tags[] = {"think", "answer"};

static enum rc kind_read(enum verifier_kind *out, const char *name, struct err *err) {
  const char *known[VERIFIER_HTTP + 1];
  int index = 0;
  for (int i = 0; i <= VERIFIER_HTTP; i++) known[i] = verifier_name((enum verifier_kind)i);
  const enum rc rc = name_index(&index, name, known, VERIFIER_HTTP + 1, "kind", err);
  if (rc == RC_OK) *out = (enum verifier_kind)index;
  return rc;
}

static void term_defaults(struct reward_term *t, enum verifier_kind kind) {
  *t = (struct reward_term){.kind = kind, .weight = 1};
  if (kind != VERIFIER_FORMAT) return;
  memcpy(t->tags, default_tags, sizeof default_tags);
  t->tag_count = 2;
}

void reward_rule_of(struct reward_rule *out, enum verifier_kind kind) {
  memset(out, 0, sizeof *out);
  out->count = 1;
  term_defaults(&out->terms[0], kind);
}

static bool is_tag(const char *name) {
  const size_t len = name ? strlen(name) : 0;
  return len > 0 && len <= FORMAT_TAG_MAX &&
         strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == len;
}

static enum rc tags_read(struct reward_term *t, const struct json *v, struct arena *arena, struct err *err) {
  const size_t n = json_type_of(v) == JSON_ARRAY ? json_length(v) : 0;
  if (n == 0 || n > REWARD_TAGS_MAX)
    return err_set(err, RC_INVALID, "tags", "expected an array of 1 to %d names", REWARD_TAGS_MAX);
  for (size_t i = 0; i < n; i++) {
    const char *name = json_word(json_at(v, i));
    if (!is_tag(name))
      return err_set(err, RC_INVALID, "tags", "expected names of 1 to %d letters, digits, - and _", FORMAT_TAG_MAX);
    for (size_t k = 0; k < i; k++)
      if (strcmp(t->tags[k], name) == 0) return err_set(err, RC_INVALID, "tags", "'%s' comes twice", name);
    t->tags[i] = arena_strdup(arena, name);
    if (!t->tags[i]) return err_set(err, RC_NO_MEMORY, NULL, "a verifier was refused memory");
  }
  t->tag_count = (int)n;
  return RC_OK;
}

static enum rc schema_read(struct reward_term *t, const struct json *v, struct arena *arena, struct err *err) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  json_write_value(&w, v);
  enum rc rc = buf_check(&text, err);
  if (rc == RC_OK && text.len > JSON_SCHEMA_BYTES_MAX)
    rc = err_set(err, RC_INVALID, "schema", "expected at most %d bytes, got %zu", JSON_SCHEMA_BYTES_MAX, text.len);
  if (rc == RC_OK && !(t->schema = arena_strndup(arena, text.data, text.len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a verifier was refused memory");
  buf_free(&text);
  return rc == RC_OK ? json_schema_check(t->schema, err) : rc;
}

static bool given_in(const struct json *v, const char *name) {
  const struct json *member = json_get(v, name);
  return member && json_type_of(member) != JSON_NULL;
}

/* What was given, and the kind that it is for. */
static enum rc misplaced(const struct reward_term *t, bool given, const char *name, enum verifier_kind kind,
                         struct err *err) {
  if (!given || t->kind == kind) return RC_OK;
  return err_set(err, RC_INVALID, name, "`%s` is for kind '%s', this one is '%s'", name, verifier_name(kind),
                 verifier_name(t->kind));
}

static enum rc server_read(struct reward_term *t, const struct json *v, struct arena *arena, struct err *err) {
  if (t->kind != VERIFIER_HTTP) return RC_OK;
  if (!v)
    return err_set(err, RC_INVALID, "server",
                   "expected the reward server, {\"url\": \"http://host:port/path\"}, the key is missing");
  const enum rc rc = http_term_read(&t->http, v, arena, err);
  if (rc != RC_OK) err_in_field(err, "server");
  return rc;
}

static enum rc term_read(struct reward_term *t, const struct json *v, bool weighted, bool *shuffle, struct arena *arena,
                         struct err *err) {
  const char *kind = NULL;
  const struct json *tags = NULL, *schema = NULL, *none = NULL, *server = NULL;
  double weight = 1;
  bool ignored = false;
  struct reward_term given = {.weight = 1};
  const struct json_field fields[] = {
      {.name = "kind", .kind = FIELD_STRING, .target = &kind, .required = weighted, .min = 1, .max = 32},
      {.name = "weight", .kind = FIELD_F64, .target = &weight, .min = -WEIGHT_MAX, .max = WEIGHT_MAX},
      {.name = "pattern", .kind = FIELD_STRING, .target = &given.pattern, .min = 1, .max = REGEX_PATTERN_MAX},
      {.name = "schema", .kind = FIELD_VALUE, .target = &schema},
      {.name = "tags", .kind = FIELD_VALUE, .target = &tags},
      {.name = "ignore_case", .kind = FIELD_BOOL, .target = &given.ignore_case},
      {.name = "whole", .kind = FIELD_BOOL, .target = &given.whole},
      {.name = "min", .kind = FIELD_I32, .target = &given.min, .min = 0, .max = LIMIT_NEW_TOKENS},
      {.name = "max", .kind = FIELD_I32, .target = &given.max, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "buffer", .kind = FIELD_I32, .target = &given.buffer, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "server", .kind = FIELD_VALUE, .target = &server},
      {.name = "shuffle_rewards", .kind = FIELD_BOOL, .target = shuffle ? shuffle : &ignored},
      {.name = "terms", .kind = FIELD_VALUE, .target = &none}};
  const size_t count = sizeof fields / sizeof *fields - (weighted ? 1 : 0);
  enum rc rc = json_fields(v, fields, count, UNKNOWN_REFUSED, arena, err);
  given.kind = t->kind;
  if (rc == RC_OK && kind) rc = kind_read(&given.kind, kind, err);
  if (rc == RC_OK && given_in(v, "weight") && !weighted)
    rc = err_set(err, RC_INVALID, "weight", "a weight is for a term of `terms`");
  if (rc == RC_OK && given_in(v, "shuffle_rewards") && !shuffle)
    rc = err_set(err, RC_INVALID, "shuffle_rewards", "expected beside `terms` or `kind` of the run's verifier");
  if (rc == RC_OK && given.pattern) rc = regex_check(given.pattern, "pattern", err);
  if (rc == RC_OK && tags) rc = tags_read(&given, tags, arena, err);
  if (rc == RC_OK && schema) rc = schema_read(&given, schema, arena, err);
  if (rc == RC_OK) rc = misplaced(&given, given.pattern != NULL, "pattern", VERIFIER_REGEX, err);
  if (rc == RC_OK) rc = misplaced(&given, schema != NULL, "schema", VERIFIER_JSON_SCHEMA, err);
  if (rc == RC_OK) rc = misplaced(&given, tags != NULL, "tags", VERIFIER_FORMAT, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "ignore_case"), "ignore_case", VERIFIER_EXACT, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "whole"), "whole", VERIFIER_EXACT, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "min"), "min", VERIFIER_LENGTH, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "max"), "max", VERIFIER_LENGTH, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "buffer"), "buffer", VERIFIER_OVERLONG, err);
  if (rc == RC_OK) rc = misplaced(&given, given_in(v, "server"), "server", VERIFIER_HTTP, err);
  if (rc == RC_OK) rc = server_read(&given, given_in(v, "server") ? server : NULL, arena, err);
  if (rc != RC_OK) return rc;
  term_defaults(t, given.kind);
  if (!tags) {
    memcpy(given.tags, t->tags, sizeof t->tags);
    given.tag_count = t->tag_count;
  }
  given.weight = weight;
  *t = given;
  if (t->kind == VERIFIER_OVERLONG && !given_in(v, "buffer"))
    return err_set(err, RC_INVALID, "buffer", "expected 1 to %d tokens, the key is missing", LIMIT_NEW_TOKENS);
  if (t->kind == VERIFIER_LENGTH && !t->min && !t->max)
    return err_set(err, RC_INVALID, "max", "expected `min` or `max`, both are missing; a `min` of 0 bounds nothing");
  if (t->max && t->min > t->max)
    return err_set(err, RC_INVALID, "max", "expected at least `min` (%d), got %d", t->min, t->max);
  return RC_OK;
}

static enum rc terms_read(struct reward_rule *out, const struct json *terms, struct arena *arena, struct err *err) {
  const size_t n = json_type_of(terms) == JSON_ARRAY ? json_length(terms) : 0;
  if (n == 0 || n > REWARD_TERMS_MAX)
    return err_set(err, RC_INVALID, "terms", "expected an array of 1 to %d terms", REWARD_TERMS_MAX);
  memset(out, 0, sizeof *out);
  out->is_sum = true;
  enum rc rc = RC_OK;
  for (size_t i = 0; rc == RC_OK && i < n; i++) {
    char field[24];
    rc = term_read(&out->terms[i], json_at(terms, i), true, NULL, arena, err);
    snprintf(field, sizeof field, "terms[%zu]", i);
    if (rc != RC_OK) err_in_field(err, field);
    out->count++;
  }
  return rc;
}

enum rc reward_rule_read(struct reward_rule *out, const struct json *v, bool *shuffle, struct arena *arena,
                         struct err *err) {
  const struct json *terms = NULL;
  bool ignored = false;
  if (json_type_of(v) != JSON_OBJECT || !given_in(v, "terms")) {
    struct reward_term t = out->terms[0];
    const enum rc rc = term_read(&t, v, false, shuffle, arena, err);
    if (rc == RC_OK) {
      reward_rule_of(out, t.kind);
      out->terms[0] = t;
    }
    return rc;
  }
  const struct json_field fields[] = {
      {.name = "terms", .kind = FIELD_VALUE, .target = &terms},
      {.name = "shuffle_rewards", .kind = FIELD_BOOL, .target = shuffle ? shuffle : &ignored}};
  enum rc rc = json_fields(v, fields, 2, UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK && given_in(v, "shuffle_rewards") && !shuffle)
    rc = err_set(err, RC_INVALID, "shuffle_rewards", "`shuffle_rewards` is only for a run, whose groups it shuffles");
  return rc == RC_OK ? terms_read(out, terms, arena, err) : rc;
}

static void term_write(const struct reward_term *t, struct json_writer *w) {
  json_kv_string(w, "kind", verifier_name(t->kind));
  if (t->pattern) json_kv_string(w, "pattern", t->pattern);
  if (t->schema) {
    struct json *schema = NULL;
    if (json_parse(&schema, t->schema, strlen(t->schema), JSON_SCHEMA_BYTES_MAX, NULL) == RC_OK) {
      json_key(w, "schema");
      json_write_value(w, schema);
    }
    json_free(schema);
  }
  if (t->kind == VERIFIER_FORMAT) {
    json_key(w, "tags");
    json_array_begin(w);
    for (int i = 0; i < t->tag_count; i++) json_write_string(w, t->tags[i]);
    json_array_end(w);
  }
  if (t->ignore_case) json_kv_bool(w, "ignore_case", true);
  if (t->whole) json_kv_bool(w, "whole", true);
  if (t->min) json_kv_int(w, "min", t->min);
  if (t->max) json_kv_int(w, "max", t->max);
  if (t->buffer) json_kv_int(w, "buffer", t->buffer);
  if (t->http) {
    json_key(w, "server");
    json_object_begin(w);
    http_term_write(t->http, w);
    json_object_end(w);
  }
}

void reward_rule_write(const struct reward_rule *rule, struct json_writer *w) {
  if (!rule->is_sum) {
    term_write(&rule->terms[0], w);
    return;
  }
  json_key(w, "terms");
  json_array_begin(w);
  for (int i = 0; i < rule->count; i++) {
    json_object_begin(w);
    term_write(&rule->terms[i], w);
    json_kv_f64(w, "weight", rule->terms[i].weight);
    json_object_end(w);
  }
  json_array_end(w);
}

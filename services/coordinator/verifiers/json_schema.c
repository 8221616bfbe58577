/* Checks JSON values against a part of JSON Schema. */
#include "services/coordinator/verifiers/json_schema.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"

/* Recursion is bounded: both schema and value come from json_parse, which nests LIMIT_JSON_DEPTH levels at most. */
enum { VALUE_BYTES_MAX = 1 << 20 };

static const char *const keys[] = {"type",
                                   "enum",
                                   "const",
                                   "properties",
                                   "required",
                                   "additionalProperties",
                                   "items",
                                   "minItems",
                                   "maxItems",
                                   "minLength",
                                   "maxLength",
                                   "minimum",
                                   "maximum",
                                   "exclusiveMinimum",
                                   "exclusiveMaximum",
                                   "anyOf",
                                   "title",
                                   "description",
                                   "$schema",
                                   "default",
                                   "examples"};
static const char *const types[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

static bool known(const char *name, const char *const *names, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

/* ---- is it a schema that can be judged by? ---- */

static enum rc shape(const struct json *v, enum json_type type, const char *key, struct err *err) {
  if (json_type_of(v) == type) return RC_OK;
  return err_set(err, RC_INVALID, key, "expected %s, got %s", json_type_name(type), json_type_name(json_type_of(v)));
}

static enum rc schema_check(const struct json *s, struct err *err);

static enum rc member_check(const char *key, const struct json *v, struct err *err) {
  enum rc rc = RC_OK;
  if (!known(key, keys, sizeof keys / sizeof *keys))
    return err_set(err, RC_INVALID, "schema", "the key `%.60s` is not supported", key);
  if (strcmp(key, "type") == 0) {
    const bool many = json_type_of(v) == JSON_ARRAY;
    for (size_t i = 0; i < (many ? json_length(v) : 1); i++) {
      const char *name = json_word(many ? json_at(v, i) : v);
      if (!name || !known(name, types, sizeof types / sizeof *types))
        return err_set(err, RC_INVALID, "schema", "expected a type's name in `type`");
    }
    return RC_OK;
  }
  if (strcmp(key, "properties") == 0) {
    const char *name;
    const struct json *inner;
    rc = shape(v, JSON_OBJECT, "schema", err);
    for (void *cursor = NULL; rc == RC_OK && json_next(v, &cursor, &name, &inner);) rc = schema_check(inner, err);
    return rc;
  }
  if (strcmp(key, "items") == 0) return schema_check(v, err);
  if (strcmp(key, "anyOf") == 0) {
    rc = shape(v, JSON_ARRAY, "schema", err);
    for (size_t i = 0; rc == RC_OK && i < json_length(v); i++) rc = schema_check(json_at(v, i), err);
    return rc;
  }
  if (strcmp(key, "required") == 0 || strcmp(key, "enum") == 0) {
    rc = shape(v, JSON_ARRAY, "schema", err);
    for (size_t i = 0; rc == RC_OK && key[0] == 'r' && i < json_length(v); i++)
      if (!json_word(json_at(v, i))) rc = err_set(err, RC_INVALID, "schema", "expected names in `required`");
    return rc;
  }
  if (strcmp(key, "additionalProperties") == 0) return shape(v, JSON_BOOL, "schema", err);
  if (strncmp(key, "min", 3) == 0 || strncmp(key, "max", 3) == 0 || strncmp(key, "exclusive", 9) == 0)
    return json_type_of(v) == JSON_INT || json_type_of(v) == JSON_REAL
               ? RC_OK
               : err_set(err, RC_INVALID, "schema", "expected a number in `%.40s`", key);
  return RC_OK;
}

static enum rc schema_check(const struct json *s, struct err *err) {
  const char *key;
  const struct json *v;
  enum rc rc = shape(s, JSON_OBJECT, "schema", err);
  for (void *cursor = NULL; rc == RC_OK && json_next(s, &cursor, &key, &v);) rc = member_check(key, v, err);
  return rc;
}

/* ---- does the schema admit the value? ---- */

struct judging {
  int steps;
  char *detail;
  size_t size;
};

static bool no(struct judging *j, const char *what, const char *name) {
  if (!j->detail[0]) snprintf(j->detail, j->size, "%s%.40s", what, name);
  return false;
}

static bool equal(struct judging *j, const struct json *a, const struct json *b) {
  const enum json_type x = json_type_of(a), y = json_type_of(b);
  if (++j->steps > LIMIT_VERIFIER_STEPS) return false;
  if ((x == JSON_INT || x == JSON_REAL) && (y == JSON_INT || y == JSON_REAL))
    return x == JSON_INT && y == JSON_INT ? json_int(a) == json_int(b) : json_number(a) == json_number(b);
  if (x != y) return false;
  if (x == JSON_BOOL) return json_bool(a) == json_bool(b);
  if (x == JSON_STRING) {
    size_t n, m;
    const char *s = json_string(a, &n), *t = json_string(b, &m);
    return n == m && memcmp(s, t, n) == 0;
  }
  if (x == JSON_NULL) return true;
  if (json_length(a) != json_length(b)) return false;
  if (x == JSON_ARRAY) {
    for (size_t i = 0; i < json_length(a); i++)
      if (!equal(j, json_at(a, i), json_at(b, i))) return false;
    return true;
  }
  const char *key;
  const struct json *v;
  for (void *cursor = NULL; json_next(a, &cursor, &key, &v);) {
    const struct json *w = json_get(b, key);
    if (!w || !equal(j, v, w)) return false;
  }
  return true;
}

static bool is_type(const struct json *v, const char *name) {
  const double past_halves = 0x1p52; /* from here on doubles are integers, though 64 bits may not hold them */
  int64_t whole;
  switch (json_type_of(v)) {
    case JSON_NULL: return strcmp(name, "null") == 0;
    case JSON_BOOL: return strcmp(name, "boolean") == 0;
    case JSON_INT: return strcmp(name, "integer") == 0 || strcmp(name, "number") == 0;
    case JSON_REAL:
      return strcmp(name, "number") == 0 ||
             (strcmp(name, "integer") == 0 &&
              (json_as_int(v, &whole) || json_number(v) >= past_halves || json_number(v) <= -past_halves));
    case JSON_STRING: return strcmp(name, "string") == 0;
    case JSON_ARRAY: return strcmp(name, "array") == 0;
    case JSON_OBJECT: return strcmp(name, "object") == 0;
  }
  return false;
}

static bool type_fits(const struct json *v, const struct json *type) {
  if (!type) return true;
  if (json_type_of(type) == JSON_STRING) return is_type(v, json_word(type));
  for (size_t i = 0; i < json_length(type); i++)
    if (is_type(v, json_word(json_at(type, i)))) return true;
  return false;
}

static bool bounded(const struct json *s, double n, const char *least, const char *most) {
  const struct json *low = json_get(s, least), *high = json_get(s, most);
  return !(low && n < json_number(low)) && !(high && n > json_number(high));
}

static bool number_fits(const struct json *s, double n) {
  const struct json *above = json_get(s, "exclusiveMinimum"), *below = json_get(s, "exclusiveMaximum");
  return bounded(s, n, "minimum", "maximum") && !(above && n <= json_number(above)) &&
         !(below && n >= json_number(below));
}

static bool admits(struct judging *j, const struct json *s, const struct json *v);

static bool object_fits(struct judging *j, const struct json *s, const struct json *v) {
  const struct json *properties = json_get(s, "properties"), *required = json_get(s, "required"),
                    *more = json_get(s, "additionalProperties"), *inner;
  const char *key;
  for (size_t i = 0; required && i < json_length(required); i++)
    if (!json_get(v, json_word(json_at(required, i)))) return no(j, "lacks the key ", json_word(json_at(required, i)));
  for (void *cursor = NULL; json_next(v, &cursor, &key, &inner);) {
    const struct json *of = properties ? json_get(properties, key) : NULL;
    if (!of && more && !json_bool(more)) return no(j, "has the key ", key);
    if (of && !admits(j, of, inner)) return no(j, "wrong value of ", key);
  }
  return true;
}

static bool admits(struct judging *j, const struct json *s, const struct json *v) {
  const struct json *choices = json_get(s, "enum"), *fixed = json_get(s, "const"), *any = json_get(s, "anyOf"),
                    *items = json_get(s, "items");
  if (++j->steps > LIMIT_VERIFIER_STEPS) return no(j, "too many steps", "");
  if (!type_fits(v, json_get(s, "type"))) return no(j, "wrong type: ", json_type_name(json_type_of(v)));
  if (fixed && !equal(j, fixed, v)) return no(j, "not the value of `const`", "");
  bool found = !choices;
  for (size_t i = 0; choices && i < json_length(choices) && !found; i++) found = equal(j, json_at(choices, i), v);
  if (!found) return no(j, "not one of `enum`", "");
  found = !any;
  for (size_t i = 0; any && i < json_length(any) && !found; i++) {
    char ignored[8] = "-";
    struct judging inner = {j->steps, ignored, sizeof ignored};
    found = admits(&inner, json_at(any, i), v);
    j->steps = inner.steps;
  }
  if (!found) return no(j, "none of `anyOf`", "");
  switch (json_type_of(v)) {
    case JSON_INT:
    case JSON_REAL: return number_fits(s, json_number(v)) || no(j, "number out of bounds", "");
    case JSON_STRING:
      return bounded(s, (double)json_characters(v), "minLength", "maxLength") || no(j, "length out of bounds", "");
    case JSON_ARRAY:
      if (!bounded(s, (double)json_length(v), "minItems", "maxItems"))
        return no(j, "number of items out of bounds", "");
      for (size_t i = 0; items && i < json_length(v); i++)
        if (!admits(j, items, json_at(v, i))) return false;
      return true;
    case JSON_OBJECT: return object_fits(j, s, v);
    default: return true;
  }
}

/* ---- the verifier ---- */

/* The last block between fences, without the word behind the first. */
static void value_find(const char **text, size_t *len) {
  const char *open = NULL, *from = NULL;
  size_t inner = 0;
  for (size_t i = 0; i + 3 <= *len; i++) {
    if (memcmp(*text + i, "```", 3) != 0) continue;
    if (open) {
      from = open;
      inner = (size_t)(*text + i - open);
      open = NULL;
      i += 2;
      continue;
    }
    i += 3;
    while (i < *len && isalpha((unsigned char)(*text)[i])) i++;
    open = *text + i;
    i--;
  }
  if (!from) return;
  *text = from;
  *len = inner;
}

static enum rc schema_read(struct json **root, const struct json **schema, const char *text, const char *extra,
                           struct err *err) {
  enum rc rc = text ? json_parse(root, text, strlen(text), JSON_SCHEMA_BYTES_MAX, err)
                    : json_parse(root, extra, strlen(extra), 0, err);
  if (rc != RC_OK) return rc;
  *schema = text ? *root : json_get(*root, "schema");
  if (*schema) return RC_OK;
  return err_set(err, RC_INVALID, "schema", "the dataset's line lacks `schema`, and the verifier has none");
}

void json_schema_verify(const char *text, size_t len, const char *schema_text, const char *extra, struct verdict *out) {
  struct json *root = NULL, *value = NULL;
  const struct json *schema = NULL;
  memset(out, 0, sizeof *out);
  value_find(&text, &len);
  if (schema_read(&root, &schema, schema_text, extra, NULL) != RC_OK || schema_check(schema, NULL) != RC_OK) {
    snprintf(out->detail, sizeof out->detail, "the schema cannot be read");
  } else if (len > VALUE_BYTES_MAX || json_parse(&value, text, len, 0, NULL) != RC_OK) {
    snprintf(out->detail, sizeof out->detail, "the completion is not one JSON value");
  } else {
    struct judging j = {0, out->detail, sizeof out->detail};
    out->well_formed = true;
    out->reward = admits(&j, schema, value) ? 1 : 0;
    if (out->reward == 1) snprintf(out->detail, sizeof out->detail, "as the schema says");
  }
  json_free(value);
  json_free(root);
}

static enum rc checked(const char *text, const char *extra, struct err *err) {
  struct json *root = NULL;
  const struct json *schema = NULL;
  enum rc rc = schema_read(&root, &schema, text, extra, err);
  if (rc == RC_OK) rc = schema_check(schema, err);
  json_free(root);
  return rc;
}

enum rc json_schema_check(const char *schema, struct err *err) { return checked(schema, NULL, err); }
enum rc json_schema_line_check(const char *extra, struct err *err) { return checked(NULL, extra, err); }

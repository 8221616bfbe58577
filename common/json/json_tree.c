/* Parsing and walking: a thin skin over jansson that refuses what Leasehold refuses.
 *
 * Before jansson sees a document, one pass over its bytes bounds the nesting: jansson recurses per level.  Values are
 * immutable after parsing, so any thread may read a tree; the one that parsed frees it. */
#include <assert.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json_jansson.h"

/* RC_INVALID when brackets outside strings nest deeper than LIMIT_JSON_DEPTH.  Malformed text passes: jansson's to
 * tell. */
static enum rc check_depth(const char *bytes, size_t len, struct err *err) {
  size_t line = 1, line_start = 0;
  int depth = 0;
  for (size_t i = 0; i < len; i++) {
    switch (bytes[i]) {
      case '"':
        for (i++; i < len && bytes[i] != '"'; i++)
          if (bytes[i] == '\\') i++;
        break;
      case '\n':
        line++;
        line_start = i + 1;
        break;
      case '[':
      case '{':
        if (++depth > LIMIT_JSON_DEPTH)
          return err_set(err, RC_INVALID, NULL,
                         "expected JSON nested at most %d levels, got deeper at line %zu column %zu", LIMIT_JSON_DEPTH,
                         line, i - line_start + 1);
        break;
      case ']':
      case '}': depth--; break;
      default: break;
    }
  }
  return RC_OK;
}

enum rc json_parse(struct json **out, const char *bytes, size_t len, size_t bytes_max, struct err *err) {
  *out = NULL;
  if (bytes_max == 0) bytes_max = LIMIT_BODY_BYTES;
  if (len > bytes_max)
    return err_set(err, RC_TOO_LARGE, NULL, "expected at most %zu bytes of JSON, got %zu", bytes_max, len);
  if (len == 0) return err_set(err, RC_INVALID, NULL, "expected a JSON value, got nothing (0 bytes)");
  const enum rc rc = check_depth(bytes, len, err);
  if (rc) return rc;
  json_error_t fault;
  json_t *root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &fault);
  if (!root) {
    if (json_error_code(&fault) == json_error_out_of_memory)
      return err_set(err, RC_NO_MEMORY, NULL, "parsing %zu bytes of JSON was refused memory", len);
    return err_set(err, RC_INVALID, NULL, "expected one well-formed JSON value, got a fault at line %d column %d: %s",
                   fault.line, fault.column, fault.text);
  }
  *out = (struct json *)root;
  return RC_OK;
}

void json_free(struct json *root) { json_decref((json_t *)root); }

enum json_type json_type_of(const struct json *v) {
  assert(v);
  switch (json_inner(v)->type) {
    case JANSSON_OBJECT: return JSON_OBJECT;
    case JANSSON_ARRAY: return JSON_ARRAY;
    case JANSSON_STRING: return JSON_STRING;
    case JANSSON_INTEGER: return JSON_INT;
    case JANSSON_REAL: return JSON_REAL;
    case JANSSON_TRUE:
    case JANSSON_FALSE: return JSON_BOOL;
    case JANSSON_NULL: return JSON_NULL;
  }
  return JSON_NULL;
}

const char *json_type_name(enum json_type t) {
  switch (t) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return "boolean";
    case JSON_INT: return "integer";
    case JSON_REAL: return "number";
    case JSON_STRING: return "string";
    case JSON_ARRAY: return "array";
    case JSON_OBJECT: return "object";
  }
  return "unknown";
}

const struct json *json_get(const struct json *v, const char *key) {
  return v ? json_outer(json_object_get(json_inner(v), key)) : NULL; /* jansson checks the type */
}

size_t json_length(const struct json *v) {
  if (!v) return 0;
  if (json_inner(v)->type == JANSSON_ARRAY) return json_array_size(json_inner(v));
  return json_object_size(json_inner(v));
}

const struct json *json_at(const struct json *array, size_t index) {
  return array ? json_outer(json_array_get(json_inner(array), index)) : NULL;
}

bool json_next(const struct json *object, void **cursor, const char **key, const struct json **value) {
  json_t *inner = (json_t *)object; /* jansson's iterators take no const, and change nothing */
  if (!inner || inner->type != JANSSON_OBJECT) return false;
  *cursor = *cursor ? json_object_iter_next(inner, *cursor) : json_object_iter(inner);
  if (!*cursor) return false;
  if (key) *key = json_object_iter_key(*cursor);
  if (value) *value = json_outer(json_object_iter_value(*cursor));
  return true;
}

const char *json_string(const struct json *v, size_t *len) {
  assert(json_type_of(v) == JSON_STRING);
  if (len) *len = json_string_length(json_inner(v));
  return json_string_value(json_inner(v));
}

int64_t json_int(const struct json *v) {
  assert(json_type_of(v) == JSON_INT);
  return json_integer_value(json_inner(v));
}

double json_number(const struct json *v) {
  assert(json_type_of(v) == JSON_INT || json_type_of(v) == JSON_REAL);
  return json_number_value(json_inner(v));
}

bool json_bool(const struct json *v) {
  assert(json_type_of(v) == JSON_BOOL);
  return json_inner(v)->type == JANSSON_TRUE;
}

/* Parsing and walking: a thin skin over jansson that refuses what Leasehold refuses.
 *
 * Before jansson sees a document, one pass over its bytes bounds the nesting: jansson recurses per level.  Values are
 * immutable after parsing, so any thread may read a tree, and one frees it.
 *
 * A document of ten thousand numbers is ten thousand allocations to jansson.  While it parses, its allocator is
 * therefore a document's own arena: cells that are never freed one by one, gone together with the root. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json_jansson.h"

/* What stands before every allocation of jansson's: the document (json_parse's arena) that it is in, NULL for one outside
 * a json_parse.  Nothing of jansson's needs to lie better than a pointer. */
struct cell {
  struct arena *document;
  unsigned char payload[];
};

static _Thread_local struct arena *parsing;

static void document_free(struct arena *d) {
  arena_free(d);
  free(d);
}

static void *cell_alloc(size_t bytes) {
  if (bytes > PTRDIFF_MAX - sizeof(struct cell)) return NULL;
  bytes += sizeof(struct cell);
  struct cell *cell = parsing ? arena_alloc(parsing, 1, bytes) : malloc(bytes);
  if (!cell) return NULL;
  cell->document = parsing;
  return cell->payload;
}

static struct cell *cell_of(void *payload) {
  return (struct cell *)((unsigned char *)payload - offsetof(struct cell, payload));
}

static void cell_free(void *payload) {
  if (payload && !cell_of(payload)->document) free(cell_of(payload));
}

static void install(void) { json_set_alloc_funcs(cell_alloc, cell_free); }

/* jansson's null, true and false are constants of its own, in no document. */
static bool is_constant(const json_t *v) {
  return v->type == JANSSON_NULL || v->type == JANSSON_TRUE || v->type == JANSSON_FALSE;
}

static json_t *load(const char *bytes, size_t len, json_error_t *fault) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  struct arena *d = calloc(1, sizeof *d);
  if (!d) return NULL;
  parsing = d;
  json_t *root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, fault);
  parsing = NULL;
  if (!root || is_constant(root)) document_free(d);
  return root;
}

/* RC_INVALID when brackets outside strings nest deeper than LIMIT_JSON_DEPTH.  Malformed text passes: jansson's to
 * tell. */
static enum rc check_depth(const char *bytes, size_t len, struct err *err) {
  static const bool telling[256] = {['"'] = true, ['\n'] = true, ['['] = true, ['{'] = true, [']'] = true, ['}'] = true};
  size_t line = 1, line_start = 0;
  int depth = 0;
  for (size_t i = 0; i < len; i++) {
    if (!telling[(unsigned char)bytes[i]]) continue;
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
  json_error_t fault = {0};
  json_t *root = load(bytes, len, &fault);
  if (!root) {
    if (fault.line == 0 || json_error_code(&fault) == json_error_out_of_memory)
      return err_set(err, RC_NO_MEMORY, NULL, "parsing %zu bytes of JSON was refused memory", len);
    return err_set(err, RC_INVALID, NULL, "expected one well-formed JSON value, got a fault at line %d column %d: %s",
                   fault.line, fault.column, fault.text);
  }
  *out = (struct json *)root;
  return RC_OK;
}

void json_free(struct json *root) {
  if (root && !is_constant(json_inner(root))) document_free(cell_of(root)->document);
}

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

/* Parses documents with jansson and walks their trees; refuses documents that Leasehold does not accept.
 *
 * Before jansson sees a document, one pass over its bytes bounds the nesting (jansson recurses per level) and the
 * memory of its tree: json_measure.c.  Values are immutable after parsing, so any thread may read a tree, and one frees
 * it.
 *
 * For a document of ten thousand numbers jansson makes ten thousand allocations, and its lexer does not check whether
 * one was refused: it goes on and writes behind its buffer.  So the whole bound is allocated before jansson is called,
 * and its allocator cuts cells from that block, of which none is ever refused.  The cells are freed together with the
 * root, never one by one. */
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json_jansson.h"

struct document {
  size_t left; /* bytes from `next` on */
  unsigned char *next;
  unsigned char cells[];
};

/* Precedes every allocation of jansson's: its document, NULL outside a parse.  Jansson needs no stricter alignment than
 * that of a pointer. */
struct cell {
  struct document *document;
  unsigned char payload[];
};

static _Thread_local struct document *parsing;

static struct document *document_new(size_t memory) {
  struct document *d = memory <= PTRDIFF_MAX - sizeof *d ? malloc(sizeof *d + memory) : NULL;
  if (d) *d = (struct document){.left = memory, .next = d->cells};
  return d;
}

static struct cell *document_cut(struct document *d, size_t bytes) {
  assert(bytes <= d->left); /* json_measure's sum is an upper bound */
  struct cell *cell = (struct cell *)(void *)d->next;
  d->next += bytes;
  d->left -= bytes;
  return cell;
}

static void *cell_alloc(size_t payload) {
  if (payload > PTRDIFF_MAX - 2 * sizeof(struct cell)) return NULL;
  const size_t bytes =
      (sizeof(struct cell) + payload + sizeof(struct cell) - 1) / sizeof(struct cell) * sizeof(struct cell);
  struct cell *cell = parsing ? document_cut(parsing, bytes) : malloc(bytes);
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

enum rc json_measure_within(struct json_size *out, const char *bytes, size_t len, size_t bytes_max, struct err *err) {
  if (bytes_max == 0) bytes_max = LIMIT_BODY_BYTES;
  const size_t nodes_max = bytes_max > LIMIT_BODY_BYTES ? LIMIT_JSON_NODES_TOKENS : LIMIT_JSON_NODES;
  return json_measure(out, bytes, len, bytes_max, nodes_max, err);
}

enum rc json_parse_with(struct json **out, const char *bytes, size_t len, const struct json_size *size, size_t flags,
                        struct err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  *out = NULL;
  json_error_t fault = {0};
  struct document *d = document_new(size->memory);
  if (!d)
    return err_set(err, RC_NO_MEMORY, NULL, "parsing %zu bytes of JSON was refused %zu bytes of memory", len,
                   size->memory);
  parsing = d;
  json_t *root = json_loadb(bytes, len, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &fault);
  parsing = NULL;
  if (!root || is_constant(root)) free(d);
  *out = (struct json *)root;
  if (root) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "expected one well-formed JSON value, got a fault at line %d column %d: %s",
                 fault.line, fault.column, fault.text);
}

enum rc json_parse_measured(struct json **out, const char *bytes, size_t len, const struct json_size *size,
                            struct err *err) {
  return json_parse_with(out, bytes, len, size, JSON_REJECT_DUPLICATES, err);
}

enum rc json_parse(struct json **out, const char *bytes, size_t len, size_t bytes_max, struct err *err) {
  struct json_size size;
  *out = NULL;
  const enum rc rc = json_measure_within(&size, bytes, len, bytes_max, err);
  return rc == RC_OK ? json_parse_measured(out, bytes, len, &size, err) : rc;
}

void json_free(struct json *root) {
  if (root && !is_constant(json_inner(root))) free(cell_of(root)->document);
}

enum json_type json_type_of(const struct json *v) {
  if (!v) return JSON_NULL;
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

const struct json *json_find(const struct json *v, const char *path) {
  char key[64];
  while (v && *path) {
    const size_t len = strcspn(path, ".");
    if (len >= sizeof key) return NULL;
    memcpy(key, path, len);
    key[len] = '\0';
    v = json_get(v, key);
    path += len + (path[len] == '.');
  }
  return v && json_type_of(v) != JSON_NULL ? v : NULL;
}

double json_find_number(const struct json *v, const char *path) {
  const struct json *found = json_find(v, path);
  if (!found) return NAN;
  const enum json_type type = json_type_of(found);
  if (type == JSON_BOOL) return json_bool(found);
  return type == JSON_INT || type == JSON_REAL ? json_number(found) : NAN;
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

const char *json_word(const struct json *v) {
  if (!v || json_type_of(v) != JSON_STRING) return NULL;
  const char *text = json_string_value(json_inner(v));
  return strlen(text) == json_string_length(json_inner(v)) ? text : NULL;
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

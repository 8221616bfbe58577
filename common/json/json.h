/* JSON in and out.  This module is the only user of jansson.
 *
 * Reading: json_parse refuses duplicate keys, too deep or too large documents, trailing bytes and NUL in keys; the
 * memory of a document's tree is bounded before anything is allocated. Objects are then read by declarative field
 * tables (json_fields), each field with its type and bounds, so that every handler's error is the same kind of sentence
 * with the same kind of field path. Writing: a streaming writer into a buf; no tree is built.
 */
#ifndef LEASEHOLD_JSON_JSON_H
#define LEASEHOLD_JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rc.h"

struct json; /* opaque: one parsed value; children are borrowed from the root */

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* Parses exactly one value.  bytes_max 0 means LIMIT_BODY_BYTES; a larger bytes_max also allows LIMIT_JSON_NODES_TOKENS
 * nodes instead of LIMIT_JSON_NODES.  Errors: RC_INVALID (with line and column),
 * RC_TOO_LARGE, RC_NO_MEMORY. */
enum rc json_parse(struct json **out, const char *bytes, size_t len, size_t bytes_max, struct err *err);

/* The same in two steps, for a caller that must find room for the tree first. */
struct json_size {
  size_t nodes;  /* values, and members of objects */
  size_t memory; /* bytes that are allocated from before parsing until json_free; an upper bound of the tree's */
};
/* Allocates nothing.  RC_TOO_LARGE (bytes, nodes, LIMIT_JSON_MEMORY), RC_INVALID (empty, nested too deep). */
enum rc json_measure(struct json_size *out, const char *bytes, size_t len, size_t bytes_max, size_t nodes_max,
                     struct err *err);
/* size: the result of json_measure for the same bytes. */
enum rc json_parse_measured(struct json **out, const char *bytes, size_t len, const struct json_size *size,
                            struct err *err);
/* What models and their clients write, as other parsers read it: of a key that comes twice the last value counts, and
 * numbers beyond 64 bits or a double become reals.  For what is shown and handed on, never for what is agreed on. */
enum rc json_parse_lenient(struct json **out, const char *bytes, size_t len, size_t bytes_max, struct err *err);
/* Changes such numbers where they stand, the length stays; for a document that json_parse is to read then. */
void json_fit_numbers(char *bytes, size_t len);
void json_free(struct json *root); /* roots only; NULL is fine */

enum json_type json_type_of(const struct json *v); /* JSON_NULL for v == NULL: what is missing */
const char *json_type_name(enum json_type t);
/* NULL when v is not an object or lacks the key. */
const struct json *json_get(const struct json *v, const char *key);
size_t json_length(const struct json *v); /* items of an array, members of an object, else 0 */
/* NULL when it is not an array, an object with members included, or has no such item. */
const struct json *json_at(const struct json *array, size_t index);
/* Walks members in document order: start with *cursor = NULL; false at the end. */
bool json_next(const struct json *object, void **cursor, const char **key, const struct json **value);
/* Plain accessors; calling them on another type is our own mistake (asserted). */
/* Valid while the root lives; it may hold NULs, so *len is its length.  The link name differs because jansson exports
 * a json_string of its own. */
const char *json_string(const struct json *v, size_t *len) __asm__("leasehold_json_string");
/* NULL when v is not a string, or one that holds a NUL; v may be NULL.  For names and other words, not for text. */
const char *json_word(const struct json *v);
int64_t json_int(const struct json *v);
double json_number(const struct json *v); /* JSON_INT or JSON_REAL */
bool json_bool(const struct json *v);
/* Whether v is an integer in the sense of JSON Schema: a number without a fraction, so 1722.0 and 17e2 are.  A number
 * in such a form counts only below 2^53, because a larger one may have been rounded.  *out is set when v is an
 * integer. */
bool json_as_int(const struct json *v, int64_t *out);
size_t json_characters(const struct json *string); /* Unicode's, as JSON Schema counts maxLength */
/* A member by its path of keys, "lag.mean"; NULL where one is missing or null, and where v is NULL.  Keys of up to 63
 * bytes. */
const struct json *json_find(const struct json *v, const char *path);
double json_find_number(const struct json *v, const char *path); /* 0 or 1 for a boolean; NaN where there is no
                                                                  * number */

/* --- declarative reading --- */
enum json_kind {
  FIELD_STRING, /* target const char **: copied into the arena; NUL is refused.  min/max: length in characters */
  FIELD_TEXT,   /* target struct json_text *: as FIELD_STRING, but NUL is a character like any other */
  FIELD_I64,    /* target int64_t *: an integer (json_as_int).  min/max inclusive */
  FIELD_I32,    /* target int32_t * */
  FIELD_U64,    /* target uint64_t *: a non-negative integer, or a decimal string (JavaScript loses bits above 2^53) */
  FIELD_F64,    /* target double *: any finite number.  min/max inclusive */
  FIELD_BOOL,   /* target bool * */
  FIELD_I32_ARRAY, /* target struct json_i32s *: arena memory.  min/max bound each element, count_max the count */
  /* target struct json_f32s *: arena memory; finite numbers only, rounded from the decimal to float32 once */
  FIELD_F32_ARRAY,
  FIELD_DIGEST, /* target struct digest * (common/base/digest.h): 64 hex digits */
  FIELD_VALUE   /* target const struct json **: any value, borrowed */
};

struct json_text {
  const char *bytes; /* a NUL follows the last */
  size_t len;
};
struct json_i32s {
  int32_t *items;
  size_t count;
};
struct json_f32s {
  float *items;
  size_t count;
};

struct json_field {
  const char *name;
  enum json_kind kind;
  void *target; /* left untouched when the field is absent or null and not required: set defaults first */
  bool required;
  double min, max;  /* both 0: no bounds beyond the type's own */
  size_t count_max; /* arrays: 0 means 1 << 24 */
  bool *present;    /* optional: set to whether the field came */
};

enum json_unknown { UNKNOWN_REFUSED, UNKNOWN_IGNORED };

/* Reads object's fields.  RC_INVALID names the field, what was expected and what came. */
enum rc json_fields(const struct json *object, const struct json_field *fields, size_t count, enum json_unknown unknown,
                    struct arena *arena, struct err *err);

/* --- writing --- */
struct json_writer {
  struct buf *out;
  bool comma; /* a comma is due before the next value or key */
};

void json_writer_init(struct json_writer *w, struct buf *out);
void json_object_begin(struct json_writer *w);
void json_object_end(struct json_writer *w);
void json_array_begin(struct json_writer *w);
void json_array_end(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);
void json_write_string(struct json_writer *w, const char *text); /* NULL writes null; invalid UTF-8 becomes U+FFFD */
void json_write_string_len(struct json_writer *w, const char *text, size_t len);
void json_write_int(struct json_writer *w, int64_t value);
/* A number up to 2^53 - 1, above it a decimal string: FIELD_U64 reads both, and no reader rounds them. */
#define JSON_EXACT_MAX 9007199254740991u
void json_write_u64(struct json_writer *w, uint64_t value);
/* Shortest of 15..17 digits that reads back; non-finite: null */
void json_write_f64(struct json_writer *w, double value);
/* 9 significant digits: reads back to the same float32; non-finite: null */
void json_write_f32(struct json_writer *w, float value);
void json_write_bool(struct json_writer *w, bool value);
void json_write_null(struct json_writer *w);
/* Copies a parsed value (used to keep users' extra keys). */
void json_write_value(struct json_writer *w, const struct json *value);
/* Copies the one value that a text holds, as json_parse reads it (bytes_max too): what was stored as text.  Writes null
 * and returns its error where it is refused. */
enum rc json_write_parsed(struct json_writer *w, const char *text, size_t len, size_t bytes_max, struct err *err);
/* Shorthands: key and value. */
void json_kv_string(struct json_writer *w, const char *key, const char *text);
void json_kv_int(struct json_writer *w, const char *key, int64_t value);
void json_kv_u64(struct json_writer *w, const char *key, uint64_t value);
void json_kv_f64(struct json_writer *w, const char *key, double value);
void json_kv_f32(struct json_writer *w, const char *key, float value);
void json_kv_bool(struct json_writer *w, const char *key, bool value);
void json_kv_i32s(struct json_writer *w, const char *key, const int32_t *items, size_t count);
void json_kv_f32s(struct json_writer *w, const char *key, const float *items, size_t count);

#endif

/* Reads an object by a table of its fields: one entry per field, one kind of error sentence for all of them.
 *
 * "field: expected <type and bounds>, got <what came>".  Absent and null mean the same for an optional field.
 * Everything copied lives in the request's arena. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/utf8.h"
#include "common/json/json_jansson.h"

enum { COUNT_MAX_DEFAULT = 1 << 24, SHOWN_BYTES = 48, TEXT_MAX = 160 };

/* Describes a value for a person: its type and a short form. */
static const char *shown(char out[TEXT_MAX], const struct json *v) {
  switch (json_type_of(v)) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return json_bool(v) ? "true" : "false";
    case JSON_INT: snprintf(out, TEXT_MAX, "%" PRId64, json_int(v)); return out;
    case JSON_REAL: snprintf(out, TEXT_MAX, "%.17g", json_number(v)); return out;
    case JSON_STRING: {
      size_t len;
      const char *text = json_string(v, &len);
      size_t cut = strlen(text);
      if (cut > SHOWN_BYTES) cut = utf8_cut(text, SHOWN_BYTES);
      snprintf(out, TEXT_MAX, "the string \"%.*s\"%s", (int)cut, text, cut < len ? "..." : "");
      return out;
    }
    case JSON_ARRAY: snprintf(out, TEXT_MAX, "an array of %zu", json_length(v)); return out;
    case JSON_OBJECT: return "an object";
  }
  return "something else";
}

bool json_as_int(const struct json *v, int64_t *out) {
  if (json_type_of(v) == JSON_INT) {
    *out = json_int(v);
    return true;
  }
  if (json_type_of(v) != JSON_REAL) return false;
  const double value = json_number(v);
  if (!(fabs(value) <= (double)JSON_EXACT_MAX) || value != trunc(value)) return false;
  *out = (int64_t)value;
  return true;
}

size_t json_characters(const struct json *string) {
  size_t len;
  const char *text = json_string(string, &len);
  return utf8_characters(text, len);
}

static bool has_bounds(const struct json_field *f) { return f->min != 0 || f->max != 0; }

static bool within(const struct json_field *f, double value) {
  return !has_bounds(f) || (value >= f->min && value <= f->max);
}

static enum rc refuse(const struct json_field *f, const char *expected, bool with_bounds, const struct json *got,
                      struct err *err) {
  char came[TEXT_MAX], bounds[TEXT_MAX] = "";
  if (with_bounds && has_bounds(f)) snprintf(bounds, sizeof bounds, " from %.15g to %.15g", f->min, f->max);
  return err_set(err, RC_INVALID, f->name, "expected %s%s, got %s", expected, bounds, shown(came, got));
}

static enum rc out_of_memory(const struct json_field *f, size_t count, size_t size, struct err *err) {
  return err_set(err, RC_NO_MEMORY, f->name, "%zu items of %zu bytes were refused memory", count, size);
}

static enum rc read_text(struct json_text *out, const struct json_field *f, const struct json *v, struct arena *arena,
                         struct err *err) {
  if (json_type_of(v) != JSON_STRING) return refuse(f, "a string", false, v, err);
  const size_t characters = json_characters(v);
  if (!within(f, (double)characters))
    return err_set(err, RC_INVALID, f->name, "expected a string of %.15g to %.15g characters, got %zu", f->min, f->max,
                   characters);
  size_t len;
  const char *text = json_string(v, &len);
  char *copy = arena_strndup(arena, text, len);
  if (!copy) return out_of_memory(f, len, 1, err);
  *out = (struct json_text){copy, len};
  return RC_OK;
}

static enum rc read_string(const struct json_field *f, const struct json *v, struct arena *arena, struct err *err) {
  struct json_text text;
  const enum rc rc = read_text(&text, f, v, arena, err);
  if (rc != RC_OK) return rc;
  if (strlen(text.bytes) < text.len)
    return err_set(err, RC_INVALID, f->name, "expected a string without NUL characters, got one at byte %zu of %zu",
                   strlen(text.bytes), text.len);
  *(const char **)f->target = text.bytes;
  return RC_OK;
}

static enum rc read_i64(const struct json_field *f, const struct json *v, struct err *err) {
  int64_t value;
  if (!json_as_int(v, &value) || !within(f, (double)value)) return refuse(f, "an integer", true, v, err);
  *(int64_t *)f->target = value;
  return RC_OK;
}

static bool is_i32(const struct json_field *f, const struct json *v, int32_t *out) {
  int64_t value;
  if (!json_as_int(v, &value) || value < INT32_MIN || value > INT32_MAX || !within(f, (double)value)) return false;
  *out = (int32_t)value;
  return true;
}

static const char i32_expected[] = "a 32-bit integer";

static enum rc read_i32(const struct json_field *f, const struct json *v, struct err *err) {
  return is_i32(f, v, f->target) ? RC_OK : refuse(f, i32_expected, true, v, err);
}

/* Digits only, no sign, no leading zero, at most UINT64_MAX. */
static bool decimal_u64(uint64_t *out, const char *text, size_t len) {
  if (len == 0 || len > 20 || (len > 1 && text[0] == '0')) return false;
  uint64_t value = 0;
  for (size_t i = 0; i < len; i++) {
    if (text[i] < '0' || text[i] > '9') return false;
    if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
      return false;
  }
  *out = value;
  return true;
}

static enum rc read_u64(const struct json_field *f, const struct json *v, struct err *err) {
  uint64_t value = 0;
  int64_t number;
  bool ok = false;
  if (json_as_int(v, &number)) {
    ok = number >= 0;
    value = (uint64_t)number;
  } else if (json_type_of(v) == JSON_STRING) {
    size_t len;
    const char *text = json_string(v, &len);
    ok = decimal_u64(&value, text, len);
  }
  if (!ok || !within(f, (double)value)) return refuse(f, "a non-negative integer or a decimal string", true, v, err);
  *(uint64_t *)f->target = value;
  return RC_OK;
}

static bool is_number(const struct json *v) {
  const enum json_type t = json_type_of(v);
  return t == JSON_INT || t == JSON_REAL;
}

static enum rc read_f64(const struct json_field *f, const struct json *v, struct err *err) {
  if (!is_number(v) || !isfinite(json_number(v)) || !within(f, json_number(v)))
    return refuse(f, "a finite number", true, v, err);
  *(double *)f->target = json_number(v);
  return RC_OK;
}

static enum rc read_bool(const struct json_field *f, const struct json *v, struct err *err) {
  if (json_type_of(v) != JSON_BOOL) return refuse(f, "true or false", false, v, err);
  *(bool *)f->target = json_bool(v);
  return RC_OK;
}

static enum rc read_digest(const struct json_field *f, const struct json *v, struct err *err) {
  const char *hex = json_word(v);
  if (!hex || !digest_from_hex(f->target, hex)) return refuse(f, "64 hexadecimal digits", false, v, err);
  return RC_OK;
}

/* Checks that v is an array of a bounded count and gives arena memory for its items. */
static enum rc begin_array(void **items, size_t *count, size_t item_size, const struct json_field *f,
                           const struct json *v, struct arena *arena, struct err *err) {
  if (json_type_of(v) != JSON_ARRAY) return refuse(f, "an array", false, v, err);
  const size_t count_max = f->count_max ? f->count_max : COUNT_MAX_DEFAULT;
  *count = json_length(v);
  if (*count > count_max)
    return err_set(err, RC_INVALID, f->name, "expected at most %zu items, got %zu", count_max, *count);
  *items = arena_alloc(arena, *count, item_size);
  return *items ? RC_OK : out_of_memory(f, *count, item_size, err);
}

/* Refuses item `index`: the field path becomes "name[index]". */
static enum rc refuse_item(const struct json_field *f, size_t index, const char *expected, const struct json *got,
                           struct err *err) {
  char path[ERR_FIELD_MAX];
  snprintf(path, sizeof path, "%.*s[%zu]", ERR_FIELD_MAX - 24, f->name, index);
  const struct json_field item = {.name = path, .min = f->min, .max = f->max};
  return refuse(&item, expected, true, got, err);
}

static enum rc read_i32s(const struct json_field *f, const struct json *v, struct arena *arena, struct err *err) {
  void *memory;
  size_t count;
  const enum rc rc = begin_array(&memory, &count, sizeof(int32_t), f, v, arena, err);
  if (rc) return rc;
  int32_t *items = memory;
  for (size_t i = 0; i < count; i++) {
    const struct json *item = json_at(v, i);
    if (!is_i32(f, item, &items[i])) return refuse_item(f, i, i32_expected, item, err);
  }
  *(struct json_i32s *)f->target = (struct json_i32s){items, count};
  return RC_OK;
}

/* decimal -> double -> float.  The two roundings equal one for every decimal of up to 9 digits that was printed from
 * a float32: such a decimal is within 2^-27 of its float relatively, far from the midpoints at 2^-25. */
static enum rc read_f32s(const struct json_field *f, const struct json *v, struct arena *arena, struct err *err) {
  void *memory;
  size_t count;
  const enum rc rc = begin_array(&memory, &count, sizeof(float), f, v, arena, err);
  if (rc) return rc;
  float *items = memory;
  for (size_t i = 0; i < count; i++) {
    const struct json *item = json_at(v, i);
    if (!is_number(item)) return refuse_item(f, i, "a finite float32 number", item, err);
    items[i] = (float)json_number(item);
    if (!isfinite(items[i]) || !within(f, items[i])) return refuse_item(f, i, "a finite float32 number", item, err);
  }
  *(struct json_f32s *)f->target = (struct json_f32s){items, count};
  return RC_OK;
}

static enum rc read_field(const struct json_field *f, const struct json *v, struct arena *arena, struct err *err) {
  switch (f->kind) {
    case FIELD_STRING: return read_string(f, v, arena, err);
    case FIELD_TEXT: return read_text(f->target, f, v, arena, err);
    case FIELD_I64: return read_i64(f, v, err);
    case FIELD_I32: return read_i32(f, v, err);
    case FIELD_U64: return read_u64(f, v, err);
    case FIELD_F64: return read_f64(f, v, err);
    case FIELD_BOOL: return read_bool(f, v, err);
    case FIELD_I32_ARRAY: return read_i32s(f, v, arena, err);
    case FIELD_F32_ARRAY: return read_f32s(f, v, arena, err);
    case FIELD_DIGEST: return read_digest(f, v, err);
    case FIELD_VALUE: *(const struct json **)f->target = v; return RC_OK;
  }
  return err_set(err, RC_INTERNAL, f->name, "the field table holds an unknown kind %d", (int)f->kind);
}

/* Refuses the first member that no field names; the message lists the known names. */
static enum rc refuse_unknown(const struct json *object, const struct json_field *fields, size_t count,
                              struct err *err) {
  void *cursor = NULL;
  const char *key;
  while (json_next(object, &cursor, &key, NULL)) {
    bool known = false;
    for (size_t i = 0; i < count && !known; i++) known = strcmp(fields[i].name, key) == 0;
    if (known) continue;
    char names[ERR_MESSAGE_MAX] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof names; i++) {
      const int n = snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", fields[i].name);
      used += n > 0 ? (size_t)n : 0;
    }
    return err_set(err, RC_INVALID, key, "unknown field; expected one of %s", count ? names : "(none)");
  }
  return RC_OK;
}

enum rc json_fields(const struct json *object, const struct json_field *fields, size_t count, enum json_unknown unknown,
                    struct arena *arena, struct err *err) {
  char came[TEXT_MAX];
  if (!object || json_type_of(object) != JSON_OBJECT)
    return err_set(err, RC_INVALID, NULL, "expected a JSON object, got %s", object ? shown(came, object) : "nothing");
  for (size_t i = 0; i < count; i++) {
    const struct json_field *f = &fields[i];
    assert(f->min <= f->max);
    const struct json *v = json_get(object, f->name);
    const bool is_null = v && json_type_of(v) == JSON_NULL;
    const bool came_at_all = v && (!is_null || f->required);
    if (f->present) *f->present = came_at_all;
    if (!v && f->required) return err_set(err, RC_INVALID, f->name, "expected this field, got none");
    if (!came_at_all) continue;
    const enum rc rc = read_field(f, v, arena, err);
    if (rc) return rc;
  }
  return unknown == UNKNOWN_REFUSED ? refuse_unknown(object, fields, count, err) : RC_OK;
}

/* Reads and writes the parts that many messages have: names, URLs, enumerations, lists, digests, errors.
 *
 * Pure functions over parsed JSON; everything that is copied lives in the caller's arena. */
#include "common/wire/fields.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 64 };

static bool is_name(const char *text) {
  for (const char *c = text; *c; c++) {
    const bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
    if (!letter && !(*c >= '0' && *c <= '9') && !strchr("._-", *c)) return false;
  }
  return strcmp(text, ".") != 0 && strcmp(text, "..") != 0; /* names become path segments */
}

enum rc wire_check_name(const char *field, const char *text, struct err *err) {
  if (strlen(text) <= WIRE_NAME_BYTES && is_name(text)) return RC_OK;
  return err_set(err, RC_INVALID, field,
                 "expected a name of at most %d letters, digits, '.', '_' and '-', got \"%.*s\"", WIRE_NAME_BYTES,
                 SHOWN_BYTES, text);
}

/* Paths are appended to it, so no query, no fragment and no slash at the end. */
enum rc wire_check_url(const char *field, const char *text, struct err *err) {
  static const char plain[] = "http://", secure[] = "https://";
  const bool tls = strncmp(text, secure, sizeof secure - 1) == 0;
  const size_t len = strlen(text), head = tls ? sizeof secure - 1 : sizeof plain - 1;
  bool ok = (tls || strncmp(text, plain, head) == 0) && len > head && len <= WIRE_URL_BYTES && text[head] != '/' &&
            text[head] != ':' && text[len - 1] != '/';
  for (size_t i = 0; ok && i < len; i++) ok = text[i] > 0x20 && text[i] < 0x7F && !strchr("?#\"<>\\^`{|}@", text[i]);
  if (ok) return RC_OK;
  return err_set(
      err, RC_INVALID, field,
      "expected a URL like http://host:port or https://host:port, without query or slash at the end, got \"%.*s\"",
      SHOWN_BYTES, text);
}

static enum rc fields_read(const struct json *object, const struct json_field *fields, size_t count,
                           enum json_unknown unknown, struct arena *arena, struct err *err) {
  enum rc rc = json_fields(object, fields, count, unknown, arena, err);
  for (size_t i = 0; rc == RC_OK && i < count; i++) {
    const struct json_field *f = &fields[i];
    if (f->kind != FIELD_STRING) continue;
    const char *text = *(const char **)f->target;
    if (text && f->max == WIRE_NAME_BYTES) rc = wire_check_name(f->name, text, err);
    if (text && f->max == WIRE_URL_BYTES) rc = wire_check_url(f->name, text, err);
  }
  return rc;
}

enum rc wire_fields(const struct json *object, const struct json_field *fields, size_t count, struct arena *arena,
                    struct err *err) {
  return fields_read(object, fields, count, UNKNOWN_REFUSED, arena, err);
}

const char *wire_unknown_field(const struct json *object, const struct json_field *fields, size_t count,
                               struct arena *arena) {
  struct err why = {0};
  if (fields_read(object, fields, count, UNKNOWN_REFUSED, arena, &why) == RC_OK) return NULL;
  if (fields_read(object, fields, count, UNKNOWN_IGNORED, arena, NULL) != RC_OK) return NULL;
  return arena_strdup(arena, why.field);
}

enum rc wire_choice(int *out, const char *field, const char *text, const char *const *names, size_t count,
                    struct err *err) {
  char expected[256] = "";
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = (int)i;
      return RC_OK;
    }
    const int n = used < sizeof expected
                      ? snprintf(expected + used, sizeof expected - used, "%s\"%s\"", i ? ", " : "", names[i])
                      : 0;
    used += n > 0 ? (size_t)n : 0;
  }
  return err_set(err, RC_INVALID, field, "expected one of %s, got \"%.*s\"", expected, SHOWN_BYTES, text);
}

enum rc wire_items(const struct wire_list *list, void **items, size_t *count, const struct json *value,
                   struct arena *arena, struct err *err) {
  *items = NULL;
  *count = 0;
  if (!value && list->min == 0) return RC_OK;
  if (!value || json_type_of(value) != JSON_ARRAY)
    return err_set(err, RC_INVALID, list->name, "expected an array, got %s",
                   value ? json_type_name(json_type_of(value)) : "nothing");
  const size_t n = json_length(value);
  if (n < list->min || n > list->max)
    return err_set(err, RC_INVALID, list->name, "expected %zu to %zu items, got %zu", list->min, list->max, n);
  if (n == 0) return RC_OK;
  char *memory = arena_alloc(arena, n, list->item_size);
  if (!memory)
    return err_set(err, RC_NO_MEMORY, list->name, "%zu items of %zu bytes were refused memory", n, list->item_size);
  for (size_t i = 0; i < n; i++) {
    const enum rc rc = list->read(memory + i * list->item_size, json_at(value, i), arena, err);
    if (rc) {
      char path[ERR_FIELD_MAX];
      snprintf(path, sizeof path, "%.*s[%zu]", ERR_FIELD_MAX - 24, list->name, i);
      err_in_field(err, path);
      return rc;
    }
  }
  *items = memory;
  *count = n;
  return RC_OK;
}

enum rc wire_read_name(void *item, const struct json *value, struct arena *arena, struct err *err) {
  if (json_type_of(value) != JSON_STRING)
    return err_set(err, RC_INVALID, NULL, "expected a string, got %s", json_type_name(json_type_of(value)));
  size_t len;
  const char *text = json_string(value, &len);
  if (len == 0 || len > WIRE_NAME_BYTES || !json_word(value))
    return err_set(err, RC_INVALID, NULL, "expected a string of 1 to %d bytes without NUL, got %zu", WIRE_NAME_BYTES,
                   len);
  const char *copy = arena_strndup(arena, text, len);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "%zu bytes of a name were refused memory", len);
  *(const char **)item = copy;
  return wire_check_name(NULL, copy, err);
}

void wire_kv_names(struct json_writer *w, const char *key, const char *const *names, size_t count) {
  json_key(w, key);
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) json_write_string(w, names[i]);
  json_array_end(w);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum rc wire_distinct(const char *field, const char *const *names, size_t count, struct arena *arena, struct err *err) {
  if (count < 2) return RC_OK;
  const char **sorted = arena_alloc(arena, count, sizeof *sorted);
  if (!sorted) return err_set(err, RC_NO_MEMORY, field, "comparing %zu names was refused memory", count);
  memcpy(sorted, names, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, compare_names);
  for (size_t i = 1; i < count; i++)
    if (strcmp(sorted[i - 1], sorted[i]) == 0)
      return err_set(err, RC_INVALID, field, "expected every id once, got %s twice", sorted[i]);
  return RC_OK;
}

enum rc wire_number_or_nan(double *out, const char *field, const struct json *value, struct err *err) {
  const enum json_type type = json_type_of(value);
  if (type != JSON_NULL && type != JSON_INT && type != JSON_REAL)
    return err_set(err, RC_INVALID, field, "expected a number or null, got %s", json_type_name(type));
  *out = type == JSON_NULL ? (double)NAN : json_number(value);
  return RC_OK;
}

enum rc wire_float(float *out, const char *field, double value, struct err *err) {
  *out = (float)value;
  if (isfinite(*out)) return RC_OK;
  return err_set(err, RC_INVALID, field, "expected a finite float32 number, got %.9g", value);
}

void wire_kv_digest(struct json_writer *w, const char *key, const struct digest *d) {
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, d);
  json_kv_string(w, key, hex);
}

bool wire_digest_is_zero(const struct digest *d) {
  static const struct digest zero;
  return digest_equal(d, &zero);
}

void wire_kv_digest_or_null(struct json_writer *w, const char *key, const struct digest *d) {
  if (wire_digest_is_zero(d))
    json_kv_string(w, key, NULL);
  else
    wire_kv_digest(w, key, d);
}

void wire_kv_error(struct json_writer *w, const char *key, const struct err *error, bool has) {
  json_key(w, key);
  if (!has) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_string(w, "code", rc_name(error->rc));
  json_kv_string(w, "message", error->message);
  json_kv_string(w, "field", error->field);
  json_object_end(w);
}

enum rc wire_error_read(struct err *out, const struct json *value, struct arena *arena, struct err *err) {
  *out = (struct err){0};
  if (!value || json_type_of(value) == JSON_NULL) return RC_OK;
  const char *code = NULL, *message = NULL, *field = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("code", code),
      {.name = "message",
       .kind = FIELD_STRING,
       .target = &message,
       .required = true,
       .min = 0,
       .max = 4 * ERR_MESSAGE_MAX},
      {.name = "field", .kind = FIELD_STRING, .target = &field, .required = true, .min = 0, .max = 4 * ERR_FIELD_MAX},
  };
  const char *names[RC_INTERNAL] = {0}; /* without "ok" */
  for (int i = 0; i < RC_INTERNAL; i++) names[i] = rc_name((enum rc)(i + 1));
  int index = 0;
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&index, "code", code, names, WIRE_COUNT(names), err);
  if (rc == RC_OK)
    err_set(out, (enum rc)(index + 1), field, "%s", message);
  else
    err_in_field(err, "error");
  return rc;
}

/* Parts that the codecs share: shorthands for field tables, names, URLs, enumerations, lists of objects, numbers that
 * may be missing.
 *
 * Private to common/wire.  Every decoder has the same shape: a table read by wire_fields (unknown keys refused), then
 * lists, then checks that a table cannot express.  Integers that JavaScript could not hold (above 2^53 - 1) are written
 * as decimal strings; both forms are read. */
#ifndef LEASEHOLD_WIRE_FIELDS_H
#define LEASEHOLD_WIRE_FIELDS_H

#include "common/base/arena.h"
#include "common/base/digest.h"
#include "common/base/limits.h"
#include "common/json/json.h"

#define WIRE_COUNT(array)    (sizeof(array) / sizeof *(array))
#define WIRE_EXACT_MAX       9007199254740991.0 /* 2^53 - 1 */
/* The least temperature that is divided by, but for 0, greedy: a logit of 10 by 1e-38 is beyond a float32. */
#define WIRE_TEMPERATURE_MIN 1e-30

enum {
  WIRE_NAME_BYTES = LIMIT_NAME_MAX - 1, /* a FIELD_STRING with this maximum is a name: its characters are checked */
  WIRE_URL_BYTES = LIMIT_URL_MAX - 1,   /* and one with this maximum is a URL */
  WIRE_HELD_MAX = 2 * LIMIT_SLOTS,      /* leases of one worker: decoding and prefetched */
  WIRE_MS_MAX = 24 * 3600 * 1000,       /* of a time to live or a time-out */
  WIRE_TEMPERATURE_MAX = 1000
};

/* Entries of a field table; the target is an lvalue of the kind's type. */
#define WIRE_NAME(key, lvalue) \
  { .name = (key), .kind = FIELD_STRING, .target = &(lvalue), .required = true, .min = 1, .max = WIRE_NAME_BYTES }
#define WIRE_OPTIONAL_NAME(key, lvalue) \
  { .name = (key), .kind = FIELD_STRING, .target = &(lvalue), .min = 1, .max = WIRE_NAME_BYTES }
#define WIRE_URL(key, lvalue) \
  { .name = (key), .kind = FIELD_STRING, .target = &(lvalue), .required = true, .min = 1, .max = WIRE_URL_BYTES }
#define WIRE_U64(key, lvalue) \
  { .name = (key), .kind = FIELD_U64, .target = &(lvalue), .required = true }
#define WIRE_I64(key, lvalue) \
  { .name = (key), .kind = FIELD_I64, .target = &(lvalue), .required = true, .min = 0, .max = WIRE_EXACT_MAX }
#define WIRE_I32(key, lvalue, low, high) \
  { .name = (key), .kind = FIELD_I32, .target = &(lvalue), .required = true, .min = (low), .max = (high) }
#define WIRE_F64(key, lvalue, low, high) \
  { .name = (key), .kind = FIELD_F64, .target = &(lvalue), .required = true, .min = (low), .max = (high) }
#define WIRE_AFTER_STEPS(lvalue) \
  { .name = "after_steps", .kind = FIELD_I32, .target = &(lvalue), .min = 0, .max = LIMIT_GROUPS_PER_ROUND }
#define WIRE_BOOL(key, lvalue) \
  { .name = (key), .kind = FIELD_BOOL, .target = &(lvalue), .required = true }
#define WIRE_DIGEST(key, lvalue) \
  { .name = (key), .kind = FIELD_DIGEST, .target = &(lvalue), .required = true }
#define WIRE_VALUE(key, lvalue) \
  { .name = (key), .kind = FIELD_VALUE, .target = &(lvalue), .required = true }
#define WIRE_TOKENS(key, lvalue, most)                                                       \
  {                                                                                          \
    .name = (key), .kind = FIELD_I32_ARRAY, .target = &(lvalue), .required = true, .min = 0, \
    .max = LIMIT_VOCABULARY - 1, .count_max = (most)                                         \
  }

/* RC_INVALID naming the field when it is no name, or no URL to append paths to. */
enum rc wire_check_name(const char *field, const char *text, struct err *err);
enum rc wire_check_url(const char *field, const char *text, struct err *err);
/* json_fields with unknown keys refused, then the characters of names and URLs. */
enum rc wire_fields(const struct json *object, const struct json_field *fields, size_t count, struct arena *arena,
                    struct err *err);

/* The name of a member that no field has, in an object that is whole but for such members: its fields are read then.
 * NULL: there is none, or the object is no such one (or memory was refused): wire_fields says what is wrong. */
const char *wire_unknown_field(const struct json *object, const struct json_field *fields, size_t count,
                               struct arena *arena);

/* RC_INVALID naming the choices.  *out is an index into names. */
enum rc wire_choice(int *out, const char *field, const char *text, const char *const *names, size_t count,
                    struct err *err);

/* An array of objects: each is read by `read` into zeroed arena memory; a fault inside is reported under "name[i]". */
struct wire_list {
  const char *name;
  size_t min, max, item_size;
  enum rc (*read)(void *item, const struct json *value, struct arena *arena, struct err *err);
};
/* value NULL (an optional member that did not come) is an empty list when list->min is 0.  *items is NULL when the
 * list is empty. */
enum rc wire_items(const struct wire_list *list, void **items, size_t *count, const struct json *value,
                   struct arena *arena, struct err *err);
/* For lists of bare names. */
enum rc wire_read_name(void *item, const struct json *value, struct arena *arena, struct err *err);
void wire_kv_names(struct json_writer *w, const char *key, const char *const *names, size_t count);
/* RC_INVALID when one name comes twice. */
enum rc wire_distinct(const char *field, const char *const *names, size_t count, struct arena *arena, struct err *err);

/* A number that the sender could not write, because it was not finite: null reads as NaN. */
enum rc wire_number_or_nan(double *out, const char *field, const struct json *value, struct err *err);
/* RC_INVALID when value is not a finite float32. */
enum rc wire_float(float *out, const char *field, double value, struct err *err);

void wire_kv_digest(struct json_writer *w, const char *key, const struct digest *d);
/* null for the all-zero digest, which means none. */
void wire_kv_digest_or_null(struct json_writer *w, const char *key, const struct digest *d);
bool wire_digest_is_zero(const struct digest *d);

/* {"code","message","field"}, or null when there is none. */
void wire_kv_error(struct json_writer *w, const char *key, const struct err *error, bool has);
/* value NULL or null leaves *out empty (RC_OK inside). */
enum rc wire_error_read(struct err *out, const struct json *value, struct arena *arena, struct err *err);

#endif

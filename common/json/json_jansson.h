/* jansson's header beside ours.  Both name a json_string and enumerators JSON_OBJECT, JSON_ARRAY, ...; jansson's are
 * renamed while its header is read.  Consequence: jansson's json_is_*() macros would compare with *our* enumerators
 * and must not be used; ask json_type_of instead.  Private to common/json. */
#ifndef LEASEHOLD_JSON_JSON_JANSSON_H
#define LEASEHOLD_JSON_JSON_JANSSON_H

#define json_string  jansson_string
#define JSON_OBJECT  JANSSON_OBJECT
#define JSON_ARRAY   JANSSON_ARRAY
#define JSON_STRING  JANSSON_STRING
#define JSON_INTEGER JANSSON_INTEGER
#define JSON_REAL    JANSSON_REAL
#define JSON_TRUE    JANSSON_TRUE
#define JSON_FALSE   JANSSON_FALSE
#define JSON_NULL    JANSSON_NULL
#include <jansson.h>
#undef json_string
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_INTEGER
#undef JSON_REAL
#undef JSON_TRUE
#undef JSON_FALSE
#undef JSON_NULL

#include "common/json/json.h"

/* struct json is never defined: a pointer to it is a json_t pointer in disguise. */
static inline const json_t *json_inner(const struct json *v) { return (const json_t *)v; }
static inline const struct json *json_outer(const json_t *v) { return (const struct json *)v; }

/* json_measure with the bounds that json_parse has. */
enum rc json_measure_within(struct json_size *out, const char *bytes, size_t len, size_t bytes_max, struct err *err);
/* json_parse_measured with more of jansson's flags. */
enum rc json_parse_with(struct json **out, const char *bytes, size_t len, const struct json_size *size, size_t flags,
                        struct err *err);

#endif

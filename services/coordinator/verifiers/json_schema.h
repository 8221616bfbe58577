/* Verifier `json_schema`: the completion is a JSON value that the schema admits.
 *
 * The value is the content of the last fenced block ("```json ... ```"), else all of the completion.  Of JSON Schema it
 * knows: type, enum, const, properties, required, additionalProperties (true or false), items (one schema), minItems,
 * maxItems, minLength, maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum, anyOf, and the annotations
 * title, description, $schema, default, examples; a schema with another key is refused by its name.  Numbers are
 * compared as doubles, 1.0 is an integer.  Pure but for the memory of both documents; bounded by counted steps. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_JSON_SCHEMA_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_JSON_SCHEMA_H

#include "common/base/rc.h"
#include "services/coordinator/decide/verify.h"

enum { JSON_SCHEMA_BYTES_MAX = 16384 };

/* schema NULL: the key `schema` of extra. */
void json_schema_verify(const char *text, size_t len, const char *schema, const char *extra, struct verdict *out);
enum rc json_schema_check(const char *schema, struct err *err);
enum rc json_schema_line_check(const char *extra, struct err *err);

#endif

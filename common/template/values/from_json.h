/* Parsed JSON as values. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_FROM_JSON_H
#define LEASEHOLD_TEMPLATE_VALUES_FROM_JSON_H

#include "common/json/json.h"
#include "common/template/values/value.h"

/* Texts share the document's bytes, so it must live as long as the value; all of them get `mark`. */
enum rc value_from_json(struct workspace *w, const struct json *json, uint8_t mark, struct value *out);

#endif

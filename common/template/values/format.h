/* Python's % on texts. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_FORMAT_H
#define LEASEHOLD_TEMPLATE_VALUES_FORMAT_H

#include "common/template/values/value.h"

/* text % arguments: a tuple's items, a dict by name, or one value. */
enum rc format_text(struct workspace *w, const struct text *format, struct value arguments, struct value *out);

#endif

/* Attributes, items and slices of values. */
#ifndef LEASEHOLD_TEMPLATE_BUILTINS_ACCESS_H
#define LEASEHOLD_TEMPLATE_BUILTINS_ACCESS_H

#include "common/template/values/value.h"

/* object.name: methods first, then a dict's key; undefined when there is neither. */
enum rc get_attribute(struct workspace *w, struct value object, const struct text *name, struct value *out);
/* object[index]: an item first, then an attribute of that name; undefined when there is neither. */
enum rc get_item(struct workspace *w, struct value object, struct value index, struct value *out);
/* "a.b.0" of an item, as filters' attribute arguments name it; also an integer. */
enum rc get_path(struct workspace *w, struct value object, struct value path, struct value *out);

#endif

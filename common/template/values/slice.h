/* Python's slices. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_SLICE_H
#define LEASEHOLD_TEMPLATE_VALUES_SLICE_H

#include "common/template/values/value.h"

/* object[from:to:step] of a list, tuple, range or text (counted in characters); none stands for what is left out.
 * RC_INVALID: another type, a bound that is no integer, or a step of 0. */
enum rc get_slice(struct workspace *w, struct value object, struct value from, struct value to, struct value step,
                  struct value *out);

#endif

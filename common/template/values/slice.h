/* Python's slices. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_SLICE_H
#define LEASEHOLD_TEMPLATE_VALUES_SLICE_H

#include "common/template/values/value.h"

/* object[from:to:step]; none stands for one that is left out. */
enum rc get_slice(struct workspace *w, struct value object, struct value from, struct value to, struct value step,
                  struct value *out);

#endif

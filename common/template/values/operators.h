/* Python's operators over values. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_OPERATORS_H
#define LEASEHOLD_TEMPLATE_VALUES_OPERATORS_H

#include "common/template/values/value.h"

enum operation {
  OPERATION_ADD,
  OPERATION_SUBTRACT,
  OPERATION_MULTIPLY,
  OPERATION_DIVIDE,
  OPERATION_FLOOR_DIVIDE,
  OPERATION_MODULO, /* of a text: printf's formatting */
  OPERATION_POWER,
  OPERATION_EQUAL,
  OPERATION_NOT_EQUAL,
  OPERATION_LESS,
  OPERATION_LESS_EQUAL,
  OPERATION_GREATER,
  OPERATION_GREATER_EQUAL,
  OPERATION_IN,
  OPERATION_NOT_IN
};

enum rc operate(struct workspace *w, enum operation op, struct value left, struct value right, struct value *out);
enum rc negate(struct workspace *w, struct value v, struct value *out);
/* left in right. */
enum rc contains(struct workspace *w, struct value left, struct value right, bool *out);
/* &, <, >, " and ' as HTML writes them; a safe text as it is. */
enum rc escape_html(struct workspace *w, struct value v, struct value *out);

#endif

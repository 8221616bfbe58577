/* Values as text: Python's str and repr, and json.dumps. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_PRINT_H
#define LEASEHOLD_TEMPLATE_VALUES_PRINT_H

#include "common/template/values/value.h"

enum { REAL_TEXT_MAX = 40 };
/* Python's repr of a float: the shortest digits that read back. */
void real_text(char out[REAL_TEXT_MAX], double real);
/* What {{ v }} writes: a text itself, nothing for undefined, else its repr. */
enum rc print_value(struct text_builder *b, struct value v);
enum rc print_repr(struct text_builder *b, struct value v);
/* The text of v, as Python's str(v). */
enum rc value_as_text(struct workspace *w, struct value v, const struct text **out);

struct json_style {
  bool ascii, sort_keys;
  const struct text *indent;        /* NULL: on one line */
  const struct text *comma, *colon; /* NULL: ", " (before a line end ",") and ": " */
};
/* json.dumps, as transformers calls it for `tojson`. */
enum rc print_json(struct text_builder *b, struct value v, const struct json_style *style);

#endif

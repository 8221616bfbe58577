/* Upper and lower case as Python has them: Unicode's full mappings. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_LETTER_CASE_H
#define LEASEHOLD_TEMPLATE_VALUES_LETTER_CASE_H

#include "common/template/values/value.h"

enum letter_case {
  CASE_UPPER,
  CASE_LOWER,
  CASE_CAPITALIZE, /* the first character in title case, the rest lower */
  CASE_TITLE       /* the same for every run of letters */
};

/* The result stays safe where text is. */
enum rc text_case(struct workspace *w, const struct text *text, enum letter_case to, struct value *out);
/* Is the code point an upper, lower or title case letter? */
bool code_is_cased(uint32_t code);

#endif

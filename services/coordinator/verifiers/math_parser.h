/* Reads an answer into a tree: formulas, collections of them, or words.
 *
 *   answer    item { ("," | ";" | "and" | "or") item }        more than one: MATH_LIST
 *   item      union { ("=" | "<" | ...) union } | symbol "\in" union
 *   union     sum { "\cup" sum }
 *   sum       [sign] product { ("+" | "-" | "\pm") product }
 *   product   [sign] power { ["*" | "/" | ":"] [sign] power } [unit]      a sign not without the operator
 *   power     primary { "^" power | "!" | "%" | degree | subscript }
 *
 * Everything must be read: what is left over makes the answer unreadable.  Pure, bounded by the sizes of math_tree.h,
 * no memory but the caller's tree. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_PARSER_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_PARSER_H

#include <stddef.h>

#include "services/coordinator/verifiers/math_tree.h"

/* thousands: see math_lexer.h.  False when it cannot be read; the text must outlive the tree. */
bool math_parse(struct math_tree *out, const char *text, size_t len, bool thousands);

#endif

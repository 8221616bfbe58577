/* Decides whether two answers say the same.
 *
 * Formulas: equal in the field of math_exact.h, which decides where both have a value there; else equal within their
 * error bounds at several points (math_numeric.h).  Where one has a decimal point it may be an approximation: then both
 * are equal that round to the same six decimals.  Percent and degree signs may be missing on one side.
 * Collections: tuples by order, sets and lists by their elements, intervals by ends and brackets ("(1, 2)" is a tuple
 * or an open interval, as the other side has it), unions in any order, matrices by entries.
 * Relations: "x = 5" is 5, and both ways round; equations that differ by a factor are equal; "x > 5" is the interval.
 * Words: letters, digits and the signs of numbers count, in any case.  Units may be missing; two units that are known
 * to differ, do.
 *
 * In doubt they are unequal: no reward is better than a wrong one.  Pure; bounded by LIMIT_VERIFIER_STEPS pairs and
 * nodes computed, counted: MATH_ITEMS_MAX numbers or short formulas, in any order, stay within. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_COMPARE_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_COMPARE_H

#include <stddef.h>

#include "services/coordinator/verifiers/math_tree.h"

/* The trees get further nodes.  The texts are those that they were read from. */
bool math_equal(struct math_tree *gold, struct math_tree *answer, const char *gold_text, size_t gold_len,
                const char *answer_text, size_t answer_len);
/* The same letters, digits and signs of numbers, in any case, LaTeX's commands for type aside; false when there are
 * none. */
bool math_same_words(const char *a, size_t a_len, const char *b, size_t b_len);

#endif

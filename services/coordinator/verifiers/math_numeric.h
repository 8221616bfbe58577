/* Values of formulas in doubles, at points that the pair of answers decides: for what has no exact value in
 * math_exact.h (sines, logarithms, nested roots, symbols in exponents), and for answers that are approximations.
 *
 * Pure; no libm (complex_value.h); bounded by the tree's size. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_NUMERIC_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_NUMERIC_H

#include "services/coordinator/verifiers/complex_value.h"
#include "services/coordinator/verifiers/math_exact.h"

/* Symbols have real values, of both signs, drawn by the reading's seed.  False: no value there. */
bool math_numeric(const struct math_tree *t, int node, const struct math_reading *r, struct complex_value *out);

#endif

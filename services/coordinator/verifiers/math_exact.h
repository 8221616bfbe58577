/* Values of formulas in the field of p^2 elements, p a prime of 61 bits: exact arithmetic that never overflows and
 * never grows.  (p - 1) / 2 is prime as well, so that no small number has a small power that is 1.
 *
 * A rational number is its residue, i is the root of -1 that the field has beside the residues, the square root of a
 * prime is a fixed one of the two that it has here, roots of composite numbers are products of those, and symbols, pi
 * and e are elements drawn by their names.  That maps formulas of +, -, *, /, whole powers and square roots of
 * rationals to elements so that equal formulas have equal values; unequal ones collide with probability (degree /
 * 2^60), whatever their form ("\frac{1}{\sqrt2}", "\frac{\sqrt2}{2}"; "(x+1)^2", "x^2+2x+1"; "2^{100}" and its 31
 * digits).  So it decides by one evaluation what a normal form would decide by expanding, without its blow-up.  What it
 * cannot say is left to math_numeric.c.
 *
 * Pure; bounded by the tree's size; the same on every machine. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_EXACT_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_EXACT_H

#include "services/coordinator/decide/rational.h"
#include "services/coordinator/verifiers/math_tree.h"

struct math_element {
  uint64_t re, im;
};

/* How signs that mean several things are read: of both sides of a comparison alike. */
struct math_reading {
  uint64_t seed;   /* of the points */
  int sign;        /* of \pm: 1 or -1 */
  bool hundredths; /* 50% is 0.5, else 50 */
  bool radians;    /* 90 degrees are pi/2, else 90 */
};

enum math_known { MATH_KNOWN, MATH_UNKNOWN, MATH_UNDEFINED /* divides by zero */ };

enum math_known math_exact(const struct math_tree *t, int node, const struct math_reading *r, struct math_element *out);
struct math_element math_exact_product(struct math_element a, struct math_element b);
static inline bool math_exact_equal(struct math_element a, struct math_element b) {
  return a.re == b.re && a.im == b.im;
}

/* The node's value as a rational, if it is one and 64 bits hold it. */
bool math_rational(const struct math_tree *t, int node, const struct math_reading *r, struct rational *out);
/* Draws 64 bits for a symbol. */
uint64_t math_symbol_bits(const struct math_tree *t, const struct math_node *n, uint64_t seed);

#endif

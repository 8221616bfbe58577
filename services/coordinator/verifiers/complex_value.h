/* Complex numbers in doubles, each with a bound on its error, and the elementary functions of them.
 *
 * Only +, -, *, / and the square root of doubles are used, which IEEE 754 defines to the last bit, so that a value is
 * the same on every machine: no libm, whose last bits are its own.  The bound is a running one (what the operands'
 * errors may make of the result, and the rounding), so that a comparison knows what it can tell apart.  Pure. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_COMPLEX_VALUE_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_COMPLEX_VALUE_H

#include <stdbool.h>

struct complex_value {
  double re, im, err; /* |true value - (re, im)| <= err, about */
};

struct complex_value complex_real(double x);
/* False in all of these: there is no finite value, or none that is known well enough. */
bool complex_good(struct complex_value a);
double complex_size(struct complex_value a);
struct complex_value complex_add(struct complex_value a, struct complex_value b);
struct complex_value complex_sub(struct complex_value a, struct complex_value b);
struct complex_value complex_mul(struct complex_value a, struct complex_value b);
bool complex_div(struct complex_value *out, struct complex_value a, struct complex_value b);
bool complex_exp(struct complex_value *out, struct complex_value a);
bool complex_log(struct complex_value *out, struct complex_value a); /* the principal one */
bool complex_sqrt(struct complex_value *out, struct complex_value a);
bool complex_power(struct complex_value *out, struct complex_value a, struct complex_value b);
bool complex_whole_power(struct complex_value *out, struct complex_value a, long n);
bool complex_sin_cos(struct complex_value *sine, struct complex_value *cosine, struct complex_value a);
bool complex_arctan(struct complex_value *out, struct complex_value a); /* of real numbers */
bool complex_arcsin(struct complex_value *out, struct complex_value a); /* of real numbers from -1 to 1 */

#endif

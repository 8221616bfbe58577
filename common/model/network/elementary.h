/* Elementary functions in double precision, of our own, because the C library's differ between versions and machines.
 *
 * Used where speed does not matter and every bit does: the rope table, random initial weights, the learning-rate
 * schedule, the loss. Only + - * /, so that the same source gives the same bits everywhere (built without
 * contraction).  Errors are a few ulp of double. */
#ifndef LEASEHOLD_MODEL_NETWORK_ELEMENTARY_H
#define LEASEHOLD_MODEL_NETWORK_ELEMENTARY_H

/* |x| up to 2^28. */
double elementary_sin(double x);
double elementary_cos(double x);
/* Saturates: below -708 gives 0, above 709 gives infinity; NaN stays NaN. */
double elementary_exp(double x);
/* x > 0 and finite. */
double elementary_log(double x);
/* base > 0. */
double elementary_pow(double base, double exponent);

#endif

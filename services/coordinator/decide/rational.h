/* Exact rationals with overflow checks, for verifiers: rewards must not depend on rounding.
 *
 * Pure, any thread, no memory.  A number that does not fit 64 bits is reported, never silently rounded; the caller
 * (verify.c) then compares doubles. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_RATIONAL_H
#define LEASEHOLD_COORDINATOR_DECIDE_RATIONAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rational {
  int64_t num, den;
}; /* den > 0, lowest terms */

/* All return false on overflow or division by zero, and then leave *out alone. */
bool rational_make(struct rational *out, int64_t num, int64_t den);
bool rational_add(struct rational *out, struct rational a, struct rational b);
bool rational_sub(struct rational *out, struct rational a, struct rational b);
bool rational_mul(struct rational *out, struct rational a, struct rational b);
bool rational_div(struct rational *out, struct rational a, struct rational b);
static inline bool rational_equal(struct rational a, struct rational b) { return a.num == b.num && a.den == b.den; }

/* Reads one number at text[0..len): sign, digits with optional thousands commas, decimals, exponent; then optionally
 * "/" and another such number. Returns the bytes consumed, 0 when there is no number.  *exact tells whether *value
 * holds it; *approximate always does (as a double). */
size_t number_scan(const char *text, size_t len, struct rational *value, bool *exact, double *approximate);

#endif

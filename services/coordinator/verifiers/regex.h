/* Verifier `regex`: the pattern matches somewhere in the completion ("^...$" for all of it; PCRE2, UTF-8, no flags but
 * those that a pattern sets itself).
 *
 * The steps of a match are counted over all places where it may begin, up to LIMIT_VERIFIER_STEPS and eight for each
 * byte of the text, and PCRE2 bounds its depth and memory; it is interpreted, not compiled to machine code, so that the
 * verdict is the same on every machine.  A match that runs into a bound earns nothing and is not well formed.  Pure,
 * any thread. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_REGEX_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_REGEX_H

#include "common/base/rc.h"
#include "services/coordinator/decide/verify.h"

enum { REGEX_PATTERN_MAX = 2048 };

void regex_verify(const char *text, size_t len, const char *pattern, struct verdict *out);
/* RC_INVALID, under `field`: what is wrong with the pattern, and where. */
enum rc regex_check(const char *pattern, const char *field, struct err *err);

#endif

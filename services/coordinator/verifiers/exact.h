/* Verifier `exact`: the completion's answer is the gold, letter by letter.
 *
 * The answer is the last \boxed{}, else what follows the last "####" or "answer is", to the end of a sentence or of the
 * line ("St. Louis" is no sentence's end if the gold has it), else all of the completion; blanks around both are not
 * looked at.  whole: always all of the completion.  ignore_case: of ASCII letters.  Pure, any thread. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_EXACT_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_EXACT_H

#include "services/coordinator/decide/verify.h"

void exact_verify(const char *text, size_t len, const char *gold, bool whole, bool ignore_case, struct verdict *out);

#endif

/* Verifier `math`: is a completion's answer the gold answer, whatever form of LaTeX either has?
 *
 *   completion --math_answer.c--> answer --math_parser.c--> tree --math_compare.c--> equal to the gold's tree?
 *
 * Held against the Python package math-verify by a table of pairs (tests/verifiers), which says where both differ and
 * why.  Both sides are read twice, "1,234" and "2e-3" as a number and as two, since an answer does not say which; an
 * answer that cannot be read is right only if it is the gold, letter by letter (blanks count between digits alone).
 * Pure; bounded by counted steps; exact, or in doubles without libm, so that a verdict is the same on every machine.
 * Called by reward.c, on any thread; about 200 KiB of stack. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_H

#include "common/base/rc.h"
#include "services/coordinator/decide/verify.h"

void math_verify(const char *completion, size_t len, const char *gold, struct verdict *out);
/* RC_INVALID: the gold cannot be read.  One with marks ("#### 5", "\boxed{5}", "$5$") is what they mark. */
enum rc math_gold_check(const char *gold, struct err *err);

#endif

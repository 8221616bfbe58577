/* Verifier `choice`: which of several letters is the completion's answer?
 *
 * The answer is the last \boxed{} or what follows the last "answer is" (math_answer.h), and its first letter that
 * stands alone: "B", "(B)", "**B**", "B) Paris", "\text{(B)}"; the pronoun "I" and the article "A" before a word count
 * only where there is no other: "I think it is B".  Without such a mark: the last letter of the text in
 * brackets, "(B)", or a last line that is one letter.  Letters from A to J, in either case where nothing else stands
 * beside them.  Pure, any thread. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_CHOICE_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_CHOICE_H

#include "common/base/rc.h"
#include "services/coordinator/decide/verify.h"

void choice_verify(const char *text, size_t len, const char *gold, struct verdict *out);
/* RC_INVALID: a line's answer is no letter from A to J. */
enum rc choice_gold_check(const char *gold, struct err *err);

#endif

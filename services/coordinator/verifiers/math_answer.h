/* Finds the answer in a completion: the last \boxed{} (or those beside each other), else what follows the last "answer
 * is" or "Answer:", "####", else the last formula between dollars or \( \), else the last number of the text, which
 * must stand alone (lone_number.h).  A text that is nothing but a short formula is the answer itself.
 *
 * Pure, one pass for each; the answer is a part of the text, or lies in the caller's buffer where boxes are joined. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_ANSWER_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "services/coordinator/verifiers/math_tree.h"

struct math_answer {
  const char *text;
  size_t len;
  char joined[MATH_TEXT_MAX];
};

/* false: there is none. */
bool math_answer_find(struct math_answer *out, const char *text, size_t len);
/* The content of the last \boxed{} or \fbox{} alone, which must be closed. */
bool math_boxed(const char *text, size_t len, const char **inner, size_t *inner_len);
/* What follows the last "answer is", "Answer:" or "####", to the end of its line or sentence, without blanks, emphasis
 * and a full stop around it.  line: to the end of the line, with its full stop. */
bool math_phrase(const char *text, size_t len, bool line, const char **inner, size_t *inner_len);

#endif

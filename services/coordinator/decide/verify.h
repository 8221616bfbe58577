/* Built-in verifiers: text in, reward out.
 *
 * Pure; called by verifiers/reward.c; no memory but the stack (countdown parses the dataset's numbers). Bounded by step
 * counts, never by time, so that a verdict is the same on every machine; completions are hostile input. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_VERIFY_H
#define LEASEHOLD_COORDINATOR_DECIDE_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"

/* The run configuration's words: "numeric", "countdown", "none", and those that verifiers/reward.h judges by. */
enum verifier_kind {
  VERIFIER_NUMERIC,
  VERIFIER_COUNTDOWN,
  VERIFIER_NONE,
  VERIFIER_MATH,
  VERIFIER_CHOICE,
  VERIFIER_EXACT,
  VERIFIER_REGEX,
  VERIFIER_JSON_SCHEMA,
  VERIFIER_FORMAT,
  VERIFIER_LENGTH,
  VERIFIER_OVERLONG,
  VERIFIER_HTTP
};

struct verdict {
  double reward;    /* 0 or 1 */
  bool well_formed; /* an answer could be read at all */
  char detail[96];  /* "answer 7, expected 8" */
  uint64_t vote;    /* the answer's, in a majority: answers that are written alike have the same vote; 0: none */
};

/* The vote of an answer as it is written, without blanks and "$"; 0 where nothing else is left. */
uint64_t answer_vote(const char *text, size_t len);

/* Judges by one of the first three kinds; any other kind gives 0. completion need not be valid UTF-8.
 *
 * numeric: an answer, or a gold, that is more than one number is no number.  With \boxed{} the answer is all of the
 * last box's content, else the last number of the text, which must stand alone: lone_number.h says what either may
 * look like.  Any other text is not well formed and earns nothing.  The answer equals the gold if both are equal as
 * exact rationals or, where 64 bits do not hold them, within 1e-9 of the larger; a number that a double does not hold
 * either equals nothing.  countdown: the last expression (after "=" is cut, or in \boxed{}) over + - * / and
 * parentheses uses each of extra.numbers at most once and equals extra.target exactly (rational arithmetic with
 * overflow checks). */
void verify(enum verifier_kind kind, const char *completion, size_t len, const char *answer, const char *extra,
            struct verdict *out);
/* Can completions be judged by this line of a dataset?  RC_INVALID when not: its gold is no number, or the puzzle is
 * incomplete. */
enum rc verify_line_check(enum verifier_kind kind, const char *answer, const char *extra, struct err *err);

#endif

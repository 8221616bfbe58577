/* An answer must be one number and nothing else before it is compared.
 *
 * "\frac{1}{4}", "(9,4)" and "7\sqrt{3}" end in a number but are none: comparing the last one would reward 1/4 for
 * 3/4. So there are two ways to read.  number_whole takes a text that claims to be an answer (the content of
 * \boxed{}, a dataset's gold); every character of it must be accounted for.  number_last takes prose, where the last
 * number is the answer if it stands alone.  If it is part of something larger the caller is told, and must not go
 * back to an earlier one. In doubt both read nothing: no reward is better than a wrong one.
 *
 * Pure, any thread, no memory, one or two passes over the text, which need not be valid UTF-8.  Called by verify.c
 * on completions and by dataset.c on golds. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_LONE_NUMBER_H
#define LEASEHOLD_COORDINATOR_DECIDE_LONE_NUMBER_H

#include "services/coordinator/decide/rational.h"

struct number {
  struct rational value;
  bool exact; /* value holds it; approximate always does */
  double approximate;
};

/* The whole text is one number as number_scan reads it: "-1,234.5", "3/4", "50e-2".  Around it may stand blanks, TeX's
 * "$...$", "{...}", a currency sign before it and one full stop after it.  A percent sign or a unit makes it another
 * quantity ("50%" is 50 to some and 0.5 to others), a formula ("x=5", "\frac{3}{4}", "2^5") is no number yet. */
bool number_whole(const char *text, size_t len, struct number *out);

/* The same for a dataset's gold, of which only what follows the last "####" counts, as GSM8K writes it. */
bool number_gold(const char *text, struct number *out);

/* The last number of a text, and whether it stands alone.  It does not when on its line it
 *   - is an operand ("x^5", "2 + 3", "9%4", "3*x") or touches a letter ("2x", "5km", "4th"),
 *   - is a macro's argument, or a macro follows ("\frac{1}{4}", "\cdot 4", "7\sqrt{3}"),
 *   - is in brackets with anything else ("(9, 4)", "f(x, 4)"); alone in them it counts, "(4)", but not as "f(4)",
 *   - follows a number, be it by blanks, a comma or a colon ("3, 4", "1 1/2", "3:4").
 * A working in plain signs without blanks is read to its last number wherever it breaks off ("2*3=6;6-4" is 4, "2+2=" is
 * 2): what is trained on such workings has always been judged so, and its weights are not to change.
 * What prose does around numbers is no part of them: "=", "#", ";", quotes, Markdown's emphasis and bullets, "$", a
 * percent sign or punctuation behind. */
enum number_found { NUMBER_NONE, NUMBER_IN_LARGER, NUMBER_ALONE };
enum number_found number_last(const char *text, size_t len, struct number *out);

#endif

/* Cuts an answer in LaTeX, or in plain signs and the Unicode ones that models write, into tokens.
 *
 * What only sets type (`\left`, `\,`, `\displaystyle`, `$`) is dropped here; different spellings of one thing
 * ("\dfrac", "\le", "≤") become one token.  What a command for type holds ("\text{...}", "\mathbf{-7}") is read as a
 * formula if no word is in it.  Pure; no memory but the caller's array; bytes that are no LaTeX become
 * TOKEN_UNKNOWN, which no answer may contain.  Called by math_parser.c. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_LEXER_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_LEXER_H

#include <stdbool.h>
#include <stddef.h>

/* Single signs are their own kind: '+', '(', '{', ... */
enum math_token_kind {
  TOKEN_END = 0,
  TOKEN_NUMBER = 256,
  TOKEN_WORD,     /* letters without a backslash */
  TOKEN_TEXT,     /* what \text{...} holds */
  TOKEN_SYMBOL,   /* \alpha, \mathbb{R} */
  TOKEN_FUNCTION, /* value: enum math_function */
  TOKEN_LOGARITHM,
  TOKEN_FRACTION,
  TOKEN_ROOT, /* value: not TeX's */
  TOKEN_BINOMIAL,
  TOKEN_PLUS_MINUS,
  TOKEN_LESS_EQUAL,
  TOKEN_GREATER_EQUAL,
  TOKEN_NOT_EQUAL,
  TOKEN_UNION,
  TOKEN_IN,
  TOKEN_INFINITY,
  TOKEN_PI,
  TOKEN_EMPTY,
  TOKEN_DEGREE,
  TOKEN_SET_OPEN,
  TOKEN_SET_CLOSE,
  TOKEN_FLOOR_OPEN,
  TOKEN_FLOOR_CLOSE,
  TOKEN_CEILING_OPEN,
  TOKEN_CEILING_CLOSE,
  TOKEN_BEGIN, /* text: the environment's name */
  TOKEN_FINISH,
  TOKEN_ROW,      /* \\ */
  TOKEN_OVERLINE,
  TOKEN_ACCENT,   /* \vec, \hat: changes nothing */
  TOKEN_HALF,     /* a fraction of one character: ½; value: tens the numerator, ones the denominator */
  TOKEN_UNKNOWN,
};

struct math_token {
  int kind, value;
  bool blank; /* before it */
  const char *text;
  int len;
};

/* thousands: "1,234" is one number, else two, and so is "2e-3", else 2e - 3.  Returns how many tokens there are,
 * TOKEN_END not counted, or -1 for more than max - 1. */
int math_tokens(struct math_token *out, int max, const char *text, size_t len, bool thousands);

#endif

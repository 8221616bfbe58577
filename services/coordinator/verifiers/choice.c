/* Judges answers that are a letter. */
#include "services/coordinator/verifiers/choice.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/verifiers/math_answer.h"

static bool is_choice(char c) { return (c >= 'A' && c <= 'J') || (c >= 'a' && c <= 'j'); }

static bool alone(const char *text, size_t len, size_t at) {
  const bool before = at > 0 && (isalnum((unsigned char)text[at - 1]) || text[at - 1] == '\\');
  const bool quote = len - at > 3 && memcmp(text + at + 1, "\xe2\x80\x99", 3) == 0; /* the curved one */
  const bool after = quote || (at + 1 < len && (isalnum((unsigned char)text[at + 1]) || text[at + 1] == '\''));
  return is_choice(text[at]) && !before && !after;
}

/* Small ones are words ("a") unless nothing but signs stands beside them or they are in brackets. */
static bool counts(const char *text, size_t len, size_t at, bool only) {
  const bool bracket = at > 0 && text[at - 1] == '(' && at + 1 < len && text[at + 1] == ')';
  return alone(text, len, at) && (isupper((unsigned char)text[at]) || bracket || only);
}

/* "I think", "A closer look": a pronoun or an article, unless the next word is one that goes on behind a choice. */
static bool is_word(const char *text, size_t len, size_t at) {
  static const char *const on[] = {"and", "as",    "because", "but", "by",    "for",  "from",  "given",
                                   "in",  "is",    "not",     "or",  "since", "when", "where", "which",
                                   "with"};
  size_t from = at + 1, to;
  if (text[at] != 'I' && text[at] != 'A') return false;
  while (from < len && isspace((unsigned char)text[from])) from++;
  for (to = from; to < len && islower((unsigned char)text[to]); to++) continue;
  if (from == at + 1 || from == to) return false;
  for (size_t i = 0; i < sizeof on / sizeof *on; i++)
    if (strlen(on[i]) == to - from && memcmp(on[i], text + from, to - from) == 0) return false;
  return true;
}

/* The first that is no word; else the first. */
static char first_of(const char *text, size_t len) {
  size_t letters = 0;
  for (size_t i = 0; i < len; i++) letters += isalnum((unsigned char)text[i]) != 0;
  for (int words = 0; words < 2; words++)
    for (size_t i = 0; i < len; i++)
      if (counts(text, len, i, letters == 1) && is_word(text, len, i) == (words == 1))
        return (char)toupper((unsigned char)text[i]);
  return 0;
}

/* Without LaTeX's macros of type: "\text{(B)}". */
static char letter_of(const char *text, size_t len) {
  char plain[256];
  size_t n = 0;
  for (size_t i = 0; i < len && n < sizeof plain; i++) {
    if (text[i] == '\\' && i + 1 < len && isalpha((unsigned char)text[i + 1])) {
      while (i + 1 < len && isalpha((unsigned char)text[i + 1])) i++;
      continue;
    }
    plain[n++] = text[i];
  }
  return first_of(plain, n);
}

static char answered(const char *text, size_t len) {
  const char *inner;
  size_t inner_len;
  if (math_boxed(text, len, &inner, &inner_len) || math_phrase(text, len, false, &inner, &inner_len))
    return letter_of(inner, inner_len);
  for (size_t i = len; i-- > 0;)
    if (text[i] == '(' && i + 2 < len && is_choice(text[i + 1]) && text[i + 2] == ')')
      return (char)toupper((unsigned char)text[i + 1]);
  size_t end = len, from;
  while (end > 0 && isspace((unsigned char)text[end - 1])) end--;
  for (from = end; from > 0 && text[from - 1] != '\n'; from--) continue;
  size_t letters = 0;
  for (size_t i = from; i < end; i++) letters += isalnum((unsigned char)text[i]) != 0;
  return letters == 1 ? letter_of(text + from, end - from) : 0;
}

static char gold_letter(const char *gold) {
  const size_t len = strlen(gold);
  const char *inner;
  size_t inner_len;
  return math_boxed(gold, len, &inner, &inner_len) ? letter_of(inner, inner_len) : letter_of(gold, len);
}

void choice_verify(const char *text, size_t len, const char *gold, struct verdict *out) {
  const char expected = gold_letter(gold), got = answered(text, len);
  memset(out, 0, sizeof *out);
  out->well_formed = got != 0;
  out->reward = got && got == expected ? 1 : 0;
  out->vote = got ? answer_vote(&got, 1) : 0;
  if (got)
    snprintf(out->detail, sizeof out->detail, "answer %c, expected %c", got, expected ? expected : '?');
  else
    snprintf(out->detail, sizeof out->detail, "no letter in the completion");
}

enum rc choice_gold_check(const char *gold, struct err *err) {
  if (gold_letter(gold)) return RC_OK;
  return err_set(err, RC_INVALID, "answer", "expected a letter from A to J, got \"%.80s\"", gold);
}

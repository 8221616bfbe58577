/* Compares texts. */
#include "services/coordinator/verifiers/exact.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/verifiers/math_answer.h"

static void trim(const char **text, size_t *len) {
  while (*len && isspace((unsigned char)**text)) {
    (*text)++;
    (*len)--;
  }
  while (*len && isspace((unsigned char)(*text)[*len - 1])) (*len)--;
}

static bool same(const char *a, const char *b, size_t len, bool ignore_case) {
  if (!ignore_case) return memcmp(a, b, len) == 0;
  for (size_t i = 0; i < len; i++)
    if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i])) return false;
  return true;
}

/* Is it the gold, and then the end of a sentence?  "St. Louis. It lies in Missouri": a full stop alone is none. */
static bool begins_with(const char *line, size_t len, const char *gold, size_t gold_len, bool ignore_case) {
  size_t at = gold_len;
  if (gold_len == 0 || len < gold_len || !same(line, gold, gold_len, ignore_case)) return false;
  while (at < len && line[at] == '*') at++;
  const bool stop = at < len && line[at] == '.';
  at += stop;
  while (at < len && line[at] == '*') at++;
  return at == len || ((stop || gold[gold_len - 1] == '.') && isspace((unsigned char)line[at]));
}

void exact_verify(const char *text, size_t len, const char *gold, bool whole, bool ignore_case, struct verdict *out) {
  size_t gold_len = strlen(gold), line_len;
  const char *all = text, *line;
  const size_t all_len = len;
  memset(out, 0, sizeof *out);
  trim(&gold, &gold_len);
  if (!whole && !math_boxed(all, all_len, &text, &len) && math_phrase(all, all_len, false, &text, &len) &&
      math_phrase(all, all_len, true, &line, &line_len) && begins_with(line, line_len, gold, gold_len, ignore_case)) {
    text = line;
    len = gold_len;
  }
  trim(&text, &len);
  out->well_formed = len > 0;
  out->vote = answer_vote(text, len);
  out->reward = len == gold_len && same(text, gold, len, ignore_case) ? 1 : 0;
  snprintf(out->detail, sizeof out->detail, "answer %.*s, expected %.*s", (int)(len < 36 ? len : 36), text,
           (int)(gold_len < 36 ? gold_len : 36), gold);
}

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

void exact_verify(const char *text, size_t len, const char *gold, bool whole, bool ignore_case, struct verdict *out) {
  size_t gold_len = strlen(gold);
  memset(out, 0, sizeof *out);
  if (!whole && !math_boxed(text, len, &text, &len)) math_phrase(text, len, &text, &len);
  trim(&text, &len);
  trim(&gold, &gold_len);
  out->well_formed = len > 0;
  out->vote = answer_vote(text, len);
  out->reward = len == gold_len && same(text, gold, len, ignore_case) ? 1 : 0;
  snprintf(out->detail, sizeof out->detail, "answer %.*s, expected %.*s", (int)(len < 36 ? len : 36), text,
           (int)(gold_len < 36 ? gold_len : 36), gold);
}

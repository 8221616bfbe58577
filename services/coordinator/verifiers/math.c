/* Judges answers in LaTeX. */
#include "services/coordinator/verifiers/math.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/verifiers/math_answer.h"
#include "services/coordinator/verifiers/math_compare.h"
#include "services/coordinator/verifiers/math_parser.h"

/* What a gold marks as its answer, else all of it. */
static void gold_find(struct math_answer *out, const char *gold) {
  const char *marked = gold;
  for (const char *next; (next = strstr(marked, "####")) != NULL;) marked = next + 4;
  while (isspace((unsigned char)*marked)) marked++;
  out->text = marked;
  out->len = strlen(marked);
  math_boxed(marked, out->len, &out->text, &out->len);
}

/* Both without blanks and what only sets type. */
static bool same_letters(const char *a, size_t n, const char *b, size_t m) {
  size_t i = 0, k = 0;
  for (;;) {
    while (i < n && (isspace((unsigned char)a[i]) || a[i] == '$')) i++;
    while (k < m && (isspace((unsigned char)b[k]) || b[k] == '$')) k++;
    if (i == n || k == m) return i == n && k == m;
    if (a[i++] != b[k++]) return false;
  }
}

static bool readings_equal(const struct math_answer *gold, const struct math_answer *answer, bool thousands,
                           bool *readable) {
  struct math_tree g, a;
  if (!math_parse(&g, gold->text, gold->len, thousands) || !math_parse(&a, answer->text, answer->len, thousands))
    return false;
  *readable = true;
  return math_equal(&g, &a, gold->text, gold->len, answer->text, answer->len);
}

void math_verify(const char *completion, size_t len, const char *gold_text, struct verdict *out) {
  struct math_answer gold, answer;
  bool readable = false;
  memset(out, 0, sizeof *out);
  gold_find(&gold, gold_text);
  if (!math_answer_find(&answer, completion, len)) {
    snprintf(out->detail, sizeof out->detail, "no answer in the completion");
    return;
  }
  const bool equal = readings_equal(&gold, &answer, true, &readable) ||
                     readings_equal(&gold, &answer, false, &readable) ||
                     (gold.len > 0 && same_letters(gold.text, gold.len, answer.text, answer.len));
  out->well_formed = readable || equal;
  out->reward = equal ? 1 : 0;
  out->vote = out->well_formed ? answer_vote(answer.text, answer.len) : 0;
  snprintf(out->detail, sizeof out->detail, "%s%.*s, expected %.*s", out->well_formed ? "answer " : "cannot be read: ",
           (int)(answer.len < 36 ? answer.len : 36), answer.text, (int)(gold.len < 30 ? gold.len : 30), gold.text);
}

enum rc math_gold_check(const char *gold, struct err *err) {
  struct math_answer g;
  struct math_tree t;
  gold_find(&g, gold);
  if (math_parse(&t, g.text, g.len, true) || math_parse(&t, g.text, g.len, false)) return RC_OK;
  return err_set(err, RC_INVALID, "answer", "expected an answer in LaTeX or in words, got \"%.80s\"", gold);
}

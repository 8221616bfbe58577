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

static bool in_number(char c) { return isdigit((unsigned char)c) || c == '.'; }

/* Past blanks and what only sets type.  True: they stood between two digits, where they count: "1 1/2", not "11/2". */
static bool skip(const char *text, size_t len, size_t *at) {
  const size_t from = *at;
  while (*at < len && (isspace((unsigned char)text[*at]) || text[*at] == '$')) ++*at;
  return from > 0 && from < *at && *at < len && in_number(text[from - 1]) && in_number(text[*at]);
}

static bool same_letters(const char *a, size_t n, const char *b, size_t m) {
  size_t i = 0, k = 0;
  for (;;) {
    const bool apart = skip(a, n, &i), also = skip(b, m, &k);
    if (i == n || k == m) return i == n && k == m;
    if (apart != also || a[i++] != b[k++]) return false;
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

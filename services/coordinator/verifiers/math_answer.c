/* Finds answers by their marks. */
#include "services/coordinator/verifiers/math_answer.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/decide/lone_number.h"
#include "services/coordinator/verifiers/math_parser.h"

enum { BESIDE = 10, ALONE_MAX = 200, WORDS_MAX = 40, PHRASE_MAX = 400 };

static size_t skip_name(const char *text, size_t len, size_t at) {
  static const char *const names[] = {"\\boxed", "\\fbox"};
  for (size_t i = 0; i < 2; i++) {
    const size_t n = strlen(names[i]);
    if (len - at < n || memcmp(text + at, names[i], n) != 0) continue;
    size_t k = at + n;
    while (k < len && text[k] == ' ') k++;
    return k < len && text[k] == '{' ? k + 1 : 0;
  }
  return 0;
}

/* Where the group that begins at `at` ends, or len. */
static size_t group_end(const char *text, size_t len, size_t at) {
  int depth = 1;
  for (; at < len; at++) {
    if (text[at] == '\\' && at + 1 < len) {
      at++; /* \{ and \} do not count */
      continue;
    }
    depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    if (depth == 0) return at;
  }
  return len;
}

struct box {
  size_t from, to;
};

/* The last boxes that are in no other; at most `max` of them, the last one last. */
static int boxes(const char *text, size_t len, struct box *out, int max) {
  int n = 0;
  size_t steps = 0;
  for (size_t at = 0; at < len && steps < LIMIT_VERIFIER_STEPS;) {
    const char *next = memchr(text + at, '\\', len - at);
    if (!next) break;
    at = (size_t)(next - text);
    const size_t from = skip_name(text, len, at);
    if (!from) {
      at++;
      continue;
    }
    const size_t to = group_end(text, len, from);
    steps += to - from;
    if (to == len) {
      at = from;
      continue;
    }
    if (n == max) {
      memmove(out, out + 1, (size_t)(max - 1) * sizeof *out);
      n--;
    }
    out[n++] = (struct box){from, to};
    at = to;
  }
  return n;
}

bool math_boxed(const char *text, size_t len, const char **inner, size_t *inner_len) {
  struct box last[1];
  if (boxes(text, len, last, 1) == 0) return false;
  *inner = text + last[0].from;
  *inner_len = last[0].to - last[0].from;
  return true;
}

/* "\boxed{1} and \boxed{2}": both. */
static bool from_boxes(struct math_answer *out, const char *text, size_t len) {
  struct box b[8];
  const int n = boxes(text, len, b, 8);
  if (n == 0) return false;
  int first = n - 1;
  while (first > 0 && b[first].from - b[first - 1].to <= BESIDE + strlen("\\boxed{")) first--;
  out->text = text + b[n - 1].from;
  out->len = b[n - 1].to - b[n - 1].from;
  if (first == n - 1) return true;
  size_t used = 0;
  for (int i = first; i < n; i++) {
    const size_t size = b[i].to - b[i].from;
    if (used + size + 2 > sizeof out->joined) return true;
    if (i > first) out->joined[used++] = ',';
    memcpy(out->joined + used, text + b[i].from, size);
    used += size;
  }
  out->text = out->joined;
  out->len = used;
  return true;
}

static void trim(const char **text, size_t *len, bool stop) {
  while (*len && (isspace((unsigned char)**text) || **text == '*' || **text == ':')) {
    (*text)++;
    (*len)--;
  }
  while (*len && (isspace((unsigned char)(*text)[*len - 1]) || (*text)[*len - 1] == '*')) (*len)--;
  if (stop && *len > 1 && (*text)[*len - 1] == '.') (*len)--;
}

/* Where the part that begins at `from` ends, or len. */
static size_t part_end(const char *text, size_t len, size_t from, char close) {
  for (size_t at = from; at < len; at++) {
    if (close == '$' && text[at] == '$' && text[at - 1] != '\\') return at;
    if (close != '$' && text[at] == '\\' && at + 1 < len && text[at + 1] == close) return at;
  }
  return len;
}

/* The last part between marks: $...$, $$...$$, \(...\), \[...\].  A mark that nothing closes is the last one that is
 * looked for: none behind it is closed either. */
static bool last_formula(const char *text, size_t len, const char **inner, size_t *inner_len) {
  static const char closing[] = ")]$";
  bool found = false, open[sizeof closing - 1] = {false};
  for (size_t at = 0; at + 1 < len; at++) {
    const char mark = text[at] == '\\' ? text[at + 1] : text[at];
    const int kind = text[at] == '$' ? 2 : text[at] != '\\' ? -1 : mark == '(' ? 0 : mark == '[' ? 1 : -1;
    if (kind < 0) {
      at += text[at] == '\\';
      continue;
    }
    const size_t marks = kind < 2 || text[at + 1] == '$' ? 2 : 1, from = at + marks;
    const size_t to = open[kind] ? len : part_end(text, len, from, closing[kind]);
    open[kind] = to == len;
    if (to == len || (kind == 2 && to == from)) continue;
    at = to + marks - 1;
    *inner = text + from;
    *inner_len = to - from;
    found = true;
  }
  return found;
}

static bool is_at(const char *text, size_t len, size_t at, const char *word) {
  for (; *word; word++, at++)
    if (at >= len || tolower((unsigned char)text[at]) != *word) return false;
  return true;
}

bool math_phrase(const char *text, size_t len, bool line, const char **inner, size_t *inner_len) {
  static const char *const phrases[] = {"answer is", "answer:", "answer**:", "answer:**", "####"};
  size_t from = 0;
  for (size_t at = 0; at < len; at++) {
    if (tolower((unsigned char)text[at]) != 'a' && text[at] != '#') continue;
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
      if (is_at(text, len, at, phrases[i])) from = at + strlen(phrases[i]);
  }
  if (!from) return false;
  size_t to = from;
  while (to < len && to - from < PHRASE_MAX &&
         (text[to] != '\n' || to == from || isspace((unsigned char)text[to - 1]) || text[to - 1] == ':')) {
    const bool sentence = text[to] == '.' && to + 1 < len && isspace((unsigned char)text[to + 1]) && to > from;
    if (sentence && !line) break;
    to++;
  }
  *inner = text + from;
  *inner_len = to - from;
  trim(inner, inner_len, !line);
  return *inner_len > 0;
}

/* A short text that is a formula and nothing else, or a few words. */
static bool is_alone(const char *text, size_t len) {
  struct math_tree t;
  return len > 0 && len <= ALONE_MAX && math_parse(&t, text, len, true) &&
         (t.nodes[t.root].op != MATH_TEXT || len <= WORDS_MAX);
}

bool math_answer_find(struct math_answer *out, const char *text, size_t len) {
  struct number last;
  if (from_boxes(out, text, len)) return true;
  if (math_phrase(text, len, false, &out->text, &out->len)) {
    last_formula(out->text, out->len, &out->text, &out->len);
    return true;
  }
  if (last_formula(text, len, &out->text, &out->len)) return true;
  out->text = text;
  out->len = len;
  trim(&out->text, &out->len, true);
  if (is_alone(out->text, out->len)) return true;
  if (number_last(text, len, &last) != NUMBER_ALONE || !last.exact) return false;
  out->text = out->joined;
  out->len = (size_t)snprintf(out->joined, sizeof out->joined, "%lld/%lld", (long long)last.value.num,
                              (long long)last.value.den);
  return true;
}

/* Checks the sections of a completion. */
#include "services/coordinator/verifiers/format.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static size_t skip_blanks(const char *text, size_t len, size_t at) {
  while (at < len && isspace((unsigned char)text[at])) at++;
  return at;
}

/* How often, and where first. */
static int occurrences(const char *text, size_t len, const char *mark, size_t *first) {
  const size_t n = strlen(mark);
  int count = 0;
  for (size_t at = 0; at + n <= len; at++) {
    const char *next = memchr(text + at, mark[0], len - at);
    if (!next) break;
    at = (size_t)(next - text);
    if (len - at < n || memcmp(next, mark, n) != 0) continue;
    if (count++ == 0) *first = at;
  }
  return count;
}

void format_verify(const char *text, size_t len, const char *const *tags, int count, struct verdict *out) {
  size_t at = 0;
  memset(out, 0, sizeof *out);
  out->well_formed = true;
  for (int i = 0; i < count; i++) {
    char open[FORMAT_TAG_MAX + 4], close[FORMAT_TAG_MAX + 4];
    size_t from = 0, to = 0;
    snprintf(open, sizeof open, "<%.*s>", FORMAT_TAG_MAX, tags[i]);
    snprintf(close, sizeof close, "</%.*s>", FORMAT_TAG_MAX, tags[i]);
    const int opened = occurrences(text, len, open, &from), closed = occurrences(text, len, close, &to);
    if (opened != 1 || closed != 1) {
      snprintf(out->detail, sizeof out->detail, "%s comes %d times, %s %d times", open, opened, close, closed);
      return;
    }
    if (from != skip_blanks(text, len, at) || to < from + strlen(open)) {
      snprintf(out->detail, sizeof out->detail, "%s is not where it was expected", open);
      return;
    }
    at = to + strlen(close);
  }
  out->reward = skip_blanks(text, len, at) == len ? 1 : 0;
  snprintf(out->detail, sizeof out->detail, out->reward == 1 ? "as expected" : "something follows the last tag");
}

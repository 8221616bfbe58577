/* Finds the answer in a worked solution: behind the last "####" of its line, or in the last \boxed{} whose braces
 * match. */
#include "services/coordinator/run/answer_extract.h"

#include <ctype.h>
#include <string.h>

static bool trimmed(const char *text, size_t len, const char **out, size_t *out_len) {
  while (len && isspace((unsigned char)text[0])) text++, len--;
  while (len && isspace((unsigned char)text[len - 1])) len--;
  *out = text;
  *out_len = len;
  return len > 0;
}

static bool after_hashes(const char *text, const char **out, size_t *len) {
  const char *last = NULL;
  for (const char *at = text; (at = strstr(at, "####")) != NULL; at += 4) last = at + 4;
  return last && trimmed(last, strcspn(last, "\n"), out, len);
}

/* Where the group ends that is open at `text`; NULL when it does not.  \{ and \} are characters. */
static const char *group_end(const char *text) {
  int depth = 1;
  for (; *text; text++) {
    if (*text == '\\' && text[1]) {
      text++;
      continue;
    }
    depth += *text == '{' ? 1 : *text == '}' ? -1 : 0;
    if (depth == 0) return text;
  }
  return NULL;
}

/* Boxes inside a box are its content; one that does not end is none, and no later one can end then. */
static bool in_box(const char *text, const char **out, size_t *len) {
  static const char marker[] = "\\boxed{";
  const char *inner = NULL, *end = NULL;
  for (const char *at = text; (at = strstr(at, marker)) != NULL;) {
    const char *begin = at + sizeof marker - 1, *close = group_end(begin);
    if (!close) break;
    inner = begin;
    end = close;
    at = close;
  }
  return inner && trimmed(inner, (size_t)(end - inner), out, len);
}

bool answer_extract(enum answer_extract how, const char *text, const char **out, size_t *len) {
  switch (how) {
    case EXTRACT_HASHES: return after_hashes(text, out, len);
    case EXTRACT_BOXED: return in_box(text, out, len);
    case EXTRACT_NONE: break;
  }
  return trimmed(text, strlen(text), out, len);
}

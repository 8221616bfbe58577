/* Cuts, searches, splits and builds texts. */
#include "common/template/values/text.h"

#include <string.h>

#include "common/base/utf8.h"

enum rc text_share(struct workspace *w, const char *bytes, size_t len, uint8_t mark, struct value *out) {
  struct text *text = work_alloc(w, 1, sizeof *text);
  if (!text) return w->rc;
  *text = (struct text){.bytes = bytes, .len = len, .mark = mark};
  *out = value_text(text);
  return RC_OK;
}

enum rc text_of(struct workspace *w, const char *bytes, struct value *out) {
  return text_share(w, bytes, strlen(bytes), 0, out);
}

bool text_is(const struct text *text, const char *word) {
  return text->len == strlen(word) && memcmp(text->bytes, word, text->len) == 0;
}

int text_order(const struct text *a, const struct text *b) {
  const int order = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
  return order ? order : (a->len > b->len) - (a->len < b->len);
}

static size_t step_of(const char *s, size_t len) {
  const int n = utf8_length(s, len);
  return n > 0 ? (size_t)n : 1; /* texts are well-formed */
}

static uint32_t code_of(const char *text, size_t len) {
  const unsigned char *s = (const unsigned char *)text;
  switch (step_of(text, len)) {
    case 2: return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    case 3: return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    case 4:
      return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 |
             (s[3] & 0x3F);
    default: return s[0];
  }
}

size_t text_step(const struct text *text, size_t at) { return step_of(text->bytes + at, text->len - at); }
uint32_t text_code_at(const struct text *text, size_t at) { return code_of(text->bytes + at, text->len - at); }

size_t text_characters(const struct text *text) { return utf8_characters((const char *)text->bytes, text->len); }

size_t text_offset(const struct text *text, size_t character) {
  size_t at = 0;
  while (character > 0 && at < text->len) {
    at += text_step(text, at);
    character--;
  }
  return at;
}

enum rc text_cut(struct workspace *w, const struct text *text, size_t from, size_t to, struct value *out) {
  struct text *cut = work_alloc(w, 1, sizeof *cut);
  enum rc rc = cut ? work_charge(w, 0) : w->rc;
  if (rc != RC_OK) return rc;
  *cut = *text;
  cut->bytes += from;
  if (cut->marks) cut->marks += from;
  cut->len = to > from ? to - from : 0;
  *out = value_text(cut);
  return RC_OK;
}

size_t text_find(const struct text *text, const struct text *what, size_t from) {
  if (from > text->len) return SIZE_MAX;
  const char *found = memmem(text->bytes + from, text->len - from, what->bytes, what->len);
  return found ? (size_t)(found - text->bytes) : SIZE_MAX;
}

size_t text_find_last(const struct text *text, const struct text *what, size_t end) {
  if (what->len > end) return SIZE_MAX;
  for (size_t at = end - what->len + 1; at-- > 0;)
    if (memcmp(text->bytes + at, what->bytes, what->len) == 0) return at;
  return SIZE_MAX;
}

bool text_begins(const struct text *text, const struct text *with) {
  return text->len >= with->len && memcmp(text->bytes, with->bytes, with->len) == 0;
}

bool text_ends(const struct text *text, const struct text *with) {
  return text->len >= with->len && memcmp(text->bytes + text->len - with->len, with->bytes, with->len) == 0;
}

bool code_is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

/* Where the character that ends at s[end] begins; end > 0. */
static size_t step_back(const char *s, size_t end) {
  size_t at = end - 1;
  while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
  return at;
}

size_t space_before_end(const char *s, size_t len) {
  size_t end = len;
  while (end > 0) {
    const size_t at = step_back(s, end);
    if (!code_is_space(code_of(s + at, end - at))) break;
    end = at;
  }
  return len - end;
}

size_t space_at_start(const char *s, size_t len) {
  size_t at = 0;
  while (at < len && code_is_space(code_of(s + at, len - at))) at += step_of(s + at, len - at);
  return at;
}

/* Whether the character text[at, at + n) is one of those of `of`. */
static bool is_one_of(const struct text *text, size_t at, size_t n, const struct text *of) {
  if (!of) return code_is_space(text_code_at(text, at));
  for (size_t i = 0, m; i < of->len; i += m) {
    m = text_step(of, i);
    if (m == n && memcmp(of->bytes + i, text->bytes + at, n) == 0) return true;
  }
  return false;
}

enum rc text_strip(struct workspace *w, const struct text *text, const struct text *of, int sides, struct value *out) {
  size_t from = 0, to = text->len;
  while ((sides & STRIP_LEFT) && from < to && is_one_of(text, from, text_step(text, from), of))
    from += text_step(text, from);
  while ((sides & STRIP_RIGHT) && to > from) {
    const size_t at = step_back(text->bytes, to);
    if (!is_one_of(text, at, to - at, of)) break;
    to = at;
  }
  const enum rc rc = work_charge(w, (text->len - (to - from)) * (of ? 1 + of->len : 1));
  return rc == RC_OK ? text_cut(w, text, from, to, out) : rc;
}

enum rc text_replace(struct workspace *w, const struct text *text, const struct text *old, const struct text *with,
                     int64_t most, struct value *out) {
  struct text_builder b = builder_begin(w);
  size_t at = 0;
  enum rc rc = work_charge(w, text->len);
  for (int64_t n = 0; rc == RC_OK && (most < 0 || n < most); n++) {
    size_t found = old->len ? text_find(text, old, at) : n ? at + (at < text->len ? text_step(text, at) : 1) : 0;
    if (found == SIZE_MAX || found > text->len) break;
    struct text before = *text;
    before.bytes += at;
    before.len = found - at;
    if (before.marks) before.marks += at;
    rc = builder_text(&b, &before);
    if (rc == RC_OK) rc = builder_text(&b, with);
    at = found + old->len;
  }
  struct text rest = *text;
  rest.bytes += at;
  rest.len -= at;
  if (rest.marks) rest.marks += at;
  if (rc == RC_OK) rc = builder_text(&b, &rest);
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc append_cut(struct workspace *w, struct list *list, const struct text *text, size_t from, size_t to) {
  struct value piece;
  const enum rc rc = text_cut(w, text, from, to, &piece);
  return rc == RC_OK ? list_append(w, list, piece) : rc;
}

static enum rc split_words(struct workspace *w, const struct text *text, int64_t most, struct list *list) {
  size_t at = space_at_start(text->bytes, text->len);
  enum rc rc = RC_OK;
  while (at < text->len && rc == RC_OK) {
    size_t end = at;
    if (most >= 0 && (int64_t)list->count == most)
      end = text->len - space_before_end(text->bytes, text->len);
    else
      while (end < text->len && !code_is_space(text_code_at(text, end))) end += text_step(text, end);
    rc = append_cut(w, list, text, at, end);
    at = end + space_at_start(text->bytes + end, text->len - end);
  }
  return rc;
}

/* Pieces from the end, in reverse; the caller turns them round. */
static enum rc split_words_right(struct workspace *w, const struct text *text, int64_t most, struct list *list) {
  size_t end = text->len - space_before_end(text->bytes, text->len);
  enum rc rc = RC_OK;
  while (end > 0 && rc == RC_OK) {
    size_t at = end;
    if (most >= 0 && (int64_t)list->count == most)
      at = space_at_start(text->bytes, end);
    else
      while (at > 0 && !code_is_space(text_code_at(text, step_back(text->bytes, at)))) at = step_back(text->bytes, at);
    rc = append_cut(w, list, text, at, end);
    end = at - space_before_end(text->bytes, at);
    if (most >= 0 && (int64_t)list->count > most) break;
  }
  return rc;
}

static void turn_round(struct list *list) {
  for (size_t i = 0; i < list->count / 2; i++) {
    const struct value other = list->items[list->count - 1 - i];
    list->items[list->count - 1 - i] = list->items[i];
    list->items[i] = other;
  }
}

static enum rc split_right(struct workspace *w, const struct text *text, const struct text *sep, int64_t most,
                           struct list *list) {
  size_t end = text->len;
  enum rc rc = RC_OK;
  while (rc == RC_OK) {
    const size_t found = most >= 0 && (int64_t)list->count >= most ? SIZE_MAX : text_find_last(text, sep, end);
    rc = append_cut(w, list, text, found == SIZE_MAX ? 0 : found + sep->len, end);
    if (found == SIZE_MAX) break;
    end = found;
  }
  return rc;
}

enum rc text_split(struct workspace *w, const struct text *text, const struct text *sep, int64_t most, bool from_right,
                   struct list **out) {
  struct list *list = *out = list_new(w, FORM_LIST, 0);
  enum rc rc = list ? work_charge(w, text->len) : w->rc;
  if (rc != RC_OK) return rc;
  if (sep && sep->len == 0) return work_fail(w, RC_INVALID, "expected a separator to split by, got an empty text");
  if (from_right) {
    rc = sep ? split_right(w, text, sep, most, list) : split_words_right(w, text, most, list);
    turn_round(list);
    return rc;
  }
  if (!sep) return split_words(w, text, most, list);
  size_t at = 0;
  while (rc == RC_OK) {
    const size_t found = most >= 0 && (int64_t)list->count >= most ? SIZE_MAX : text_find(text, sep, at);
    rc = append_cut(w, list, text, at, found == SIZE_MAX ? text->len : found);
    if (found == SIZE_MAX) break;
    at = found + sep->len;
  }
  return rc;
}

static bool ends_line(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

enum rc text_lines(struct workspace *w, const struct text *text, bool keep_ends, struct list **out) {
  struct list *list = *out = list_new(w, FORM_LIST, 0);
  enum rc rc = list ? work_charge(w, text->len) : w->rc;
  for (size_t at = 0; at < text->len && rc == RC_OK;) {
    size_t end = at;
    while (end < text->len && !ends_line(text_code_at(text, end))) end += text_step(text, end);
    size_t next = end;
    if (end < text->len) {
      next += text_step(text, end);
      if (text->bytes[end] == '\r' && next < text->len && text->bytes[next] == '\n') next++;
    }
    rc = append_cut(w, list, text, at, keep_ends ? next : end);
    at = next;
  }
  return rc;
}

/* --- building --- */

enum rc builder_bytes(struct text_builder *b, const char *bytes, size_t len, uint8_t mark) {
  struct workspace *w = b->w;
  if (len > w->text_max - b->bytes.len)
    return work_fail(w, RC_TOO_LARGE, "expected texts of at most %zu bytes, got more", w->text_max);
  enum rc rc = work_charge(w, len);
  if (rc == RC_OK) rc = work_charge_bytes(w, 2 * len);
  if (rc != RC_OK || len == 0) return rc;
  buf_append(&b->bytes, bytes, len);
  buf_reserve(&b->marks, len);
  if (b->bytes.failed || b->marks.failed)
    return work_fail(w, RC_NO_MEMORY, "a text of %zu bytes was refused memory", b->bytes.len + len);
  memset(b->marks.data + b->marks.len, mark, len);
  b->marks.len += len;
  return RC_OK;
}

enum rc builder_text(struct text_builder *b, const struct text *text) {
  const size_t before = b->marks.len;
  const enum rc rc = builder_bytes(b, text->bytes, text->len, text->mark);
  if (rc == RC_OK && text->marks && text->len) memcpy(b->marks.data + before, text->marks, text->len);
  return rc;
}

enum rc builder_word(struct text_builder *b, const char *word) { return builder_bytes(b, word, strlen(word), 0); }

enum rc builder_code(struct text_builder *b, uint32_t code, uint8_t mark) {
  char bytes[4];
  size_t len;
  if (code < 0x80) {
    bytes[0] = (char)code;
    len = 1;
  } else if (code < 0x800) {
    bytes[0] = (char)(0xC0 | code >> 6);
    bytes[1] = (char)(0x80 | (code & 0x3F));
    len = 2;
  } else if (code < 0x10000) {
    bytes[0] = (char)(0xE0 | code >> 12);
    bytes[1] = (char)(0x80 | (code >> 6 & 0x3F));
    bytes[2] = (char)(0x80 | (code & 0x3F));
    len = 3;
  } else {
    bytes[0] = (char)(0xF0 | code >> 18);
    bytes[1] = (char)(0x80 | (code >> 12 & 0x3F));
    bytes[2] = (char)(0x80 | (code >> 6 & 0x3F));
    bytes[3] = (char)(0x80 | (code & 0x3F));
    len = 4;
  }
  return builder_bytes(b, bytes, len, mark);
}

static bool uniform(const struct buf *marks) {
  return marks->len == 0 || memcmp(marks->data, marks->data + 1, marks->len - 1) == 0;
}

enum rc builder_finish(struct text_builder *b, struct value *out) {
  struct workspace *w = b->w;
  const size_t len = b->bytes.len;
  const bool one_mark = uniform(&b->marks);
  char *bytes = work_alloc_bytes(w, len + 1);
  uint8_t *marks = one_mark || !bytes ? NULL : work_alloc_bytes(w, len);
  struct text *text = bytes && (one_mark || marks) ? work_alloc(w, 1, sizeof *text) : NULL;
  if (text) {
    if (len) memcpy(bytes, b->bytes.data, len);
    bytes[len] = '\0';
    if (marks) memcpy(marks, b->marks.data, len);
    *text = (struct text){.bytes = bytes, .marks = marks, .len = len};
    if (one_mark && len) text->mark = (uint8_t)b->marks.data[0];
    *out = value_text(text);
  }
  builder_free(b);
  return text ? RC_OK : w->rc;
}

void builder_free(struct text_builder *b) {
  buf_free(&b->bytes);
  buf_free(&b->marks);
}

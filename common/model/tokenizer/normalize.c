/* Runs a tokenizer's normalizer over a piece of text: Unicode's normal forms, lower case, texts put in front or
 * replaced ("▁" for a space), white space and marks dropped.
 *
 * Called by text.c for every piece between added tokens of the raw text, and while loading for the added tokens that
 * are looked for in normalized text.  The two work buffers are the caller's; each step writes one and reads the
 * other. */
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

/* Where one step writes. */
struct work {
  struct buf *buffers;
  int next;
  struct matcher *matcher;
};

static enum rc step_form(struct buf *out, const struct piece *p, struct normal_form form, struct err *err) {
  return text_normalize(out, p->text, p->len, form, err);
}

static enum rc step_lowercase(struct buf *out, const struct piece *p, struct err *err) {
  for (size_t i = 0; i < p->len;) {
    uint32_t code = (uint8_t)p->text[i];
    i += code < 0x80 ? 1 : text_code(&code, p->text + i, p->len - i);
    text_put_lower(out, code);
  }
  return buf_check(out, err);
}

/* Code points of text, which is not empty, up to two. */
static bool is_one_code(const char *text, size_t len) {
  uint32_t code;
  return text_code(&code, text, len) == len;
}

static enum rc step_replace(struct buf *out, struct piece *p, const struct normal_step *s, struct matcher *m,
                            struct err *err) {
  struct match_walk w = {.regex = s->regex, .text = p->text, .len = p->len};
  bool found;
  size_t start, stop;
  const enum rc rc = match_next(&w, m, &found, &start, &stop, err);
  if (rc != RC_OK) return rc;
  if (found && start == 0 && stop > 0 && (s->content.len == 0 || !is_one_code(p->text, stop)))
    p->first = false; /* what replaces several characters counts as the last of them */
  return pattern_replace(out, s->regex, &s->content, m, p->text, p->len, err);
}

/* Unicode's white space at the ends. */
static void strip(struct piece *p, const struct normal_step *s) {
  uint32_t code;
  size_t n;
  while (s->left && p->len > 0 && (n = text_code(&code, p->text, p->len)) > 0 && text_is_space(code)) {
    p->text += n;
    p->len -= n;
    p->first = false;
  }
  while (s->right && p->len > 0) {
    size_t start = p->len - 1;
    while (start > 0 && ((uint8_t)p->text[start] & 0xC0) == 0x80) start--;
    if (!text_code(&code, p->text + start, p->len - start) || !text_is_space(code)) break;
    p->len = start;
  }
}

/* As SentencePiece's NMT rules: control characters go, other kinds of space become one.  -1: it goes. */
static int64_t nmt_code(uint32_t c) {
  if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
    return -1;
  if (c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
      c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
    return ' ';
  return c;
}

static enum rc step_filter(struct buf *out, struct piece *p, enum normal_kind kind, struct err *err) {
  for (size_t i = 0, n; i < p->len; i += n) {
    uint32_t code;
    n = text_code(&code, p->text + i, p->len - i);
    if (n == 0) break;
    const int64_t kept = kind == NORMAL_NMT ? nmt_code(code) : text_is_mark(code) ? -1 : (int64_t)code;
    if (kept < 0 && i == 0) p->first = false;
    if (kept >= 0) text_put(out, (uint32_t)kept);
  }
  return buf_check(out, err);
}

static struct normal_form form_of(enum normal_kind kind) {
  return (struct normal_form){.compose = kind == NORMAL_NFC || kind == NORMAL_NFKC,
                              .compatible = kind == NORMAL_NFKC || kind == NORMAL_NFKD};
}

/* true when the step leaves the text as it is. */
static bool changes_nothing(const struct piece *p, const struct normal_step *s) {
  switch (s->kind) {
    case NORMAL_NFC:
    case NORMAL_NFD:
    case NORMAL_NFKC:
    case NORMAL_NFKD: return !text_may_change(p->text, p->len, form_of(s->kind));
    case NORMAL_PREPEND: return p->len == 0 || s->content.len == 0;
    default: return false;
  }
}

static enum rc run_step(struct work *work, struct piece *p, const struct normal_step *s, struct err *err) {
  if (s->kind == NORMAL_STRIP) {
    strip(p, s);
    return RC_OK;
  }
  if (changes_nothing(p, s)) return RC_OK;
  struct buf *out = &work->buffers[work->next];
  buf_clear(out);
  enum rc rc = RC_OK;
  switch (s->kind) {
    case NORMAL_PREPEND:
      buf_append(out, s->content.text, s->content.len);
      buf_append(out, p->text, p->len);
      rc = buf_check(out, err);
      break;
    case NORMAL_REPLACE: rc = step_replace(out, p, s, work->matcher, err); break;
    case NORMAL_LOWERCASE: rc = step_lowercase(out, p, err); break;
    case NORMAL_STRIP_ACCENTS:
    case NORMAL_NMT: rc = step_filter(out, p, s->kind, err); break;
    default: rc = step_form(out, p, form_of(s->kind), err); break;
  }
  if (rc == RC_OK && out->len > TOKENIZER_NORMAL_BYTES)
    rc = err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %d bytes when normalized, got %zu",
                 TOKENIZER_NORMAL_BYTES, out->len);
  p->text = out->data ? out->data : "";
  p->len = out->len;
  work->next ^= 1;
  return rc;
}

enum rc normalize_piece(struct piece *p, const struct tokenizer *t, struct buf work[2], struct matcher *m,
                        struct err *err) {
  struct work at = {.buffers = work, .matcher = m};
  enum rc rc = RC_OK;
  for (int i = 0; i < t->normal_count && rc == RC_OK; i++) rc = run_step(&at, p, &t->normal[i], err);
  return rc;
}

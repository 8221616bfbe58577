/* Splits text into words: added tokens are taken out, the rest is normalized and split by the pre-tokenizer's steps;
 * each word goes to the merges.
 *
 * Patterns are written for Oniguruma, which the tokenizers library uses; PCRE2 in UTF and UCP mode reads the same
 * syntax and the same Unicode properties.  The one difference that matters is \s, see expand_spaces.  Compiled
 * patterns are constant; match data belongs to the call.
 *
 * Text comes from strangers: the subject is checked for UTF-8 once and matched without a second check (checking at
 * every match would be quadratic), and matching has a ceiling of steps, so that a pattern that backtracks badly is
 * refused and does not hang a service. */
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

enum { MATCH_STEPS_MAX = 50 * 1000 * 1000, MATCH_HEAP_KIB = 64 * 1024, PATTERN_BYTES_MAX = 4096 };

/* Unicode's White_Space, to stand inside brackets.  PCRE2's \s has U+180E too. */
#define SPACES "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* Replaces \s and \S by what Oniguruma means.  \S inside brackets stays: a class cannot hold a negated class of code
 * points. */
static void expand_spaces(struct buf *out, const char *pattern) {
  bool in_class = false;
  for (const char *p = pattern; *p; p++) {
    if (*p == '\\' && p[1]) {
      p++;
      if (*p == 's')
        buf_puts(out, in_class ? SPACES : "[" SPACES "]");
      else if (*p == 'S' && !in_class)
        buf_puts(out, "[^" SPACES "]");
      else
        buf_append(out, p - 1, 2);
      continue;
    }
    if (*p == '[')
      in_class = true;
    else if (*p == ']')
      in_class = false;
    buf_append(out, p, 1);
  }
}

enum rc text_compile(pcre2_code **out, const char *pattern, bool literal, struct err *err) {
  if (strlen(pattern) == 0 || strlen(pattern) > PATTERN_BYTES_MAX)
    return err_set(err, RC_INVALID, "pre_tokenizer.pattern", "expected a pattern of 1 to %d bytes, got %zu",
                   PATTERN_BYTES_MAX, strlen(pattern));
  struct buf expanded = BUF_INIT;
  if (literal)
    buf_puts(&expanded, pattern);
  else
    expand_spaces(&expanded, pattern);
  enum rc rc = buf_check(&expanded, err);
  if (rc == RC_OK) {
    int code;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)expanded.data, expanded.len, PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP),
                         &code, &at, NULL);
    if (!*out) {
      PCRE2_UCHAR message[128];
      pcre2_get_error_message(code, message, sizeof message);
      rc = err_set(err, RC_INVALID, "pre_tokenizer.pattern", "expected a regular expression, got \"%.128s\": %s",
                   pattern, (const char *)message);
    } else {
      (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* refused: the interpreter matches the same */
    }
  }
  buf_free(&expanded);
  return rc;
}

enum rc text_match_begin(struct encoder *e, struct err *err) {
  e->match = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
  e->limits = pcre2_match_context_create(NULL);
  if (!e->match || !e->limits) return err_set(err, RC_NO_MEMORY, NULL, "match data was refused memory");
  pcre2_set_match_limit(e->limits, MATCH_STEPS_MAX);
  pcre2_set_heap_limit(e->limits, MATCH_HEAP_KIB);
  return RC_OK;
}

void text_match_end(struct encoder *e) {
  pcre2_match_data_free(e->match);
  pcre2_match_context_free(e->limits);
}

static enum rc match(struct encoder *e, const pcre2_code *regex, const char *text, size_t len, size_t from, int *found,
                     struct err *err) {
  *found = pcre2_match(regex, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, e->match, e->limits);
  if (*found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is on the heap */
    *found = pcre2_match(regex, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match, e->limits);
  if (*found >= 0 || *found == PCRE2_ERROR_NOMATCH) return RC_OK;
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(*found, message, sizeof message);
  return err_set(
      err, RC_INVALID, NULL,
      "expected text that the pre-tokenizer's pattern can split, at byte %zu of a piece of %zu it gave up: %s", from,
      len, (const char *)message);
}

static enum rc split(struct encoder *e, int step, const char *text, size_t len, struct err *err);

/* Matches and the gaps between them go on to the next step, in order. */
static enum rc split_by_regex(struct encoder *e, int step, const char *text, size_t len, struct err *err) {
  size_t done = 0, from = 0;
  while (from < len) {
    int found;
    enum rc rc = match(e, e->t->splits[step].regex, text, len, from, &found, err);
    if (rc != RC_OK) return rc;
    if (found == PCRE2_ERROR_NOMATCH) break;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(e->match);
    const size_t start = ends[0], stop = ends[1];
    if (stop <= start || start < done) { /* empty: one code point on */
      for (from++; from < len && ((uint8_t)text[from] & 0xC0) == 0x80; from++) {}
      continue;
    }
    if (start > done) rc = split(e, step + 1, text + done, start - done, err); /* the deeper step reuses e->match */
    if (rc == RC_OK) rc = split(e, step + 1, text + start, stop - start, err);
    if (rc != RC_OK) return rc;
    done = from = stop;
  }
  return done < len ? split(e, step + 1, text + done, len - done, err) : RC_OK;
}

/* Splits a piece by the steps from `step` on and encodes the words. */
static enum rc split(struct encoder *e, int step, const char *text, size_t len, struct err *err) {
  if (step == e->t->split_count) return bpe_encode_word(e, text, len, err);
  const struct split_step *s = &e->t->splits[step];
  if (s->prefix_space && text[0] != ' ') { /* only the last step asks for it, so one buffer is enough */
    buf_clear(&e->prefixed);
    buf_append(&e->prefixed, " ", 1);
    buf_append(&e->prefixed, text, len);
    const enum rc rc = buf_check(&e->prefixed, err);
    if (rc != RC_OK) return rc;
    text = e->prefixed.data;
    len = e->prefixed.len;
  }
  return s->regex ? split_by_regex(e, step, text, len, err) : split(e, step + 1, text, len, err);
}

/* Text without tokens of the raw set. */
static enum rc encode_plain(struct encoder *e, const char *text, size_t len, struct err *err) {
  const struct tokenizer *t = e->t;
  if (t->nfc && text_may_change(text, len)) {
    buf_clear(&e->normal);
    const enum rc rc = text_normalize(&e->normal, text, len, err);
    if (rc != RC_OK) return rc;
    text = e->normal.data;
    len = e->normal.len;
  }
  struct added_match m;
  size_t at = 0, done = 0;
  enum rc rc = RC_OK;
  while (rc == RC_OK && added_next(&m, &t->normalized, text, len, &at, done, e->parse_special)) {
    if (m.start > done) rc = split(e, 0, text + done, m.start - done, err);
    if (rc == RC_OK) rc = encoder_push(e, m.id, err);
    done = m.stop;
  }
  return rc == RC_OK && done < len ? split(e, 0, text + done, len - done, err) : rc;
}

enum rc text_encode(struct encoder *e, const char *text, size_t len, struct err *err) {
  struct added_match m;
  size_t at = 0, done = 0;
  enum rc rc = RC_OK;
  while (rc == RC_OK && added_next(&m, &e->t->raw, text, len, &at, done, e->parse_special)) {
    if (m.start > done) rc = encode_plain(e, text + done, m.start - done, err);
    if (rc == RC_OK) rc = encoder_push(e, m.id, err);
    done = m.stop;
  }
  return rc == RC_OK && done < len ? encode_plain(e, text + done, len - done, err) : rc;
}

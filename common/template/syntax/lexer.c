/* Cuts a template's source into tokens, with Jinja's rules for white space as transformers sets them: trim_blocks (a
 * line end behind a block or comment is dropped), lstrip_blocks (so is the indentation in front of one), and the signs
 * "-" and "+" at a tag's inner ends, which drop all white space or keep it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/template/syntax/token.h"
#include "common/template/values/value.h"

enum { BRACKETS_MAX = 256, NUMBER_BYTES_MAX = 400 };

struct lexer {
  struct workspace *w;
  const char *source;
  size_t len, at;
  size_t counted; /* up to here line ends are in `line` */
  int line;
  bool line_starting; /* the last match ended in a line end, or nothing was matched */
  char brackets[BRACKETS_MAX];
  int open;
  struct token_list *out;
};

static int line_at(struct lexer *x, size_t at) {
  for (; x->counted < at; x->counted++) x->line += x->source[x->counted] == '\n';
  x->w->line = x->line;
  return x->line;
}

static enum rc push(struct lexer *x, struct token token, size_t at) {
  struct token_list *out = x->out;
  token.line = line_at(x, at);
  if (out->count == out->cap) {
    const size_t cap = out->cap ? out->cap * 2 : 256;
    struct token *items = realloc(out->items, cap * sizeof *items);
    if (!items) return work_fail(x->w, RC_NO_MEMORY, "%zu tokens were refused memory", cap);
    out->items = items;
    out->cap = cap;
  }
  out->items[out->count++] = token;
  return RC_OK;
}

static bool is_at(const struct lexer *x, size_t at, const char *word) {
  const size_t n = strlen(word);
  return x->len - at >= n && memcmp(x->source + at, word, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at) { return at + space_at_start(x->source + at, x->len - at); }

/* What may end a tag at `at`: its length with the white space that goes with it, 0 when it does not end here.
 * plus: a + may stand there; trims: a plain end takes a line end along. */
static size_t tag_end(const struct lexer *x, size_t at, const char *mark, bool plus, bool trims) {
  const size_t n = strlen(mark);
  if (plus && is_at(x, at, "+") && is_at(x, at + 1, mark)) return n + 1;
  if (is_at(x, at, "-") && is_at(x, at + 1, mark)) return skip_space(x, at + 1 + n) - at;
  if (!is_at(x, at, mark)) return 0;
  return n + (trims && is_at(x, at + n, "\n"));
}

/* Where the word of `{% word %}` at `at` ends, its sign put into *sign; 0: there is no such tag. */
static size_t word_tag(const struct lexer *x, size_t at, const char *word, char *sign) {
  if (!is_at(x, at, "{%")) return 0;
  at += 2;
  *sign = '\0';
  if (is_at(x, at, "-") || is_at(x, at, "+")) *sign = x->source[at++];
  at = skip_space(x, at);
  if (!is_at(x, at, word)) return 0;
  return skip_space(x, at + strlen(word));
}

/* Text up to `end`, where a tag begins. */
static enum rc push_text(struct lexer *x, size_t end, char sign, bool is_print) {
  const size_t start = x->at;
  size_t stop = end;
  if (sign == '-') {
    stop = end - space_before_end(x->source + start, end - start);
  } else if (sign != '+' && !is_print) {
    size_t line = end;
    while (line > start && x->source[line - 1] != '\n') line--;
    if ((line > start || x->line_starting) && space_at_start(x->source + line, end - line) == end - line) stop = line;
  }
  if (stop == start) return RC_OK;
  struct token token = {.kind = TOKEN_TEXT};
  const enum rc rc = text_share(x->w, x->source + start, stop - start, 0, &token.value);
  return rc == RC_OK ? push(x, token, start) : rc;
}

static void moved_to(struct lexer *x, size_t at) {
  if (at > x->at) x->line_starting = x->source[at - 1] == '\n';
  x->at = at;
}

static enum rc lex_comment(struct lexer *x) {
  const size_t begin = x->at;
  for (size_t at = begin; at < x->len; at++) {
    const size_t n = tag_end(x, at, "#}", true, true);
    if (n) {
      moved_to(x, at + n);
      return RC_OK;
    }
  }
  line_at(x, begin);
  return work_fail(x->w, RC_INVALID, "expected #} at the end of a comment");
}

static enum rc lex_raw(struct lexer *x) {
  for (size_t at = x->at; at < x->len; at++) {
    char sign;
    const size_t word = word_tag(x, at, "endraw", &sign), n = word ? tag_end(x, word, "%}", true, true) : 0;
    if (!n) continue;
    const enum rc rc = push_text(x, at, sign, false);
    moved_to(x, word + n);
    return rc;
  }
  line_at(x, x->at);
  return work_fail(x->w, RC_INVALID, "expected {%% endraw %%} behind {%% raw %%}");
}

/* --- inside of tags --- */

static int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

/* Digits of a base with single underscores between them; gives where they end. */
static size_t digits_end(const struct lexer *x, size_t at, int base) {
  size_t end = at;
  while (end < x->len) {
    const bool gap = x->source[end] == '_' && end > at && end + 1 < x->len && digit_of(x->source[end + 1]) < base;
    if (!gap && digit_of(x->source[end]) >= base) break;
    end += gap ? 2 : 1;
  }
  return end;
}

static enum rc integer_value(struct lexer *x, size_t from, size_t to, int base, struct value *out) {
  int64_t sum = 0;
  for (size_t i = from; i < to; i++) {
    if (x->source[i] == '_') continue;
    if (__builtin_mul_overflow(sum, base, &sum) || __builtin_add_overflow(sum, digit_of(x->source[i]), &sum))
      return work_fail(x->w, RC_INVALID, "expected numbers within 64 bits");
  }
  *out = value_int(sum);
  return RC_OK;
}

/* The end of a float at `at`, of which the whole part ends at `whole`; 0: it is none. */
static size_t real_end(const struct lexer *x, size_t at, size_t whole) {
  size_t end = whole;
  if (at > 0 && x->source[at - 1] == '.') return 0;
  if (is_at(x, end, ".") && digits_end(x, end + 1, 10) > end + 1) end = digits_end(x, end + 1, 10);
  size_t exponent = end;
  if (is_at(x, exponent, "e") || is_at(x, exponent, "E")) {
    exponent++;
    if (is_at(x, exponent, "+") || is_at(x, exponent, "-")) exponent++;
    if (digits_end(x, exponent, 10) > exponent) end = digits_end(x, exponent, 10);
  }
  return end > whole ? end : 0;
}

static enum rc lex_number(struct lexer *x, struct token *token) {
  static const struct {
    const char *prefix;
    int base;
  } bases[] = {{"0b", 2}, {"0o", 8}, {"0x", 16}, {"0B", 2}, {"0O", 8}, {"0X", 16}};
  const size_t at = x->at;
  size_t end = digits_end(x, at, 10);
  const size_t real = real_end(x, at, end);
  enum rc rc = RC_OK;
  if (real) {
    char digits[NUMBER_BYTES_MAX];
    size_t n = 0;
    for (size_t i = at; i < real && n + 1 < sizeof digits; i++)
      if (x->source[i] != '_') digits[n++] = x->source[i];
    digits[n] = '\0';
    token->value = value_real(strtod(digits, NULL));
    end = real;
  } else {
    int base = 10;
    size_t from = at;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
      if (!is_at(x, at, bases[i].prefix) || digits_end(x, at + 2, bases[i].base) == at + 2) continue;
      base = bases[i].base;
      from = at + 2;
      end = digits_end(x, from, base);
    }
    rc = integer_value(x, from, end, base, &token->value);
  }
  token->kind = TOKEN_CONSTANT;
  token->len = end - at;
  return rc;
}

/* Up to `most` digits of a base, as a code point. */
static uint32_t escape_digits(const struct lexer *x, size_t *at, int base, int most) {
  uint32_t code = 0;
  for (int n = 0; n < most && *at < x->len && digit_of(x->source[*at]) < base; n++)
    code = code * (uint32_t)base + (uint32_t)digit_of(x->source[(*at)++]);
  return code;
}

static enum rc lex_escape(struct lexer *x, size_t *at, struct text_builder *b) {
  static const char named[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
  const char c = x->source[*at];
  const char *found = c ? strchr(named, c) : NULL;
  uint32_t code;
  if (found && (found - named) % 2 == 0) {
    (*at)++;
    return builder_bytes(b, found + 1, 1, 0);
  }
  if (c == '\n') { /* a line that goes on */
    (*at)++;
    return RC_OK;
  }
  if (c >= '0' && c <= '7') {
    code = escape_digits(x, at, 8, 3);
  } else if (c == 'x' || c == 'u' || c == 'U') {
    const int want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    const size_t from = ++*at;
    code = escape_digits(x, at, 16, want);
    if (*at - from != (size_t)want) return work_fail(x->w, RC_INVALID, "expected %d digits behind \\%c", want, c);
  } else if (c == 'N') {
    return work_fail(x->w, RC_UNSUPPORTED, "\\N{...} in texts is not supported");
  } else { /* Python keeps the backslash */
    return builder_word(b, "\\");
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return work_fail(x->w, RC_INVALID, "expected a character behind \\, got U+%04X", code);
  return builder_code(b, code, 0);
}

static enum rc lex_string(struct lexer *x, struct token *token) {
  const char quote = x->source[x->at];
  struct text_builder b = builder_begin(x->w);
  enum rc rc = RC_OK;
  size_t at = x->at + 1, from = at;
  bool closed = false;
  while (at < x->len && rc == RC_OK && !closed) {
    const char c = x->source[at];
    if (c != '\\' && c != quote) {
      at++;
      continue;
    }
    rc = builder_bytes(&b, x->source + from, at - from, 0);
    closed = c == quote;
    at++;
    if (!closed && rc == RC_OK && at < x->len) rc = lex_escape(x, &at, &b);
    from = at;
  }
  if (rc == RC_OK && !closed) rc = work_fail(x->w, RC_INVALID, "expected %c at the end of a text", quote);
  token->kind = TOKEN_CONSTANT;
  token->len = at - x->at;
  if (rc == RC_OK) return builder_finish(&b, &token->value);
  builder_free(&b);
  return rc;
}

static bool in_name(char c, bool first) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && c >= '0' && c <= '9');
}

static enum rc lex_sign(struct lexer *x, struct token *token) {
  static const char twos[][3] = {"//", "**", "==", "!=", ">=", "<="};
  const char c = x->source[x->at];
  token->kind = TOKEN_SIGN;
  token->sign = (unsigned char)c;
  token->len = 1;
  for (size_t i = 0; i < sizeof twos / sizeof twos[0]; i++) {
    if (!is_at(x, x->at, twos[i])) continue;
    token->sign = SIGN_OF(twos[i][0], twos[i][1]);
    token->len = 2;
    return RC_OK;
  }
  if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
    return work_fail(x->w, RC_INVALID, "expected an expression, got the character %.*s",
                     (int)utf8_cut(x->source + x->at, x->len - x->at < 4 ? x->len - x->at : 4), x->source + x->at);
  if (strchr("([{", c)) {
    if (x->open == BRACKETS_MAX) return work_fail(x->w, RC_INVALID, "expected at most %d open brackets", BRACKETS_MAX);
    x->brackets[x->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (strchr(")]}", c)) {
    if (x->open == 0 || x->brackets[x->open - 1] != c)
      return work_fail(x->w, RC_INVALID, "expected %s%c, got %c", x->open ? "" : "no ",
                       x->open ? x->brackets[x->open - 1] : c, c);
    x->open--;
  }
  return RC_OK;
}

static enum rc lex_in_tag(struct lexer *x, bool is_print) {
  const char *const mark = is_print ? "}}" : "%}";
  const size_t begin = x->at;
  for (;;) {
    moved_to(x, skip_space(x, x->at));
    line_at(x, x->at);
    if (x->at == x->len) {
      x->w->line = line_at(x, begin);
      return work_fail(x->w, RC_INVALID, "expected %s at the end of a tag", mark);
    }
    const size_t end = x->open ? 0 : tag_end(x, x->at, mark, !is_print, !is_print);
    struct token token = {.bytes = x->source + x->at};
    if (end) {
      token.kind = is_print ? TOKEN_PRINT_END : TOKEN_BLOCK_END;
      const enum rc rc = push(x, token, x->at);
      moved_to(x, x->at + end);
      return rc;
    }
    const char c = x->source[x->at];
    enum rc rc;
    if (c >= '0' && c <= '9') {
      rc = lex_number(x, &token);
    } else if (c == '\'' || c == '"') {
      rc = lex_string(x, &token);
    } else if (in_name(c, true)) {
      token.kind = TOKEN_NAME;
      while (x->at + token.len < x->len && in_name(token.bytes[token.len], false)) token.len++;
      rc = RC_OK;
    } else {
      rc = lex_sign(x, &token);
    }
    if (rc == RC_OK) rc = push(x, token, x->at);
    if (rc != RC_OK) return rc;
    moved_to(x, x->at + token.len);
  }
}

/* Where the next tag begins; len: none. */
static size_t next_tag(const struct lexer *x) {
  for (size_t at = x->at; at + 1 < x->len; at++)
    if (x->source[at] == '{' && (x->source[at + 1] == '{' || x->source[at + 1] == '%' || x->source[at + 1] == '#'))
      return at;
  return x->len;
}

static enum rc lex_piece(struct lexer *x) {
  const size_t tag = next_tag(x);
  if (tag == x->len) {
    const enum rc rc = push_text(x, x->len, '+', true);
    x->at = x->len;
    return rc;
  }
  const char kind = x->source[tag + 1];
  char sign = tag + 2 < x->len && (x->source[tag + 2] == '-' || x->source[tag + 2] == '+') ? x->source[tag + 2] : '\0';
  char raw_sign;
  const size_t raw = word_tag(x, tag, "raw", &raw_sign), raw_end = raw ? tag_end(x, raw, "%}", false, false) : 0;
  enum rc rc = push_text(x, tag, sign, kind == '{');
  if (rc != RC_OK) return rc;
  if (raw_end) {
    moved_to(x, raw + raw_end);
    return lex_raw(x);
  }
  moved_to(x, tag + 2 + (sign != '\0'));
  if (kind == '#') return lex_comment(x);
  rc = push(x, (struct token){.kind = kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN}, tag);
  return rc == RC_OK ? lex_in_tag(x, kind == '{') : rc;
}

enum rc lex(struct workspace *w, const char *source, size_t len, struct token_list *out) {
  struct lexer x = {.w = w, .source = source, .len = len, .line = 1, .line_starting = true, .out = out};
  enum rc rc = RC_OK;
  while (x.at < x.len && rc == RC_OK) rc = lex_piece(&x);
  return rc == RC_OK ? push(&x, (struct token){.kind = TOKEN_END}, x.len) : rc;
}

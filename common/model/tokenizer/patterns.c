/* Compiles the patterns of a tokenizer.json and finds their matches.
 *
 * They are written for Oniguruma, which the tokenizers library uses; PCRE2 in UTF and UCP mode reads the same syntax
 * with a few differences, which are bridged here: \s (PCRE2's has U+180E), \w and \b (PCRE2's lack marks), \p{Han} (to
 * PCRE2 also what other scripts share with it), properties that changed in a newer Unicode than PCRE2 knows
 * (unicode_tables.h), {,n}, line anchors, empty matches.  Syntax that the two read differently and that is not bridged
 * is refused by name.
 *
 * Called by the readers of the file's sections, and by normalize.c, text.c and decode.c.  Compiled patterns are
 * constant; match data belongs to the call.  Text comes from strangers: it is checked for UTF-8 once and matched
 * without a second check (checking at every match would be quadratic), and matching has a ceiling of steps, so that a
 * pattern that backtracks badly is refused and does not hang a service. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/model/tokenizer/tokenizer_state.h"
#include "common/model/tokenizer/unicode_tables.h"

enum {
  MATCH_STEPS_MAX = 50 * 1000 * 1000,
  MATCH_HEAP_KIB = 64 * 1024,
  PATTERN_BYTES_MAX = 4096,
  PROPERTY_BYTES_MAX = 32,
  GROUPS_MAX = 63 /* in each other */
};

/* Unicode's White_Space, to stand inside brackets. */
#define SPACES "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* The pattern that is being rewritten. */
struct rewrite {
  struct buf *out;
  const char *p, *end;
  bool in_class;
  uint64_t any_case; /* of the groups that are open, the innermost in bit 0: whether (?i) holds in them */
  int groups;
  bool at_branch;      /* nothing of the branch was read yet */
  const char *refused; /* what is not supported */
};

/* Puts members into the class that is open, or makes one of them. */
static void put_class(struct rewrite *r, const char *members, bool negated) {
  if (!r->in_class) buf_puts(r->out, negated ? "[^" : "[");
  buf_puts(r->out, members);
  if (!r->in_class) buf_puts(r->out, "]");
}

static void put_range(struct buf *out, uint32_t first, uint32_t last) {
  buf_printf(out, "\\x{%X}-\\x{%X}", (unsigned)first, (unsigned)last);
}

static void put_ranges(struct buf *out, const struct code_range *ranges, size_t count) {
  for (size_t i = 0; i < count; i++) put_range(out, ranges[i].first, ranges[i].last);
}

/* Appends the code points that have a property (L, Lu, Han) only in a Unicode newer than PCRE2's. */
static void put_newer(struct buf *out, const char *name, size_t len) {
  uint32_t first = 0, last = 0;
  for (size_t i = 0; i < COUNT(newer_scripts); i++) {
    const struct newer_script *s = &newer_scripts[i];
    if (strncasecmp(s->name, name, len) == 0 && s->name[len] == '\0') put_range(out, s->first, s->last);
  }
  for (size_t i = 0; i < COUNT(newer_categories); i++) {
    const struct newer_category *c = &newer_categories[i];
    if (len == 0 || len > 2 || memcmp(name, c->name, len) != 0) continue;
    if (last > 0 && c->first == last + 1) { /* Lu beside Ll, and L is asked for */
      last = c->last;
      continue;
    }
    if (last > 0) put_range(out, first, last);
    first = c->first;
    last = c->last;
  }
  if (last > 0) put_range(out, first, last);
}

/* Members of a class: \w of one of the library's two regex engines, of which Oniguruma's in brackets lacks its own. */
static void put_words(struct buf *out, const struct code_range *own, size_t own_count) {
  buf_puts(out, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}");
  put_ranges(out, newer_words, COUNT(newer_words));
  put_ranges(out, own, own_count);
}

/* Categories whose members both engines know, or unicode_tables.h has what only Oniguruma knows. */
static bool is_category(const char *name, size_t len) {
  static const char known[] = "L,Lu,Ll,Lt,Lm,Lo,M,Mn,Mc,Me,N,Nd,Nl,No,P,Pc,Pd,Ps,Pe,Pi,Pf,Po,S,Sm,Sc,Sk,So,Z,Zs,Zl,Zp,"
                              "Cc,Cf,Co,Any,ASCII,White_Space,";
  for (const char *at = known; *at; at = strchr(at, ',') + 1)
    if (strncmp(at, name, len) == 0 && at[len] == ',') return true;
  return false;
}

static bool is_script(const char *name, size_t len) {
  char pattern[PROPERTY_BYTES_MAX + 16];
  int code;
  PCRE2_SIZE at;
  snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", (int)len, name);
  pcre2_code *found = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
  pcre2_code_free(found);
  return found && strncasecmp(name, "Unknown", len) != 0;
}

static void put_property(struct rewrite *r, const char *name, size_t len, bool negated) {
  struct buf members = BUF_INIT;
  const bool whole = !memchr(name, '\0', len); /* names are compared as strings */
  const bool script = whole && !is_category(name, len);
  if (!whole || (script && !is_script(name, len))) {
    r->refused = "a property other than a general category or a script";
    return;
  }
  if (r->in_class && (r->any_case & 1) && len != 1 && strncmp(name, "Nd", len) != 0)
    r->refused = "a property of several letters in brackets where case is ignored";
  buf_printf(&members, "\\%c{%s%.*s}", negated && r->in_class ? 'P' : 'p', script ? "sc:" : "", (int)len, name);
  /* a class cannot hold a negated class, so what is newer stays in it */
  if (!negated || !r->in_class) put_newer(&members, name, len);
  if (members.failed) r->out->failed = true;
  if (members.data) put_class(r, members.data, negated && !r->in_class);
  buf_free(&members);
}

/* \p{name}, \p{^name}, \P{name}; p is behind the letter. */
static void read_property(struct rewrite *r, bool negated) {
  const char *close = r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p)) : NULL;
  if (!close || close - r->p > PROPERTY_BYTES_MAX) {
    r->refused = "a property without braces";
    return;
  }
  const char *name = r->p + 1;
  if (name < close && *name == '^') {
    negated = !negated;
    name++;
  }
  put_property(r, name, (size_t)(close - name), negated);
  r->p = close + 1;
}

static void put_word_class(struct rewrite *r, bool negated) {
  struct buf members = BUF_INIT;
  put_words(&members, oniguruma_words, r->in_class ? 0 : COUNT(oniguruma_words));
  if (members.failed) r->out->failed = true;
  if (!members.failed) put_class(r, members.data, negated);
  buf_free(&members);
}

/* \b or \B. */
static void put_word_boundary(struct rewrite *r, bool negated) {
  struct buf word = BUF_INIT;
  put_words(&word, oniguruma_words, COUNT(oniguruma_words));
  if (word.failed) r->out->failed = true;
  if (!word.failed)
    buf_printf(r->out, "(?:(?<=[%s])(?%c[%s])|(?<![%s])(?%c[%s]))", word.data, negated ? '=' : '!', word.data,
               word.data, negated ? '!' : '=', word.data);
  buf_free(&word);
}

/* What follows a backslash. */
static void put_escape(struct rewrite *r) {
  const char c = r->p < r->end ? *r->p++ : '\0';
  switch (c) {
    case 's': put_class(r, SPACES, false); return;
    case 'S':
      if (r->in_class)
        buf_puts(r->out, "\\S\\x{180E}"); /* which PCRE2's \S leaves out */
      else
        put_class(r, SPACES, true);
      return;
    case 'w':
    case 'W':
      if (r->in_class && c == 'W')
        r->refused = "\\W in brackets";
      else
        put_word_class(r, c == 'W');
      return;
    case 'p':
    case 'P': read_property(r, c == 'P'); return;
    case 'd':
    case 'D': put_property(r, "Nd", 2, c == 'D'); return;
    case 'b':
    case 'B':
      if (r->in_class) break;
      put_word_boundary(r, c == 'B');
      return;
    case 'u':
      for (int i = 0; i < 4; i++) {
        if (r->end - r->p < 4 || !memchr("0123456789abcdefABCDEF", r->p[i], 22)) {
          r->refused = "\\u without four digits";
          return;
        }
      }
      buf_printf(r->out, "\\x{%.4s}", r->p);
      r->p += 4;
      return;
    default: break;
  }
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (c == '\0' || (letter && !strchr("rntfxAzbB", c))) {
    r->refused = "an escape other than \\s \\S \\w \\W \\d \\D \\p \\P \\r \\n \\t \\f \\x \\u \\A \\z \\b \\B";
    return;
  }
  buf_append(r->out, (char[]){'\\', c}, 2);
}

/* The length of what opens a group at p: a bracket alone, or with a colon, a look-around, an atomic group, or the flag
 * i.  0: another. */
static size_t opening(const char *p, const char *end) {
  static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:"};
  if (end - p < 2 || (p[1] != '?' && p[1] != '*')) return 1;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    const size_t len = strlen(known[i]);
    if ((size_t)(end - p) >= len && memcmp(p, known[i], len) == 0) return len;
  }
  return 0;
}

/* A group, at its bracket: case counts in it as around it, unless it says otherwise. */
static void open_group(struct rewrite *r) {
  const char *const bracket = r->p - 1;
  const size_t len = opening(bracket, r->end);
  const bool flag = len == 4 && bracket[3] == ')', on = len == 4 && bracket[2] == 'i', off = len == 5;
  if (len == 0) r->refused = "a group other than (?: (?= (?! (?<= (?<! (?> (?i: (?i)";
  /* Oniguruma reads a(?i)b|c as a(?i:b|c). */
  if (flag && !r->at_branch) r->refused = "a flag (?i) behind something in its branch";
  if (!flag && r->groups++ == GROUPS_MAX) r->refused = "so many groups in each other";
  if (r->refused) return;
  r->any_case = flag ? r->any_case | 1 : r->any_case << 1 | (on || (!off && (r->any_case & 1)));
  r->at_branch = true;
  buf_append(r->out, bracket + 1, len - 1);
  r->p = bracket + len;
}

/* Behind "{": to Oniguruma {,n} is {0,n}, and {n}? is (?:{n})?. */
static void read_interval(struct rewrite *r) {
  const char *at = r->p;
  const bool open = at < r->end && *at == ',';
  if (open) at++;
  const char *digits = at;
  while (at < r->end && *at >= '0' && *at <= '9') at++;
  if (at == digits || at == r->end || *at != '}') return;
  if (open) buf_puts(r->out, "0");
  if (!open && at + 1 < r->end && at[1] == '?') r->refused = "an interval {n} that is followed by ?";
}

/* Where case is ignored, one character may be equal to two: "ss" to U+00DF.  c is behind p, next at it. */
static bool folds_into_one(const struct rewrite *r, char c, char next) {
  static const char pairs[] = "ss,ff,fi,fl,st,";
  const char two[] = {(char)(c | 0x20), (char)(next | 0x20), ',', '\0'};
  uint32_t code;
  if (r->in_class || (uint8_t)c < 0x80) return !r->in_class && strstr(pairs, two);
  return text_code(&code, r->p - 1, (size_t)(r->end - r->p) + 1) > 0 && text_is_word(code);
}

static void read_sign(struct rewrite *r, char c, char next) {
  switch (c) {
    case '[':
      if (next == ']' || (next == '^' && r->p + 1 < r->end && r->p[1] == ']'))
        r->refused = "a class that begins with ]";
      r->in_class = true;
      break;
    case '{': read_interval(r); break;
    case '}':
      if (next == '+') r->refused = "an interval that is repeated";
      break;
    case '(': open_group(r); return;
    case ')':
      if (r->groups-- == 0) r->refused = "a bracket ) too many";
      r->any_case >>= 1;
      break;
    case '|': r->at_branch = true; return;
    default: break;
  }
  r->at_branch = false;
}

static void rewrite_pattern(struct rewrite *r) {
  r->at_branch = true;
  while (r->p < r->end && !r->refused) {
    const char c = *r->p++;
    const char next = r->p < r->end ? *r->p : '\0';
    if (c == '\\') {
      put_escape(r);
      r->at_branch = false;
      continue;
    }
    if ((r->any_case & 1) && folds_into_one(r, c, next))
      r->refused = "characters that are equal to several where case is ignored";
    buf_append(r->out, &c, 1);
    if (!r->in_class)
      read_sign(r, c, next);
    else if (c == ']')
      r->in_class = false;
    else if (c == '[')
      r->refused = "brackets in brackets";
    else if (c == '&' && next == '&')
      r->refused = "an intersection of classes";
  }
}

static enum rc compile(pcre2_code **out, const char *expanded, size_t expanded_len, const char *pattern, bool literal,
                       const char *field, struct err *err) {
  int code;
  PCRE2_SIZE at;
  pcre2_compile_context *context = pcre2_compile_context_create(NULL);
  if (!context) return err_set(err, RC_NO_MEMORY, field, "a pattern was refused memory");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  *out = pcre2_compile((PCRE2_SPTR)expanded, expanded_len,
                       PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE), &code, &at, context);
  pcre2_compile_context_free(context);
  if (*out) {
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* refused: the interpreter matches the same */
    return RC_OK;
  }
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(code, message, sizeof message);
  return err_set(err, RC_INVALID, field, "expected a regular expression, got \"%.128s\": %s", pattern,
                 (const char *)message);
}

enum rc pattern_compile(pcre2_code **out, const char *pattern, size_t len, bool literal, const char *field,
                        struct err *err) {
  *out = NULL;
  if (len == 0 || len > PATTERN_BYTES_MAX)
    return err_set(err, RC_INVALID, field, "expected a pattern of 1 to %d bytes, got %zu", PATTERN_BYTES_MAX, len);
  struct buf expanded = BUF_INIT;
  struct rewrite r = {.out = &expanded, .p = pattern, .end = pattern + len};
  if (literal)
    buf_append(&expanded, pattern, len);
  else
    rewrite_pattern(&r);
  enum rc rc = buf_check(&expanded, err);
  if (rc == RC_OK && r.refused)
    rc = err_set(err, RC_INVALID, field, "expected a pattern without %s, got \"%.128s\"", r.refused, pattern);
  if (rc == RC_OK) rc = compile(out, expanded.data, expanded.len, pattern, literal, field, err);
  buf_free(&expanded);
  return rc;
}

enum rc pattern_of(pcre2_code **out, enum pattern_name name, struct err *err) {
  struct buf p = BUF_INIT, words = BUF_INIT;
  switch (name) {
    case PATTERN_NUMBER:
      buf_puts(&p, "[\\p{N}");
      put_newer(&p, "N", 1);
      put_ranges(&p, rust_numbers, COUNT(rust_numbers));
      buf_puts(&p, "]");
      break;
    case PATTERN_PUNCTUATION:
      buf_puts(&p, "(?![");
      put_ranges(&p, newer_punctuation, COUNT(newer_punctuation));
      buf_puts(&p, "])[!-/:-@\\[-`{-~\\p{P}");
      put_ranges(&p, older_punctuation, COUNT(older_punctuation));
      buf_puts(&p, "]");
      break;
    case PATTERN_SPACE: buf_puts(&p, "[" SPACES "]"); break;
    default: /* PATTERN_WORDS */
      put_words(&words, rust_words, COUNT(rust_words));
      if (words.failed) p.failed = true;
      if (words.data) buf_printf(&p, "[%s]+|[^%s" SPACES "]+", words.data, words.data);
      break;
  }
  enum rc rc = buf_check(&p, err);
  if (rc == RC_OK) rc = compile(out, p.data, p.len, p.data, false, "pre_tokenizer", err);
  buf_free(&p);
  buf_free(&words);
  return rc;
}

/* --- matching --- */

enum rc matcher_begin(struct matcher *m, struct err *err) {
  m->data = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
  m->limits = pcre2_match_context_create(NULL);
  if (!m->data || !m->limits) return err_set(err, RC_NO_MEMORY, NULL, "match data was refused memory");
  pcre2_set_match_limit(m->limits, MATCH_STEPS_MAX);
  pcre2_set_heap_limit(m->limits, MATCH_HEAP_KIB);
  return RC_OK;
}

void matcher_end(struct matcher *m) {
  pcre2_match_data_free(m->data);
  pcre2_match_context_free(m->limits);
}

static enum rc match(struct matcher *m, const struct match_walk *w, int *found, struct err *err) {
  const PCRE2_SPTR text = (PCRE2_SPTR)w->text;
  *found = pcre2_match(w->regex, text, w->len, w->from, PCRE2_NO_UTF_CHECK, m->data, m->limits);
  if (*found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is on the heap */
    *found = pcre2_match(w->regex, text, w->len, w->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->limits);
  if (*found >= 0 || *found == PCRE2_ERROR_NOMATCH) return RC_OK;
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(*found, message, sizeof message);
  return err_set(err, RC_INVALID, NULL,
                 "expected text that the tokenizer's pattern can split, at byte %zu of a piece of %zu it gave up: %s",
                 w->from, w->len, (const char *)message);
}

enum rc match_next(struct match_walk *w, struct matcher *m, bool *found, size_t *start, size_t *stop, struct err *err) {
  *found = false;
  while (w->from <= w->len) {
    int code;
    const enum rc rc = match(m, w, &code, err);
    if (rc != RC_OK || code == PCRE2_ERROR_NOMATCH) return rc;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(m->data);
    const size_t from = ends[0], to = ends[1] > ends[0] ? ends[1] : ends[0]; /* \K could turn them round */
    if (from == to && w->any && w->last == to) { /* empty where the match before ended: one code point on */
      for (w->from = to + 1; w->from < w->len && ((uint8_t)w->text[w->from] & 0xC0) == 0x80; w->from++) {}
      continue;
    }
    *found = w->any = true;
    *start = from;
    *stop = w->from = w->last = to;
    return RC_OK;
  }
  return RC_OK;
}

enum rc pattern_replace(struct buf *out, const pcre2_code *regex, const struct literal *content, struct matcher *m,
                        const char *text, size_t len, struct err *err) {
  struct match_walk w = {.regex = regex, .text = text, .len = len};
  size_t done = 0;
  for (;;) {
    bool found;
    size_t start, stop;
    const enum rc rc = match_next(&w, m, &found, &start, &stop, err);
    if (rc != RC_OK) return rc;
    if (!found) break;
    buf_append(out, text + done, start - done);
    buf_append(out, content->text, content->len);
    if (out->len > TOKENIZER_NORMAL_BYTES)
      return err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %d bytes when normalized, got more",
                     TOKENIZER_NORMAL_BYTES);
    done = stop;
  }
  buf_append(out, text + done, len - done);
  return buf_check(out, err);
}

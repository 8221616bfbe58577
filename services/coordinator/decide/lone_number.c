/* Reads one number that stands alone, in an answer or at the end of prose. */
#include "services/coordinator/decide/lone_number.h"

#include <ctype.h>
#include <string.h>

/* A line of the text; positions are offsets in the text, and nothing outside [begin, end) is looked at. */
struct line {
  const char *text;
  size_t begin, end;
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return isalnum((unsigned char)c) != 0; } /* of the C locale: no byte of other scripts */
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
static bool is_one_of(char c, const char *set) { return c != 0 && strchr(set, c) != NULL; }

static bool starts(const char *text, size_t len, const char *with) {
  const size_t n = strlen(with);
  return len >= n && memcmp(text, with, n) == 0;
}

/* ---- a text that is a number as a whole ---- */

static void trim(const char **text, size_t *len) {
  while (*len && (is_blank(**text) || **text == '\n')) {
    ++*text;
    --*len;
  }
  while (*len && (is_blank((*text)[*len - 1]) || (*text)[*len - 1] == '\n')) --*len;
}

static void skip_currency(const char **text, size_t *len) {
  static const char *const signs[] = {"\\$", "$", "\xE2\x82\xAC" /* euro */, "\xC2\xA3" /* pound */};
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
    if (!starts(*text, *len, signs[i])) continue;
    *text += strlen(signs[i]);
    *len -= strlen(signs[i]);
    break;
  }
  trim(text, len);
}

bool number_whole(const char *text, size_t len, struct number *out) {
  bool stopped = false;
  for (;;) {
    trim(&text, &len);
    const char first = len > 1 ? text[0] : 0, last = len ? text[len - 1] : 0;
    if (last == '.' && !stopped) {
      stopped = true;
      len--;
    } else if ((first == '$' && last == '$') || (first == '{' && last == '}')) {
      text++;
      len -= 2;
    } else {
      break;
    }
  }
  skip_currency(&text, &len);
  return len > 0 && number_scan(text, len, &out->value, &out->exact, &out->approximate) == len;
}

bool number_gold(const char *text, struct number *out) {
  static const char marker[] = "####";
  for (const char *found; (found = strstr(text, marker));) text = found + sizeof marker - 1;
  return number_whole(text, strlen(text), out);
}

/* ---- the last number of a text ---- */

/* Characters beyond ASCII that make an operand of a number beside them, as ranges of code points: superscripts,
 * fractions, the signs of multiplication, division, roots and minus, dashes between two numbers, and pi. */
static bool is_math(unsigned code) {
  static const struct {
    unsigned first, last;
  } ranges[] = {{0xB2, 0xB3},     {0xB7, 0xB7},     {0xB9, 0xB9},     {0xBC, 0xBE},
                {0xD7, 0xD7},     {0xF7, 0xF7},     {0x3C0, 0x3C0},   {0x2010, 0x2015},
                {0x2044, 0x2044}, {0x2070, 0x209C}, {0x2150, 0x215F}, {0x2200, 0x22FF}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
    if (code >= ranges[i].first && code <= ranges[i].last) return true;
  return false;
}

/* The code point of two or three bytes at p; 0 for anything else, ASCII included. */
static unsigned code_at(const unsigned char *p, size_t len) {
  if (len >= 2 && (p[0] & 0xE0) == 0xC0 && (p[1] & 0xC0) == 0x80) return (p[0] & 0x1FU) << 6 | (p[1] & 0x3FU);
  if (len >= 3 && (p[0] & 0xF0) == 0xE0 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80)
    return (p[0] & 0xFU) << 12 | (p[1] & 0x3FU) << 6 | (p[2] & 0x3FU);
  return 0;
}

static bool math_follows(const struct line *l, size_t at) {
  return is_math(code_at((const unsigned char *)l->text + at, l->end - at));
}

static bool math_precedes(const struct line *l, size_t at) {
  for (size_t bytes = 2; bytes <= 3 && bytes <= at - l->begin; bytes++)
    if (is_math(code_at((const unsigned char *)l->text + at - bytes, bytes))) return true;
  return false;
}

static size_t blanks_before(const struct line *l, size_t at) {
  while (at > l->begin && is_blank(l->text[at - 1])) at--;
  return at;
}

static size_t blanks_after(const struct line *l, size_t at) {
  while (at < l->end && is_blank(l->text[at])) at++;
  return at;
}

/* "\(" and "\[" open a formula, "\)" and "\]" close it: they delimit, and enclose nothing. */
static bool is_escaped(const struct line *l, size_t at) { return at > l->begin && l->text[at - 1] == '\\'; }

/* Markdown: a run of "*", "_" or "`" that opens emphasis touches what follows it and no operand before it; one that
 * closes, the other way round.  Each needs its other end on the line, else it may be a product: "2*3", "2* 3* 4". */
static bool run_opens(const struct line *l, size_t from, size_t to) {
  return (from == l->begin || !(is_word(l->text[from - 1]) || is_one_of(l->text[from - 1], ")]}"))) && to < l->end &&
         !is_blank(l->text[to]);
}

static bool run_closes(const struct line *l, size_t from, size_t to) {
  return from > l->begin && !is_blank(l->text[from - 1]) &&
         (to == l->end || !(is_word(l->text[to]) || is_one_of(l->text[to], "([{\\")));
}

static bool is_emphasis(const struct line *l, size_t from, size_t to) {
  const char mark = l->text[from];
  const bool opens = run_opens(l, from, to), closes = run_closes(l, from, to);
  for (size_t a = l->begin, b; a < l->end; a = b) {
    for (b = a + 1; b < l->end && l->text[a] == mark && l->text[b] == mark;) b++;
    if (l->text[a] != mark || b - a != to - from) continue;
    if (closes && b <= from && run_opens(l, a, b)) return true;
    if (opens && a >= to && run_closes(l, a, b)) return true;
  }
  return false;
}

static size_t emphasis_before(const struct line *l, size_t at) {
  size_t from = at;
  if (at == l->begin || !is_one_of(l->text[at - 1], "*_`")) return at;
  while (from > l->begin && l->text[from - 1] == l->text[at - 1]) from--;
  return is_emphasis(l, from, at) ? from : at;
}

static size_t emphasis_after(const struct line *l, size_t at) {
  size_t to = at;
  if (at == l->end || !is_one_of(l->text[at], "*_`")) return at;
  while (to < l->end && l->text[to] == l->text[at]) to++;
  return is_emphasis(l, at, to) ? to : at;
}

/* A macro's name, or at least its backslash, ends before `at`: "\cdot". */
static bool macro_before(const struct line *l, size_t at) {
  size_t from = at;
  while (from > l->begin && isalpha((unsigned char)l->text[from - 1])) from--;
  return is_escaped(l, from);
}

/* A comma between two numbers makes a list of them, or a tuple. */
static bool list_before(const struct line *l, size_t comma) {
  const size_t at = blanks_before(l, comma);
  return at > l->begin && (is_digit(l->text[at - 1]) || is_one_of(l->text[at - 1], ")]}"));
}

/* The sign before `at` stands in a working of digits and plain signs, whose last number is read (lone_number.h). */
static bool working_before(const struct line *l, size_t at) {
  return at - 1 > l->begin && (is_digit(l->text[at - 2]) || is_one_of(l->text[at - 2], "*+-=;#"));
}

/* Does something touch the number?  in_brackets judges an open bracket. */
static bool touches_before(const struct line *l, size_t at) {
  const char c = l->text[at - 1];
  if (is_one_of(c, "*+-")) return !working_before(l, at);
  if (c == ':') return at - 1 > l->begin && is_digit(l->text[at - 2]);
  if (c == ',') return list_before(l, at - 1);
  return is_word(c) || is_one_of(c, ")]}{\\^_/%|@&") || math_precedes(l, at);
}

static bool glued_before(const struct line *l, size_t at) {
  at = emphasis_before(l, at);
  while (at > l->begin && l->text[at - 1] == '$') at -= is_escaped(l, at - 1) ? 2 : 1;
  if (at > l->begin && !is_blank(l->text[at - 1])) return touches_before(l, at);
  at = emphasis_before(l, blanks_before(l, at));
  if (at == l->begin) return false;
  const char c = l->text[at - 1];
  if (is_one_of(c, "*+-") && blanks_before(l, at - 1) == l->begin) return false; /* a bullet */
  if (c == ',') return list_before(l, at - 1);
  return is_digit(c) || is_one_of(c, "*/^+-%\\}") || macro_before(l, at) || math_precedes(l, at);
}

/* A backslash behind a number: only the end of a formula or of its line, and a percent sign, leave it alone. */
static bool macro_after(const struct line *l, size_t at) {
  return l->text[at] == '\\' && !(at + 1 < l->end && is_one_of(l->text[at + 1], ")]\\%$"));
}

/* An operator behind a number makes it an operand when there is another one: a text may be cut off behind it, or its
 * working break off ("7+="). */
static bool operator_after(const struct line *l, size_t at) {
  if (!is_one_of(l->text[at], "^_*/+-")) return false;
  while (at < l->end && (is_one_of(l->text[at], "^_*/+-") || is_blank(l->text[at]))) at++;
  return at < l->end && !is_one_of(l->text[at], "=;#");
}

static bool glued_after(const struct line *l, size_t at) {
  at = emphasis_after(l, at);
  if (at == l->end) return false;
  if (!is_blank(l->text[at]))
    return is_word(l->text[at]) || is_one_of(l->text[at], "([{}") || operator_after(l, at) || macro_after(l, at) ||
           math_follows(l, at);
  at = blanks_after(l, at);
  if (at == l->end || emphasis_after(l, at) > at) return false;
  return l->text[at] == '}' || operator_after(l, at) || macro_after(l, at) || math_follows(l, at);
}

/* Brackets around the number and nothing else are taken off. */
static void unwrap(const struct line *l, size_t *from, size_t *to) {
  static const char pairs[] = "()[]{}";
  for (;;) {
    const size_t before = blanks_before(l, *from), after = blanks_after(l, *to);
    const char *open = before > l->begin && after < l->end ? strchr(pairs, l->text[before - 1]) : NULL;
    if (!open || !*open || (open - pairs) % 2 || open[1] != l->text[after] || is_escaped(l, before - 1)) return;
    *from = before - 1;
    *to = after + 1;
  }
}

static bool in_brackets(const struct line *l, size_t at) {
  size_t depth = 0;
  for (size_t i = l->begin; i < at; i++) {
    switch (l->text[i]) {
      case '(':
      case '[': depth += !is_escaped(l, i); break;
      case '{': depth++; break;
      case ')':
      case ']': depth -= depth > 0 && !is_escaped(l, i); break;
      case '}': depth -= depth > 0; break;
      default: break;
    }
  }
  return depth > 0;
}

static bool stands_alone(const char *text, size_t len, size_t from, size_t to) {
  struct line l = {.text = text, .begin = from, .end = to};
  while (l.begin > 0 && text[l.begin - 1] != '\n') l.begin--;
  while (l.end < len && text[l.end] != '\n') l.end++;
  unwrap(&l, &from, &to);
  return !in_brackets(&l, from) && !glued_before(&l, from) && !glued_after(&l, to);
}

/* A sign belongs to the number unless something that ends an operand stands before it ("3-4" ends in 4). */
static bool sign_is_operator(const char *text, size_t at) {
  return at > 0 && (is_word(text[at - 1]) || text[at - 1] == ')' || text[at - 1] == '.');
}

/* What number_scan may take. */
static bool is_of_number(char c) { return is_digit(c) || is_one_of(c, ".,/+-eE"); }

/* Every number ends with a digit, so the last one lies before the end of the last digit, and behind what no number
 * has. */
static void last_numbers(const char *text, size_t *begin, size_t *end) {
  while (*end > 0 && !is_digit(text[*end - 1])) --*end;
  for (*begin = *end; *begin > 0 && is_of_number(text[*begin - 1]);) --*begin;
}

enum number_found number_last(const char *text, size_t len, struct number *out) {
  size_t from = 0, to = 0;
  size_t begin, end = len;
  last_numbers(text, &begin, &end);
  for (size_t at = begin; at < end;) {
    struct number n = {.exact = false};
    size_t used = 0;
    if (!((text[at] == '-' || text[at] == '+') && sign_is_operator(text, at)))
      used = number_scan(text + at, end - at, &n.value, &n.exact, &n.approximate);
    if (used) {
      *out = n;
      from = at;
      to = at + used;
    }
    at += used ? used : 1;
  }
  if (to == 0) return NUMBER_NONE;
  return stands_alone(text, len, from, to) ? NUMBER_ALONE : NUMBER_IN_LARGER;
}

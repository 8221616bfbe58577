/* Parses by recursive descent over the tokens.  A function gives the index of the node that it made, or MATH_NONE,
 * which ends everything. */
#include "services/coordinator/verifiers/math_parser.h"

#include <string.h>

#include "services/coordinator/verifiers/math_lexer.h"

struct parser {
  struct math_token tokens[MATH_TOKENS_MAX];
  int at, depth;
  bool bars; /* a bar closes one that is open, or stands in a set */
  bool colons; /* a colon stands in a set, and is no ratio */
  struct math_tree *t;
};

static int parse_list(struct parser *p);
static int parse_item(struct parser *p);
static int parse_sum(struct parser *p);
static int parse_power(struct parser *p);

static const struct math_token *peek(const struct parser *p) { return &p->tokens[p->at]; }
static bool next_is(const struct parser *p, int kind) { return p->tokens[p->at].kind == kind; }
static bool take(struct parser *p, int kind) {
  if (!next_is(p, kind)) return false;
  p->at++;
  return true;
}

static bool is(const struct math_token *k, const char *name) {
  return (size_t)k->len == strlen(name) && memcmp(k->text, name, (size_t)k->len) == 0;
}

static int leaf(struct parser *p, enum math_op op, const char *text, int len) {
  struct math_tree *t = p->t;
  if (t->count == MATH_NODES_MAX) return MATH_NONE;
  t->nodes[t->count] = (struct math_node){.op = op, .child = MATH_NONE, .next = MATH_NONE, .text = text, .len = len};
  return t->count++;
}

static int join(struct parser *p, enum math_op op, int a, int b) {
  const int n = a == MATH_NONE || b == MATH_NONE ? MATH_NONE : leaf(p, op, NULL, 0);
  if (n == MATH_NONE) return MATH_NONE;
  p->t->nodes[n].child = a;
  p->t->nodes[a].next = b;
  p->t->nodes[b].next = MATH_NONE;
  return n;
}

static int wrap(struct parser *p, enum math_op op, int a) {
  const int n = a == MATH_NONE ? MATH_NONE : leaf(p, op, NULL, 0);
  if (n == MATH_NONE) return MATH_NONE;
  p->t->nodes[n].child = a;
  p->t->nodes[a].next = MATH_NONE;
  return n;
}

static void append(struct parser *p, int parent, int *last, int child) {
  if (*last == MATH_NONE)
    p->t->nodes[parent].child = child;
  else
    p->t->nodes[*last].next = child;
  p->t->nodes[child].next = MATH_NONE;
  *last = child;
}

static int number(struct parser *p, const struct math_token *k, int from, int len) {
  for (int i = from; i < from + len; i++) p->t->decimal |= k->text[i] == '.';
  return leaf(p, MATH_NUMBER, k->text + from, len);
}

/* ---- words ---- */

static bool is_and(const struct math_token *k) {
  return (k->kind == TOKEN_WORD || k->kind == TOKEN_TEXT) &&
         (is(k, "and") || is(k, "or") || is(k, ", and") || is(k, ", or") || is(k, "&"));
}

/* Words that are too long for a product of letters, or known. */
static bool is_prose(const struct math_token *k) {
  static const char *const known[] = {"yes", "Yes", "YES", "no",  "No",  "NO",  "odd",
                                      "all", "one", "two", "six", "ten", "red", "DNE"};
  if (is_and(k)) return false;
  if (k->kind == TOKEN_TEXT) return true;
  if (k->kind != TOKEN_WORD) return false;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (is(k, known[i])) return true;
  return k->len >= 4;
}

static bool is_unit(const struct math_token *k) {
  static const char *const known[] = {"cm",  "mm",  "km",  "kg",  "mg", "ml", "mL", "ft",  "in",  "hr",  "hrs", "min",
                                      "sec", "mph", "lb",  "lbs", "oz", "mi", "yd", "pm",  "am",  "Hz",  "kW",  "sq",
                                      "deg", "kmh", "rad", "th",  "st", "nd", "rd", "day", "men", "USD", "per"};
  if (is_prose(k)) return true;
  for (size_t i = 0; k->kind == TOKEN_WORD && i < sizeof known / sizeof *known; i++)
    if (is(k, known[i])) return true;
  return false;
}

/* Names of functions that are units as well. */
static bool is_either(const struct math_token *k) {
  return k->kind == TOKEN_FUNCTION && (k->value == MATH_MIN || k->value == MATH_SEC);
}

/* "5 min": one that nothing follows which it could be a function of. */
static bool is_function_unit(const struct math_token *k) {
  static const int behind[] = {TOKEN_END, TOKEN_TEXT, ',', ';', '.', '/', '=', '<', '>', ')', ']', '}'};
  if (!is_either(k)) return false;
  const int next = k[1].kind;
  if (k->value == MATH_MIN) return next != '(' && next != TOKEN_SET_OPEN && next != '^' && next != '_';
  for (size_t i = 0; i < sizeof behind / sizeof *behind; i++)
    if (next == behind[i]) return true;
  return is_prose(&k[1]) || is_and(&k[1]);
}

/* Units are not computed with: "cm", "\text{ cm}^2", "miles per hour", "km/h". */
static void skip_unit(struct parser *p) {
  struct math_tree *t = p->t;
  if (!t->unit) {
    t->unit = peek(p)->text;
    t->unit_len = 0;
  }
  for (;;) {
    const struct math_token *k = peek(p);
    if (is_and(k)) break;
    if (k->kind == '^' && !k->value && p->tokens[p->at + 1].kind == TOKEN_NUMBER)
      p->at++;
    else if (k->kind == '^' && !k->value && p->tokens[p->at + 1].kind == '{' &&
             p->tokens[p->at + 2].kind == TOKEN_NUMBER && p->tokens[p->at + 3].kind == '}')
      p->at += 3;
    else if (k->kind == '/' && (k[1].kind == TOKEN_WORD || k[1].kind == TOKEN_TEXT || is_either(&k[1])))
      p->at++;
    else if (k->kind != TOKEN_WORD && k->kind != TOKEN_TEXT && !is_function_unit(k) && !(k->kind == '^' && k->value) &&
             !(k->kind == '.' && p->tokens[p->at + 1].kind == TOKEN_WORD))
      break;
    p->at++;
    const struct math_token *read = &p->tokens[p->at - 1];
    t->unit_len = (int)(read->text + read->len - t->unit);
  }
}

/* An answer in words is read as one text. */
static bool all_words(const struct parser *p) {
  bool prose = false;
  int words = 0;
  for (int i = 0; p->tokens[i].kind != TOKEN_END; i++) {
    const struct math_token *k = &p->tokens[i];
    const bool sign = k->kind < 256 && strchr(".,'-():;!", k->kind);
    if (k->kind != TOKEN_WORD && k->kind != TOKEN_TEXT && !sign) return false;
    words += !sign;
    prose |= is_prose(k);
  }
  return prose && words > 0;
}

/* ---- primaries ---- */

/* TeX's argument of a macro: a group, or the next sign alone: "\frac12". */
static int parse_argument(struct parser *p) {
  struct math_token *k = &p->tokens[p->at];
  if (take(p, '{')) {
    const int inner = parse_sum(p);
    return take(p, '}') ? inner : MATH_NONE;
  }
  if (k->kind == TOKEN_NUMBER || (k->kind == TOKEN_WORD && k->len > 1)) {
    struct math_token first = *k;
    first.len = 1;
    if (k->len > 1) {
      k->text++;
      k->len--;
    } else {
      p->at++;
    }
    if (first.kind == TOKEN_NUMBER) return number(p, &first, 0, 1);
    return leaf(p, *first.text == 'e' ? MATH_E : *first.text == 'i' ? MATH_I : MATH_SYMBOL, first.text, 1);
  }
  return parse_power(p);
}

static int parse_fraction(struct parser *p, enum math_op op) {
  const int above = parse_argument(p);
  return above == MATH_NONE ? MATH_NONE : join(p, op, above, parse_argument(p));
}

/* plain: "√12" and "sqrt(12)" are plain text, "\sqrt12" is TeX. */
static int parse_root(struct parser *p, bool plain) {
  int index = MATH_NONE;
  if (take(p, '[')) {
    index = parse_sum(p);
    if (index == MATH_NONE || !take(p, ']')) return MATH_NONE;
  }
  int inner;
  if (next_is(p, '(') || (plain && next_is(p, TOKEN_NUMBER)))
    inner = next_is(p, '(') && take(p, '(') ? parse_sum(p) : parse_argument(p);
  else
    return index == MATH_NONE ? wrap(p, MATH_ROOT, parse_argument(p)) : join(p, MATH_ROOT, parse_argument(p), index);
  if (p->tokens[p->at].kind == ')') p->at++;
  return index == MATH_NONE ? wrap(p, MATH_ROOT, inner) : join(p, MATH_ROOT, inner, index);
}

/* Factors up to the next sign or function: "\sin 2x". */
static int parse_bare_argument(struct parser *p) {
  const bool negative = take(p, '-');
  int all = MATH_NONE;
  for (;;) {
    const int kind = peek(p)->kind;
    const bool begins = kind == TOKEN_NUMBER || (kind == TOKEN_WORD && !is_prose(peek(p))) || kind == TOKEN_SYMBOL ||
                        kind == TOKEN_PI || kind == TOKEN_FRACTION || kind == TOKEN_ROOT || kind == '{' ||
                        (kind == '|' && !p->bars) ||
                        (all == MATH_NONE && (kind == '(' || kind == TOKEN_FUNCTION || kind == TOKEN_LOGARITHM));
    if (!begins || is_and(peek(p))) break;
    const bool bracket = kind == '(';
    const int one = parse_power(p);
    all = all == MATH_NONE ? one : join(p, MATH_MULTIPLY, all, one);
    if (one == MATH_NONE || bracket) break;
  }
  return negative ? wrap(p, MATH_NEGATE, all) : all;
}

/* "\sin^2 x", "\log_2 8", "\max(1, 2)". */
static int parse_function(struct parser *p) {
  const struct math_token k = *peek(p);
  int power = MATH_NONE, base = MATH_NONE, result;
  bool inverse = false;
  p->at++;
  for (int i = 0; i < 2; i++) {
    if (k.kind == TOKEN_LOGARITHM && base == MATH_NONE && take(p, '_')) {
      base = parse_argument(p);
      if (base == MATH_NONE) return MATH_NONE;
    } else if (power == MATH_NONE && next_is(p, '^')) {
      const struct math_token *q = &p->tokens[p->at + 1];
      inverse = q[0].kind == '{' && q[1].kind == '-' && q[2].kind == TOKEN_NUMBER && is(&q[2], "1") && q[3].kind == '}';
      if (inverse) {
        p->at += 5;
      } else if (peek(p)->value) {
        power = leaf(p, MATH_NUMBER, peek(p)->value == 2 ? "2" : "3", 1);
        p->at++;
      } else {
        p->at++;
        power = parse_argument(p);
        if (power == MATH_NONE) return MATH_NONE;
      }
    }
  }
  const bool many = k.kind == TOKEN_FUNCTION && k.value >= MATH_MIN && k.value <= MATH_LCM;
  if (many) {
    const bool set = next_is(p, TOKEN_SET_OPEN);
    if (!take(p, set ? TOKEN_SET_OPEN : '(')) return MATH_NONE;
    const int list = parse_list(p);
    if (list == MATH_NONE || !take(p, set ? TOKEN_SET_CLOSE : ')')) return MATH_NONE;
    result = p->t->nodes[list].op == MATH_LIST ? list : wrap(p, MATH_LIST, list);
    if (result == MATH_NONE) return MATH_NONE;
    p->t->nodes[result].op = MATH_FUNCTION;
  } else if (k.kind == TOKEN_LOGARITHM) {
    const int argument = parse_bare_argument(p);
    result = base == MATH_NONE ? join(p, MATH_LOGARITHM, argument, leaf(p, MATH_NUMBER, "10", 2))
                               : join(p, MATH_LOGARITHM, argument, base);
  } else {
    result = wrap(p, MATH_FUNCTION, parse_bare_argument(p));
  }
  if (result == MATH_NONE) return MATH_NONE;
  p->t->nodes[result].value = k.kind == TOKEN_LOGARITHM ? 0 : k.value;
  if (inverse) {
    if (k.value > MATH_TAN) return MATH_NONE;
    p->t->nodes[result].value = k.value - MATH_SIN + MATH_ARCSIN;
  }
  return power == MATH_NONE ? result : join(p, MATH_POWER, result, power);
}

/* "(a)", "(a, b)", "[a, b)": a group, a tuple or an interval. */
static int parse_brackets(struct parser *p) {
  const bool square = next_is(p, '['), bars = p->bars, colons = p->colons;
  p->at++;
  p->bars = p->colons = false;
  const int inner = parse_list(p);
  p->bars = bars;
  p->colons = colons;
  const bool closed = next_is(p, ']');
  if (inner == MATH_NONE || !(take(p, ')') || take(p, ']'))) return MATH_NONE;
  struct math_node *n = &p->t->nodes[inner];
  if (n->op != MATH_LIST) return square == closed ? inner : MATH_NONE;
  const bool two = math_children(p->t, n) == 2;
  if (!two && square != closed) return MATH_NONE;
  n->op = two && (square || closed) ? MATH_INTERVAL : MATH_TUPLE;
  n->value = (square ? MATH_CLOSED_LEFT : 0) | (closed ? MATH_CLOSED_RIGHT : 0);
  return inner;
}

static int parse_set(struct parser *p) {
  const bool bars = p->bars, colons = p->colons;
  p->at++;
  if (take(p, TOKEN_SET_CLOSE)) return leaf(p, MATH_EMPTY, NULL, 0);
  p->bars = p->colons = true;
  int inner = parse_list(p);
  if (inner != MATH_NONE && (take(p, '|') || take(p, ':'))) { /* those for which ... holds: the condition is the set */
    inner = parse_item(p);
    p->bars = bars;
    p->colons = colons;
    return take(p, TOKEN_SET_CLOSE) ? inner : MATH_NONE;
  }
  p->bars = bars;
  p->colons = colons;
  if (inner == MATH_NONE || !take(p, TOKEN_SET_CLOSE)) return MATH_NONE;
  if (p->t->nodes[inner].op != MATH_LIST) return wrap(p, MATH_SET, inner);
  p->t->nodes[inner].op = MATH_SET;
  return inner;
}

static int parse_between(struct parser *p, enum math_op op, int close) {
  const bool bars = p->bars;
  p->at++;
  p->bars = close == '|';
  const int inner = parse_sum(p);
  p->bars = bars;
  return take(p, close) ? wrap(p, op, inner) : MATH_NONE;
}

/* \begin{pmatrix} a & b \\ c & d \end{pmatrix} */
static int parse_matrix(struct parser *p) {
  const struct math_token *k = peek(p);
  if (!(k->len >= 6 && memcmp(k->text + k->len - 6, "matrix", 6) == 0) && !is(k, "array")) return MATH_NONE;
  if (is(k, "vmatrix")) return MATH_NONE; /* a determinant */
  const bool array = is(k, "array");
  p->at++;
  if (array && take(p, '{')) {
    while (!next_is(p, '}') && !next_is(p, TOKEN_END)) p->at++;
    p->at += next_is(p, '}');
  }
  const int matrix = leaf(p, MATH_MATRIX, NULL, 0);
  int last_row = MATH_NONE;
  while (matrix != MATH_NONE && !next_is(p, TOKEN_FINISH)) {
    const int row = leaf(p, MATH_TUPLE, NULL, 0);
    int last = MATH_NONE;
    do {
      const int entry = row == MATH_NONE ? MATH_NONE : parse_sum(p);
      if (entry == MATH_NONE) return MATH_NONE;
      append(p, row, &last, entry);
    } while (take(p, '&'));
    append(p, matrix, &last_row, row);
    if (!take(p, TOKEN_ROW)) break;
  }
  return matrix != MATH_NONE && p->t->nodes[matrix].child != MATH_NONE && take(p, TOKEN_FINISH) ? matrix : MATH_NONE;
}

/* Letters, one after the other. */
static int parse_word(struct parser *p) {
  struct math_token *k = &p->tokens[p->at];
  if (is_prose(k)) {
    p->at++;
    return leaf(p, MATH_TEXT, k->text, k->len);
  }
  const char *c = k->text;
  if (k->len > 1) {
    k->text++;
    k->len--;
    k->blank = false;
  } else {
    p->at++;
  }
  return leaf(p, *c == 'e' ? MATH_E : *c == 'i' ? MATH_I : MATH_SYMBOL, c, 1);
}

static const char nines[] = "999999999000000000";

/* "0.1\overline{6}": the digits below the line over as many nines, and as many noughts as there are digits before. */
static int parse_repeating(struct parser *p, const struct math_token *k) {
  int decimals = 0, point = -1;
  for (int i = 0; i < k->len; i++)
    if (k->text[i] == '.') point = i;
  if (point < 0) return MATH_NONE;
  decimals = k->len - point - 1;
  p->at++; /* the line */
  if (!take(p, '{') || !next_is(p, TOKEN_NUMBER)) return MATH_NONE;
  const struct math_token *r = peek(p);
  if (r->len > 9 || decimals > 9 || p->tokens[p->at + 1].kind != '}') return MATH_NONE;
  p->at += 2;
  const int whole = leaf(p, MATH_NUMBER, k->text, k->len);
  const int below = leaf(p, MATH_NUMBER, nines + 9 - r->len, r->len + decimals);
  return join(p, MATH_ADD, whole, join(p, MATH_DIVIDE, leaf(p, MATH_NUMBER, r->text, r->len), below));
}

/* "two", "base two" or "base 2"; 0: it names no base. */
static int base_named(const struct math_token *k) {
  static const char *const names[] = {"two", "three",  "four",   "five",     "six",      "seven",   "eight",  "nine",
                                      "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"};
  const char *text = k->text, *const end = k->text + k->len;
  while (text < end && *text == ' ') text++;
  if (end - text > 5 && memcmp(text, "base ", 5) == 0) text += 5;
  for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
    if (strlen(names[i]) == (size_t)(end - text) && memcmp(names[i], text, (size_t)(end - text)) == 0) return i + 2;
  int base = 0;
  for (; text < end && *text >= '0' && *text <= '9' && base < 100; text++) base = base * 10 + (*text - '0');
  return text == end ? base : 0;
}

static int parse_number(struct parser *p) {
  const struct math_token *k = peek(p);
  p->at++;
  if (next_is(p, TOKEN_OVERLINE)) return parse_repeating(p, k);
  if (next_is(p, '_')) {
    int base = 0;
    p->at++;
    const bool group = take(p, '{');
    if (!next_is(p, TOKEN_NUMBER)) {
      if (!group || !(next_is(p, TOKEN_TEXT) || next_is(p, TOKEN_WORD))) return MATH_NONE;
      if ((base = base_named(peek(p))) == 0) return MATH_NONE;
    } else {
      for (int i = 0; i < peek(p)->len && i < 3; i++) base = base * 10 + (peek(p)->text[i] - '0');
    }
    p->at++;
    if (group && !take(p, '}')) return MATH_NONE;
    const int n = leaf(p, MATH_BASED, k->text, k->len);
    if (n != MATH_NONE) p->t->nodes[n].value = base;
    return n;
  }
  return number(p, k, 0, k->len);
}

static int parse_primary(struct parser *p) {
  const struct math_token *k = peek(p);
  switch (k->kind) {
    case TOKEN_NUMBER: return parse_number(p);
    case TOKEN_WORD: return parse_word(p);
    case TOKEN_TEXT: p->at++; return leaf(p, MATH_TEXT, k->text, k->len);
    case TOKEN_SYMBOL: p->at++; return leaf(p, MATH_SYMBOL, k->text, k->len);
    case TOKEN_PI: p->at++; return leaf(p, MATH_PI, NULL, 0);
    case TOKEN_INFINITY: p->at++; return leaf(p, MATH_INFINITY, NULL, 0);
    case TOKEN_EMPTY: p->at++; return leaf(p, MATH_EMPTY, NULL, 0);
    case TOKEN_HALF: {
      static const char digits[] = "0123456789";
      p->at++;
      return join(p, MATH_DIVIDE, leaf(p, MATH_NUMBER, digits + k->value / 10, 1),
                  leaf(p, MATH_NUMBER, digits + k->value % 10, 1));
    }
    case TOKEN_FRACTION: p->at++; return parse_fraction(p, MATH_DIVIDE);
    case TOKEN_BINOMIAL: p->at++; return parse_fraction(p, MATH_BINOMIAL);
    case TOKEN_ROOT: p->at++; return parse_root(p, k->value);
    case TOKEN_FUNCTION:
    case TOKEN_LOGARITHM: return parse_function(p);
    case TOKEN_BEGIN: return parse_matrix(p);
    case TOKEN_OVERLINE:
    case TOKEN_ACCENT: p->at++; return parse_argument(p);
    case TOKEN_SET_OPEN: return parse_set(p);
    case TOKEN_FLOOR_OPEN: return parse_between(p, MATH_FLOOR, TOKEN_FLOOR_CLOSE);
    case TOKEN_CEILING_OPEN: return parse_between(p, MATH_CEILING, TOKEN_CEILING_CLOSE);
    case '|': return parse_between(p, MATH_ABSOLUTE, '|');
    case '(':
    case '[': return parse_brackets(p);
    case '{': {
      p->at++;
      const int inner = parse_list(p);
      return take(p, '}') ? inner : MATH_NONE;
    }
    default: return MATH_NONE;
  }
}

/* ---- operations ---- */

static int parse_exponent(struct parser *p, int base) {
  const struct math_token *k = peek(p);
  p->at++;
  if (k->value) return join(p, MATH_POWER, base, leaf(p, MATH_NUMBER, k->value == 2 ? "2" : "3", 1));
  if (take(p, TOKEN_DEGREE)) return wrap(p, MATH_DEGREE, base);
  if (next_is(p, '{') && p->tokens[p->at + 1].kind == TOKEN_DEGREE && p->tokens[p->at + 2].kind == '}') {
    p->at += 3;
    return wrap(p, MATH_DEGREE, base);
  }
  if (take(p, '-')) return join(p, MATH_POWER, base, wrap(p, MATH_NEGATE, parse_power(p)));
  if (next_is(p, TOKEN_NUMBER)) return join(p, MATH_POWER, base, parse_number(p)); /* "2^10", as people write it */
  return join(p, MATH_POWER, base, parse_argument(p));
}

static int parse_power(struct parser *p) {
  if (++p->depth > MATH_DEPTH_MAX) return MATH_NONE;
  int n = parse_primary(p);
  while (n != MATH_NONE) {
    const enum math_op op = p->t->nodes[n].op;
    if (next_is(p, '^')) {
      n = parse_exponent(p, n);
    } else if (next_is(p, '_') && op == MATH_SYMBOL && p->t->nodes[n].child == MATH_NONE) {
      p->at++;
      const int below = parse_argument(p);
      if (below != MATH_NONE) p->t->nodes[n].child = below;
      if (below == MATH_NONE) n = MATH_NONE;
    } else if (take(p, '!')) {
      n = wrap(p, MATH_FACTORIAL, n);
    } else if (take(p, '%')) {
      n = wrap(p, MATH_PERCENT, n);
    } else if (take(p, TOKEN_DEGREE)) {
      n = wrap(p, MATH_DEGREE, n);
    } else {
      break;
    }
  }
  p->depth--;
  return n;
}

static bool begins_factor(const struct parser *p) {
  const struct math_token *k = peek(p);
  switch (k->kind) {
    case TOKEN_WORD: return !is_and(k);
    case TOKEN_NUMBER: return p->at > 0 && k[-1].kind == '!'; /* "3!7!" */
    case TOKEN_SYMBOL:
    case TOKEN_PI:
    case TOKEN_HALF:
    case TOKEN_FRACTION:
    case TOKEN_BINOMIAL:
    case TOKEN_ROOT:
    case TOKEN_FUNCTION:
    case TOKEN_LOGARITHM:
    case TOKEN_OVERLINE:
    case TOKEN_ACCENT:
    case TOKEN_FLOOR_OPEN:
    case TOKEN_CEILING_OPEN:
    case TOKEN_INFINITY:
    case '(':
    case '[':
    case '{': return true;
    case '|': return !p->bars;
    default: return false;
  }
}

static bool whole(const struct parser *p, int n) {
  const struct math_node *m = &p->t->nodes[n];
  return m->op == MATH_NUMBER && !memchr(m->text, '.', (size_t)m->len);
}

/* Does a fraction of two whole numbers follow: "\frac{1}{2}", "\frac12"? */
static bool plain_fraction(const struct math_token *k) {
  int digits = 0;
  if (k++->kind == TOKEN_HALF) return true;
  for (int i = 0; i < 2 && digits < 2; i++) {
    const bool group = k->kind == '{';
    k += group;
    if (k->kind != TOKEN_NUMBER || memchr(k->text, '.', (size_t)k->len)) return false;
    digits += group ? 1 : k->len;
    k++;
    if (group && k++->kind != '}') return false;
  }
  return true;
}

/* "3 1/2", "3\frac{1}{2}", "3½": the sum of both. */
static int parse_mixed(struct parser *p, int n) {
  const struct math_token *k = peek(p);
  if (!whole(p, n)) return n;
  if (k->kind == TOKEN_NUMBER && k->blank && k[1].kind == '/' && k[2].kind == TOKEN_NUMBER) {
    const int above = parse_number(p);
    p->at++;
    return join(p, MATH_ADD, n, join(p, MATH_DIVIDE, above, parse_number(p)));
  }
  if ((k->kind != TOKEN_FRACTION && k->kind != TOKEN_HALF) || !plain_fraction(k)) return n;
  return join(p, MATH_ADD, n, parse_primary(p));
}

/* "2 \cdot -3" */
static int parse_signed_power(struct parser *p) {
  if (take(p, '-')) return wrap(p, MATH_NEGATE, parse_power(p));
  take(p, '+');
  return parse_power(p);
}

static int parse_product(struct parser *p) {
  int n = parse_signed_power(p);
  if (n != MATH_NONE) n = parse_mixed(p, n);
  while (n != MATH_NONE) {
    const struct math_token *k = peek(p);
    const bool bare = p->t->nodes[n].op == MATH_TEXT;
    if (!bare && (is_unit(k) || is_function_unit(k))) {
      skip_unit(p);
    } else if (take(p, '*')) {
      n = join(p, MATH_MULTIPLY, n, parse_signed_power(p));
    } else if (take(p, '/') || (!p->colons && take(p, ':'))) {
      n = join(p, MATH_DIVIDE, n, parse_signed_power(p));
    } else if (!bare && begins_factor(p)) {
      n = join(p, MATH_MULTIPLY, n, parse_power(p));
    } else {
      break;
    }
  }
  return n;
}

static int parse_sum(struct parser *p) {
  if (++p->depth > MATH_DEPTH_MAX) return MATH_NONE;
  int n;
  if (take(p, '-'))
    n = wrap(p, MATH_NEGATE, parse_product(p));
  else if (take(p, TOKEN_PLUS_MINUS))
    n = wrap(p, MATH_PLUS_MINUS, parse_product(p));
  else {
    take(p, '+');
    n = parse_product(p);
  }
  while (n != MATH_NONE) {
    if (take(p, '+'))
      n = join(p, MATH_ADD, n, parse_product(p));
    else if (take(p, '-'))
      n = join(p, MATH_SUBTRACT, n, parse_product(p));
    else if (take(p, TOKEN_PLUS_MINUS))
      n = join(p, MATH_PLUS_MINUS, n, parse_product(p));
    else
      break;
  }
  p->depth--;
  return n;
}

static int parse_union(struct parser *p) {
  int n = parse_sum(p);
  if (!next_is(p, TOKEN_UNION)) return n;
  const int all = wrap(p, MATH_UNION, n);
  int last = n;
  while (all != MATH_NONE && take(p, TOKEN_UNION)) {
    const int one = parse_sum(p);
    if (one == MATH_NONE) return MATH_NONE;
    append(p, all, &last, one);
  }
  return all;
}

static int relation_of(int kind) {
  switch (kind) {
    case '=': return MATH_EQUAL;
    case '<': return MATH_LESS;
    case '>': return MATH_GREATER;
    case TOKEN_LESS_EQUAL: return MATH_LESS_EQUAL;
    case TOKEN_GREATER_EQUAL: return MATH_GREATER_EQUAL;
    case TOKEN_NOT_EQUAL: return MATH_NOT_EQUAL;
    default: return -1;
  }
}

/* A chain of equations keeps its ends; "a < x < b" has three children, the second link's relation in value / 8. */
static int parse_item(struct parser *p) {
  if (++p->depth > MATH_DEPTH_MAX) return MATH_NONE;
  int n = parse_union(p), links = 0, value = 0, left = n, right = MATH_NONE, middle = MATH_NONE;
  if (n != MATH_NONE && take(p, TOKEN_IN)) n = parse_union(p);
  for (int r; n != MATH_NONE && (r = relation_of(peek(p)->kind)) >= 0;) {
    p->at++;
    const int next = parse_union(p);
    if (next == MATH_NONE) return MATH_NONE;
    if (links == 0) {
      value = r;
      right = next;
    } else if (r == MATH_EQUAL && value == MATH_EQUAL && middle == MATH_NONE) {
      right = next;
    } else if (links == 1) {
      middle = right;
      right = next;
      value |= r << 3;
    } else {
      return MATH_NONE;
    }
    links++;
  }
  p->depth--;
  if (n == MATH_NONE || links == 0) return n;
  if (middle != MATH_NONE) {
    n = join(p, MATH_RELATION, left, middle);
    if (n != MATH_NONE) {
      p->t->nodes[middle].next = right;
      p->t->nodes[right].next = MATH_NONE;
    }
  } else {
    n = join(p, MATH_RELATION, left, right);
  }
  if (n != MATH_NONE) p->t->nodes[n].value = value;
  return n;
}

static bool take_separator(struct parser *p) {
  bool any = false;
  while (next_is(p, ',') || next_is(p, ';') || is_and(peek(p))) {
    p->at++;
    any = true;
  }
  return any;
}

static int parse_list(struct parser *p) {
  int n = parse_item(p);
  if (n == MATH_NONE || !take_separator(p)) return n;
  const int list = wrap(p, MATH_LIST, n);
  int last = n, items = 1;
  while (list != MATH_NONE) {
    const int one = parse_item(p);
    if (one == MATH_NONE || ++items > MATH_ITEMS_MAX) return MATH_NONE;
    append(p, list, &last, one);
    if (!take_separator(p)) break;
  }
  return list;
}

bool math_parse(struct math_tree *out, const char *text, size_t len, bool thousands) {
  struct parser p = {.t = out};
  out->count = 0;
  out->root = MATH_NONE;
  out->decimal = false;
  out->unit = NULL;
  out->unit_len = 0;
  if (len > MATH_TEXT_MAX || math_tokens(p.tokens, MATH_TOKENS_MAX - 4, text, len, thousands) <= 0) return false;
  if (all_words(&p)) {
    out->root = leaf(&p, MATH_TEXT, text, (int)len);
    return true;
  }
  out->root = parse_list(&p);
  while (next_is(&p, '.') || next_is(&p, ',')) p.at++;
  return out->root != MATH_NONE && next_is(&p, TOKEN_END);
}

/* Cuts answers into tokens by three tables: LaTeX's commands, Unicode's signs, and words that stand for a command. */
#include "services/coordinator/verifiers/math_lexer.h"

#include <ctype.h>
#include <string.h>

#include "services/coordinator/verifiers/math_tree.h"

enum { DROPPED = -1, TEXT_ARGUMENT = -2, MATH_ARGUMENT = -3 };

struct word {
  const char *name;
  int kind, value;
};

static const struct word commands[] = {
    {"frac", TOKEN_FRACTION, 0}, {"dfrac", TOKEN_FRACTION, 0}, {"tfrac", TOKEN_FRACTION, 0},
    {"cfrac", TOKEN_FRACTION, 0}, {"sqrt", TOKEN_ROOT, 0}, {"binom", TOKEN_BINOMIAL, 0},
    {"dbinom", TOKEN_BINOMIAL, 0}, {"tbinom", TOKEN_BINOMIAL, 0}, {"cdot", '*', 0}, {"times", '*', 0}, {"ast", '*', 0},
    {"div", '/', 0}, {"pm", TOKEN_PLUS_MINUS, 0}, {"mp", TOKEN_PLUS_MINUS, 0}, {"le", TOKEN_LESS_EQUAL, 0},
    {"leq", TOKEN_LESS_EQUAL, 0}, {"leqslant", TOKEN_LESS_EQUAL, 0}, {"ge", TOKEN_GREATER_EQUAL, 0},
    {"geq", TOKEN_GREATER_EQUAL, 0}, {"geqslant", TOKEN_GREATER_EQUAL, 0}, {"lt", '<', 0}, {"gt", '>', 0},
    {"ne", TOKEN_NOT_EQUAL, 0}, {"neq", TOKEN_NOT_EQUAL, 0}, {"approx", '=', 0}, {"equiv", '=', 0},
    {"cup", TOKEN_UNION, 0}, {"in", TOKEN_IN, 0}, {"infty", TOKEN_INFINITY, 0}, {"pi", TOKEN_PI, 0},
    {"emptyset", TOKEN_EMPTY, 0}, {"varnothing", TOKEN_EMPTY, 0}, {"circ", TOKEN_DEGREE, 0},
    {"degree", TOKEN_DEGREE, 0}, {"lbrace", TOKEN_SET_OPEN, 0}, {"rbrace", TOKEN_SET_CLOSE, 0}, {"lvert", '|', 0},
    {"rvert", '|', 0}, {"vert", '|', 0}, {"mid", '|', 0}, {"lfloor", TOKEN_FLOOR_OPEN, 0},
    {"rfloor", TOKEN_FLOOR_CLOSE, 0}, {"lceil", TOKEN_CEILING_OPEN, 0}, {"rceil", TOKEN_CEILING_CLOSE, 0},
    {"langle", '(', 0}, {"rangle", ')', 0}, {"lparen", '(', 0}, {"rparen", ')', 0}, {"lbrack", '[', 0},
    {"rbrack", ']', 0}, {"colon", ':', 0}, {"prime", '\'', 0}, {"overline", TOKEN_OVERLINE, 0},
    {"bar", TOKEN_OVERLINE, 0}, {"vec", TOKEN_ACCENT, 0}, {"hat", TOKEN_ACCENT, 0}, {"tilde", TOKEN_ACCENT, 0},
    {"boldsymbol", TOKEN_ACCENT, 0}, {"boxed", TOKEN_ACCENT, 0}, {"underline", TOKEN_ACCENT, 0},
    {"overrightarrow", TOKEN_ACCENT, 0}, {"widehat", TOKEN_ACCENT, 0}, {"begin", TOKEN_BEGIN, 0},
    {"end", TOKEN_FINISH, 0}, {"text", TEXT_ARGUMENT, 0}, {"textbf", TEXT_ARGUMENT, 0}, {"textit", TEXT_ARGUMENT, 0},
    {"textrm", TEXT_ARGUMENT, 0}, {"textnormal", TEXT_ARGUMENT, 0}, {"textsc", TEXT_ARGUMENT, 0},
    {"mathrm", TEXT_ARGUMENT, 0}, {"mathsf", TEXT_ARGUMENT, 0}, {"mathit", TEXT_ARGUMENT, 0},
    {"mathbf", TEXT_ARGUMENT, 0}, {"mbox", TEXT_ARGUMENT, 0}, {"hbox", TEXT_ARGUMENT, 0},
    {"operatorname", TEXT_ARGUMENT, 0}, {"mathbb", MATH_ARGUMENT, 0}, {"mathcal", MATH_ARGUMENT, 0},
    {"sin", TOKEN_FUNCTION, MATH_SIN}, {"cos", TOKEN_FUNCTION, MATH_COS}, {"tan", TOKEN_FUNCTION, MATH_TAN},
    {"cot", TOKEN_FUNCTION, MATH_COT}, {"sec", TOKEN_FUNCTION, MATH_SEC}, {"csc", TOKEN_FUNCTION, MATH_CSC},
    {"arcsin", TOKEN_FUNCTION, MATH_ARCSIN}, {"arccos", TOKEN_FUNCTION, MATH_ARCCOS},
    {"arctan", TOKEN_FUNCTION, MATH_ARCTAN}, {"sinh", TOKEN_FUNCTION, MATH_SINH},
    {"cosh", TOKEN_FUNCTION, MATH_COSH}, {"tanh", TOKEN_FUNCTION, MATH_TANH}, {"ln", TOKEN_FUNCTION, MATH_LN},
    {"exp", TOKEN_FUNCTION, MATH_EXP}, {"min", TOKEN_FUNCTION, MATH_MIN}, {"max", TOKEN_FUNCTION, MATH_MAX},
    {"gcd", TOKEN_FUNCTION, MATH_GCD}, {"lcm", TOKEN_FUNCTION, MATH_LCM}, {"log", TOKEN_LOGARITHM, 0},
    {"lg", TOKEN_LOGARITHM, 0}, {"left", DROPPED, 0}, {"right", DROPPED, 0}, {"big", DROPPED, 0}, {"Big", DROPPED, 0},
    {"bigg", DROPPED, 0}, {"Bigg", DROPPED, 0}, {"bigl", DROPPED, 0}, {"bigr", DROPPED, 0}, {"Bigl", DROPPED, 0},
    {"Bigr", DROPPED, 0}, {"displaystyle", DROPPED, 0}, {"textstyle", DROPPED, 0}, {"quad", DROPPED, 0},
    {"qquad", DROPPED, 0}, {"limits", DROPPED, 0}, {"rm", DROPPED, 0}, {"bf", DROPPED, 0}, {"mleft", DROPPED, 0},
    {"mright", DROPPED, 0}, {"middle", DROPPED, 0}, {"alpha", TOKEN_SYMBOL, 0}, {"beta", TOKEN_SYMBOL, 0},
    {"gamma", TOKEN_SYMBOL, 0}, {"delta", TOKEN_SYMBOL, 0}, {"epsilon", TOKEN_SYMBOL, 0},
    {"varepsilon", TOKEN_SYMBOL, 0}, {"zeta", TOKEN_SYMBOL, 0}, {"eta", TOKEN_SYMBOL, 0}, {"theta", TOKEN_SYMBOL, 0},
    {"vartheta", TOKEN_SYMBOL, 0}, {"iota", TOKEN_SYMBOL, 0}, {"kappa", TOKEN_SYMBOL, 0}, {"lambda", TOKEN_SYMBOL, 0},
    {"mu", TOKEN_SYMBOL, 0}, {"nu", TOKEN_SYMBOL, 0}, {"xi", TOKEN_SYMBOL, 0}, {"rho", TOKEN_SYMBOL, 0},
    {"sigma", TOKEN_SYMBOL, 0}, {"tau", TOKEN_SYMBOL, 0}, {"phi", TOKEN_SYMBOL, 0}, {"varphi", TOKEN_SYMBOL, 0},
    {"chi", TOKEN_SYMBOL, 0}, {"psi", TOKEN_SYMBOL, 0}, {"omega", TOKEN_SYMBOL, 0}, {"Gamma", TOKEN_SYMBOL, 0},
    {"Delta", TOKEN_SYMBOL, 0}, {"Theta", TOKEN_SYMBOL, 0}, {"Lambda", TOKEN_SYMBOL, 0}, {"Pi", TOKEN_SYMBOL, 0},
    {"Sigma", TOKEN_SYMBOL, 0}, {"Phi", TOKEN_SYMBOL, 0}, {"Psi", TOKEN_SYMBOL, 0}, {"Omega", TOKEN_SYMBOL, 0},
    {"angle", TOKEN_SYMBOL, 0}, {"triangle", TOKEN_SYMBOL, 0}, {"ell", TOKEN_SYMBOL, 0}, {"lnot", TOKEN_UNKNOWN, 0},
};

/* Words without a backslash that mean the command; longer than a product of letters would be. */
static const char *const plain[] = {"sqrt",   "pi",     "sin",    "cos", "tan", "cot", "sec",   "csc",
                                    "arcsin", "arccos", "arctan", "ln",  "log", "exp", "infty", "infinity",
                                    "inf",    "cup",    "min",    "max", "gcd", "lcm"};

static const struct word signs[] = {
    {"\xe2\x88\x92", '-', 0},
    {"\xe2\x80\x93", '-', 0},
    {"\xc3\x97", '*', 0},
    {"\xc2\xb7", '*', 0},
    {"\xe2\x8b\x85", '*', 0},
    {"\xc3\xb7", '/', 0},
    {"\xc2\xb1", TOKEN_PLUS_MINUS, 0},
    {"\xcf\x80", TOKEN_PI, 0},
    {"\xe2\x88\x9a", TOKEN_ROOT, 1},
    {"\xe2\x88\x9e", TOKEN_INFINITY, 0},
    {"\xe2\x89\xa4", TOKEN_LESS_EQUAL, 0},
    {"\xe2\x89\xa5", TOKEN_GREATER_EQUAL, 0},
    {"\xe2\x89\xa0", TOKEN_NOT_EQUAL, 0},
    {"\xe2\x89\x88", '=', 0},
    {"\xe2\x88\xaa", TOKEN_UNION, 0},
    {"\xe2\x88\x88", TOKEN_IN, 0},
    {"\xe2\x88\x85", TOKEN_EMPTY, 0},
    {"\xc2\xb0", TOKEN_DEGREE, 0},
    {"\xc2\xbd", TOKEN_HALF, 12},
    {"\xc2\xbc", TOKEN_HALF, 14},
    {"\xc2\xbe", TOKEN_HALF, 34},
    {"\xe2\x85\x93", TOKEN_HALF, 13},
    {"\xe2\x85\x94", TOKEN_HALF, 23},
    {"\xc2\xb2", '^', 2},
    {"\xc2\xb3", '^', 3},
    {"\xc2\xa0", DROPPED, 0},
    {"\xe2\x80\x89", DROPPED, 0},
    {"\xe2\x82\xac", DROPPED, 0},
    {"\xc2\xa3", DROPPED, 0},
    {"\xce\xb1", TOKEN_SYMBOL, 0},
    {"\xce\xb2", TOKEN_SYMBOL, 0},
    {"\xce\xb8", TOKEN_SYMBOL, 0},
    {"\xce\xbb", TOKEN_SYMBOL, 0},
};

struct lexer {
  const char *text;
  size_t len, at;
  bool thousands, blank;
  struct math_token *out;
  int count, max;
  int brackets; /* open ones: in them a comma stands between elements */
};

static bool starts(const struct lexer *l, size_t at, const char *with) {
  const size_t n = strlen(with);
  return at <= l->len && l->len - at >= n && memcmp(l->text + at, with, n) == 0;
}
static bool digit(const struct lexer *l, size_t at) { return at < l->len && l->text[at] >= '0' && l->text[at] <= '9'; }
static bool letter(const struct lexer *l, size_t at) {
  return at < l->len && ((l->text[at] >= 'a' && l->text[at] <= 'z') || (l->text[at] >= 'A' && l->text[at] <= 'Z'));
}

/* The Unicode sign that stands here, or NULL. */
static const struct word *sign_at(const struct lexer *l, size_t at) {
  if ((unsigned char)l->text[at] < 0x80) return NULL;
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
    if (starts(l, at, signs[i].name)) return &signs[i];
  return NULL;
}

static void emit(struct lexer *l, int kind, int value, size_t from, size_t to) {
  l->brackets += kind == '(' || kind == '[' || kind == TOKEN_SET_OPEN;
  l->brackets -= kind == ')' || kind == ']' || kind == TOKEN_SET_CLOSE;
  if (l->count < l->max)
    l->out[l->count] = (struct math_token){kind, value, l->blank, l->text + from, (int)(to - from)};
  l->count++;
  l->blank = false;
}

/* Between the thousands of a number: the bytes of the separator at `at` if exactly three digits follow it, else 0. */
static size_t separator(const struct lexer *l, size_t at, size_t leading) {
  static const char *const always[] = {"{,}", "\\!,\\!", ",\\!", "\\,", "{\\,}"};
  static const char *const perhaps[] = {",", " "};
  size_t n = 0;
  for (size_t i = 0; i < sizeof always / sizeof *always && !n; i++)
    if (starts(l, at, always[i])) n = strlen(always[i]);
  for (size_t i = 0; i < sizeof perhaps / sizeof *perhaps && !n && l->thousands && l->brackets == 0; i++)
    if (starts(l, at, perhaps[i])) n = strlen(perhaps[i]);
  const bool three = digit(l, at + n) && digit(l, at + n + 1) && digit(l, at + n + 2) && !digit(l, at + n + 3);
  return n && leading >= 1 && leading <= 3 && three ? n : 0;
}

/* "2e5", "2E-3", "2.4e-3"; "2e-3", where e may be Euler's number, as thousands are read. */
static bool exponent_at(const struct lexer *l, bool point) {
  const bool upper = starts(l, l->at, "E"), sign = starts(l, l->at + 1, "-") || starts(l, l->at + 1, "+");
  if (!upper && !starts(l, l->at, "e")) return false;
  if (!sign) return digit(l, l->at + 1);
  return digit(l, l->at + 2) && (upper || point || l->thousands);
}

static void number(struct lexer *l) {
  const size_t from = l->at;
  size_t leading = 0;
  bool point = false, exponent = false;
  while (l->at < l->len) {
    size_t skip;
    if (digit(l, l->at)) {
      l->at++;
      leading++;
    } else if (!point && !exponent && (skip = separator(l, l->at, leading)) > 0) {
      l->at += skip;
      leading = 0;
    } else if (!point && !exponent && l->text[l->at] == '.' &&
               (digit(l, l->at + 1) || starts(l, l->at + 1, "\\overline"))) {
      point = true;
      l->at++;
    } else if (!exponent && exponent_at(l, point)) {
      exponent = true;
      l->at += 2;
    } else {
      break;
    }
  }
  emit(l, TOKEN_NUMBER, point, from, l->at);
}

/* The braces' content behind a command: false when there are none. */
static bool argument(struct lexer *l, size_t *from, size_t *to) {
  size_t at = l->at;
  int depth = 0;
  while (at < l->len && l->text[at] == ' ') at++;
  if (at >= l->len || l->text[at] != '{') return false;
  for (size_t end = at; end < l->len; end++) {
    depth += l->text[end] == '{' ? 1 : l->text[end] == '}' ? -1 : 0;
    if (depth) continue;
    *from = at + 1;
    *to = end;
    l->at = end + 1;
    return true;
  }
  return false;
}

static const struct word *command_find(const char *name, size_t len) {
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (strlen(commands[i].name) == len && memcmp(commands[i].name, name, len) == 0) return &commands[i];
  return NULL;
}

/* The bytes of the letter here if it is none of Latin's 26 and no Greek one, which is a symbol: "é", "京".  Else 0. */
static size_t foreign(const struct lexer *l, size_t at) {
  const unsigned char a = (unsigned char)l->text[at], b = at + 1 < l->len ? (unsigned char)l->text[at + 1] : 0;
  if (sign_at(l, at) || (b & 0xc0) != 0x80) return 0;
  if ((a >= 0xc3 && a <= 0xc9) || (a >= 0xd0 && a <= 0xdf)) return 2;
  const bool raised = a == 0xe1 && b >= 0xb4 && b <= 0xb7, wide = a >= 0xe4 && a <= 0xed;
  return at + 2 < l->len && !raised && (a == 0xe0 || a == 0xe1 || (a == 0xe3 && b >= 0x81) || wide) ? 3 : 0;
}

/* Behind a command's backslash: its name's end. */
static size_t name_end(const struct lexer *l, size_t at) {
  size_t end = at + 1;
  while (letter(l, end)) end++;
  return end > at + 1 ? end : at + 2;
}

/* Two letters beside each other, commands' names aside. */
static bool holds_word(const struct lexer *l, size_t from, size_t to) {
  int run = 0;
  for (size_t i = from; i < to; i++) {
    run = letter(l, i) ? run + 1 : 0;
    if (run == 2 || foreign(l, i)) return true;
    if (l->text[i] == '\\') i = name_end(l, i) - 1;
  }
  return false;
}

/* A digit, an operator or a relation. */
static bool holds_formula(const struct lexer *l, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) {
    const struct word *w = sign_at(l, i);
    if (digit(l, i) || strchr("+-*/^<>=%!|", l->text[i]) || (l->text[i] == '\\' && letter(l, i + 1))) return true;
    if (w && w->kind != DROPPED && w->kind != TOKEN_SYMBOL && w->kind != TOKEN_DEGREE) return true;
  }
  return false;
}

/* "m/s", "m^2", "s^{-1}" behind a number. */
static bool is_unit_formula(const struct lexer *l, size_t from, size_t to) {
  const int last = l->count > 0 && l->count <= l->max ? l->out[l->count - 1].kind : TOKEN_END;
  if (!letter(l, from) || (last != TOKEN_NUMBER && last != '}' && last != ')' && last != TOKEN_HALF)) return false;
  for (size_t i = from; i < to; i++) {
    if (starts(l, i, "^")) {
      const bool group = starts(l, i + 1, "{");
      i += group ? 2 : 1;
      i += starts(l, i, "-") ? 1 : 0;
      if (!digit(l, i) || (group && !starts(l, ++i, "}"))) return false;
    } else if (starts(l, i, "\xc2\xb2") || starts(l, i, "\xc2\xb3")) {
      i++;
    } else if (!strchr("mghsLlNJWVAKCF/ ", l->text[i])) {
      return false;
    }
  }
  return true;
}

static void tokens(struct lexer *l);

/* What stands between braces, as if it stood there without them, but for what takes an argument: "2^\mathbf{-7}". */
static void formula(struct lexer *l, size_t from, size_t to) {
  const int last = l->count > 0 && l->count <= l->max ? l->out[l->count - 1].kind : TOKEN_END;
  const bool group = last == '^' || last == '_' || last == TOKEN_FRACTION || last == TOKEN_ROOT ||
                     last == TOKEN_BINOMIAL || last == TOKEN_OVERLINE || last == TOKEN_ACCENT;
  const size_t len = l->len, next = l->at;
  if (group) emit(l, '{', 0, from, from);
  l->at = from;
  l->len = to;
  tokens(l);
  l->at = next;
  l->len = len;
  if (group) emit(l, '}', 0, to, to);
}

/* \text{...}: a function's name is one, a formula without words is one ("\mathbf{-7}"), anything else is words. */
static void text_argument(struct lexer *l) {
  size_t from, to;
  if (!argument(l, &from, &to)) return; /* "\mathrm x": the letter follows by itself */
  const bool before = l->blank || (from < to && l->text[from] == ' ');
  while (from < to && (l->text[from] == ' ' || l->text[from] == '~')) from++;
  while (to > from && (l->text[to - 1] == ' ' || l->text[to - 1] == '~')) to--;
  const struct word *w = command_find(l->text + from, to - from);
  l->blank = before;
  if (!w && !holds_word(l, from, to) && holds_formula(l, from, to) && !is_unit_formula(l, from, to)) {
    formula(l, from, to);
    return;
  }
  bool letters = false;
  for (size_t i = from; i < to; i++) letters |= letter(l, i) || (unsigned char)l->text[i] >= 0x80 || digit(l, i);
  if (!letters) return; /* "\text{\$}" */
  const bool constant = to - from == 1 && (l->text[from] == 'i' || l->text[from] == 'e'); /* no unit is called so */
  if (w && (w->kind == TOKEN_FUNCTION || w->kind == TOKEN_LOGARITHM))
    emit(l, w->kind, w->value, from, to);
  else if (to - from == 1 && l->text[from] >= 'a' && l->text[from] <= 'z' && (!before || constant)) /* upright */
    emit(l, TOKEN_WORD, 0, from, to);
  else
    emit(l, TOKEN_TEXT, 0, from, to);
}

static void command(struct lexer *l) {
  const size_t from = l->at++;
  if (!letter(l, l->at)) {
    const char c = l->at < l->len ? l->text[l->at] : 0;
    if (c == '\\') {
      /* "\\frac" is a slash too many, "\\" a new row */
      l->at++;
      if (letter(l, l->at) && l->at + 1 < l->len && letter(l, l->at + 1)) {
        l->at--;
        return;
      }
      emit(l, TOKEN_ROW, 0, from, l->at);
      return;
    }
    l->at += c != 0;
    if (c == '{' || c == '}')
      emit(l, c == '{' ? TOKEN_SET_OPEN : TOKEN_SET_CLOSE, 0, from, l->at);
    else if (c == '%' || c == '|')
      emit(l, c, 0, from, l->at);
    else if (c && strchr(" ,;:!$()[]/&#", c))
      l->blank = l->blank || c == ' ';
    else
      emit(l, TOKEN_UNKNOWN, 0, from, l->at);
    return;
  }
  while (letter(l, l->at)) l->at++;
  const size_t name = from + 1, end = l->at;
  const struct word *w = command_find(l->text + name, end - name);
  if (!w) {
    emit(l, TOKEN_UNKNOWN, 0, from, end);
  } else if (w->kind == DROPPED) {
    l->blank = l->blank || w->name[0] == 'q';
    if (starts(l, l->at, ".") && (strcmp(w->name, "left") == 0 || strcmp(w->name, "right") == 0)) l->at++;
  } else if (w->kind == TEXT_ARGUMENT) {
    if (starts(l, l->at, "*")) l->at++;
    text_argument(l);
  } else if (w->kind == MATH_ARGUMENT || w->kind == TOKEN_BEGIN || w->kind == TOKEN_FINISH) {
    size_t a, b;
    if (argument(l, &a, &b))
      emit(l, w->kind == MATH_ARGUMENT ? TOKEN_SYMBOL : w->kind, 0, w->kind == MATH_ARGUMENT ? from : a,
           w->kind == MATH_ARGUMENT ? l->at : b);
    else if (w->kind == MATH_ARGUMENT)
      return;
    else
      emit(l, TOKEN_UNKNOWN, 0, from, end);
  } else {
    emit(l, w->kind, w->value, name, end);
  }
}

static void word(struct lexer *l) {
  const size_t from = l->at;
  while (letter(l, l->at)) l->at++;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    if (strlen(plain[i]) != l->at - from || memcmp(plain[i], l->text + from, l->at - from) != 0) continue;
    const struct word *w = command_find(plain[i], l->at - from);
    emit(l, w ? w->kind : TOKEN_INFINITY, w && w->kind == TOKEN_ROOT ? 1 : w ? w->value : 0, from, l->at);
    return;
  }
  emit(l, TOKEN_WORD, 0, from, l->at);
}

static void sign(struct lexer *l) {
  const struct word *w = sign_at(l, l->at);
  const size_t from = l->at, letter_bytes = foreign(l, from);
  if (letter_bytes) {
    while (l->at < l->len && foreign(l, l->at)) l->at += foreign(l, l->at);
    emit(l, TOKEN_TEXT, 0, from, l->at);
    return;
  }
  l->at += w ? strlen(w->name) : 1;
  if (w && w->kind == DROPPED)
    l->blank = true;
  else
    emit(l, w ? w->kind : TOKEN_UNKNOWN, w ? w->value : 0, from, l->at);
}

static void other(struct lexer *l) {
  const char c = l->text[l->at];
  const bool equal = starts(l, l->at + 1, "=");
  if (c == '$') { /* TeX's, or dollars */
    l->at++;
  } else if ((c == '<' || c == '>' || c == '!') && equal) {
    emit(l, c == '<' ? TOKEN_LESS_EQUAL : c == '>' ? TOKEN_GREATER_EQUAL : TOKEN_NOT_EQUAL, 0, l->at, l->at + 2);
    l->at += 2;
  } else if (c == '*' && starts(l, l->at + 1, "*")) {
    emit(l, '^', 0, l->at, l->at + 2);
    l->at += 2;
  } else if (strchr("+-*/^_=<>()[]{}|!,;:%&'.", c)) {
    emit(l, (unsigned char)c, 0, l->at, l->at + 1);
    l->at++;
  } else {
    sign(l);
  }
}

static void tokens(struct lexer *l) {
  while (l->at < l->len && l->count <= l->max) {
    const char c = l->text[l->at];
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '~') {
      l->blank = true;
      l->at++;
    } else if (c == 0) {
      emit(l, TOKEN_UNKNOWN, 0, l->at, l->at + 1);
      l->at++;
    } else if (digit(l, l->at) || (c == '.' && digit(l, l->at + 1))) {
      number(l);
    } else if (letter(l, l->at)) {
      word(l);
    } else if (c == '\\') {
      command(l);
    } else {
      other(l);
    }
  }
}

int math_tokens(struct math_token *out, int max, const char *text, size_t len, bool thousands) {
  struct lexer l = {.text = text, .len = len, .thousands = thousands, .out = out, .max = max - 1};
  tokens(&l);
  if (l.count > l.max) return -1;
  out[l.count] = (struct math_token){.kind = TOKEN_END, .text = text + len};
  return l.count;
}

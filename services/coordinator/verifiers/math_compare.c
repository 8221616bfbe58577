/* Compares answers as trees: relations first, then collections, then formulas. */
#include "services/coordinator/verifiers/math_compare.h"

#include <ctype.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/limits.h"
#include "services/coordinator/verifiers/math_numeric.h"

enum {
  POINTS = 6,
  POINTS_NEEDED = 3,
  WORDS_MAX = 256,
  PIECES_MAX = 2 * MATH_ITEMS_MAX
};

/* One side of a comparison: a node of its tree. */
struct side {
  struct math_tree *t;
  int node;
  int sign; /* that \pm has here: 1, -1, or 0: both are meant */
};

struct comparison {
  uint64_t seed;
  int steps; /* pairs compared and nodes computed so far: beyond LIMIT_VERIFIER_STEPS nothing is equal */
};

static const struct math_node *node_of(struct side s) { return &s.t->nodes[s.node]; }
static enum math_op op_of(struct side s) { return node_of(s)->op; }
static struct side at(struct side s, int which) {
  const struct math_node *c = math_child(s.t, node_of(s), which);
  return (struct side){s.t, c ? (int)(c - s.t->nodes) : MATH_NONE, s.sign};
}

static bool contains(const struct math_tree *t, int node, enum math_op op) {
  if (t->nodes[node].op == op) return true;
  for (int c = t->nodes[node].child; c != MATH_NONE; c = t->nodes[c].next)
    if (contains(t, c, op)) return true;
  return false;
}

static int size_of(struct side s) {
  int n = 1;
  for (int c = node_of(s)->child; c != MATH_NONE; c = s.t->nodes[c].next) n += size_of((struct side){s.t, c, 0});
  return n;
}

/* Asked before both are computed `times` times. */
static bool within_steps(struct comparison *c, struct side a, struct side b, int times) {
  if (c->steps <= LIMIT_VERIFIER_STEPS) c->steps += times * (size_of(a) + size_of(b));
  return c->steps <= LIMIT_VERIFIER_STEPS;
}

/* ---- words ---- */

static bool is_digit(const char *text, size_t len, size_t at) {
  return at < len && isdigit((unsigned char)text[at]);
}

/* Do three digits follow what may stand between thousands: "1,000", "1{,}000", "1\,000"? */
static bool thousands(const char *text, size_t len, size_t from, size_t at) {
  for (size_t i = from; i < at; i++)
    if (!strchr(",{}\\! ", text[i])) return false;
  return is_digit(text, len, at + 1) && is_digit(text, len, at + 2) && !is_digit(text, len, at + 3);
}

/* A sign, a point or a relation that makes another number of the same digits?  A hyphen between words is none. */
static bool is_sign(const char *text, size_t len, size_t at, bool behind_digit) {
  const char c = text[at];
  size_t next = at + 1;
  if (c == '+' || c == '<' || c == '>' || c == '=') return true;
  if (c == '.') return is_digit(text, len, next);
  while (next < len && strchr(" $\\(.", text[next])) next++;
  return (c == '-' || (c == '/' && behind_digit)) && is_digit(text, len, next);
}

/* Letters and digits in lower case, without LaTeX's commands for type.  numbers: also the signs of numbers, and a blank
 * between digits that do not stand beside each other: "1 1/2" is not "11/2". */
static size_t words_of(char *out, const char *text, size_t len, bool numbers) {
  static const char *const type[] = {"text",   "textbf", "textit", "textrm", "mathrm",
                                     "mathbf", "mbox",   "left",   "right",  "boxed"};
  size_t n = 0, last = 0; /* last: behind the last digit */
  for (size_t i = 0; i < len && n + 1 < WORDS_MAX; i++) {
    const bool behind_digit = n > 0 && isdigit((unsigned char)out[n - 1]);
    const bool minus = len - i >= 3 && memcmp(text + i, "\xe2\x88\x92", 3) == 0; /* not the ASCII one */
    if (text[i] == '\\') {
      size_t end = i + 1;
      while (end < len && isalpha((unsigned char)text[end])) end++;
      bool dropped = false;
      for (size_t k = 0; k < sizeof type / sizeof *type; k++)
        dropped |= strlen(type[k]) == end - i - 1 && memcmp(type[k], text + i + 1, end - i - 1) == 0;
      if (dropped) i = end - 1;
    } else if (minus) {
      i += 2;
      if (numbers) out[n++] = '-';
    } else if (isalnum((unsigned char)text[i]) || (unsigned char)text[i] >= 0x80) {
      const bool number = isdigit((unsigned char)text[i]);
      if (numbers && number && behind_digit && last < i && !thousands(text, len, last, i)) out[n++] = ' ';
      out[n++] = (char)tolower((unsigned char)text[i]);
      if (number) last = i + 1;
    } else if (numbers && is_sign(text, len, i, behind_digit)) {
      out[n++] = text[i];
    }
  }
  return n;
}

bool math_same_words(const char *a, size_t a_len, const char *b, size_t b_len) {
  char one[WORDS_MAX], other[WORDS_MAX];
  const size_t n = words_of(one, a, a_len, true), m = words_of(other, b, b_len, true);
  return n > 0 && n + 1 < WORDS_MAX && n == m && memcmp(one, other, n) == 0;
}

/* A symbol's or a text's own letters, and those of a product of symbols. */
static size_t spelled(struct side s, char *out, size_t at_most) {
  const struct math_node *n = node_of(s);
  if (n->op == MATH_E || n->op == MATH_I) {
    if (at_most) out[0] = n->op == MATH_E ? 'e' : 'i';
    return at_most ? 1 : 0;
  }
  if ((n->op == MATH_SYMBOL && n->child == MATH_NONE) || n->op == MATH_TEXT) {
    char words[WORDS_MAX];
    const size_t len = words_of(words, n->text, (size_t)n->len, true);
    if (len > at_most) return 0;
    memcpy(out, words, len);
    return len;
  }
  if (n->op != MATH_MULTIPLY) return 0;
  const size_t left = spelled(at(s, 0), out, at_most), right = left ? spelled(at(s, 1), out + left, at_most - left) : 0;
  return right ? left + right : 0;
}

static bool words_equal(struct side a, struct side b) {
  char one[WORDS_MAX], other[WORDS_MAX];
  const size_t n = spelled(a, one, sizeof one), m = spelled(b, other, sizeof other);
  for (size_t i = 0; i < n; i++) one[i] = (char)tolower((unsigned char)one[i]);
  for (size_t i = 0; i < m; i++) other[i] = (char)tolower((unsigned char)other[i]);
  return n > 0 && n == m && memcmp(one, other, n) == 0;
}

/* ---- formulas ---- */

static double distance(struct complex_value a, struct complex_value b) {
  return complex_size((struct complex_value){a.re - b.re, a.im - b.im, 0});
}

static double sixth(double x) {
  const double up = x * 1e6 + 0.5, whole = up < 9e15 && up > -9e15 ? (double)(int64_t)up : up;
  return whole > up ? whole - 1 : whole;
}

/* One of them may be an approximation: six decimals of it count, and of small numbers as many digits. */
static bool rounds_to(struct complex_value a, struct complex_value b) {
  const double size = complex_size(a) > complex_size(b) ? complex_size(a) : complex_size(b);
  return sixth(a.re) == sixth(b.re) && sixth(a.im) == sixth(b.im) && distance(a, b) <= 2e-5 * size;
}

static bool constant(struct side s) { return !contains(s.t, s.node, MATH_SYMBOL); }

static enum math_known numeric_pair(struct side a, struct side b, const struct math_reading *r, struct complex_value *x,
                                    struct complex_value *y) {
  struct math_reading ra = *r, rb = *r;
  ra.sign = a.sign;
  rb.sign = b.sign;
  if (!math_numeric(a.t, a.node, &ra, x) || !math_numeric(b.t, b.node, &rb, y)) return MATH_UNDEFINED;
  const double size = complex_size(*x) + complex_size(*y);
  return x->err + y->err <= 1e-7 * (size > 1e-3 ? size : 1e-3) ? MATH_KNOWN : MATH_UNKNOWN;
}

static bool numerically_equal(struct comparison *c, struct side a, struct side b, struct math_reading r) {
  const bool fixed = constant(a) && constant(b), rounded = fixed && (a.t->decimal || b.t->decimal);
  int good = 0;
  for (int i = 0; i < (fixed ? 1 : POINTS) && within_steps(c, a, b, 1); i++) {
    struct complex_value x, y;
    r.seed = c->seed + (uint64_t)i;
    if (numeric_pair(a, b, &r, &x, &y) != MATH_KNOWN) continue;
    const bool close = distance(x, y) <= 8 * (x.err + y.err);
    if (!close && !(rounded && rounds_to(x, y))) return false;
    good++;
  }
  return good >= (fixed ? 1 : POINTS_NEEDED);
}

/* A collision in the field would need numbers made for it: such are far apart as doubles. */
static bool plausible(struct comparison *c, struct side a, struct side b, struct math_reading r) {
  struct complex_value x, y;
  struct math_reading ra = r, rb = r;
  ra.seed = rb.seed = c->seed;
  ra.sign = a.sign;
  rb.sign = b.sign;
  const bool good = math_numeric(a.t, a.node, &ra, &x), other = math_numeric(b.t, b.node, &rb, &y);
  if (!good || !other) return !good && !other && constant(a) == constant(b); /* both too large to be doubles */
  const double size = complex_size(x) + complex_size(y);
  return distance(x, y) <= 1e-6 * size + 8 * (x.err + y.err);
}

static bool equal_as(struct comparison *c, struct side a, struct side b, struct math_reading r) {
  struct math_element x, y;
  struct math_reading ra = r, rb = r;
  if (!within_steps(c, a, b, 1)) return false;
  ra.sign = a.sign;
  rb.sign = b.sign;
  const enum math_known kx = math_exact(a.t, a.node, &ra, &x), ky = math_exact(b.t, b.node, &rb, &y);
  if (kx == MATH_UNDEFINED || ky == MATH_UNDEFINED) return false;
  if (kx == MATH_KNOWN && ky == MATH_KNOWN) {
    if (math_exact_equal(x, y)) return plausible(c, a, b, r);
    if (!(constant(a) && constant(b) && (a.t->decimal || b.t->decimal))) return false;
  }
  return numerically_equal(c, a, b, r);
}

static bool infinite(struct side s, int *sign) {
  while (op_of(s) == MATH_NEGATE) {
    *sign = -*sign;
    s = at(s, 0);
  }
  return op_of(s) == MATH_INFINITY;
}

static bool based_equal(struct side a, struct side b) {
  const struct math_node *x = node_of(a), *y = node_of(b);
  if ((x->op != MATH_BASED && x->op != MATH_NUMBER) || (y->op != MATH_BASED && y->op != MATH_NUMBER)) return false;
  if (x->op == y->op && x->value != y->value) return false;
  return x->len == y->len && memcmp(x->text, y->text, (size_t)x->len) == 0;
}

static bool formulas_equal(struct comparison *c, struct side a, struct side b) {
  int sign_a = 1, sign_b = 1;
  const bool far_a = infinite(a, &sign_a), far_b = infinite(b, &sign_b);
  if (far_a || far_b) return far_a && far_b && sign_a == sign_b;
  if (op_of(a) == MATH_BASED || op_of(b) == MATH_BASED) return based_equal(a, b);
  const bool percent = contains(a.t, a.node, MATH_PERCENT) || contains(b.t, b.node, MATH_PERCENT);
  const bool degrees = contains(a.t, a.node, MATH_DEGREE) || contains(b.t, b.node, MATH_DEGREE);
  struct math_reading r = {.seed = c->seed, .sign = 1};
  if (equal_as(c, a, b, r)) return true;
  r.hundredths = true;
  if (percent && equal_as(c, a, b, r)) return true;
  r.hundredths = false;
  r.radians = true;
  return degrees && equal_as(c, a, b, r);
}

/* ---- relations ---- */

static bool is_name(struct side s) {
  const struct math_node *n = node_of(s);
  if (n->op == MATH_SYMBOL || n->op == MATH_TEXT || n->op == MATH_E || n->op == MATH_I) return true;
  return n->op == MATH_MULTIPLY && is_name(at(s, 0)) && is_name(at(s, 1));
}

static int make(struct math_tree *t, enum math_op op, int a, int b) {
  if (t->count + 3 > MATH_NODES_MAX) return MATH_NONE;
  const int x = t->count++, y = t->count++, n = t->count++; /* copies, whose siblings are other ones */
  t->nodes[x] = t->nodes[a];
  t->nodes[y] = t->nodes[b];
  t->nodes[x].next = y;
  t->nodes[y].next = MATH_NONE;
  t->nodes[n] = (struct math_node){.op = op, .child = x, .next = MATH_NONE};
  return n;
}

static struct side difference(struct side relation, bool swapped) {
  const int n = make(relation.t, MATH_SUBTRACT, at(relation, swapped).node, at(relation, !swapped).node);
  return (struct side){relation.t, n, relation.sign};
}

/* x = k y with the same k at all points; k > 0 where the order matters. */
static bool proportional(struct comparison *c, struct side x, struct side y, bool ordered) {
  struct complex_value first = {0}, ratio;
  struct math_element p, q, p0 = {0}, q0 = {0};
  bool exact = true;
  int good = 0;
  if (constant(x) || constant(y)) return false;
  for (int i = 0; i < POINTS; i++) {
    if (!within_steps(c, x, y, 1)) return false;
    const struct math_reading r = {.seed = c->seed + (uint64_t)i, .sign = 1};
    struct complex_value a, b;
    exact = exact && math_exact(x.t, x.node, &r, &p) == MATH_KNOWN && math_exact(y.t, y.node, &r, &q) == MATH_KNOWN;
    if (exact && i > 0 && !math_exact_equal(math_exact_product(p, q0), math_exact_product(p0, q))) return false;
    p0 = p;
    q0 = q;
    if (!math_numeric(x.t, x.node, &r, &a) || !math_numeric(y.t, y.node, &r, &b) || !complex_div(&ratio, a, b))
      continue;
    if (ordered && !(ratio.re > 0)) return false;
    if (good++ == 0) first = ratio;
    if (distance(first, ratio) > 8 * (first.err + ratio.err) + 1e-10 * complex_size(first)) return false;
  }
  return good >= POINTS_NEEDED;
}

static enum math_relation turned(int r) {
  switch (r) {
    case MATH_LESS: return MATH_GREATER;
    case MATH_GREATER: return MATH_LESS;
    case MATH_LESS_EQUAL: return MATH_GREATER_EQUAL;
    case MATH_GREATER_EQUAL: return MATH_LESS_EQUAL;
    default: return (enum math_relation)r;
  }
}

struct piece {
  struct side from, to; /* of an interval; a node of MATH_NONE: infinite */
  int closed;
};

static bool all_real(struct side s) {
  static const char name[] = "\\mathbb{R}";
  return op_of(s) == MATH_SYMBOL && node_of(s)->len == (int)sizeof name - 1 &&
         memcmp(node_of(s)->text, name, sizeof name - 1) == 0;
}

/* "x > a", "a <= x", "a < x < b", "(a, b)", "[a, b)": one interval.  *of: the symbol's node, or MATH_NONE. */
static bool piece_of(struct side s, struct piece *out, int *of) {
  const struct math_node *n = node_of(s);
  const struct side open = {s.t, MATH_NONE, s.sign};
  *of = MATH_NONE;
  if (n->op == MATH_INTERVAL || (n->op == MATH_TUPLE && math_children(s.t, n) == 2)) {
    *out = (struct piece){at(s, 0), at(s, 1), n->op == MATH_INTERVAL ? n->value : 0};
    int sign = 1;
    if (infinite(out->from, &sign) && sign < 0) out->from = open;
    sign = 1;
    if (infinite(out->to, &sign) && sign > 0) out->to = open;
    return true;
  }
  if (all_real(s)) {
    *out = (struct piece){open, open, 0};
    return true;
  }
  if (n->op != MATH_RELATION) return false;
  struct side left = at(s, 0), middle = at(s, 1), right = at(s, 2);
  int r = n->value & 7, second = n->value >> 3;
  if (right.node == MATH_NONE) {
    if (r == MATH_EQUAL || r == MATH_NOT_EQUAL) return false;
    if (op_of(left) != MATH_SYMBOL) {
      const struct side held = left;
      left = middle;
      middle = held;
      r = turned(r);
    }
    if (op_of(left) != MATH_SYMBOL) return false;
    *of = left.node;
    const bool less = r == MATH_LESS || r == MATH_LESS_EQUAL, closed = r == MATH_LESS_EQUAL || r == MATH_GREATER_EQUAL;
    *out = less ? (struct piece){open, middle, closed ? MATH_CLOSED_RIGHT : 0}
                : (struct piece){middle, open, closed ? MATH_CLOSED_LEFT : 0};
    return true;
  }
  if (op_of(middle) != MATH_SYMBOL) return false;
  if (r == MATH_GREATER || r == MATH_GREATER_EQUAL) {
    const struct side held = left;
    const int kept = turned(r);
    left = right;
    right = held;
    r = turned(second);
    second = kept;
  }
  if ((r != MATH_LESS && r != MATH_LESS_EQUAL) || (second != MATH_LESS && second != MATH_LESS_EQUAL)) return false;
  *of = middle.node;
  *out = (struct piece){
      left, right, (r == MATH_LESS_EQUAL ? MATH_CLOSED_LEFT : 0) | (second == MATH_LESS_EQUAL ? MATH_CLOSED_RIGHT : 0)};
  int sign = 1;
  if (infinite(left, &sign) && sign < 0) out->from = open;
  sign = 1;
  if (infinite(right, &sign) && sign > 0) out->to = open;
  return true;
}

static bool ends_equal(struct comparison *c, struct side a, struct side b) {
  if (a.node == MATH_NONE || b.node == MATH_NONE) return a.node == b.node;
  return formulas_equal(c, a, b);
}

static bool pieces_equal(struct comparison *c, const struct piece *a, const struct piece *b) {
  const int left = a->from.node == MATH_NONE ? 0 : MATH_CLOSED_LEFT,
            right = a->to.node == MATH_NONE ? 0 : MATH_CLOSED_RIGHT;
  return ((a->closed ^ b->closed) & (left | right)) == 0 && ends_equal(c, a->from, b->from) &&
         ends_equal(c, a->to, b->to);
}

static bool relations_equal(struct comparison *c, struct side a, struct side b) {
  const struct math_node *x = node_of(a), *y = node_of(b);
  struct piece p, q;
  int of_p, of_q;
  if (piece_of(a, &p, &of_p) && piece_of(b, &q, &of_q))
    return of_p != MATH_NONE && of_q != MATH_NONE &&
           words_equal((struct side){a.t, of_p, 1}, (struct side){b.t, of_q, 1}) && pieces_equal(c, &p, &q);
  if (math_children(a.t, x) != 2 || math_children(b.t, y) != 2) return false;
  if (x->value == MATH_EQUAL && y->value == MATH_EQUAL && is_name(at(a, 0)) && is_name(at(b, 0)) &&
      words_equal(at(a, 0), at(b, 0)) && formulas_equal(c, at(a, 1), at(b, 1)))
    return true;
  const bool ordered = x->value != MATH_EQUAL && x->value != MATH_NOT_EQUAL, swapped = ordered && x->value != y->value;
  if (x->value != y->value && turned(x->value) != (enum math_relation)y->value) return false;
  const int nodes_a = a.t->count, nodes_b = b.t->count;
  const struct side left = difference(a, false), right = difference(b, swapped);
  const bool equal =
      left.node != MATH_NONE && right.node != MATH_NONE && proportional(c, left, right, ordered);
  a.t->count = nodes_a; /* the differences are for this comparison alone */
  b.t->count = nodes_b;
  return equal;
}

/* ---- collections ---- */

static bool sides_equal(struct comparison *c, struct side a, struct side b);

static bool is_collection(enum math_op op) {
  return op == MATH_LIST || op == MATH_TUPLE || op == MATH_SET || op == MATH_INTERVAL || op == MATH_UNION;
}

/* A formula with two values, neither of which is chosen. */
static bool is_plus_minus(struct side s) {
  return s.sign == 0 && op_of(s) != MATH_RELATION && !is_collection(op_of(s)) && contains(s.t, s.node, MATH_PLUS_MINUS);
}

/* The elements; of "a \pm b" two. */
static int elements(struct side s, struct side *out) {
  int n = 0;
  const bool many = is_collection(op_of(s));
  for (int i = 0; i < MATH_ITEMS_MAX; i++) {
    struct side one = many ? at(s, i) : s;
    if (one.node == MATH_NONE) break;
    const bool two = is_plus_minus(one) && op_of(s) != MATH_TUPLE;
    out[n] = one;
    if (two) {
      out[n++].sign = 1;
      out[n] = one;
      out[n].sign = -1;
    }
    n++;
    if (!many) break;
  }
  return n;
}

/* Is each of x one of y, and each of y one of x?  Those that are not found yet come first: elements that differ among
 * themselves, in whatever order, take n (n + 1) / 2 comparisons at most. */
static bool same_elements(struct comparison *c, const struct side *x, int n, const struct side *y, int m) {
  bool found[PIECES_MAX] = {false};
  for (int i = 0; i < n; i++) {
    bool any = false;
    for (int again = 0; again < 2 && !any; again++)
      for (int k = 0; k < m && !any; k++) {
        if (found[k] != (again == 1) || !sides_equal(c, x[i], y[k])) continue;
        any = found[k] = true;
      }
    if (!any) return false;
  }
  for (int k = 0; k < m; k++) {
    for (int i = 0; i < n && !found[k]; i++) found[k] = sides_equal(c, x[i], y[k]);
    if (!found[k]) return false;
  }
  return true;
}

static bool elements_equal(struct comparison *c, struct side a, struct side b) {
  struct side x[PIECES_MAX], y[PIECES_MAX];
  const int n = elements(a, x), m = elements(b, y);
  const bool ordered =
      op_of(a) == MATH_TUPLE || op_of(b) == MATH_TUPLE || op_of(a) == MATH_INTERVAL || op_of(b) == MATH_INTERVAL;
  if (!ordered) return same_elements(c, x, n, y, m);
  for (int i = 0; i < n && n == m; i++)
    if (!sides_equal(c, x[i], y[i])) return false;
  return n == m;
}

static bool collections_equal(struct comparison *c, struct side a, struct side b) {
  const enum math_op x = op_of(a), y = op_of(b);
  struct piece p, q;
  int of;
  if (x == MATH_UNION || y == MATH_UNION) {
    if (x == y) return elements_equal(c, a, b);
    /* "x < 1 or x > 2" is a union */
    const struct side list = x == MATH_UNION ? b : a;
    if (op_of(list) != MATH_LIST) return false;
    return elements_equal(c, a, b);
  }
  const bool one = piece_of(a, &p, &of), other = piece_of(b, &q, &of);
  const bool interval = x == MATH_INTERVAL || y == MATH_INTERVAL;
  if (!is_collection(x) && !is_collection(y) && !(one && other)) return false;
  if (one && other && (interval || !is_collection(x) || !is_collection(y))) return pieces_equal(c, &p, &q);
  if (interval) return false;
  if ((x == MATH_SET && y == MATH_TUPLE) || (x == MATH_TUPLE && y == MATH_SET)) return false;
  if (x == MATH_TUPLE || y == MATH_TUPLE) {
    if (!is_collection(x) || !is_collection(y)) return false;
  }
  return elements_equal(c, a, b);
}

static bool matrices_equal(struct comparison *c, struct side a, struct side b) {
  if (math_children(a.t, node_of(a)) != math_children(b.t, node_of(b))) return false;
  for (int i = 0; at(a, i).node != MATH_NONE; i++) {
    const struct side x = at(a, i), y = at(b, i);
    if (math_children(a.t, node_of(x)) != math_children(b.t, node_of(y))) return false;
    for (int k = 0; at(x, k).node != MATH_NONE; k++)
      if (!sides_equal(c, at(x, k), at(y, k))) return false;
  }
  return true;
}

static bool is_equation(struct side s) { return op_of(s) == MATH_RELATION && node_of(s)->value == MATH_EQUAL; }

/* Of "x = 5" the 5, where the other side has no relation. */
static struct side value_of(struct side s, struct side other) {
  if (is_equation(s) && op_of(other) != MATH_RELATION)
    return is_name(at(s, 0)) || !is_name(at(s, 1)) ? at(s, 1) : at(s, 0);
  return s;
}

static bool sides_equal(struct comparison *c, struct side a, struct side b) {
  if (++c->steps > LIMIT_VERIFIER_STEPS) return false;
  const struct side x = value_of(a, b), y = value_of(b, a);
  const enum math_op ox = op_of(x), oy = op_of(y);
  if (is_equation(a) && !is_equation(b) && !is_name(at(a, 0)) && !is_name(at(a, 1)))
    return false; /* the gold is an equation to be found */
  if (ox == MATH_TEXT || oy == MATH_TEXT) return words_equal(x, y);
  if (ox == MATH_RELATION && oy == MATH_RELATION) return relations_equal(c, x, y);
  if (ox == MATH_MATRIX || oy == MATH_MATRIX) return ox == oy && matrices_equal(c, x, y);
  if (ox == MATH_EMPTY || oy == MATH_EMPTY) return ox == oy;
  struct piece p;
  int of;
  if (is_collection(ox) || is_collection(oy) || ox == MATH_RELATION || oy == MATH_RELATION)
    return collections_equal(c, x, y);
  if (all_real(x) != all_real(y) && piece_of(x, &p, &of) && piece_of(y, &p, &of)) return collections_equal(c, x, y);
  if (is_plus_minus(x) || is_plus_minus(y)) return elements_equal(c, x, y);
  return formulas_equal(c, x, y);
}

/* ---- units ---- */

static const char *const units[][8] = {
    {"mm", "millimeter", "millimetre"},
    {"cm", "centimeter", "centimetre"},
    {"m", "meter", "metre"},
    {"km", "kilometer", "kilometre"},
    {"in", "inch", "inche"},
    {"ft", "foot", "feet"},
    {"yd", "yard"},
    {"mi", "mile"},
    {"g", "gram"},
    {"kg", "kilogram"},
    {"lb", "pound"},
    {"oz", "ounce"},
    {"sec", "second"},
    {"min", "minute"},
    {"hr", "hour"},
    {"day"},
    {"week"},
    {"month"},
    {"year"},
    {"dollar", "usd"},
    {"cent"},
    {"liter", "litre"},
    {"ml", "milliliter"},
    {"mph", "milesperhour"},
    {"kmh", "kilometersperhour"},
    {"cm2", "squarecm", "squarecentimeter", "sqcm"},
    {"m2", "squaremeter", "squaremetre", "sqm"},
    {"in2", "squareinch", "squareinche"},
    {"ft2", "squarefeet", "squarefoot", "sqft"},
    {"cm3", "cubiccm", "cubiccentimeter"},
    {"m3", "cubicmeter"},
    {"ft3", "cubicfeet"},
    {"in3", "cubicinch", "cubicinche"},
};

/* Its row in the table, without a plural's s; -1: not known. */
static int unit_of(const char *text, int len) {
  char words[WORDS_MAX];
  size_t n = text ? words_of(words, text, (size_t)len, false) : 0;
  for (int plural = 0; plural < 2 && n > 0; plural++) {
    for (int i = 0; i < (int)(sizeof units / sizeof *units); i++)
      for (int k = 0; k < 8 && units[i][k]; k++)
        if (strlen(units[i][k]) == n && memcmp(units[i][k], words, n) == 0) return i;
    if (words[n - 1] != 's') break;
    n--;
  }
  return -1;
}

/* "5 m" among answers without symbols: the letter is a unit. */
static bool strip_letter(struct math_tree *t, const struct math_tree *other) {
  const struct math_node *n = &t->nodes[t->root];
  if (n->op != MATH_MULTIPLY || contains(other, other->root, MATH_SYMBOL)) return false;
  const struct math_node *letter = math_child(t, n, 1);
  if (letter->op != MATH_SYMBOL || letter->len != 1 || !strchr("mghsLlNJWVAK", letter->text[0])) return false;
  if (contains(t, n->child, MATH_SYMBOL)) return false;
  if (!t->unit) {
    t->unit = letter->text;
    t->unit_len = 1;
  }
  t->root = n->child;
  return true;
}

/* ---- answers ---- */

bool math_equal(struct math_tree *gold, struct math_tree *answer, const char *gold_text, size_t gold_len,
                const char *answer_text, size_t answer_len) {
  struct comparison c = {.seed = fnv1a(fnv1a(FNV1A_BEGIN, gold_text, gold_len), answer_text, answer_len)};
  if (gold->nodes[gold->root].op == MATH_TEXT || answer->nodes[answer->root].op == MATH_TEXT)
    if (math_same_words(gold_text, gold_len, answer_text, answer_len)) return true;
  if (!strip_letter(gold, answer) && !contains(gold, gold->root, MATH_SYMBOL)) strip_letter(answer, gold);
  const int one = unit_of(gold->unit, gold->unit_len), other = unit_of(answer->unit, answer->unit_len);
  if (one >= 0 && other >= 0 && one != other) return false;
  return sides_equal(&c, (struct side){gold, gold->root, 0}, (struct side){answer, answer->root, 0});
}

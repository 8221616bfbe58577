/* Evaluates trees in doubles with error bounds. */
#include "services/coordinator/verifiers/math_numeric.h"

#include <string.h>

#define PI_VALUE 3.14159265358979311600
#define E_VALUE 2.71828182845904509080

static bool literal(const struct math_node *n, struct complex_value *out) {
  double v = 0, below = 1;
  long exponent = 0;
  bool point = false;
  for (int i = 0; i < n->len; i++) {
    const char c = n->text[i];
    if (c >= '0' && c <= '9') {
      v = v * 10 + (c - '0');
      if (point) below *= 10;
    } else if (c == '.') {
      point = true;
    } else if (c == 'e' || c == 'E') {
      const bool negative = i + 1 < n->len && n->text[i + 1] == '-';
      for (int k = i + 1; k < n->len; k++)
        if (n->text[k] >= '0' && n->text[k] <= '9' && exponent < 1000) exponent = exponent * 10 + (n->text[k] - '0');
      if (negative) exponent = -exponent;
      break;
    }
  }
  const bool whole = below == 1 && v < 9007199254740992.0;
  *out = (struct complex_value){v / below, 0, whole ? 0 : 1e-15 * v / below};
  if (exponent == 0) return complex_good(*out);
  struct complex_value ten;
  if (!complex_whole_power(&ten, complex_real(10), exponent)) return false;
  *out = complex_mul(*out, ten);
  return complex_good(*out);
}

/* From -2.5 to 2.5, and not near nought. */
static double point(uint64_t bits) {
  const double x = 0.3 + 2.2 * ((double)(bits >> 12) / 4503599627370496.0);
  return bits & 1 ? -x : x;
}

static bool function(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                     struct complex_value *out) {
  struct complex_value a, s, c;
  struct rational q;
  const struct math_node *inner = &t->nodes[n->child];
  struct math_reading turned = *r;
  if (n->value >= MATH_MIN) {
    if (!math_rational(t, (int)(n - t->nodes), r, &q)) return false;
    *out = complex_real((double)q.num / (double)q.den);
    return true;
  }
  turned.radians = inner->op == MATH_DEGREE || r->radians; /* an angle that is given in degrees */
  if (!math_numeric(t, n->child, &turned, &a)) return false;
  const struct complex_value one = complex_real(1), half_pi = {PI_VALUE / 2, 0, 1e-16};
  switch ((enum math_function)n->value) {
    case MATH_SIN:
    case MATH_COS:
    case MATH_TAN:
    case MATH_COT:
    case MATH_SEC:
    case MATH_CSC:
      if (!complex_sin_cos(&s, &c, a)) return false;
      if (n->value == MATH_SIN || n->value == MATH_COS) {
        *out = n->value == MATH_SIN ? s : c;
        return true;
      }
      if (n->value == MATH_TAN) return complex_div(out, s, c);
      if (n->value == MATH_COT) return complex_div(out, c, s);
      return complex_div(out, one, n->value == MATH_SEC ? c : s);
    case MATH_SINH:
    case MATH_COSH:
    case MATH_TANH: {
      struct complex_value up, down;
      if (!complex_exp(&up, a) || !complex_div(&down, one, up)) return false;
      s = complex_mul(complex_sub(up, down), complex_real(0.5));
      c = complex_mul(complex_add(up, down), complex_real(0.5));
      *out = n->value == MATH_SINH ? s : c;
      return n->value != MATH_TANH || complex_div(out, s, c);
    }
    case MATH_ARCSIN: return complex_arcsin(out, a);
    case MATH_ARCCOS:
      if (!complex_arcsin(&s, a)) return false;
      *out = complex_sub(half_pi, s);
      return true;
    case MATH_ARCTAN: return complex_arctan(out, a);
    case MATH_LN: return complex_log(out, a);
    case MATH_EXP: return complex_exp(out, a);
    default: return false;
  }
}

/* Of things: 0 to most.  No number that an int cannot hold is converted. */
static bool is_count(double x, int most) { return x >= 0 && x <= most && x == (double)(int)x; }

/* Roots of odd degree of negative numbers are negative, as schools have it. */
static bool root(struct complex_value a, struct complex_value index, struct complex_value *out) {
  struct complex_value inverse;
  if (index.im != 0 || !is_count(index.re, 100) || index.re < 2) return false;
  const int k = (int)index.re;
  if (k == 2) return complex_sqrt(out, a);
  const bool negative = a.re < 0 && (a.im == 0 || (a.im < 0 ? -a.im : a.im) <= 4 * a.err) && k % 2 == 1;
  if (negative) {
    a.re = -a.re;
    a.im = 0;
  }
  if (!complex_div(&inverse, complex_real(1), index)) return false;
  inverse.err = 2e-16;
  if (!complex_power(out, a, inverse)) return false;
  if (negative) out->re = -out->re;
  return true;
}

/* n! and n over k */
static bool counted(enum math_op op, struct complex_value a, struct complex_value b, struct complex_value *out) {
  const double times = op == MATH_FACTORIAL ? a.re : b.re;
  if (a.im != 0 || b.im != 0 || !is_count(times, 200)) return false;
  if (op == MATH_FACTORIAL && a.err > 0) return false;
  *out = complex_real(1);
  for (int i = 0; i < (int)times; i++) {
    *out = complex_mul(*out, complex_sub(a, complex_real(i)));
    if (op == MATH_BINOMIAL && !complex_div(out, *out, complex_real(i + 1))) return false;
    if (!complex_good(*out)) return false;
  }
  return true;
}

static double floor_of(double x) {
  const double whole = (double)(int64_t)x;
  return whole > x ? whole - 1 : whole;
}

static bool rounded(enum math_op op, struct complex_value a, struct complex_value *out) {
  if (a.im != 0 || !(a.re >= -1e15 && a.re <= 1e15)) return false;
  const double down = floor_of(a.re + 1e-9), up = -floor_of(-a.re + 1e-9);
  *out = complex_real(op == MATH_FLOOR ? down : up);
  return true;
}

static bool operation(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                      struct complex_value *out) {
  struct complex_value a, b = complex_real(0), l;
  const int second = t->nodes[n->child].next;
  if (!math_numeric(t, n->child, r, &a) || (second != MATH_NONE && !math_numeric(t, second, r, &b))) return false;
  switch (n->op) {
    case MATH_ADD: *out = complex_add(a, b); return true;
    case MATH_SUBTRACT: *out = complex_sub(a, b); return true;
    case MATH_NEGATE: *out = complex_sub(b, a); return true;
    case MATH_PLUS_MINUS:
      if (second == MATH_NONE) {
        b = a;
        a = complex_real(0);
      }
      *out = r->sign >= 0 ? complex_add(a, b) : complex_sub(a, b);
      return true;
    case MATH_MULTIPLY: *out = complex_mul(a, b); return true;
    case MATH_DIVIDE: return complex_div(out, a, b);
    case MATH_POWER: return complex_power(out, a, b);
    case MATH_ROOT: return root(a, second == MATH_NONE ? complex_real(2) : b, out);
    case MATH_ABSOLUTE: *out = (struct complex_value){complex_size(a), 0, a.err}; return true;
    case MATH_FLOOR:
    case MATH_CEILING: return rounded(n->op, a, out);
    case MATH_FACTORIAL:
    case MATH_BINOMIAL: return counted(n->op, a, b, out);
    case MATH_PERCENT: return r->hundredths ? complex_div(out, a, complex_real(100)) : (*out = a, true);
    case MATH_DEGREE:
      *out = r->radians ? complex_mul(a, (struct complex_value){PI_VALUE / 180, 0, 1e-17}) : a;
      return true;
    case MATH_LOGARITHM: return complex_log(&a, a) && complex_log(&l, b) && complex_div(out, a, l);
    default: return false;
  }
}

bool math_numeric(const struct math_tree *t, int node, const struct math_reading *r, struct complex_value *out) {
  const struct math_node *n = &t->nodes[node];
  switch (n->op) {
    case MATH_NUMBER: return literal(n, out);
    case MATH_SYMBOL: *out = complex_real(point(math_symbol_bits(t, n, r->seed))); return true;
    case MATH_PI: *out = (struct complex_value){PI_VALUE, 0, 1.3e-16}; return true;
    case MATH_E: *out = (struct complex_value){E_VALUE, 0, 1.5e-16}; return true;
    case MATH_I: *out = (struct complex_value){0, 1, 0}; return true;
    case MATH_FUNCTION: return function(t, n, r, out) && complex_good(*out);
    default: break;
  }
  if (n->op < MATH_ADD || n->op > MATH_DEGREE || n->child == MATH_NONE) return false;
  return operation(t, n, r, out) && complex_good(*out);
}

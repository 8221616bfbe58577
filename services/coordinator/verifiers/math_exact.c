/* Evaluates trees in GF(p^2), where -1 has no root among the residues: elements are re + im * i. */
#include "services/coordinator/verifiers/math_exact.h"

#include <string.h>

#define P ((uint64_t)1811004864519280007u) /* (P - 1) / 2 is prime, too */
#define ROOT_MAX ((int64_t)3037000499) /* whose square is the largest that 63 bits hold */
enum { FACTORIAL_MAX = 2000, TRIAL_MAX = 1000, EXPONENT_MAX = 1 << 20 /* far below the order of any element drawn */ };

static uint64_t add(uint64_t a, uint64_t b) { return a + b >= P ? a + b - P : a + b; }
static uint64_t sub(uint64_t a, uint64_t b) { return a >= b ? a - b : a + P - b; }
static uint64_t mul(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b % P); }

static uint64_t power(uint64_t a, uint64_t n) {
  uint64_t r = 1;
  for (; n; n >>= 1, a = mul(a, a))
    if (n & 1) r = mul(r, a);
  return r;
}

static struct math_element plus(struct math_element a, struct math_element b) {
  return (struct math_element){add(a.re, b.re), add(a.im, b.im)};
}
static struct math_element minus(struct math_element a, struct math_element b) {
  return (struct math_element){sub(a.re, b.re), sub(a.im, b.im)};
}
struct math_element math_exact_product(struct math_element a, struct math_element b) {
  return (struct math_element){sub(mul(a.re, b.re), mul(a.im, b.im)), add(mul(a.re, b.im), mul(a.im, b.re))};
}
static bool inverse(struct math_element *a) {
  const uint64_t norm = add(mul(a->re, a->re), mul(a->im, a->im));
  if (norm == 0) return false;
  const uint64_t n = power(norm, P - 2);
  *a = (struct math_element){mul(a->re, n), mul(sub(0, a->im), n)};
  return true;
}
static struct math_element raise(struct math_element a, uint64_t n) {
  struct math_element r = {1, 0};
  for (; n; n >>= 1, a = math_exact_product(a, a))
    if (n & 1) r = math_exact_product(r, a);
  return r;
}

static struct math_element whole(int64_t n) {
  return (struct math_element){n < 0 ? sub(0, (uint64_t)(-(n + 1)) % P + 1) : (uint64_t)n % P, 0};
}

static enum math_known element_of(struct rational q, struct math_element *out) {
  struct math_element below = whole(q.den);
  if (!inverse(&below)) return MATH_UNKNOWN;
  *out = math_exact_product(whole(q.num), below);
  return MATH_KNOWN;
}

/* Of a prime, or of a number that is taken for one everywhere. */
static struct math_element root_of_prime(uint64_t q) {
  const uint64_t r = power(q % P, (P + 1) / 4);
  if (mul(r, r) == q % P) return (struct math_element){r, 0};
  return (struct math_element){0, power(P - q % P, (P + 1) / 4)};
}

/* sqrt(num / den) = sqrt(num * den) / den */
static enum math_known root_of(struct rational q, struct math_element *out) {
  int64_t n;
  struct math_element r = {1, 0}, below = whole(q.den);
  if (q.num == 0) {
    *out = (struct math_element){0, 0};
    return MATH_KNOWN;
  }
  if (q.num == INT64_MIN || __builtin_mul_overflow(q.num < 0 ? -q.num : q.num, q.den, &n)) return MATH_UNKNOWN;
  for (int64_t d = 2; d <= TRIAL_MAX && d * d <= n; d++) {
    while (n % (d * d) == 0) {
      n /= d * d;
      r = math_exact_product(r, whole(d));
    }
    if (n % d) continue;
    n /= d;
    r = math_exact_product(r, root_of_prime((uint64_t)d));
  }
  if (n > (int64_t)TRIAL_MAX * TRIAL_MAX) {
    int64_t s = 0; /* a square of a large number, or no one knows its factors */
    for (int64_t bit = (int64_t)1 << 31; bit; bit >>= 1)
      if (s + bit <= ROOT_MAX && (s + bit) * (s + bit) <= n) s += bit;
    if (s * s != n) return MATH_UNKNOWN;
    r = math_exact_product(r, whole(s));
  } else if (n > 1) {
    r = math_exact_product(r, root_of_prime((uint64_t)n));
  }
  if (q.num < 0) r = math_exact_product(r, (struct math_element){0, 1});
  if (!inverse(&below)) return MATH_UNKNOWN;
  *out = math_exact_product(r, below);
  return MATH_KNOWN;
}

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t text_bits(const struct math_tree *t, const struct math_node *n, uint64_t h, int depth) {
  h = mix(h ^ (uint64_t)n->op);
  const bool named = n->op == MATH_SYMBOL || n->op == MATH_NUMBER || n->op == MATH_TEXT;
  for (int i = 0; i < n->len && named; i++) h = mix(h ^ (unsigned char)n->text[i]);
  for (int at = n->child; at != MATH_NONE && depth < MATH_DEPTH_MAX; at = t->nodes[at].next)
    h = text_bits(t, &t->nodes[at], h, depth + 1);
  return h;
}

uint64_t math_symbol_bits(const struct math_tree *t, const struct math_node *n, uint64_t seed) {
  return text_bits(t, n, mix(seed), 0);
}

/* Digits and a point, separators between them, an exponent perhaps. */
static enum math_known literal(const struct math_node *n, struct math_element *out) {
  struct math_element v = {0, 0}, below = {1, 0};
  bool point = false;
  for (int i = 0; i < n->len; i++) {
    const char c = n->text[i];
    if (c >= '0' && c <= '9') {
      v = plus(math_exact_product(v, whole(10)), whole(c - '0'));
      if (point) below = math_exact_product(below, whole(10));
    } else if (c == '.') {
      point = true;
    } else if (c == 'e' || c == 'E') {
      const bool negative = i + 1 < n->len && n->text[i + 1] == '-';
      uint64_t e = 0;
      for (int k = i + 1; k < n->len; k++)
        if (n->text[k] >= '0' && n->text[k] <= '9' && e < 100000) e = e * 10 + (uint64_t)(n->text[k] - '0');
      if (negative)
        below = math_exact_product(below, raise(whole(10), e));
      else
        v = math_exact_product(v, raise(whole(10), e));
      break;
    }
  }
  if (!inverse(&below)) return MATH_UNKNOWN;
  *out = math_exact_product(v, below);
  return MATH_KNOWN;
}

static bool literal_rational(const struct math_node *n, struct rational *out) {
  char plain[64];
  int len = 0;
  bool exact;
  double approximate;
  for (int i = 0; i < n->len; i++) {
    const char c = n->text[i];
    if (!((c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '-' || c == '+')) continue;
    if (len == (int)sizeof plain - 1) return false;
    plain[len++] = c;
  }
  return number_scan(plain, (size_t)len, out, &exact, &approximate) == (size_t)len && exact;
}

static bool rational_power(struct rational base, struct rational n, struct rational *out) {
  struct rational r = {1, 1};
  if (n.den != 1 || n.num > 64 || n.num < -64) return false;
  for (int64_t i = 0; i < (n.num < 0 ? -n.num : n.num); i++)
    if (!rational_mul(&r, r, base)) return false;
  return n.num < 0 ? rational_div(out, (struct rational){1, 1}, r) : (*out = r, true);
}

static int64_t floor_of(struct rational q) { return q.num / q.den - (q.num % q.den < 0); }

static bool rational_function(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                              struct rational *out) {
  bool first = true;
  for (int at = n->child; at != MATH_NONE; at = t->nodes[at].next, first = false) {
    struct rational q, d;
    if (!math_rational(t, at, r, &q)) return false;
    if (n->value == MATH_GCD || n->value == MATH_LCM) {
      if (q.den != 1 || q.num <= 0) return false;
      if (!first) {
        int64_t a = out->num, b = q.num;
        while (b) {
          const int64_t rest = a % b;
          a = b;
          b = rest;
        }
        if (n->value == MATH_GCD) {
          q.num = a;
        } else if (__builtin_mul_overflow(out->num / a, q.num, &q.num)) {
          return false;
        }
      }
      *out = q;
    } else if (first) {
      *out = q;
    } else {
      if (!rational_sub(&d, q, *out)) return false;
      if ((n->value == MATH_MAX) == (d.num > 0)) *out = q;
    }
  }
  return !first;
}

bool math_rational(const struct math_tree *t, int node, const struct math_reading *r, struct rational *out) {
  const struct math_node *n = &t->nodes[node];
  struct rational a, b = {0, 1};
  if (n->op == MATH_NUMBER) return literal_rational(n, out);
  if (n->op == MATH_FUNCTION) return n->value >= MATH_MIN && rational_function(t, n, r, out);
  if (n->op < MATH_ADD || n->op > MATH_DEGREE || n->child == MATH_NONE) return false;
  const int second = t->nodes[n->child].next;
  if (!math_rational(t, n->child, r, &a) || (second != MATH_NONE && !math_rational(t, second, r, &b))) return false;
  switch (n->op) {
    case MATH_ADD: return rational_add(out, a, b);
    case MATH_SUBTRACT: return rational_sub(out, a, b);
    case MATH_NEGATE: return rational_sub(out, (struct rational){0, 1}, a);
    case MATH_MULTIPLY: return rational_mul(out, a, b);
    case MATH_DIVIDE: return rational_div(out, a, b);
    case MATH_POWER: return rational_power(a, b, out);
    case MATH_ABSOLUTE: return rational_make(out, a.num < 0 ? -a.num : a.num, a.den);
    case MATH_FLOOR: return rational_make(out, floor_of(a), 1);
    case MATH_CEILING: return rational_make(out, -floor_of((struct rational){-a.num, a.den}), 1);
    case MATH_PERCENT: return rational_div(out, a, (struct rational){r->hundredths ? 100 : 1, 1});
    case MATH_DEGREE: return !r->radians && (*out = a, true);
    default: return false;
  }
}

/* n! and n over k, where n is whole and not too large. */
static enum math_known counted(const struct math_node *n, struct rational a, struct rational b,
                               struct math_element *out) {
  struct math_element v = {1, 0}, below = {1, 0};
  const int64_t times = n->op == MATH_FACTORIAL ? a.num : b.num;
  if (a.den != 1 || b.den != 1 || a.num < 0 || times < 0 || times > FACTORIAL_MAX) return MATH_UNKNOWN;
  for (int64_t i = 0; i < times; i++) {
    v = math_exact_product(v, whole(a.num - i));
    if (n->op == MATH_BINOMIAL) below = math_exact_product(below, whole(i + 1));
  }
  if (!inverse(&below)) return MATH_UNKNOWN;
  *out = math_exact_product(v, below);
  return MATH_KNOWN;
}

static enum math_known powers(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                              struct math_element *out) {
  const int exponent = n->op == MATH_FUNCTION ? n->child : t->nodes[n->child].next;
  struct rational k, q;
  if (exponent == MATH_NONE || !math_rational(t, exponent, r, &k)) return MATH_UNKNOWN;
  struct math_element base = {
      math_symbol_bits(t, &(struct math_node){.op = MATH_E, .child = MATH_NONE, .next = MATH_NONE}, r->seed) % P, 0};
  enum math_known known = MATH_KNOWN;
  if (k.num > EXPONENT_MAX || k.num < -EXPONENT_MAX) return MATH_UNKNOWN;
  if (k.den == 2 && n->op == MATH_POWER && math_rational(t, n->child, r, &q) && q.num >= 0)
    known = root_of(q, &base);
  else if (k.den != 1)
    return MATH_UNKNOWN;
  else if (n->op == MATH_POWER)
    known = math_exact(t, n->child, r, &base);
  if (known != MATH_KNOWN) return known;
  if (k.num < 0 && !inverse(&base)) return MATH_UNDEFINED;
  *out = raise(base, (uint64_t)(k.num < 0 ? -k.num : k.num));
  return MATH_KNOWN;
}

/* The index-th root of a rational, where both of its parts are such powers. */
static enum math_known high_root(struct rational q, int64_t index, struct math_element *out) {
  int64_t parts[2] = {q.num < 0 ? -q.num : q.num, q.den};
  if (index < 2 || index > 62 || (q.num < 0 && index % 2 == 0)) return MATH_UNKNOWN;
  for (int i = 0; i < 2; i++) {
    int64_t found = -1;
    for (int64_t low = 0, high = 2097152; low <= high && found < 0;) {
      const int64_t middle = (low + high) / 2;
      __int128 v = 1;
      for (int64_t k = 0; k < index && v <= parts[i]; k++) v *= middle;
      if (v == parts[i])
        found = middle;
      else if (v < parts[i])
        low = middle + 1;
      else
        high = middle - 1;
    }
    if (found < 0) return MATH_UNKNOWN;
    parts[i] = found;
  }
  return element_of((struct rational){q.num < 0 ? -parts[0] : parts[0], parts[1]}, out);
}

static enum math_known roots(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                             struct math_element *out) {
  const int index = t->nodes[n->child].next;
  struct rational q, k = {2, 1};
  if (!math_rational(t, n->child, r, &q) || (index != MATH_NONE && !math_rational(t, index, r, &k)) || k.den != 1)
    return MATH_UNKNOWN;
  return k.num == 2 ? root_of(q, out) : high_root(q, k.num, out);
}

static enum math_known operation(const struct math_tree *t, const struct math_node *n, const struct math_reading *r,
                                 struct math_element *out) {
  struct math_element a, b = {0, 0};
  const int second = t->nodes[n->child].next;
  enum math_known known = math_exact(t, n->child, r, &a);
  if (known == MATH_KNOWN && second != MATH_NONE) known = math_exact(t, second, r, &b);
  if (known != MATH_KNOWN) return known;
  switch (n->op) {
    case MATH_ADD: *out = plus(a, b); return MATH_KNOWN;
    case MATH_SUBTRACT: *out = minus(a, b); return MATH_KNOWN;
    case MATH_NEGATE: *out = minus(b, a); return MATH_KNOWN;
    case MATH_PLUS_MINUS:
      if (second == MATH_NONE) {
        b = a;
        a = (struct math_element){0, 0};
      }
      *out = r->sign >= 0 ? plus(a, b) : minus(a, b);
      return MATH_KNOWN;
    case MATH_MULTIPLY: *out = math_exact_product(a, b); return MATH_KNOWN;
    case MATH_DIVIDE:
      if (!inverse(&b)) return MATH_UNDEFINED;
      *out = math_exact_product(a, b);
      return MATH_KNOWN;
    default: return MATH_UNKNOWN;
  }
}

enum math_known math_exact(const struct math_tree *t, int node, const struct math_reading *r,
                           struct math_element *out) {
  const struct math_node *n = &t->nodes[node];
  struct rational a, b = {0, 1};
  switch (n->op) {
    case MATH_NUMBER: return literal(n, out);
    case MATH_SYMBOL:
    case MATH_PI:
    case MATH_E: *out = (struct math_element){math_symbol_bits(t, n, r->seed) % P, 0}; return MATH_KNOWN;
    case MATH_I: *out = (struct math_element){0, 1}; return MATH_KNOWN;
    case MATH_ADD:
    case MATH_SUBTRACT:
    case MATH_PLUS_MINUS:
    case MATH_NEGATE:
    case MATH_MULTIPLY:
    case MATH_DIVIDE: return operation(t, n, r, out);
    case MATH_POWER: return powers(t, n, r, out);
    case MATH_ROOT: return roots(t, n, r, out);
    case MATH_BINOMIAL:
      if (!math_rational(t, t->nodes[n->child].next, r, &b)) return MATH_UNKNOWN; /* fall through */
    case MATH_FACTORIAL: return math_rational(t, n->child, r, &a) ? counted(n, a, b, out) : MATH_UNKNOWN;
    case MATH_FUNCTION:
      if (n->value == MATH_EXP) return powers(t, n, r, out); /* fall through */
    case MATH_ABSOLUTE:
    case MATH_FLOOR:
    case MATH_CEILING:
    case MATH_PERCENT:
    case MATH_DEGREE:
      if (math_rational(t, node, r, &a)) return element_of(a, out);
      if (n->op == MATH_PERCENT || (n->op == MATH_DEGREE && !r->radians)) {
        const enum math_known known = math_exact(t, n->child, r, out);
        struct math_element hundred = whole(100);
        inverse(&hundred);
        if (known == MATH_KNOWN && n->op == MATH_PERCENT && r->hundredths) *out = math_exact_product(*out, hundred);
        return known;
      }
      return MATH_UNKNOWN;
    default: return MATH_UNKNOWN;
  }
}

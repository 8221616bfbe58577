/* Adds, multiplies, divides, parses and compares rationals, with a check for overflow at every step. */
#include "services/coordinator/decide/rational.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 400 };
#define DOUBLE_EXACT 9007199254740992 /* whole numbers up to 2^53 are doubles */

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

bool rational_make(struct rational *out, int64_t num, int64_t den) {
  if (den == 0 || num == INT64_MIN || den == INT64_MIN) return false;
  if (den < 0) {
    num = -num;
    den = -den;
  }
  int64_t g = gcd(num < 0 ? -num : num, den); /* not 0, since den is not */
  *out = (struct rational){num / g, den / g};
  return true;
}

static bool combine(struct rational *out, struct rational a, struct rational b, bool subtract) {
  int64_t left, right, num, den;
  if (__builtin_mul_overflow(a.num, b.den, &left) || __builtin_mul_overflow(b.num, a.den, &right) ||
      __builtin_mul_overflow(a.den, b.den, &den))
    return false;
  if (subtract ? __builtin_sub_overflow(left, right, &num) : __builtin_add_overflow(left, right, &num)) return false;
  return rational_make(out, num, den);
}

bool rational_add(struct rational *out, struct rational a, struct rational b) { return combine(out, a, b, false); }
bool rational_sub(struct rational *out, struct rational a, struct rational b) { return combine(out, a, b, true); }

bool rational_mul(struct rational *out, struct rational a, struct rational b) {
  int64_t num, den;
  if (__builtin_mul_overflow(a.num, b.num, &num) || __builtin_mul_overflow(a.den, b.den, &den)) return false;
  return rational_make(out, num, den);
}

bool rational_div(struct rational *out, struct rational a, struct rational b) {
  int64_t num, den;
  if (b.num == 0 || __builtin_mul_overflow(a.num, b.den, &num) || __builtin_mul_overflow(a.den, b.num, &den))
    return false;
  return rational_make(out, num, den);
}

static bool digit_at(const char *text, size_t len, size_t at) { return at < len && isdigit((unsigned char)text[at]); }

/* Thousands commas count only in well-formed groups of three behind one to three digits ("1,234", not "1,2",
 * "1,2345" or "1234,567"). */
static bool comma_group_at(const char *text, size_t len, size_t at, size_t leading) {
  return leading <= 3 && at < len && text[at] == ',' && digit_at(text, len, at + 1) && digit_at(text, len, at + 2) &&
         digit_at(text, len, at + 3) && !digit_at(text, len, at + 4);
}

/* value: not 0, so that it is over after 19 times at most. */
static bool scale_ten(int64_t *value, int64_t times) {
  for (; times > 0; times--) {
    if (__builtin_mul_overflow(*value, 10, value)) return false;
  }
  return true;
}

/* Sign, digits, commas, decimals, exponent. */
static size_t decimal_scan(const char *text, size_t len, struct rational *value, bool *exact, double *approximate) {
  char plain[DIGITS_MAX + 32];
  size_t at = 0, kept = 0, leading = 0; /* leading: digits before the first comma */
  int64_t digits = 0, decimals = 0, exponent = 0;
  bool negative = false, fits = true, any = false, commas = false;
  if (at < len && (text[at] == '-' || text[at] == '+')) negative = text[at++] == '-';
  for (bool point = false; at < len; at++) {
    if (digit_at(text, len, at)) {
      any = true;
      leading += !commas;
      if (kept < DIGITS_MAX) plain[kept++] = text[at];
      fits = fits && !__builtin_mul_overflow(digits, 10, &digits) &&
             !__builtin_add_overflow(digits, text[at] - '0', &digits);
      decimals += point;
    } else if (text[at] == '.' && !point && digit_at(text, len, at + 1)) {
      point = true;
      if (kept < DIGITS_MAX) plain[kept++] = '.';
    } else if (any && !point && comma_group_at(text, len, at, leading)) {
      commas = true;
    } else {
      break;
    }
  }
  if (!any) return 0;
  size_t e = at;
  if (e < len && (text[e] == 'e' || text[e] == 'E')) {
    bool minus = false;
    e++;
    if (e < len && (text[e] == '-' || text[e] == '+')) minus = text[e++] == '-';
    if (digit_at(text, len, e)) {
      for (; digit_at(text, len, e); e++) exponent = exponent < 100000 ? exponent * 10 + (text[e] - '0') : exponent;
      if (minus) exponent = -exponent;
      at = e;
    }
  }
  int64_t den = 1, shift = exponent - decimals;
  fits = fits && (digits == 0 || (shift >= 0 ? scale_ten(&digits, shift) : scale_ten(&den, -shift)));
  *exact = fits && rational_make(value, negative ? -digits : digits, den);
  if (*exact && digits <= DOUBLE_EXACT) { /* as strtod rounds: the denominator, 10^18 at most, is a double, too */
    *approximate = (double)value->num / (double)value->den;
    return at;
  }
  snprintf(plain + kept, sizeof plain - kept, "e%lld", (long long)exponent);
  *approximate = (negative ? -1 : 1) * strtod(plain, NULL);
  return at;
}

size_t number_scan(const char *text, size_t len, struct rational *value, bool *exact, double *approximate) {
  size_t used = decimal_scan(text, len, value, exact, approximate);
  if (!used || !digit_at(text, len, used + 1) || text[used] != '/') return used;
  struct rational below;
  bool below_exact;
  double below_approximate;
  size_t more = decimal_scan(text + used + 1, len - used - 1, &below, &below_exact, &below_approximate);
  if (!more || below_approximate == 0) return used;
  *exact = *exact && below_exact && rational_div(value, *value, below);
  *approximate /= below_approximate;
  return used + 1 + more;
}

/* Elementary functions by reduction to a short interval and a series, in operations that IEEE 754 defines. */
#include "services/coordinator/verifiers/complex_value.h"

#include <stdint.h>
#include <string.h>

#define ROUNDING 4e-16       /* of one operation, relative */
#define SERIES 4e-15         /* of a function, relative */
#define LN2_HIGH 0.693147180369123816490 /* its low bits are zero: k times it is exact */
#define LN2_LOW 1.90821492927058770002e-10
#define HALF_PI 1.57079632679489655800
#define PI 3.14159265358979311600
#define LARGE 1e150

static double absolute(double x) { return x < 0 ? -x : x; }

double complex_size(struct complex_value a) {
  const double x = absolute(a.re), y = absolute(a.im), most = x > y ? x : y, least = x > y ? y : x;
  return most == 0 || least == 0 ? most : most * __builtin_sqrt(1 + (least / most) * (least / most));
}

bool complex_good(struct complex_value a) {
  const double size = complex_size(a);
  return size < LARGE && a.err < LARGE && a.err >= 0; /* false for what is not a number */
}

/* What cannot be told from a real number is one. */
static struct complex_value settled(struct complex_value a) {
  if (absolute(a.im) <= 4 * a.err) a.im = 0;
  return a;
}

static struct complex_value with_error(double re, double im, double err) {
  struct complex_value v = {re, im, err};
  v.err += ROUNDING * complex_size(v);
  return v;
}

struct complex_value complex_real(double x) { return (struct complex_value){x, 0, 0}; }

struct complex_value complex_add(struct complex_value a, struct complex_value b) {
  return with_error(a.re + b.re, a.im + b.im, a.err + b.err);
}
struct complex_value complex_sub(struct complex_value a, struct complex_value b) {
  return with_error(a.re - b.re, a.im - b.im, a.err + b.err);
}
struct complex_value complex_mul(struct complex_value a, struct complex_value b) {
  const double err = complex_size(a) * b.err + complex_size(b) * a.err + a.err * b.err;
  if (a.im == 0 && b.im == 0) return with_error(a.re * b.re, 0, err);
  struct complex_value v = with_error(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re, err);
  v.err += ROUNDING * complex_size(a) * complex_size(b);
  return v;
}

bool complex_div(struct complex_value *out, struct complex_value a, struct complex_value b) {
  const double size = complex_size(b);
  if (!(size > 1e3 * b.err) || !(size > 1e-150) || !complex_good(a) || !complex_good(b)) return false;
  const double err = (a.err + complex_size(a) / size * b.err) / size;
  if (b.im == 0) {
    *out = with_error(a.re / b.re, a.im / b.re, err);
    return true;
  }
  const double x = b.re / size, y = b.im / size, re = a.re / size, im = a.im / size;
  *out = with_error(re * x + im * y, im * x - re * y, err);
  out->err += 4 * ROUNDING * complex_size(a) / size;
  return true;
}

static double scaled(double x, int k) {
  uint64_t bits = (uint64_t)(k + 1023) << 52;
  double two;
  memcpy(&two, &bits, sizeof two);
  return x * two;
}

/* |x| <= 340 */
static double real_exp(double x) {
  const double halves = x / (LN2_HIGH + LN2_LOW);
  const int k = (int)(halves + (halves < 0 ? -0.5 : 0.5));
  const double r = (x - k * LN2_HIGH) - k * LN2_LOW;
  double sum = 1;
  for (int n = 18; n > 0; n--) sum = 1 + sum * r / n;
  return scaled(sum, k);
}

/* x > 0, normal */
static double real_log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int k = (int)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | ((uint64_t)1023 << 52);
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m /= 2;
    k++;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int n = 27; n >= 1; n -= 2) sum = sum * s2 + 1.0 / n;
  return k * LN2_HIGH + (2 * s * sum + k * LN2_LOW);
}

static double real_arctan(double x) {
  if (x < 0) return -real_arctan(-x);
  if (x > 1) return HALF_PI - real_arctan(1 / x);
  if (x > 0.4142135623730951) return HALF_PI / 2 + real_arctan((x - 1) / (x + 1));
  double sum = 0;
  for (int n = 45; n >= 1; n -= 2) sum = 1.0 / n - sum * x * x;
  return x * sum;
}

/* The angle of (x, y), from -pi to pi. */
static double angle(double x, double y) {
  if (y == 0) return x < 0 ? PI : 0;
  const double a = absolute(x) > absolute(y) ? real_arctan(absolute(y / x)) : HALF_PI - real_arctan(absolute(x / y));
  const double turned = x < 0 ? PI - a : a;
  return y < 0 ? -turned : turned;
}

/* |x| <= 1e5 */
static void real_sin_cos(double x, double *sine, double *cosine) {
  const double quarters = x / HALF_PI;
  const int k = (int)(quarters + (quarters < 0 ? -0.5 : 0.5));
  /* in three parts, so that k times each is exact */
  const double r = ((x - k * 1.57079632673412561417) - k * 6.07710050630396597660e-11) - k * 2.02226624879595063154e-21;
  double s = 1, c = 1;
  for (int n = 20; n > 0; n -= 2) {
    s = 1 - s * r * r / (n * (n + 1));
    c = 1 - c * r * r / (n * (n - 1));
  }
  s *= r;
  const int turn = ((k % 4) + 4) % 4;
  *sine = turn == 0 ? s : turn == 1 ? c : turn == 2 ? -s : -c;
  *cosine = turn == 0 ? c : turn == 1 ? -s : turn == 2 ? -c : s;
}

bool complex_exp(struct complex_value *out, struct complex_value a) {
  double s, c;
  if (!complex_good(a) || absolute(a.re) > 340 || absolute(a.im) > 1e5 || a.err > 1e-3) return false;
  const double size = real_exp(a.re);
  if (a.im == 0) {
    *out = (struct complex_value){size, 0, size * (a.err + SERIES)};
    return true;
  }
  real_sin_cos(a.im, &s, &c);
  *out = (struct complex_value){size * c, size * s, size * (a.err + SERIES + ROUNDING * absolute(a.im))};
  return true;
}

bool complex_log(struct complex_value *out, struct complex_value a) {
  const double size = complex_size(a);
  if (!complex_good(a) || !(size > 1e3 * a.err) || !(size > 1e-150)) return false;
  a = settled(a);
  *out = (struct complex_value){real_log(size), angle(a.re, a.im), a.err / size};
  out->err += SERIES * (1 + complex_size(*out));
  return true;
}

bool complex_sqrt(struct complex_value *out, struct complex_value a) {
  if (!complex_good(a)) return false;
  a = settled(a);
  const double size = complex_size(a), root = __builtin_sqrt(size);
  if (size <= 1e3 * a.err) { /* nought, or too close to tell */
    *out = (struct complex_value){0, 0, a.err > 0 ? __builtin_sqrt(2 * a.err + size) : 0};
    return a.err < 1e-12;
  }
  const double err = a.err / root + SERIES * root;
  if (a.im == 0) {
    *out = a.re < 0 ? (struct complex_value){0, root, err} : (struct complex_value){root, 0, err};
    return true;
  }
  const double re = __builtin_sqrt((size + absolute(a.re)) / 2), im = absolute(a.im) / (2 * re);
  *out = a.re >= 0 ? (struct complex_value){re, a.im < 0 ? -im : im, err}
                   : (struct complex_value){im, a.im < 0 ? -re : re, err};
  return true;
}

bool complex_whole_power(struct complex_value *out, struct complex_value a, long n) {
  struct complex_value r = complex_real(1);
  for (long m = n < 0 ? -n : n; m; m >>= 1, a = complex_mul(a, a)) {
    if (m & 1) r = complex_mul(r, a);
    if (!complex_good(r) || (m > 1 && !complex_good(a))) return false;
  }
  if (n < 0) return complex_div(out, complex_real(1), r);
  *out = r;
  return true;
}

bool complex_power(struct complex_value *out, struct complex_value a, struct complex_value b) {
  struct complex_value l;
  if (b.im == 0 && b.err == 0 && absolute(b.re) <= 4096 && b.re == (double)(long)b.re)
    return complex_whole_power(out, a, (long)b.re);
  if (a.re == 0 && a.im == 0 && a.err == 0 && b.re > 0) {
    *out = a;
    return true;
  }
  return complex_log(&l, a) && complex_exp(out, complex_mul(l, b));
}

bool complex_sin_cos(struct complex_value *sine, struct complex_value *cosine, struct complex_value a) {
  if (!complex_good(a) || absolute(a.re) > 1e5 || absolute(a.im) > 300 || a.err > 1e-3) return false;
  double s, c, up = 1, down = 1;
  real_sin_cos(a.re, &s, &c);
  if (a.im != 0) {
    up = real_exp(a.im);
    down = 1 / up;
  }
  const double cosh = (up + down) / 2, sinh = (up - down) / 2;
  const double err = cosh * (a.err + SERIES + ROUNDING * absolute(a.re));
  *sine = (struct complex_value){s * cosh, c * sinh, err};
  *cosine = (struct complex_value){c * cosh, -s * sinh, err};
  return true;
}

bool complex_arctan(struct complex_value *out, struct complex_value a) {
  a = settled(a);
  if (!complex_good(a) || a.im != 0) return false;
  *out = (struct complex_value){real_arctan(a.re), 0, a.err + SERIES * 2};
  return true;
}

bool complex_arcsin(struct complex_value *out, struct complex_value a) {
  struct complex_value below, ratio;
  a = settled(a);
  if (!complex_good(a) || a.im != 0 || absolute(a.re) > 1 + a.err) return false;
  const double rest = 1 - a.re * a.re;
  if (rest <= 1e-14) {
    *out = (struct complex_value){a.re < 0 ? -HALF_PI : HALF_PI, 0, 3e-7};
    if (absolute(a.re) == 1) out->err = SERIES;
    return true;
  }
  below = (struct complex_value){__builtin_sqrt(rest), 0, 0};
  below.err = (a.err + SERIES) / below.re;
  return complex_div(&ratio, a, below) && complex_arctan(out, ratio);
}

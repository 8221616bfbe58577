/* Computes double-precision sine, cosine, exponential and logarithm with the same bits on every machine (elementary.h).
 *
 * Method: reduce the argument, then sum a Taylor (or atanh) series that is long enough for double precision on the
 * reduced interval.
 *   sin, cos: x = n * pi/2 + r, pi/2 in three parts of which the first two have 33 bits, so that n * part is exact for
 *   n below 2^20 and nearly so above
 *   exp:      x = n * ln 2 + r, |r| <= 0.35
 *   log:      x = 2^n * m, m in [sqrt 1/2, sqrt 2), log m = 2 atanh((m - 1) / (m + 1)) */
#include "common/model/network/elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static const double PI_2_HIGH = 0x1.921fb544p+0;      /* 33 bits */
static const double PI_2_MIDDLE = 0x1.0b4611a6p-34;   /* the next 33 bits */
static const double PI_2_LOW = 0x1.3198a2e037073p-69; /* the rest */
static const double TWO_OVER_PI = 0x1.45f306dc9c883p-1;
static const double LN2_HIGH = 0x1.62e42feep-1; /* 32 bits */
static const double LN2_LOW = 0x1.a39ef35793c76p-33;
static const double ONE_OVER_LN2 = 0x1.71547652b82fep+0;

/* Nearest integer, |x| < 2^51, by the rounding of addition. */
static double round_nearest(double x) {
  const double magic = 0x1.8p+52;
  volatile double shifted = x + magic; /* volatile: the compiler must not cancel the two additions */
  return shifted - magic;
}

static double from_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint64_t to_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* first_term * (1 - r^2/((n+1)(n+2)) + r^4/((n+1)...(n+4)) - ...): sine for first_term r, n 1; cosine for first_term
 * 1, n 0. */
static double alternating_series(double r, double first_term, int n) {
  const double square = r * r;
  double term[12];
  term[0] = first_term;
  for (int k = 1; k < 12; k++) {
    const double a = (double)(n + 2 * k - 1), b = (double)(n + 2 * k);
    term[k] = term[k - 1] * -square / (a * b);
  }
  double sum = 0;
  for (int k = 11; k >= 0; k--) sum += term[k]; /* small terms first */
  return sum;
}

static double reduce_quadrant(double x, int *quadrant) {
  const double n = round_nearest(x * TWO_OVER_PI);
  *quadrant = (int)((int64_t)n & 3);
  return ((x - n * PI_2_HIGH) - n * PI_2_MIDDLE) - n * PI_2_LOW;
}

static double sin_quadrant(double r, int quadrant) {
  switch (quadrant & 3) {
    case 0: return alternating_series(r, r, 1);
    case 1: return alternating_series(r, 1, 0);
    case 2: return -alternating_series(r, r, 1);
    default: return -alternating_series(r, 1, 0);
  }
}

double elementary_sin(double x) {
  int quadrant;
  const double r = reduce_quadrant(x, &quadrant);
  return sin_quadrant(r, quadrant);
}

double elementary_cos(double x) {
  int quadrant;
  const double r = reduce_quadrant(x, &quadrant);
  return sin_quadrant(r, quadrant + 1);
}

double elementary_exp(double x) {
  if (x != x) return x;
  if (x < -708) return 0;
  if (x > 709) return (double)INFINITY;
  const double n = round_nearest(x * ONE_OVER_LN2);
  const double r = (x - n * LN2_HIGH) - n * LN2_LOW;
  double sum = 1;
  for (int k = 15; k >= 1; k--) sum = 1 + sum * r / (double)k;
  const int64_t half = (int64_t)n / 2, rest = (int64_t)n - half; /* two steps, so that neither power overflows */
  return sum * from_bits((uint64_t)(half + 1023) << 52) * from_bits((uint64_t)(rest + 1023) << 52);
}

double elementary_log(double x) {
  uint64_t bits = to_bits(x);
  int64_t exponent = (int64_t)(bits >> 52) - 1023;
  double m = from_bits((bits & 0xFFFFFFFFFFFFFull) | (1023ull << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    exponent++;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int k = 14; k >= 1; k--) sum = (sum + 1 / (double)(2 * k + 1)) * square;
  const double n = (double)exponent;
  return n * LN2_HIGH + (2 * (s + s * sum) + n * LN2_LOW);
}

double elementary_pow(double base, double exponent) { return elementary_exp(exponent * elementary_log(base)); }

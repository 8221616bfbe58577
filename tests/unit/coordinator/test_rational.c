/* Exact rationals, and numbers read from text. What would break: a reward depends on rounding, an overflow passes for
 * a value, a number is read beyond the text's end. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/decide/rational.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

static const struct rational untouched = {123, 457};

static void check_value(struct rational got, int64_t num, int64_t den) {
  assert_int_equal(got.num, num);
  assert_int_equal(got.den, den);
}
#define CHECK_REFUSED(call)                         \
  do {                                              \
    struct rational out = untouched;                \
    assert_false(call);                             \
    check_value(out, untouched.num, untouched.den); \
  } while (0)
#define CHECK_MADE(call, num, den)   \
  do {                               \
    struct rational out = untouched; \
    assert_true(call);               \
    check_value(out, num, den);      \
  } while (0)

static void a_rational_is_in_lowest_terms_with_its_sign_above(void **state) {
  (void)state;
  CHECK_MADE(rational_make(&out, 6, 4), 3, 2);
  CHECK_MADE(rational_make(&out, -6, 4), -3, 2);
  CHECK_MADE(rational_make(&out, 6, -4), -3, 2);
  CHECK_MADE(rational_make(&out, -6, -4), 3, 2);
  CHECK_MADE(rational_make(&out, 5, -1), -5, 1);
  CHECK_MADE(rational_make(&out, -1, 5), -1, 5);
  CHECK_MADE(rational_make(&out, -1, 1), -1, 1);
  CHECK_MADE(rational_make(&out, 0, 5), 0, 1);
  CHECK_MADE(rational_make(&out, 0, -5), 0, 1);
  CHECK_MADE(rational_make(&out, 7, 1), 7, 1);
  CHECK_MADE(rational_make(&out, INT64_MAX, INT64_MAX), 1, 1);
  CHECK_REFUSED(rational_make(&out, 1, 0));
  CHECK_REFUSED(rational_make(&out, 0, 0));
  CHECK_REFUSED(rational_make(&out, INT64_MIN, 1));
  CHECK_REFUSED(rational_make(&out, 1, INT64_MIN));
}

static void sums_products_and_quotients_are_exact(void **state) {
  (void)state;
  const struct rational half = {1, 2}, third = {1, 3}, minus = {-2, 3}, one = {1, 1}, zero = {0, 1};
  CHECK_MADE(rational_add(&out, half, third), 5, 6);
  CHECK_MADE(rational_add(&out, half, half), 1, 1);
  CHECK_MADE(rational_add(&out, third, minus), -1, 3);
  CHECK_MADE(rational_sub(&out, half, third), 1, 6);
  CHECK_MADE(rational_sub(&out, third, half), -1, 6);
  CHECK_MADE(rational_sub(&out, half, half), 0, 1);
  CHECK_MADE(rational_mul(&out, half, minus), -1, 3);
  CHECK_MADE(rational_mul(&out, zero, minus), 0, 1);
  CHECK_MADE(rational_div(&out, half, minus), -3, 4);
  CHECK_MADE(rational_div(&out, half, one), 1, 2);
  CHECK_MADE(rational_div(&out, half, (struct rational){-1, 1}), -1, 2);
  CHECK_REFUSED(rational_div(&out, half, zero));
  assert_true(rational_equal(half, half));
  assert_false(rational_equal(half, third));
  assert_false(rational_equal(half, (struct rational){3, 2}));
}

static void an_overflow_is_told_and_leaves_the_result_alone(void **state) {
  (void)state;
  const int64_t big = INT64_C(1) << 40;
  const struct rational most = {INT64_MAX, 1}, least = {-INT64_MAX, 1}, one = {1, 1}, two = {2, 1};
  const struct rational many = {big, 1}, few = {1, big}, odd = {3, big}, half = {1, 2};
  CHECK_REFUSED(rational_add(&out, most, one));
  CHECK_REFUSED(rational_sub(&out, least, two));
  CHECK_REFUSED(rational_sub(&out, least, one)); /* INT64_MIN, which has no opposite */
  CHECK_REFUSED(rational_add(&out, most, half)); /* in either numerator brought to the other's denominator */
  CHECK_REFUSED(rational_add(&out, half, most));
  CHECK_REFUSED(rational_add(&out, few, odd)); /* in the denominator */
  CHECK_REFUSED(rational_mul(&out, many, many));
  CHECK_REFUSED(rational_mul(&out, few, few));
  CHECK_REFUSED(rational_div(&out, many, few));
  CHECK_REFUSED(rational_div(&out, few, many));
  CHECK_MADE(rational_add(&out, most, (struct rational){0, 1}), INT64_MAX, 1);
  CHECK_MADE(rational_sub(&out, most, one), INT64_MAX - 1, 1);
}

struct scanned {
  const char *text;
  size_t used;
  bool exact;
  int64_t num, den;
  double approximate;
};

/* The text ends where memory does. */
static void check_scan(const struct scanned *want) {
  struct guarded text = guarded_copy(want->text, strlen(want->text));
  struct rational value = untouched;
  bool exact = !want->exact;
  double approximate = NAN;
  const size_t used = number_scan(text.at, strlen(want->text), &value, &exact, &approximate);
  if (used != want->used) fail_msg("'%s': used %zu, expected %zu", want->text, used, want->used);
  if (used && (exact != want->exact || approximate != want->approximate))
    fail_msg("'%s': exact %d, %.17g, expected %d, %.17g", want->text, exact, approximate, want->exact,
             want->approximate);
  if (used && exact && (value.num != want->num || value.den != want->den))
    fail_msg("'%s': %lld/%lld, expected %lld/%lld", want->text, (long long)value.num, (long long)value.den,
             (long long)want->num, (long long)want->den);
  guarded_free(&text);
}

static void check_scans(const struct scanned *cases, size_t count) {
  for (size_t i = 0; i < count; i++) check_scan(&cases[i]);
}
#define CHECK_SCANS(cases) check_scans(cases, sizeof(cases) / sizeof(cases)[0])

static void numbers_are_read_as_far_as_they_go(void **state) {
  (void)state;
  static const struct scanned cases[] = {
      {"", 0, false, 0, 0, 0},       {"x", 0, false, 0, 0, 0},      {"-", 0, false, 0, 0, 0},
      {"+", 0, false, 0, 0, 0},      {"--7", 0, false, 0, 0, 0},    {"e5", 0, false, 0, 0, 0},
      {".", 0, false, 0, 0, 0},      {",123", 0, false, 0, 0, 0},   {"/3", 0, false, 0, 0, 0},
      {"7", 1, true, 7, 1, 7},       {"-7", 2, true, -7, 1, -7},    {"+7", 2, true, 7, 1, 7},
      {"123", 3, true, 123, 1, 123}, {"12x", 2, true, 12, 1, 12},   {"0", 1, true, 0, 1, 0},
      {"1.5", 3, true, 3, 2, 1.5},   {"2.", 1, true, 2, 1, 2},      {"-.5", 3, true, -1, 2, -0.5},
      {"1.5.5", 3, true, 3, 2, 1.5}, {"1.25", 4, true, 5, 4, 1.25}, {"1.50", 4, true, 3, 2, 1.5},
      {"1.x", 1, true, 1, 1, 1},     {"3..5", 1, true, 3, 1, 3},    {"007", 3, true, 7, 1, 7}};
  CHECK_SCANS(cases);
}

static void commas_part_groups_of_three_digits_only(void **state) {
  (void)state;
  static const struct scanned cases[] = {{"1,234", 5, true, 1234, 1, 1234},
                                         {"1,234,567", 9, true, 1234567, 1, 1234567},
                                         {"12,345", 6, true, 12345, 1, 12345},
                                         {"123,456", 7, true, 123456, 1, 123456},
                                         {"-123,456,789", 12, true, -123456789, 1, -123456789},
                                         {"1234,567", 4, true, 1234, 1, 1234},
                                         {"1234,567,890", 4, true, 1234, 1, 1234},
                                         {"0123,456", 4, true, 123, 1, 123},
                                         {"1,234.5", 7, true, 2469, 2, 1234.5},
                                         {"1,", 1, true, 1, 1, 1},
                                         {"1,2", 1, true, 1, 1, 1},
                                         {"1,23", 1, true, 1, 1, 1},
                                         {"1,2345", 1, true, 1, 1, 1},
                                         {"1,a34", 1, true, 1, 1, 1},
                                         {"1,2a4", 1, true, 1, 1, 1},
                                         {"1,23a", 1, true, 1, 1, 1},
                                         {"1.5,234", 3, true, 3, 2, 1.5},
                                         {"1,234,56", 5, true, 1234, 1, 1234}};
  CHECK_SCANS(cases);
}

/* 2^53 and its neighbours, whose quotients of two doubles would be rounded twice. */
static void approximations_are_rounded_once(void **state) {
  (void)state;
  static const struct scanned cases[] = {
      {"9007199254740.992", 17, true, 1125899906842624, 125, 9007199254740.992},
      {"90071992547409.93", 17, true, 9007199254740993, 100, 90071992547409.93},
      {"-900719.9254740993", 18, true, -9007199254740993, 10000000000, -900719.9254740993},
      {"0.1", 3, true, 1, 10, 0.1},
      {"-2.675", 6, true, -107, 40, -2.675},
      {"0.000000000000000003", 20, true, 3, 1000000000000000000, 3e-18}};
  CHECK_SCANS(cases);
}

static void exponents_are_exact_while_they_fit(void **state) {
  (void)state;
  static const struct scanned cases[] = {{"1e3", 3, true, 1000, 1, 1e3},
                                         {"5e0", 3, true, 5, 1, 5},
                                         {"1E+2", 4, true, 100, 1, 100},
                                         {"25e-2", 5, true, 1, 4, 0.25},
                                         {"1.5e1", 5, true, 15, 1, 15},
                                         {"-2e1", 4, true, -20, 1, -20},
                                         {"1e", 1, true, 1, 1, 1},
                                         {"1e+", 1, true, 1, 1, 1},
                                         {"1e-", 1, true, 1, 1, 1},
                                         {"1e-x", 1, true, 1, 1, 1},
                                         {"1e+-2", 1, true, 1, 1, 1},
                                         {"1e2.5", 3, true, 100, 1, 100},
                                         {"1e12", 4, true, 1000000000000, 1, 1e12},
                                         {"1e18", 4, true, 1000000000000000000, 1, 1e18},
                                         {"1e19", 4, false, 0, 0, 1e19},
                                         {"1e20", 4, false, 0, 0, 1e20},
                                         {"0e99", 4, true, 0, 1, 0},
                                         {"0e-99", 5, true, 0, 1, 0},
                                         {"-0.0000000000000000000000", 25, true, 0, 1, 0},
                                         {"1e-18", 5, true, 1, 1000000000000000000, 1e-18},
                                         {"1e-19", 5, false, 0, 0, 1e-19},
                                         {"1e-20", 5, false, 0, 0, 1e-20},
                                         {"1e123", 5, false, 0, 0, 1e123},
                                         {"1e-123", 6, false, 0, 0, 1e-123},
                                         {"1e99999999999999999999", 22, false, 0, 0, INFINITY},
                                         {"1e-99999999999999999999", 23, false, 0, 0, 0},
                                         {"9223372036854775807", 19, true, INT64_MAX, 1, 9223372036854775807.0},
                                         {"9223372036854775808", 19, false, 0, 0, 9223372036854775808.0},
                                         {"92233720368547758070", 20, false, 0, 0, 92233720368547758070.0}};
  CHECK_SCANS(cases);
}

static void fractions_are_of_two_numbers_and_not_over_zero(void **state) {
  (void)state;
  static const struct scanned cases[] = {
      {"3/4", 3, true, 3, 4, 0.75},      {"-6/4", 4, true, -3, 2, -1.5},  {"1/3", 3, true, 1, 3, 1.0 / 3},
      {"1.5/0.5", 7, true, 3, 1, 3},     {"3/", 1, true, 3, 1, 3},        {"3/x", 1, true, 3, 1, 3},
      {"3/-4", 1, true, 3, 1, 3},        {"3x4", 1, true, 3, 1, 3},       {"3/0", 1, true, 3, 1, 3},
      {"3/0.0", 1, true, 3, 1, 3},       {"1/2/3", 3, true, 1, 2, 0.5},   {"12/34x", 5, true, 6, 17, 12.0 / 34},
      {"2/1e20", 6, false, 0, 0, 2e-20}, {"1e20/2", 6, false, 0, 0, 5e19}};
  CHECK_SCANS(cases);
}

/* `before`, zeros, `after`: read to the end, and near what is expected. */
static void check_long(const char *before, int zeros, const char *after, double want) {
  char text[600];
  snprintf(text, sizeof text, "%s%0*d%s", before, zeros, 0, after);
  struct guarded held = guarded_copy(text, strlen(text));
  struct rational value;
  bool exact;
  double approximate = NAN;
  assert_int_equal(number_scan(held.at, strlen(text), &value, &exact, &approximate), strlen(text));
  if (!(fabs(approximate - want) <= 1e-12 * want)) fail_msg("'%s': %g, expected %g", text, approximate, want);
  guarded_free(&held);
}

/* Of a number that is not exact 400 characters count; what follows them is read, and dropped. */
static void digits_beyond_the_four_hundredth_are_dropped(void **state) {
  (void)state;
  check_long("0.", 397, "1e300", 1e-98);
  check_long("0.", 398, "1e300", 0);
  check_long("", 399, "7", 7);
  check_long("", 399, "7.25", 7.25);
  check_long("", 500, "7e-5", 7e-5);
  check_long("", 379, "12345678901234567890.5", 12345678901234567890.0);
  check_long("", 380, "12345678901234567890", 12345678901234567890.0);
  check_long("", 381, "12345678901234567890", 1234567890123456789.0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rational_is_in_lowest_terms_with_its_sign_above),
      cmocka_unit_test(sums_products_and_quotients_are_exact),
      cmocka_unit_test(an_overflow_is_told_and_leaves_the_result_alone),
      cmocka_unit_test(numbers_are_read_as_far_as_they_go),
      cmocka_unit_test(commas_part_groups_of_three_digits_only),
      cmocka_unit_test(approximations_are_rounded_once),
      cmocka_unit_test(exponents_are_exact_while_they_fit),
      cmocka_unit_test(fractions_are_of_two_numbers_and_not_over_zero),
      cmocka_unit_test(digits_beyond_the_four_hundredth_are_dropped),
  };
  return cmocka_run_group_tests_name("coordinator/rational", tests, NULL, NULL);
}

/* The verifier `math` against the table of pairs (tests/verifiers/math_pairs.txt), and its bounds.  What would break: a
 * wrong answer in LaTeX is rewarded, a right one is not; a verdict depends on what was judged before; a hostile text
 * takes unbounded work or is read beyond its end; a collision in the field is a reward. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "services/coordinator/verifiers/complex_value.h"
#include "services/coordinator/verifiers/math.h"
#include "services/coordinator/verifiers/math_exact.h"
#include "services/coordinator/verifiers/math_parser.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

#define PAIRS "tests/verifiers/math_pairs.txt"
/* HOSTILE_CPU_S: a pass over the text takes milliseconds, one from each mark to the end takes a minute. */
enum { PAIRS_LEAST = 500, HOSTILE_CPU_S = 5 };

static struct verdict judged(const char *text, size_t len, const char *gold) {
  struct verdict v;
  struct guarded held = guarded_copy(text, len);
  math_verify(held.at, len, gold, &v);
  guarded_free(&held);
  return v;
}

static bool right(const char *answer, const char *gold) {
  char text[4096];
  const int len = snprintf(text, sizeof text, "\\boxed{%s}", answer);
  return judged(text, (size_t)len, gold).reward == 1;
}

/* "\n" in a whole completion is a new line. */
static size_t completion_of(char *out, size_t size, const char *line) {
  if (line[1] != '>') return (size_t)snprintf(out, size, "\\boxed{%s}", line + 2);
  size_t n = 0;
  for (const char *c = line + 3; *c && n + 1 < size; c++) {
    if (c[0] == '\\' && c[1] == 'n' && !(c[2] >= 'a' && c[2] <= 'z')) {
      out[n++] = '\n';
      c++;
    } else {
      out[n++] = *c;
    }
  }
  out[n] = 0;
  return n;
}

static void every_pair_has_its_verdict(void **state) {
  static char line[4096], gold[4096], text[8192];
  (void)state;
  FILE *file = fopen(PAIRS, "r");
  int pairs = 0, at = 0;
  assert_non_null(file);
  while (fgets(line, sizeof line, file)) {
    at++;
    line[strcspn(line, "\n")] = 0;
    char *reason = strstr(line, "  ## ");
    if (reason) *reason = 0;
    if (line[0] == '=') memcpy(gold, line + 2, strlen(line + 2) + 1);
    if (line[0] != '+' && line[0] != '-') continue;
    const size_t len = completion_of(text, sizeof text, line);
    const struct verdict v = judged(text, len, gold);
    if (v.reward != (line[0] == '+'))
      fail_msg("line %d: '%s' against '%s': reward %g, %s", at, text, gold, v.reward, v.detail);
    pairs++;
  }
  fclose(file);
  assert_true(pairs >= PAIRS_LEAST);
}

/* A gold, given as the answer, is right, and so in either order. */
static void equality_is_symmetric_for_formulas(void **state) {
  static const char *const same[][2] = {{"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt2}{2}"},
                                        {"(x+1)^2", "x^2+2x+1"},
                                        {"\\{1,2\\}", "2, 1"},
                                        {"[0,1)", "0 \\le x < 1"},
                                        {"\\sin^2 x+\\cos^2 x", "1"},
                                        {"0.25", "\\frac14"},
                                        {"x=3", "3"},
                                        {"\\pm 2", "-2, 2"},
                                        {"e^{i\\pi}", "-1"}};
  static const char *const differ[][2] = {{"\\sqrt{x^2}", "x"},   {"\\frac{1}{3}", "0.33"},
                                          {"(1,2)", "\\{1,2\\}"}, {"x^2=4", "x=2"},
                                          {"2^{61}-1", "0"},      {"10^{-7}", "2\\cdot10^{-7}"}};
  (void)state;
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    for (int k = 0; k < 2; k++)
      if (!right(same[i][k], same[i][!k])) fail_msg("%s is not %s", same[i][k], same[i][!k]);
  for (size_t i = 0; i < sizeof differ / sizeof *differ; i++)
    for (int k = 0; k < 2; k++)
      if (right(differ[i][k], differ[i][!k])) fail_msg("%s is %s", differ[i][k], differ[i][!k]);
}

/* n elements, from the first or from the last on; `other` stands in place of the n-th. */
static void list_of(char *out, size_t size, const char *form, int n, bool reversed, int other) {
  size_t at = 0;
  for (int i = 1; i <= n; i++) {
    const int k = reversed ? n + 1 - i : i, value = k == n ? other : k;
    at += (size_t)snprintf(out + at, size - at, i > 1 ? ", " : "");
    at += (size_t)snprintf(out + at, size - at, form, value, value);
    assert_true(at < size);
  }
}

/* The primes below 100, in falling order, were unequal to themselves after 400 comparisons. */
static void as_many_elements_as_a_tree_holds_are_compared_in_any_order(void **state) {
  static const char *const forms[] = {"%d",         "-%d",        "\\frac{%d}{7}", "%d.5", "\\sqrt{%d}", "(%d, %d)",
                                      "[%d, 99%d]", "\\sin %dx", "x=%d",         "y=%dx+1"};
  static char gold[MATH_TEXT_MAX], answer[MATH_TEXT_MAX];
  (void)state;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    for (int n = 2; n <= MATH_ITEMS_MAX; n += 31) {
      list_of(gold, sizeof gold, forms[i], n, false, n);
      for (int reversed = 0; reversed < 2; reversed++) {
        list_of(answer, sizeof answer, forms[i], n, reversed, n);
        if (!right(answer, gold)) fail_msg("%s is not %s", answer, gold);
        list_of(answer, sizeof answer, forms[i], n, reversed, n + 1);
        if (right(answer, gold)) fail_msg("%s is %s", answer, gold);
      }
    }
  assert_true(right("\\{1, 2, 2\\}", "\\{2, 1\\}"));
  assert_true(right("\\{2, 1\\}", "\\{1, 2, 2\\}"));
  assert_false(right("\\{2, 2\\}", "\\{1, 2\\}"));
  assert_false(right("\\{1, 2\\}", "\\{2, 2\\}"));
}

/* The order of the field's multiplicative group would make 1 of any power. */
static void numbers_made_for_a_collision_earn_nothing(void **state) {
  (void)state;
  assert_false(right("1811004864519280007", "0"));
  assert_false(right("10^{200}\\cdot 1811004864519280007", "0"));
  assert_false(right("x+1811004864519280007", "x"));
  assert_false(right("1811004864519280008", "1"));
  assert_false(right("2^{1811004864519280006}", "1"));
  assert_false(right("2^{610}", "1"));
  assert_false(right("2^{610}x", "x"));
  assert_false(right("2^{1220}", "2^{610}"));
  assert_false(right("x^{1811004864519280006}", "1"));
  assert_true(right("2^{1220}", "4^{610}"));
}

static struct math_element value_of(const char *text, enum math_known expected) {
  static struct math_tree t;
  struct math_element v = {7, 7};
  const struct math_reading r = {.seed = 1, .sign = 1};
  assert_true(math_parse(&t, text, strlen(text), true));
  assert_int_equal(math_exact(&t, t.root, &r, &v), expected);
  return v;
}

static void the_field_has_roots_that_multiply(void **state) {
  (void)state;
  assert_true(math_exact_equal(value_of("\\sqrt{2}\\sqrt{3}", MATH_KNOWN), value_of("\\sqrt{6}", MATH_KNOWN)));
  assert_true(math_exact_equal(value_of("\\sqrt{7}^2", MATH_KNOWN), value_of("7", MATH_KNOWN)));
  assert_true(math_exact_equal(value_of("\\sqrt{-3}\\sqrt{-3}", MATH_KNOWN), value_of("-3", MATH_KNOWN)));
  assert_true(math_exact_equal(value_of("\\frac{1}{3}+\\frac{2}{3}", MATH_KNOWN), value_of("1", MATH_KNOWN)));
  assert_false(math_exact_equal(value_of("\\sqrt{2}+\\sqrt{3}", MATH_KNOWN), value_of("\\sqrt{5}", MATH_KNOWN)));
  value_of("\\frac{1}{2-2}", MATH_UNDEFINED);
  value_of("2^x", MATH_UNKNOWN);
  value_of("\\sin 1", MATH_UNKNOWN);
}

/* Against the C library, whose error is below a unit in the last place; the bounds must cover the difference, and be
 * tight. */
static void close_to(struct complex_value got, double re, double im) {
  const double dx = got.re - re, dy = got.im - im, off = __builtin_sqrt(dx * dx + dy * dy), size = complex_size(got);
  if (!(off <= got.err + 4e-16 * size) || !(got.err <= 1e-13 * (size + 1)))
    fail_msg("%.17g%+.17gi within %g, expected %.17g%+.17gi", got.re, got.im, got.err, re, im);
}

static void elementary_functions_keep_their_bounds(void **state) {
  (void)state;
  for (int i = -400; i <= 400; i++) {
    const double x = i * 0.0371;
    struct complex_value s, c, v;
    assert_true(complex_sin_cos(&s, &c, complex_real(x)));
    close_to(s, __builtin_sin(x), 0);
    close_to(c, __builtin_cos(x), 0);
    assert_true(complex_exp(&v, complex_real(x)));
    close_to(complex_mul(v, complex_real(1 / __builtin_exp(x))), 1, 0);
    assert_true(complex_arctan(&v, complex_real(x)));
    close_to(v, __builtin_atan(x), 0);
    if (x > 0) {
      assert_true(complex_log(&v, complex_real(x)));
      close_to(v, __builtin_log(x), 0);
    }
    if (x >= -1 && x <= 1) {
      assert_true(complex_arcsin(&v, complex_real(x)));
      close_to(v, __builtin_asin(x), 0);
    }
    assert_true(complex_exp(&v, (struct complex_value){0.5, x, 0}));
    close_to(v, __builtin_exp(0.5) * __builtin_cos(x), __builtin_exp(0.5) * __builtin_sin(x));
    assert_true(complex_log(&s, v));
    assert_true(complex_exp(&s, s));
    close_to(s, v.re, v.im);
    assert_true(complex_sqrt(&s, (struct complex_value){x, 0.3, 0}));
    close_to(complex_mul(s, s), x, 0.3);
  }
  struct complex_value v;
  assert_true(complex_sqrt(&v, complex_real(-4)));
  close_to(v, 0, 2);
  assert_false(complex_log(&v, complex_real(0)));
  assert_false(complex_div(&v, complex_real(1), complex_real(0)));
  assert_false(complex_exp(&v, complex_real(1000)));
}

static void hostile_answers_are_bounded(void **state) {
  static const char *const units[] = {"{",         "}",
                                      "(",         ")",
                                      "[",         "\\frac",
                                      "\\frac{1}", "\\sqrt",
                                      "\\sqrt{",   "^",
                                      "2^",        "_",
                                      "-",         "+-",
                                      "|",         "\\{",
                                      ",",         "1,",
                                      "{1,",       "x",
                                      "!",         "%",
                                      "\\left(",   "\\\\",
                                      "\\pm",      "\\pm1,",
                                      "\\sin",     "\\boxed{",
                                      "\\text{",   "1/",
                                      "9",         "=",
                                      "1<",        "\\cup",
                                      "$",         "answer is ",
                                      "\xff",      "\\begin{matrix}1&",
                                      "\\",        "3\\frac12",
                                      "\\(",       "\\[",
                                      "\\\\$",     "\\[1\\)"};
  static char text[1 << 18];
  (void)state;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    size_t n = 0;
    const size_t len = strlen(units[i]);
    for (; n + len < sizeof text; n += len) memcpy(text + n, units[i], len);
    const clock_t begun = clock();
    judged(text, n, "1");
    if (clock() - begun > HOSTILE_CPU_S * CLOCKS_PER_SEC) fail_msg("%zu bytes of %s took too long", n, units[i]);
    for (size_t cut = 30; cut < 2000; cut += 97) {
      text[cut] = 0;
      right(text, "1");
      right("1", text);
      memcpy(text + cut, units[i] + cut % len, 1);
    }
  }
}

/* Of any two bases that were named by a word the digits alone were compared, and none was a base told by its number. */
static void a_base_is_told_by_number_or_by_name(void **state) {
  (void)state;
  assert_true(right("101_{\\text{two}}", "101_2"));
  assert_true(right("101_2", "101_{\\text{two}}"));
  assert_true(right("101_{two}", "101_{\\text{two}}"));
  assert_true(right("101_{\\text{base two}}", "101_2"));
  assert_true(right("101_{\\text{base 12}}", "101_{\\text{twelve}}"));
  assert_true(right("101_{\\text{two}}", "101")); /* as 101_2 is */
  assert_false(right("101_{\\text{two}}", "101_{\\text{three}}"));
  assert_false(right("101_{\\text{two}}", "101_3"));
  assert_false(right("110_{\\text{two}}", "101_2"));
  assert_false(right("101_{\\text{twos}}", "101_2"));
  assert_false(right("101_{\\text{base }}", "101_2"));
}

/* What no pair has, as models write it. */
static void forms_beside_the_usual_ones_are_read(void **state) {
  (void)state;
  static const struct {
    const char *answer, *gold;
    bool right;
  } cases[] = {
      {"x <= 2", "x \\le 2", true},
      {"2 >= x", "x \\le 2", true},
      {"x >= 2", "x \\le 2", false},
      {"x != 2", "x \\ne 2", true},
      {"x != 2", "x = 2", false},
      {"x**2+1", "x^2+1", true},
      {"x**2+1", "2x+1", false},
      {"\\sin\xc2\xb2 x", "\\sin^2 x", true},
      {"\\cos\xc2\xb3 x", "\\cos^{2} x", false},
      {"\\begin{array}{cc} 1 & 2 \\\\ 3 & 4 \\end{array}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", true},
      {"\\begin{array}{cc} 1 & 2 \\\\ 3 & 5 \\end{array}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", false},
      {"\\{x \\mid x > 2\\}", "x > 2", true},
      {"\\{x : x > 2\\}", "x > 2", true},
      {"\\{x | x < 2\\}", "x > 2", false},
      {"\\frac{\\sqrt{2}}{100}", "\\sqrt{2}\\%", true},
      {"\\sqrt{3}\\%", "\\sqrt{2}\\%", false},
      {"\\sqrt{0}+1", "1", true},
      {"\\gcd(2^3 \\cdot 3, 36)", "12", true},
      {"\\min(1/2+1/3, 2-1)", "5/6", true},
      {"\\min(1/2+1/3, 2-1)", "1", false},
      {"3 \\text{ cm}^{2}", "3\\text{ cm}^2", true},
      {"4 \\text{ cm}^{2}", "3\\text{ cm}^2", false},
      {"\\\\sqrt{2}", "\\sqrt2", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (right(cases[i].answer, cases[i].gold) != cases[i].right)
      fail_msg("%s beside %s: expected %s", cases[i].answer, cases[i].gold, cases[i].right ? "right" : "wrong");
}

static void an_answer_says_what_was_read(void **state) {
  (void)state;
  const struct verdict none = judged("The numbers never come out as they should have", 46, "5"),
                       odd = judged("\\boxed{\\frac{1}}", 16, "5"), wrong = judged("\\boxed{4}", 9, "#### 5");
  assert_false(none.well_formed);
  assert_string_equal(none.detail, "no answer in the completion");
  assert_false(odd.well_formed);
  assert_string_equal(odd.detail, "cannot be read: \\frac{1}, expected 5");
  assert_true(wrong.well_formed);
  assert_string_equal(wrong.detail, "answer 4, expected 5");
  assert_int_equal(math_gold_check("\\frac{3}{4}", NULL), RC_OK);
  assert_int_equal(math_gold_check("so \\boxed{(3,4)}", NULL), RC_OK);
  assert_int_equal(math_gold_check("\\frac{3}", NULL), RC_INVALID);
  assert_int_equal(math_gold_check("", NULL), RC_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_pair_has_its_verdict),
      cmocka_unit_test(equality_is_symmetric_for_formulas),
      cmocka_unit_test(as_many_elements_as_a_tree_holds_are_compared_in_any_order),
      cmocka_unit_test(numbers_made_for_a_collision_earn_nothing),
      cmocka_unit_test(the_field_has_roots_that_multiply),
      cmocka_unit_test(elementary_functions_keep_their_bounds),
      cmocka_unit_test(hostile_answers_are_bounded),
      cmocka_unit_test(a_base_is_told_by_number_or_by_name),
      cmocka_unit_test(forms_beside_the_usual_ones_are_read),
      cmocka_unit_test(an_answer_says_what_was_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

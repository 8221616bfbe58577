/* Verdicts to the letter, beyond the cases of test_verify.c: their sentences, the limits, the grammar of countdown.
 * What would break: a wrong expression is rewarded, a right one is not, text is read beyond its end, a limit does not
 * hold, a verdict keeps memory. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/decide/verify.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

#define PUZZLE(numbers, target) "{\"numbers\":[" numbers "],\"target\":" #target "}"

/* The text ends where memory does. */
static struct verdict judged(enum verifier_kind kind, const char *text, size_t len, const char *answer,
                             const char *extra) {
  struct verdict v;
  struct guarded held = guarded_copy(text, len);
  memset(&v, 0x55, sizeof v);
  verify(kind, held.at, len, answer, extra, &v);
  guarded_free(&held);
  return v;
}

static void check(struct verdict got, const char *text, double reward, bool well_formed, const char *detail) {
  if (got.reward != reward || got.well_formed != well_formed || strcmp(got.detail, detail) != 0)
    fail_msg("'%.60s': reward %g, well formed %d, '%s'; expected %g, %d, '%s'", text, got.reward, got.well_formed,
             got.detail, reward, well_formed, detail);
}

static void numeric(const char *text, const char *answer, double reward) {
  const struct verdict v = judged(VERIFIER_NUMERIC, text, strlen(text), answer, "{}");
  if (!v.well_formed || v.reward != reward)
    fail_msg("'%s' against %s: well formed %d, reward %g, expected %g", text, answer, v.well_formed, v.reward, reward);
}

static void countdown(const char *text, const char *extra, double reward, const char *detail) {
  check(judged(VERIFIER_COUNTDOWN, text, strlen(text), "", extra), text, reward, true, detail);
}

static void no_expression(const char *text, const char *why) {
  char detail[96];
  snprintf(detail, sizeof detail, "no expression: %s", why);
  check(judged(VERIFIER_COUNTDOWN, text, strlen(text), "", PUZZLE("1,2,3", 6)), text, 0, false, detail);
}

static void a_verdict_says_what_was_read(void **state) {
  (void)state;
  check(judged(VERIFIER_NUMERIC, "so 7", 4, "8", ""), "so 7", 0, true, "answer 7, expected 8");
  check(judged(VERIFIER_NUMERIC, "so 8", 4, "8", ""), "so 8", 1, true, "answer 8, expected 8");
  check(judged(VERIFIER_NUMERIC, "none", 4, "8", ""), "none", 0, false, "no number in the completion");
  check(judged(VERIFIER_NUMERIC, "", 0, "8", ""), "", 0, false, "no number in the completion");
  check(judged(VERIFIER_NONE, "none", 4, "", ""), "none", 0, true, "");
  check(judged(VERIFIER_NUMERIC, "(3, 4)", 6, "4", ""), "(3, 4)", 0, false,
        "the completion's last number, 4, is part of something larger");
  check(judged(VERIFIER_NUMERIC, "\\boxed{x} 8", 10, "8", ""), "\\boxed{x} 8", 0, false,
        "what stands in \\boxed{} is not one number");
  check(judged(VERIFIER_NUMERIC, "8", 1, "x=8", ""), "8", 0, false, "the dataset's answer is not one number");
}

/* ---- equal or not ---- */

#define LONG "1234567890123456789012345" /* too long for 64 bits: such numbers are compared as doubles */

static void numbers_that_do_not_fit_are_equal_within_a_billionth(void **state) {
  (void)state;
  numeric(LONG, LONG, 1);
  numeric("1234567891123456789012345", LONG, 1); /* by 8e-10 */
  numeric("1234567889123456789012345", LONG, 1);
  numeric("1234567892123456789012345", LONG, 0); /* by 16e-10 */
  numeric("1234567888123456789012345", LONG, 0);
  numeric("-1234567891123456789012345", "-" LONG, 1);
  numeric("-1234567892123456789012345", "-" LONG, 0);
  numeric("-" LONG, LONG, 0);
  numeric(LONG, "-" LONG, 0);
  numeric("1", LONG, 0);
  numeric("1.5000000012", "1.5000000000000000000000001", 1);
  numeric("1.5000000018", "1.5000000000000000000000001", 0);
}

/* Within a billionth of one, 0 was equal to the charge of an electron. */
static void small_numbers_that_do_not_fit_are_equal_within_a_billionth_of_themselves(void **state) {
  (void)state;
  numeric("1.000000000e-30", "1e-30", 1);
  numeric("1.0000000008e-30", "1e-30", 1);
  numeric("1.0000000012e-30", "1e-30", 0);
  numeric("1e-30", "1.0000000008e-30", 1);
  numeric("-1e-30", "1e-30", 0);
  numeric("1180591620717411303424000000000", "1180591619536819682706588696576", 1); /* 2^70 of 10^9 2^70 */
  numeric("1180591619536819682706588696576", "1180591620717411303424000000000", 1);
  numeric("0", "1e-30", 0);
  numeric("1e-30", "0", 0);
  numeric("1e-9", "1e-30", 0);
  numeric("0", "0.5000000000000000000000001", 0);
  numeric("0.9", "0.5000000000000000000000001", 0);
}

static void what_no_double_holds_is_equal_to_nothing(void **state) {
  (void)state;
  numeric("1e400", "1e400", 0);
  numeric("5", "1e400", 0);
  numeric("1e400", "5", 0);
  numeric("0", "1e-400", 0);
  numeric("1e-400", "0", 0);
  numeric("1e-400", "2e-400", 0);
  numeric("1e300", "1e300", 1);
}

/* ---- boxes ---- */

static void a_box_ends_with_its_own_brace(void **state) {
  (void)state;
  countdown("\\boxed{1+2} 3", PUZZLE("1,2", 3), 1, "numbers used as given, value 3/1, target 3");
  countdown("\\boxed{1} \\boxed{2} 3", PUZZLE("2", 2), 1, "numbers used as given, value 2/1, target 2");
  countdown("\\boxed{1+2", PUZZLE("1,2", 3), 1, "numbers used as given, value 3/1, target 3"); /* none */
  no_expression("\\boxed{{1}+2} 3", "something follows it");
  no_expression("\\boxed{", "expected a number or a parenthesis");
  no_expression("3 \\boxed{}", "expected a number or a parenthesis");
}

/* A box of 7 and so many bytes inside, then another line with another number. */
static struct verdict boxed_over(size_t inside) {
  const char *head = "\\boxed{7", *tail = "}\n8";
  const size_t blanks = inside - 1, len = strlen(head) + blanks + strlen(tail);
  char *text = malloc(len + 1);
  snprintf(text, len + 1, "%s%*s%s", head, (int)blanks, "", tail);
  const struct verdict v = judged(VERIFIER_COUNTDOWN, text, len, "", PUZZLE("7,8", 7));
  free(text);
  return v;
}

static void a_box_is_searched_for_as_many_steps_as_the_limit_says(void **state) {
  (void)state;
  check(boxed_over(LIMIT_VERIFIER_STEPS - 1), "7", 1, true, "numbers used as given, value 7/1, target 7");
  check(boxed_over(LIMIT_VERIFIER_STEPS), "8", 0, true, "numbers used as given, value 8/1, target 7");
}

/* ---- countdown ---- */

static void an_expression_has_the_value_that_arithmetic_gives_it(void **state) {
  (void)state;
  const struct {
    const char *text;
    int num, den;
  } cases[] = {{"2", 2, 1},         {"2*3", 6, 1},     {"8/4", 2, 1},         {"7/2", 7, 2},
               {"7-3", 4, 1},       {"3-7", -4, 1},    {"8-3-2", 3, 1},       {"8/4/2", 1, 1},
               {"2+3*4", 14, 1},    {"2*3+4", 10, 1},  {"(2+3)*4", 20, 1},    {"2*(3+4)", 14, 1},
               {"8-(3-2)", 7, 1},   {"8/(4/2)", 4, 1}, {"((2))", 2, 1},       {"2 + 3\t*  4 ", 14, 1},
               {"( 2 + 3 )", 5, 1}, {"7/2*2", 7, 1},   {"1/3+1/3+1/3", 1, 1}, {"9223372036854775807", 0, 0},
               {"1-1/2", 1, 2},     {"10", 10, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char detail[96];
    snprintf(detail, sizeof detail, "numbers used as given, value %d/%d, target 77", cases[i].num, cases[i].den);
    if (cases[i].den == 0)
      snprintf(detail, sizeof detail, "numbers used as given, value %s/1, target 77", cases[i].text);
    countdown(cases[i].text, PUZZLE("1,1,1,2,2,3,3,3,4,7,8,10,9223372036854775807", 77), 0, detail);
  }
}

static void what_is_no_expression_says_why(void **state) {
  (void)state;
  const char *const operand = "expected a number or a parenthesis", *const more = "something follows it";
  const char *const close = "a parenthesis is not closed", *const large = "a number is too large";
  const char *const zero = "division by zero or overflow";
  const struct {
    const char *text, *why;
  } cases[] = {{"", operand},
               {"no idea", operand},
               {"()", operand},
               {"(+)", operand},
               {"1+", operand},
               {"0+", operand},
               {"0+)", operand},
               {"1*", operand},
               {"0*+3", operand},
               {"(2*)", operand},
               {"(2+)", operand},
               {"1+*2", operand},
               {"1 2", more},
               {"1)", more},
               {"1 and so", more},
               {"(1", close},
               {"((1)", close},
               {"(1 2)", close},
               {"7/0", zero},
               {"7/(1-1)", zero},
               {"9223372036854775807*2", zero},
               {"9223372036854775807+1", "overflow"},
               {"0-9223372036854775807-2", "overflow"},
               {"9223372036854775808", large},
               {"99999999999999999999", large},
               {"1+99999999999999999999*(2", large}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) no_expression(cases[i].text, cases[i].why);
}

static void the_last_line_with_a_digit_is_the_expression(void **state) {
  (void)state;
  const char *puzzle = PUZZLE("1,2,3", 6), *right = "numbers used as given, value 6/1, target 6";
  countdown("3-2\n1+2+3\nthat is it", puzzle, 1, right);
  countdown("3-2\n1+2+3", puzzle, 1, right);
  countdown("1+2+3\n", puzzle, 1, right);
  countdown("\n1+2+3\n\n", puzzle, 1, right);
  countdown("so: 1+2+3", puzzle, 1, right);
  countdown("so: (1+2)+3", puzzle, 1, right);
  countdown("1+2+3=6", puzzle, 1, right);
  countdown("1+2+3 = 6 = 5", puzzle, 1, right);
  countdown("6", puzzle, 0, "uses a number that was not given, value 6/1, target 6");
  countdown("1+2+3\n3", puzzle, 0, "numbers used as given, value 3/1, target 6");
  no_expression("= 1+2+3", "expected a number or a parenthesis");
  no_expression("1+2+3\n=6", "expected a number or a parenthesis");
}

/* No digit at all: what is looked at is the first line, whatever stands in the others. */
static void openings_alone_are_no_expression(void **state) {
  (void)state;
  char text[2 + 65] = "\n";
  memset(text + 1, '(', 65);
  no_expression(text, "expected a number or a parenthesis");
  no_expression(text + 1, "parentheses nest too deep");
  no_expression(text + 2, "expected a number or a parenthesis");
}

/* `count` times `part`, with plus signs between them. */
static char *sum_of(int count, const char *part) {
  char *text = malloc((size_t)count * (strlen(part) + 1) + 1);
  text[0] = 0;
  for (int i = 0; i < count; i++) strcat(strcat(text, i ? "+" : ""), part);
  return text;
}

/* `count` ones, then a nine. */
static char *ones(int count, int target) {
  char *text = malloc((size_t)count * 2 + 64);
  int at = sprintf(text, "{\"numbers\":[");
  for (int i = 0; i < count; i++) at += sprintf(text + at, "1,");
  sprintf(text + at, "9],\"target\":%d}", target);
  return text;
}

static void an_expression_has_at_most_64_numbers_and_64_levels(void **state) {
  (void)state;
  char *puzzle = ones(64, 64), *most = sum_of(64, "1"), *more = sum_of(65, "1"), *pairs = sum_of(33, "((1))");
  countdown(most, puzzle, 1, "numbers used as given, value 64/1, target 64");
  no_expression(more, "too many numbers");
  countdown(pairs, puzzle, 0, "numbers used as given, value 33/1, target 64"); /* each level is left again */
  char nested[2 * 65 + 2];
  memset(nested, '(', 65);
  nested[65] = '1';
  memset(nested + 66, ')', 65);
  nested[65 + 65] = 0; /* 65 open, 64 closed */
  countdown(nested + 1, puzzle, 0, "numbers used as given, value 1/1, target 64");
  no_expression(nested, "parentheses nest too deep");
  free(pairs);
  free(more);
  free(most);
  free(puzzle);
}

static void of_the_given_numbers_each_is_used_once(void **state) {
  (void)state;
  const char *not_given = "uses a number that was not given, value 4/1, target 4";
  countdown("2+2", PUZZLE("2,3", 4), 0, not_given);
  countdown("2+2", PUZZLE("2,2", 4), 1, "numbers used as given, value 4/1, target 4");
  countdown("2+2", PUZZLE("3,2,2", 4), 1, "numbers used as given, value 4/1, target 4");
  countdown("4", PUZZLE("\"4\"", 4), 0, not_given);
  countdown("4", PUZZLE("4.0", 4), 0, not_given);
  countdown("4", PUZZLE("", 4), 0, not_given);
  countdown("4", PUZZLE("\"x\",4", 4), 1, "numbers used as given, value 4/1, target 4");
  char *at_limit = ones(63, 9), *beyond = ones(64, 9); /* the nine is the 64th, the 65th */
  countdown("9", at_limit, 1, "numbers used as given, value 9/1, target 9");
  countdown("9", beyond, 0, "uses a number that was not given, value 9/1, target 9");
  free(beyond);
  free(at_limit);
}

static void a_fraction_is_no_target(void **state) {
  (void)state;
  countdown("7/2", PUZZLE("7,2", 7), 0, "numbers used as given, value 7/2, target 7");
  countdown("7/7", PUZZLE("7,7", 1), 1, "numbers used as given, value 1/1, target 1");
}

static void a_line_without_a_puzzle_says_so(void **state) {
  (void)state;
  const char *const lines[] = {"",
                               "no json",
                               "[]",
                               "{}",
                               "{\"numbers\":[1]}",
                               "{\"target\":1}",
                               "{\"numbers\":1,\"target\":1}",
                               "{\"numbers\":[1],\"target\":\"1\"}",
                               "{\"numbers\":[1],\"target\":1.5}"};
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
    check(judged(VERIFIER_COUNTDOWN, "1", 1, "", lines[i]), lines[i], 0, false,
          "the dataset's line lacks `numbers` (integers) or `target` (an integer)");
}

/* ---- lines of a dataset ---- */

static void check_line(enum verifier_kind kind, const char *answer, const char *extra, const char *wrong) {
  struct err err = {.rc = RC_OK};
  const enum rc rc = verify_line_check(kind, answer, extra, &err);
  if (rc != (wrong ? RC_INVALID : RC_OK)) fail_msg("'%s' %s: %d, %s", answer, extra, rc, err.message);
  if (wrong) assert_string_equal(err.message, wrong);
}

static void a_line_is_accepted_when_its_gold_is_a_number(void **state) {
  (void)state;
  const char *wrong = "expected one number, as \"-1,234.5\" or \"3/4\", got \"(3,4)\"";
  check_line(VERIFIER_NUMERIC, "18", "{}", NULL);
  check_line(VERIFIER_NUMERIC, "so 9 twice\n#### 18", "", NULL);
  check_line(VERIFIER_NUMERIC, "(3,4)", PUZZLE("1,2", 3), wrong);
  check_line(VERIFIER_NONE, "(3,4)", "no json", NULL); /* nobody looks at it */
  check_line(VERIFIER_NONE, "18", "", NULL);
}

static void a_line_is_accepted_when_its_puzzle_is_whole(void **state) {
  (void)state;
  const char *wrong = "expected `numbers`, 1 to 64 integers, and `target`, an integer";
  check_line(VERIFIER_COUNTDOWN, "", PUZZLE("1", 1), NULL);
  check_line(VERIFIER_COUNTDOWN, "no number", PUZZLE("1,2,3", -6), NULL);
  static const char *const lines[] = {"",
                                      "no json",
                                      "[]",
                                      "{}",
                                      PUZZLE("", 1),
                                      PUZZLE("1", 1.5),
                                      PUZZLE("1", "1"),
                                      PUZZLE("1.5", 1),
                                      PUZZLE("\"1\",2", 1),
                                      PUZZLE("1,null", 1),
                                      PUZZLE("1,2.0,3", 1),
                                      "{\"numbers\":[1]}",
                                      "{\"target\":1}",
                                      "{\"numbers\":{\"a\":1},\"target\":1}"};
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) check_line(VERIFIER_COUNTDOWN, "18", lines[i], wrong);
  char *most = ones(63, 64), *more = ones(64, 64);
  check_line(VERIFIER_COUNTDOWN, "", most, NULL);
  check_line(VERIFIER_COUNTDOWN, "", more, wrong);
  free(more);
  free(most);
}

static void a_verdict_keeps_no_memory(void **state) {
  (void)state;
  (void)judged(VERIFIER_COUNTDOWN, "1", 1, "", PUZZLE("1", 1));
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 8; i++) {
    (void)judged(VERIFIER_COUNTDOWN, "1", 1, "", PUZZLE("1", 1));
    check_line(VERIFIER_COUNTDOWN, "", PUZZLE("1", 1), NULL);
  }
  assert_int_equal(mallinfo2().uordblks, before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_verdict_says_what_was_read),
      cmocka_unit_test(numbers_that_do_not_fit_are_equal_within_a_billionth),
      cmocka_unit_test(small_numbers_that_do_not_fit_are_equal_within_a_billionth_of_themselves),
      cmocka_unit_test(what_no_double_holds_is_equal_to_nothing),
      cmocka_unit_test(a_box_ends_with_its_own_brace),
      cmocka_unit_test(a_box_is_searched_for_as_many_steps_as_the_limit_says),
      cmocka_unit_test(an_expression_has_the_value_that_arithmetic_gives_it),
      cmocka_unit_test(what_is_no_expression_says_why),
      cmocka_unit_test(the_last_line_with_a_digit_is_the_expression),
      cmocka_unit_test(openings_alone_are_no_expression),
      cmocka_unit_test(an_expression_has_at_most_64_numbers_and_64_levels),
      cmocka_unit_test(of_the_given_numbers_each_is_used_once),
      cmocka_unit_test(a_fraction_is_no_target),
      cmocka_unit_test(a_line_without_a_puzzle_says_so),
      cmocka_unit_test(a_line_is_accepted_when_its_gold_is_a_number),
      cmocka_unit_test(a_line_is_accepted_when_its_puzzle_is_whole),
      cmocka_unit_test(a_verdict_keeps_no_memory),
  };
  return cmocka_run_group_tests_name("coordinator/verdicts", tests, NULL, NULL);
}

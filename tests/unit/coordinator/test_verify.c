/* The verifiers: which number counts, exact comparison, countdown's rules, and bounded work on hostile text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/decide/verify.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

static double numeric(const char *completion, const char *answer, bool *well_formed) {
  struct verdict v;
  verify(VERIFIER_NUMERIC, completion, strlen(completion), answer, "{}", &v);
  if (well_formed) *well_formed = v.well_formed;
  return v.reward;
}

static double countdown(const char *completion, const char *extra) {
  struct verdict v;
  verify(VERIFIER_COUNTDOWN, completion, strlen(completion), "", extra, &v);
  return v.reward;
}

static void the_last_number_counts(void **state) {
  (void)state;
  const struct {
    const char *text, *answer;
    double reward;
  } cases[] = {
      {"7+5=2;2*3=6;6-4=2;#2", "2", 1},
      {"it is 3, no, 4", "4", 1},
      {"it is 3, no, 4", "3", 0},
      {"1,234.50", "1234.5", 1},
      {"-7", "-7", 1},
      {"so 3-7", "7", 1},
      {"x = -7", "-7", 1},
      {"1/2", "0.5", 1},
      {"50e-2", "1/2", 1},
      {"2.", "2", 1},
      {"0.1", "1e-1", 1},
      {"9007199254740993", "9007199254740992", 0},
      {"9007199254740993", "9007199254740993", 1},
      {"12,34", "34", 1},
      {"answer: 8/0", "0", 1},
      {"1234567890123456789012345", "1234567890123456789012345", 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (numeric(cases[i].text, cases[i].answer, NULL) != cases[i].reward)
      fail_msg("'%s' against %s: expected reward %g", cases[i].text, cases[i].answer, cases[i].reward);
  }
}

/* A sign belongs to the number unless an operand ends before it; nothing is read beyond the text. */
static void a_sign_behind_an_operand_is_an_operator(void **state) {
  (void)state;
  const struct {
    const char *text;
    int value;
  } cases[] = {{"-7", -7},  {"+7", 7},    {"3-7", 7},   {"x-7", 7},   {")-7", 7}, {".-7", 7}, {" -7", -7},
               {"(-7", -7}, {") -7", -7}, {". -7", -7}, {"x -7", -7}, {"a7", 7},  {"7-", 7},  {"so 7", 7}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const size_t len = strlen(cases[i].text);
    struct guarded text = guarded_copy(cases[i].text, len);
    for (int expected = -7; expected <= 7; expected += 14) {
      char answer[8];
      struct verdict v;
      snprintf(answer, sizeof answer, "%d", expected);
      verify(VERIFIER_NUMERIC, text.at, len, answer, "{}", &v);
      if (v.reward != (cases[i].value == expected)) fail_msg("'%s' against %d: %s", cases[i].text, expected, v.detail);
    }
    guarded_free(&text);
  }
}

static void an_answer_that_is_no_number_says_so(void **state) {
  (void)state;
  struct verdict v;
  verify(VERIFIER_NUMERIC, "7", 1, "seven", "{}", &v);
  assert_false(v.well_formed);
  assert_true(v.reward == 0);
  assert_string_equal(v.detail, "the dataset's answer 'seven' is no number");
}

static void a_box_goes_before_later_numbers(void **state) {
  (void)state;
  assert_true(numeric("\\boxed{42} as in step 7", "42", NULL) == 1);
  assert_true(numeric("\\boxed{1} then \\boxed{{2}}", "2", NULL) == 1);
  assert_true(numeric("\\boxed{5 is open, 6", "6", NULL) == 1);
}

static void text_without_a_number_is_malformed(void **state) {
  (void)state;
  bool well_formed = true;
  assert_true(numeric("no idea", "2", &well_formed) == 0);
  assert_false(well_formed);
  assert_true(numeric("", "2", &well_formed) == 0);
  assert_false(well_formed);
}

static void countdown_uses_given_numbers_once_and_exactly(void **state) {
  (void)state;
  const char *extra = "{\"numbers\":[3,7,25,50],\"target\":82}";
  assert_true(countdown("25+50+7", extra) == 1);
  assert_true(countdown("we get (50 + 25) + 7 = 82", extra) == 1);
  assert_true(countdown("first 1+1\n\\boxed{50+25+7}", extra) == 1);
  assert_true(countdown("25+25+25+7", extra) == 0);
  assert_true(countdown("82", extra) == 0);
  assert_true(countdown("50+25+3", extra) == 0);
  assert_true(countdown("25+50+", extra) == 0);
  assert_true(countdown("(25+50+7", extra) == 0);
  assert_true(countdown("7/0", "{\"numbers\":[7,0],\"target\":7}") == 0);
  assert_true(countdown("7/2*2", "{\"numbers\":[7,2,2],\"target\":7}") == 1);
  assert_true(countdown("9223372036854775807*9223372036854775807", extra) == 0);
}

/* A completion of nothing but openings must end within the step limit, and the parser must not recurse without bound. */
static void hostile_text_is_bounded(void **state) {
  (void)state;
  size_t len = 1 << 20;
  char *text = malloc(len + 1);
  memset(text, '(', len);
  text[len] = 0;
  text[len / 2] = '1';
  assert_true(countdown(text, "{\"numbers\":[1],\"target\":1}") == 0);
  for (size_t i = 0; i + 7 <= len; i += 7) memcpy(text + i, "\\boxed{", 7);
  assert_true(numeric(text, "1", NULL) == 0);
  memset(text, '9', len);
  numeric(text, "1", NULL);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_last_number_counts),
      cmocka_unit_test(a_sign_behind_an_operand_is_an_operator),
      cmocka_unit_test(an_answer_that_is_no_number_says_so),
      cmocka_unit_test(a_box_goes_before_later_numbers),
      cmocka_unit_test(text_without_a_number_is_malformed),
      cmocka_unit_test(countdown_uses_given_numbers_once_and_exactly),
      cmocka_unit_test(hostile_text_is_bounded),
  };
  return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}

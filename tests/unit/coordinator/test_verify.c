/* The verifiers: which number counts, exact comparison, countdown's rules. What would break: a wrong answer is
 * rewarded or a right one is not; hostile text takes unbounded work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/decide/verify.h"
#include "services/coordinator/decide/lone_number.h"
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

static uint64_t vote_of(enum verifier_kind kind, const char *completion, const char *extra) {
  struct verdict v;
  verify(kind, completion, strlen(completion), "8", extra, &v);
  return v.vote;
}

/* Equal answers vote alike, however they are written; others do not, and who has none does not vote. */
static void answers_vote(void **state) {
  (void)state;
  const uint64_t seven = vote_of(VERIFIER_NUMERIC, "it is 7", "{}");
  assert_true(seven != 0 && seven == vote_of(VERIFIER_NUMERIC, "\\boxed{7.0}", "{}"));
  assert_true(seven != vote_of(VERIFIER_NUMERIC, "it is 1/7", "{}") && seven != vote_of(VERIFIER_NUMERIC, "8", "{}"));
  assert_true(vote_of(VERIFIER_NUMERIC, "none", "{}") == 0 && vote_of(VERIFIER_NONE, "7", "{}") == 0);
  const uint64_t large = vote_of(VERIFIER_NUMERIC, "1234567890123456789012345", "{}");
  assert_true(large != 0 && large != vote_of(VERIFIER_NUMERIC, "2234567890123456789012345", "{}"));
  const char *const puzzle = "{\"numbers\":[1,2,4],\"target\":6}";
  const uint64_t six = vote_of(VERIFIER_COUNTDOWN, "2+4", puzzle);
  assert_true(six != 0 && six == vote_of(VERIFIER_COUNTDOWN, "4+1*2=6", puzzle) &&
              six != vote_of(VERIFIER_COUNTDOWN, "1+4", puzzle));
  assert_true(vote_of(VERIFIER_COUNTDOWN, "2+", puzzle) == 0);
  assert_true(answer_vote(" $x + 1$ ", 9) == answer_vote("x+1", 3) && answer_vote("x+1", 3) != answer_vote("x+2", 3));
  assert_true(answer_vote("a", 1) == 0xAF63DC4C8601EC8Cu &&
              answer_vote("foobar", 6) == 0x85944171F73967E8u); /* FNV-1a's own vectors */
  assert_true(answer_vote("ab", 2) != answer_vote("ba", 2) && answer_vote(" $ ", 3) == 0 && answer_vote("", 0) == 0);
  for (int c = 33; c < 127; c++) {
    const char text = (char)c;
    assert_int_equal(answer_vote(&text, 1) == 0, text == '$');
  }
}

struct numeric_case {
  const char *text, *answer;
  double reward;
  bool well_formed;
};

static void numeric_table(const struct numeric_case *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    bool well_formed;
    const double reward = numeric(cases[i].text, cases[i].answer, &well_formed);
    if (reward != cases[i].reward || well_formed != cases[i].well_formed)
      fail_msg("'%s' against %s: expected reward %g, well formed %d; got %g, %d", cases[i].text, cases[i].answer,
               cases[i].reward, cases[i].well_formed, reward, well_formed);
  }
}

static void the_last_number_counts(void **state) {
  (void)state;
  static const struct numeric_case cases[] = {
      {"7+5=2;2*3=6;6-4=2;#2", "2", 1, true},
      {"7+5=2;2*3=6;6-4=2;", "2", 1, true},
      {"it is 3, no, 4", "4", 1, true},
      {"it is 3, no, 4", "3", 0, true},
      {"1,234.50", "1234.5", 1, true},
      {"-7", "-7", 1, true},
      {"x = -7", "-7", 1, true},
      {"so -7", "7", 0, true},
      {"1/2", "0.5", 1, true},
      {"x = 3/4", "0.75", 1, true},
      {"50e-2", "1/2", 1, true},
      {"2.", "2", 1, true},
      {"0.1", "1e-1", 1, true},
      {"9007199254740993", "9007199254740992", 0, true},
      {"9007199254740993", "9007199254740993", 1, true},
      {"1234567890123456789012345", "1234567890123456789012345", 1, true},
      {"1.602e-19", "1.6020e-19", 1, true},
      {"9.109e-31", "1.602e-19", 0, true},
  };
  numeric_table(cases, sizeof cases / sizeof cases[0]);
}

/* What prose, Markdown and TeX put around a number is no part of it. */
static void a_number_in_prose_stands_alone(void **state) {
  (void)state;
  static const struct numeric_case cases[] = {
      {"#### 18", "18", 1, true},
      {"The answer is $18.", "18", 1, true},
      {"The answer is \\$1,800", "1800", 1, true},
      {"is $18$.", "18", 1, true},
      {"is $$x = 18$$", "18", 1, true},
      {"is \\(x = 18\\).", "18", 1, true},
      {"\\[ 18 \\]", "18", 1, true},
      {"x=18\\\\", "18", 1, true},
      {"**18**", "18", 1, true},
      {"**Answer: 18**", "18", 1, true},
      {"**Answer:** 18", "18", 1, true},
      {"__Answer__ `18`", "18", 1, true},
      {"there are 18 *apples* left", "18", 1, true},
      {"two lines\n- 18", "18", 1, true},
      {"* 18", "18", 1, true},
      {"Step 2: 18", "18", 1, true},
      {"in all (18)", "18", 1, true},
      {"(see above) 18", "18", 1, true},
      {"18 (dollars)", "18", 1, true},
      {"(5\n18", "18", 1, true},
      {"2*3*4\n18", "18", 1, true},
      {"\"18\"", "18", 1, true},
      {"18%", "18", 1, true},
      {"18!", "18", 1, true},
      {"5+5=0;5+", "5", 1, true}, /* cut off: nothing is added to it yet */
      {"it is 18 -", "18", 1, true},
      {"| total | 18 |", "18", 1, true},
      {"it is 3 and 4", "4", 1, true},
      {"\xE7\xAD\x94\xE6\xA1\x88\xE6\x98\xAF"
       "18\xE3\x80\x82",
       "18", 1, true},
  };
  numeric_table(cases, sizeof cases / sizeof cases[0]);
}

/* The last number of 1/4, (3,4), 2*4 or 7 times the root of 3 is not their value: a verifier that takes it rewards
 * wrong answers. */
static void a_number_in_something_larger_is_no_answer(void **state) {
  (void)state;
  static const struct numeric_case cases[] = {
      {"answer is (9,4)", "4", 0, false},
      {"answer is (9, 4)", "4", 0, false},
      {"answer is [9; 4]", "4", 0, false},
      {"{1, 2, 4}", "4", 0, false},
      {"\\{2, 4\\}", "4", 0, false},
      {"\\left(9, 4\\right)", "4", 0, false},
      {"(4, x)", "4", 0, false},
      {"x = 3, 4", "4", 0, false},
      {"12,34", "34", 0, false},
      {"1234,567", "1234567", 0, false},
      {"\\frac{1}{4}", "4", 0, false},
      {"$\\frac{1}{4}$", "4", 0, false},
      {"\\frac14", "14", 0, false},
      {"2\\sqrt{3}", "3", 0, false},
      {"\\sqrt 3", "3", 0, false},
      {"2 \\cdot 4", "4", 0, false},
      {"4\\pi", "4", 0, false},
      {"4 \\pi", "4", 0, false},
      {"4\\sqrt{x}", "4", 0, false},
      {"\\text{it is 4}", "4", 0, false},
      {"\\text{about }4", "4", 0, false},
      {"x^4", "4", 0, false},
      {"x^{4}", "4", 0, false},
      {"x_4", "4", 0, false},
      {"4^x", "4", 0, false},
      {"2 * 4", "4", 0, false},
      {"2 ** 4", "4", 0, false},
      {"2* 3* 4", "4", 0, false},
      {"4*x", "4", 0, false},
      {"4 + x", "4", 0, false},
      {"4-x", "4", 0, false},
      {"4 ** x", "4", 0, false},
      {"3 - 7", "7", 0, false},
      {"8/0", "0", 0, false},
      {"3 / 4", "4", 0, false},
      {"3/4/5", "5", 0, false},
      {"9%4", "4", 0, false},
      {"1 1/2", "1/2", 0, false},
      {"10 000", "0", 0, false},
      {"3:4", "4", 0, false},
      {"f(4)", "4", 0, false},
      {"2(4)", "4", 0, false},
      {"4(x)", "4", 0, false},
      {"4x", "4", 0, false},
      {"x4", "4", 0, false},
      {"the 4th", "4", 0, false},
      {"10:30", "30", 0, false},
      {"1.2.3", "3", 0, false},
      {"2\xC3\x97"
       "4",
       "4", 0, false},
      {"2 \xC3\x97 4", "4", 0, false},
      {"\xE2\x88\x9A"
       "4",
       "4", 0, false},
      {"\xE2\x88\x92"
       "4",
       "4", 0, false},
      {"4\xCF\x80", "4", 0, false},
      {"4\xC2\xB2", "4", 0, false},
      {"it is 4, not x^9", "4", 0, false}, /* nor is an earlier one taken */
      {"\\boxed{5 is open, 6", "6", 0, false},
  };
  numeric_table(cases, sizeof cases / sizeof cases[0]);
}

static void a_box_goes_before_later_numbers(void **state) {
  (void)state;
  static const struct numeric_case cases[] = {
      {"\\boxed{42} as in step 7", "42", 1, true},
      {"\\boxed{1} then \\boxed{{2}}", "2", 1, true},
      {"\\boxed{x} is not 7", "7", 0, false},
      {"\\boxed{}7", "7", 0, false},
  };
  numeric_table(cases, sizeof cases / sizeof cases[0]);
}

static void a_box_holds_one_number_and_nothing_else(void **state) {
  (void)state;
  static const struct numeric_case cases[] = {
      {"\\boxed{ 3/4 }", "0.75", 1, true},
      {"\\boxed{-1,234.5}", "-1234.5", 1, true},
      {"\\boxed{$18}", "18", 1, true},
      {"\\boxed{\\$ 18.00}", "18", 1, true},
      {"\\boxed{$18$}", "18", 1, true},
      {"\\boxed{\xE2\x82\xAC"
       "18}",
       "18", 1, true},
      {"\\boxed{18.}", "18", 1, true},
      {"\\boxed{+18}", "18", 1, true},
      {"\\boxed{1.8e1}", "18", 1, true},
      {"\\boxed{\\frac{1}{4}}", "3/4", 0, false},
      {"\\boxed{\\frac{1}{4}}", "4", 0, false},
      {"\\boxed{(9,4)}", "4", 0, false},
      {"\\boxed{(4)}", "4", 0, false},
      {"\\boxed{7\\sqrt{3}}", "3", 0, false},
      {"\\boxed{3, 4}", "4", 0, false},
      {"\\boxed{12,34}", "34", 0, false},
      {"\\boxed{1234,567}", "1234567", 0, false},
      {"\\boxed{3 4}", "4", 0, false},
      {"\\boxed{1 1/2}", "1/2", 0, false},
      {"\\boxed{x=4}", "4", 0, false},
      {"\\boxed{2*4}", "4", 0, false},
      {"\\boxed{8/0}", "8", 0, false},
      {"\\boxed{2^4}", "4", 0, false},
      {"\\boxed{4 apples}", "4", 0, false},
      {"\\boxed{50\\%}", "50", 0, false},
      {"\\boxed{50%}", "50", 0, false},
      {"\\boxed{4..}", "4", 0, false},
      {"\\boxed{$}", "4", 0, false},
      {"\\boxed{.}", "4", 0, false},
      {"\\boxed{{1}{4}}", "4", 0, false},
      {"\\boxed{9\\boxed{4}}", "4", 0, false},
      {"4 \\boxed{\\text{no}}", "4", 0, false},
  };
  numeric_table(cases, sizeof cases / sizeof cases[0]);
}

static void a_gold_is_one_number(void **state) {
  (void)state;
  static const struct {
    const char *gold, *value; /* value NULL: it is none */
  } cases[] = {
      {"18", "18"},
      {" 1,080 ", "1080"},
      {"-3.50", "-3.5"},
      {"3/4", "0.75"},
      {"5e-2", "0.05"},
      {"$18", "18"},
      {"18.", "18"},
      {"Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "72"},
      {"", NULL},
      {"####", NULL},
      {"4 #### (3,4)", NULL},
      {"\\frac{3}{4}", NULL},
      {"(3,4)", NULL},
      {"2\\sqrt{3}", NULL},
      {"x=4", NULL},
      {"50%", NULL},
      {"4 apples", NULL},
      {"3 or 4", NULL},
      {"nan", NULL},
      {"inf", NULL},
      {"0x10", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct number gold, value;
    if (number_gold(cases[i].gold, &gold) != (cases[i].value != NULL)) fail_msg("gold '%s'", cases[i].gold);
    if (!cases[i].value) continue;
    assert_true(number_whole(cases[i].value, strlen(cases[i].value), &value));
    assert_true(gold.exact && value.exact && rational_equal(gold.value, value.value));
  }
  bool well_formed;
  assert_true(numeric("4", "(3,4)", &well_formed) == 0);
  assert_false(well_formed);
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

/* A completion of nothing but openings must end within the step limit, and the parser must not recurse without
 * bound. */
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
  for (size_t c = 0; c < 3; c++) {
    memset(text, "*({"[c], len);
    text[len - 1] = '1';
    numeric(text, "1", NULL);
    for (size_t i = 1; i < len; i += 2) text[i] = '1';
    numeric(text, "1", NULL);
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_vote),
      cmocka_unit_test(the_last_number_counts),
      cmocka_unit_test(a_number_in_prose_stands_alone),
      cmocka_unit_test(a_number_in_something_larger_is_no_answer),
      cmocka_unit_test(a_box_goes_before_later_numbers),
      cmocka_unit_test(a_box_holds_one_number_and_nothing_else),
      cmocka_unit_test(a_gold_is_one_number),
      cmocka_unit_test(text_without_a_number_is_malformed),
      cmocka_unit_test(countdown_uses_given_numbers_once_and_exactly),
      cmocka_unit_test(hostile_text_is_bounded),
  };
  return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}

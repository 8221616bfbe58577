/* Which number is an answer. What would break: an operand, an argument or one of several numbers is rewarded for a
 * value that it is not, a number in plain prose is refused, text is read beyond either end. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "services/coordinator/decide/lone_number.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- number_last ---- */

struct read {
  enum number_found found;
  double number;
};

static struct read last(const char *text, size_t len) {
  struct number n = {.approximate = -99};
  const enum number_found found = number_last(text, len, &n);
  return (struct read){found, n.approximate};
}

static void expect(const char *where, const char *text, struct read got, enum number_found found, double number) {
  static const char *const names[] = {"none", "in something larger", "alone"};
  if (got.found != found || (found != NUMBER_NONE && got.number != number))
    fail_msg("%s'%s': %s, %g; expected %s, %g", where, text, names[got.found], got.number, names[found], number);
}

/* By itself, where memory begins and where it ends; then between two lines, which change nothing. */
static void check(const char *text, size_t len, enum number_found found, double number) {
  static const char before[] = "x \\* (\n", after[] = "\n* y";
  struct guarded ends = guarded_copy(text, len), begins = guarded_begin(text, len);
  expect("", text, last(ends.at, len), found, number);
  expect("", text, last(begins.at, len), found, number);
  guarded_free(&begins);
  guarded_free(&ends);
  char held[256];
  const size_t first = sizeof before - 1;
  assert_true(first + len + sizeof after <= sizeof held);
  memcpy(held, before, first);
  memcpy(held + first, text, len);
  memcpy(held + first + len, after, sizeof after);
  expect("among lines, ", text, last(held, first + len + sizeof after - 1), found, number);
}

struct text {
  const char *text;
  double number;
};

static void check_all(enum number_found found, const struct text *cases, size_t count) {
  for (size_t i = 0; i < count; i++) check(cases[i].text, strlen(cases[i].text), found, cases[i].number);
}
#define ALONE(...)                                    \
  do {                                                \
    static const struct text cases[] = {__VA_ARGS__}; \
    check_all(NUMBER_ALONE, cases, COUNT(cases));     \
  } while (0)
#define IN_LARGER(...)                                \
  do {                                                \
    static const struct text cases[] = {__VA_ARGS__}; \
    check_all(NUMBER_IN_LARGER, cases, COUNT(cases)); \
  } while (0)

static void the_last_number_is_the_one(void **state) {
  (void)state;
  ALONE({"5", 5}, {"3 and 5", 5}, {"-5", -5}, {"+5", 5}, {"is -5.", -5}, {"=-5", -5}, {"1,234.5", 1234.5},
        {"3/4", 0.75}, {" 5", 5}, {"5 ", 5}, {"\t5\r", 5}, {"3\n5", 5}, {"5\n", 5}, {"5\nx", 5}, {"3\n\n-5", -5},
        {"\"5\"", 5}, {"#5;", 5});
  static const char *const none[] = {"", " ", "x", "-", "\n", "(*$\\"};
  for (size_t i = 0; i < COUNT(none); i++) check(none[i], strlen(none[i]), NUMBER_NONE, 0);
}

static void a_sign_behind_an_operand_is_an_operator(void **state) {
  (void)state;
  IN_LARGER({"x-5", 5}, {"(x)-5", 5}, {"3.-5", 5}, {"2.-5", 5}, {"so.+5", 5}, {")-5", 5}, {".-5", 5});
  ALONE({":-5", -5}, {". -5", -5}, {"= -5", -5}, {"\n-5", -5}, {"a -5", -5});
}

/* Digits and plain signs without blanks, as the demo's model writes them: read to the last number, wherever they break
 * off. */
static void a_working_is_read_to_its_last_number(void **state) {
  (void)state;
  ALONE({"3-5", 5}, {"3+5", 5}, {"3*5", 5}, {"2+2=", 2}, {"2+7=", 7}, {"3*6=8;8+1=#1+1=2;2+6", 6}, {"1+4=5;#*9", 9});
  ALONE({"8+7=*7+5", 5}, {"2*5*", 5}, {"*3*5", 5}, {"3=;*5", 5}, {"3**5", 5}, {"3+*5", 5}, {"3-*5", 5}, {"5+=", 5},
        {"5*;", 5}, {"5-#", 5});
  IN_LARGER({"x*5", 5}, {"x+5", 5}, {"3/4/5", 5}, {"3 *5", 5}, {")*5", 5}, {"*-5", -5}, {"5+=x5", 5});
}

/* Of a text with bytes 0, which end nothing. */
static void a_zero_byte_is_a_character_like_others(void **state) {
  (void)state;
  check("\0005", 2, NUMBER_ALONE, 5);
  check("5\0x", 3, NUMBER_ALONE, 5);
  check("\0005\0", 3, NUMBER_ALONE, 5);
  check("3\0-5", 4, NUMBER_ALONE, -5);
}

static void a_letter_or_a_digit_beside_makes_it_another_word(void **state) {
  (void)state;
  IN_LARGER({"x5", 5}, {"5x", 5}, {"5th", 5}, {"3 5", 5}, {"3\t5", 5}, {"1 1/2", 0.5}, {"1.2.3", 0.3});
  ALONE({"x 5", 5}, {"5 x", 5});
}

static void an_operand_is_no_lone_number(void **state) {
  (void)state;
  IN_LARGER({"x*5", 5}, {"x/5", 5}, {"x^5", 5}, {"x_5", 5}, {"9%5", 5}, {"x|5", 5}, {"x@5", 5}, {"x&5", 5});
  IN_LARGER({"x * 5", 5}, {"x / 5", 5}, {"x ^ 5", 5}, {"x + 5", 5}, {"x - 5", 5}, {"x % 5", 5});
  IN_LARGER({"5*x", 5}, {"5/x", 5}, {"5^x", 5}, {"5_x", 5}, {"5+x", 5}, {"5-x", 5}, {"5*-x", 5});
  IN_LARGER({"5 * x", 5}, {"5 / x", 5}, {"5 ^ x", 5}, {"5 + x", 5}, {"5 - x", 5}, {"5 + - x", 5}, {"5+\tx", 5});
  /* cut off before the other one, or ended by something else */
  ALONE({"5*", 5}, {"5 *", 5}, {"5 +", 5}, {"5 - ", 5}, {"5^_*/+-", 5}, {"5%", 5}, {"5!", 5}, {"5.", 5}, {"5, x", 5},
        {"5: x", 5}, {"5;x", 5}, {"5=x", 5}, {"5 = x", 5});
}

static void a_bullet_is_no_operator(void **state) {
  (void)state;
  ALONE({"* 5", 5}, {"+ 5", 5}, {"- 5", 5}, {"  * 5", 5}, {"\t-  5", 5}, {"x\n- 5", 5});
  IN_LARGER({"/ 5", 5}, {"x - 5", 5}, {"- - 5", 5}, {"x\n3 - 5", 5});
}

/* ---- lists and ratios ---- */

static void a_comma_behind_a_number_makes_a_list(void **state) {
  (void)state;
  IN_LARGER({"3,5", 5}, {"3 ,5", 5}, {"3, 5", 5}, {"3 , 5", 5}, {"(3),5", 5}, {"[3],5", 5}, {"{3},5", 5}, {"(3), 5", 5},
            {"x3,\t5", 5});
  ALONE({",5", 5}, {", 5", 5}, {" ,5", 5}, {"so,5", 5}, {"so, 5", 5}, {"so , 5", 5}, {"3 x,5", 5}, {"3,x 5", 5},
        {"(3)x, 5", 5}, {"\",5", 5}, {")x,5", 5}, {"),\",5", 5});
}

static void a_colon_behind_a_digit_makes_a_ratio(void **state) {
  (void)state;
  IN_LARGER({"3:5", 5}, {"10:30", 30});
  ALONE({":5", 5}, {"so:5", 5}, {"3: 5", 5}, {"3x:5", 5}, {"\n:5", 5});
}

/* ---- brackets ---- */

static void brackets_around_the_number_alone_are_taken_off(void **state) {
  (void)state;
  ALONE({"(5)", 5}, {"[5]", 5}, {"{5}", 5}, {"( 5 )", 5}, {"([{5}])", 5}, {"( [ 5 ] )", 5}, {"so (5).", 5},
        {"(5) x", 5}, {"((-5))", -5}, {"\"(5)\"", 5});
  IN_LARGER({"f(5)", 5}, {"(5)x", 5}, {"(5)(", 5}, {"(5)^x", 5}, {"((5)x)", 5}, {"2(5)", 5}, {"(5)*x", 5},
            {"x^{5}", 5});
}

static void unbalanced_brackets_stay(void **state) {
  (void)state;
  IN_LARGER({"(5", 5}, {"[5", 5}, {"{5", 5}, {"(5]", 5}, {"[5}", 5}, {"{5)", 5}, {")5[", 5}, {"]5{", 5}, {"}5", 5},
            {")5", 5}, {"]5", 5}, {"5(", 5}, {"5[", 5}, {"5{", 5}, {"5}", 5}, {"5 }", 5}, {")5(", 5}, {"} 5", 5});
  ALONE({"5)", 5}, {"5]", 5}, {"5 )", 5}, {") 5", 5}, {"] 5", 5}, {"5 (", 5}, {"5 [", 5}, {"5 {", 5}, {"\"5)", 5});
}

static void what_shares_brackets_with_the_number_is_one_with_it(void **state) {
  (void)state;
  IN_LARGER({"(x 5)", 5}, {"(5 x)", 5}, {"[x; 5]", 5}, {"{x; 5}", 5}, {"(3, 5)", 5}, {"(x\" 5", 5}, {"((x) 5)", 5},
            {"(x) (y 5", 5});
  ALONE({"(x) 5", 5}, {"[x] 5", 5}, {"((x)) 5", 5}, {") x 5", 5}, {"5 (x)", 5}, {"(x\n5", 5}, {") (x) 5", 5},
        {"{x} y 5", 5}, {"} x 5", 5}, {"} {x} y 5", 5});
}

/* "\(" and "\)" enclose nothing, and close nothing. */
static void delimiters_of_a_formula_are_no_brackets(void **state) {
  (void)state;
  ALONE({"\\(5\\)", 5}, {"\\[5\\]", 5}, {"\\[ 5 \\]", 5}, {"\\(x = 5\\)", 5}, {"\\(5)", 5}, {"\\[5]", 5},
        {"\\(\\[5", 5}, {"\\(x\\) 5", 5}, {"\\((5)\\)", 5}, {"(x) \\( 5", 5}, {"\\( (x) 5", 5}, {"a \\(5", 5});
  IN_LARGER({"(x \\) 5", 5}, {"(\\(x\\) 5)", 5}, {"[\\[x\\] 5]", 5}, {"\\(f(x, 5)\\)", 5}, {"\\{5\\}", 5},
            {"\\left(x, 5\\right)", 5});
}

/* ---- TeX ---- */

static void a_macro_beside_the_number_works_on_it(void **state) {
  (void)state;
  IN_LARGER({"\\frac{1}{5}", 5}, {"\\frac15", 15}, {"\\sqrt5", 5}, {"\\sqrt 5", 5}, {"x \\cdot 5", 5}, {"\\t 5", 5},
            {"\\cdot\t5", 5}, {"\\5", 5}, {"\\ 5", 5}, {"5\\pi", 5}, {"5 \\pi", 5}, {"5\\", 5}, {"5 \\", 5},
            {"5\\,", 5}, {"\\text{so }5", 5}, {"\\text{so} 5", 5}, {"\\text{so 5}", 5}, {"\\text{5 }", 5});
  ALONE({"cdot 5", 5}, {"\\cdot: 5", 5}, {"\\cdot x 5", 5}, {"x\\y\" 5", 5}, {"c 5", 5});
}

static void what_ends_a_formula_or_its_line_leaves_the_number_alone(void **state) {
  (void)state;
  ALONE({"5\\)", 5}, {"5\\]", 5}, {"5\\\\", 5}, {"5\\%", 5}, {"5\\$", 5}, {"5 \\)", 5}, {"5 \\\\", 5}, {"5 \\%", 5},
        {"x = 5\\) so", 5});
}

static void dollars_are_a_currency_or_delimit_a_formula(void **state) {
  (void)state;
  ALONE({"$5", 5}, {"$$5$$", 5}, {"$5$", 5}, {"is $5", 5}, {"\\$5", 5}, {"is \\$5", 5}, {"=$5", 5}, {"$ 5 $", 5},
        {"$-5", -5}, {"$\\$5$", 5}, {"\\$\\$5", 5}, {"\"$5", 5}, {"- $5", 5}, {"* \\$5", 5});
  IN_LARGER({"2$5", 5}, {"2\\$5", 5}, {"x$5", 5}, {"2 $5", 5}, {"(2)$$5", 5}, {"2 + $5", 5}, {"\\\\$5", 5},
            {"2 \\$5", 5}, {"x - \\$5", 5});
}

/* ---- Markdown ---- */

static void emphasis_is_no_operator(void **state) {
  (void)state;
  ALONE({"*5*", 5}, {"_5_", 5}, {"`5`", 5}, {"**5**", 5}, {"***5***", 5}, {"so *5* x", 5}, {"*5* x", 5}, {"**5** x", 5},
        {"*5 x*", 5}, {"*x 5*", 5}, {"**x: 5**", 5}, {"**x:** 5", 5}, {"*x* 5", 5}, {"__x__ 5", 5}, {"5 *x*", 5},
        {"5 **x**", 5}, {"\"*x* 5", 5}, {"*5*.", 5}, {"*x*: *5*", 5}, {"*x* *5* *y*", 5}, {"$*x* 5", 5}, {"*5 x*.", 5},
        {"x: *y* 5", 5}, {"*x*  5", 5}, {"5  *x*", 5}, {"**x *y** 5", 5}, {"x *y* - *z* 5", 5});
}

/* Each run needs one of its own kind and length at the other end, and either touches what it emphasizes. */
static void a_mark_that_emphasizes_nothing_is_an_operator(void **state) {
  (void)state;
  IN_LARGER({"x *5", 5}, {"x *5 y", 5}, {"*5 x", 5}, {"x* 5", 5}, {"5* x", 5}, {"5 *x", 5}, {"2*5*x", 5}, {"*5*x", 5},
            {"x*5*", 5}, {"**5* x", 5}, {"*5** x", 5}, {"_5* x", 5}, {"*5_ x", 5}, {"**x* 5", 5}, {"*x** 5", 5},
            {"_x* 5", 5}, {"2* 3* 5", 5}, {"2 *3 *5", 5});
  IN_LARGER({"* x* 5", 5}, {"y*x* 5", 5}, {")*x* 5", 5}, {"]*x* 5", 5}, {"}*x* 5", 5}, {"3*x* 5", 5});
  IN_LARGER({"*5 x *", 5}, {"*5 x*y", 5}, {"*5 x*(", 5}, {"*5 x*[", 5}, {"*5 x*{", 5}, {"*5 x*\\", 5}, {"5 *x *", 5},
            {"5 *x*y", 5});
  IN_LARGER({"*x* *5", 5}, {"*3* 5", 5}, {"*x*5", 5}, {"(x)*5*", 5}, {"x *-* 5", 5});
}

/* ---- beyond ASCII ---- */

/* What the number is beside, as a reader of the text would see it. */
static const struct {
  unsigned first, last;
  const char *what;
} signs[] = {{0xB2, 0xB3, "superscripts 2, 3"},
             {0xB7, 0xB7, "middle dot"},
             {0xB9, 0xB9, "superscript 1"},
             {0xBC, 0xBE, "1/4, 1/2, 3/4"},
             {0xD7, 0xD7, "times"},
             {0xF7, 0xF7, "divided by"},
             {0x3C0, 0x3C0, "pi"},
             {0x2010, 0x2015, "dashes"},
             {0x2044, 0x2044, "fraction slash"},
             {0x2070, 0x209C, "super- and subscripts"},
             {0x2150, 0x215F, "fractions"},
             {0x2200, 0x22FF, "operators"}};

static int encode(char *out, unsigned code) {
  if (code < 0x800) return sprintf(out, "%c%c", (char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)));
  return sprintf(out, "%c%c%c", (char)(0xE0 | code >> 12), (char)(0x80 | (code >> 6 & 0x3F)),
                 (char)(0x80 | (code & 0x3F)));
}

static void signs_of_mathematics_make_operands_and_other_characters_do_not(void **state) {
  (void)state;
  for (unsigned code = 0x80; code < 0x10000; code++) {
    enum number_found found = NUMBER_ALONE;
    for (size_t i = 0; i < COUNT(signs); i++)
      if (signs[i].first <= code && code <= signs[i].last) found = NUMBER_IN_LARGER;
    char sign[8], text[4][32];
    encode(sign, code);
    snprintf(text[0], sizeof text[0], "x%s5", sign);
    snprintf(text[1], sizeof text[1], "x%s 5", sign);
    snprintf(text[2], sizeof text[2], "5%sx", sign);
    snprintf(text[3], sizeof text[3], "5 %sx", sign);
    for (size_t i = 0; i < COUNT(text); i++) expect("", text[i], last(text[i], strlen(text[i])), found, 5);
  }
}

static void a_sign_is_whole_and_touches_the_number(void **state) {
  (void)state;
  IN_LARGER({"\xC3\x97"
             "5",
             5},
            {"5\xC3\x97", 5},
            {"\xE2\x88\x9A"
             "5",
             5},
            {"5\xE2\x88\x9A", 5}, {"\xE2\x88\x9A 5", 5}, {"5 \xC2\xB2", 5});
  /* cut off at an end */
  ALONE({"5\xC3", 5}, {"5\xE2", 5}, {"5\xE2\x88", 5},
        {"\x97"
         "5",
         5},
        {"\x88\x9A"
         "5",
         5},
        {"\x9A"
         "5",
         5},
        {"\n\"5", 5}, {"\"5", 5});
  /* or interrupted */
  ALONE({"5\xC3W", 5},
        {"5\xE2"
         "A\x84",
         5},
        {"5\xE2\x81"
         "D",
         5},
        {"5\xF0\x9D\x9F\x97", 5});
  /* a quotation mark stands between: times, and then 5 in guillemets */
  ALONE(
      {"x\xC3\x97\xC2\xAB"
       "5\xC2\xBB",
       5});
}

/* The last number is looked for from the text's end; a reading from its beginning finds the same. */
static bool last_from_the_beginning(const char *text, size_t len, double *out) {
  bool found = false;
  for (size_t at = 0, used; at < len; at += used ? used : 1) {
    const bool sign = text[at] == '-' || text[at] == '+';
    const bool operates = sign && at > 0 && (isalnum((unsigned char)text[at - 1]) || strchr(").", text[at - 1]));
    struct rational value;
    bool exact;
    double approximate;
    used = operates ? 0 : number_scan(text + at, len - at, &value, &exact, &approximate);
    if (used) *out = approximate;
    found |= used > 0;
  }
  return found;
}

static void the_last_number_is_that_of_a_reading_from_the_beginning(void **state) {
  static const char characters[] = "0123456789012345..,,//--++eE x)(\n";
  enum { TEXTS = 200000, LENGTH_MAX = 24 };
  int numbers = 0;
  (void)state;
  for (uint32_t text = 0; text < TEXTS; text++) {
    const struct rng_key key = {.seed = 7, .group = text};
    const size_t len = (size_t)rng_below(&key, 0, LENGTH_MAX + 1);
    char held[LENGTH_MAX + 1] = "";
    double expected = 0;
    for (size_t i = 0; i < len; i++) held[i] = characters[rng_below(&key, (uint32_t)i + 1, sizeof characters - 1)];
    const bool found = last_from_the_beginning(held, len, &expected);
    const struct read got = last(held, len);
    if (found != (got.found != NUMBER_NONE) ||
        (found && memcmp(&got.number, &expected, sizeof expected) != 0)) /* or a NaN */
      fail_msg("'%s': %g, expected %g", held, got.number, expected);
    numbers += found;
  }
  assert_in_range(numbers, TEXTS / 2, TEXTS - 1);
}

/* ---- number_whole, number_gold ---- */

static bool whole(const char *text, double *number) {
  const size_t len = strlen(text);
  struct guarded ends = guarded_copy(text, len), begins = guarded_begin(text, len);
  struct number n = {.exact = false}, again = {.exact = false};
  const bool is = number_whole(ends.at, len, &n);
  assert_int_equal(number_whole(begins.at, len, &again), is);
  assert_true(n.approximate == again.approximate);
  guarded_free(&begins);
  guarded_free(&ends);
  *number = n.approximate;
  return is;
}

static void a_whole_text_is_a_number_in_what_may_stand_around_one(void **state) {
  (void)state;
  static const struct text cases[] = {{"5", 5},
                                      {"-5", -5},
                                      {"1,234.5", 1234.5},
                                      {"3/4", 0.75},
                                      {"50e-2", 0.5},
                                      {" 5 ", 5},
                                      {"\t5\r\n", 5},
                                      {"\n5\n", 5},
                                      {"5.", 5},
                                      {"5. ", 5},
                                      {"5 .", 5},
                                      {" 5.\n", 5},
                                      {"$5$", 5},
                                      {"$ 5 $", 5},
                                      {" $5$ ", 5},
                                      {"{5}", 5},
                                      {"{{5}}", 5},
                                      {"{ 5 }", 5},
                                      {"${5}$.", 5},
                                      {"{$5.$}", 5},
                                      {"$5", 5},
                                      {"$ 5", 5},
                                      {"\\$5", 5},
                                      {"\\$ 5", 5},
                                      {"\xE2\x82\xAC"
                                       "5",
                                       5},
                                      {"\xC2\xA3"
                                       "5",
                                       5},
                                      {"\xC2\xA3\n5", 5},
                                      {"$5.", 5},
                                      {"$$5$", 5},
                                      {"$$5$$", 5}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    double number;
    if (!whole(cases[i].text, &number) || number != cases[i].number) fail_msg("'%s': %g", cases[i].text, number);
  }
}

static void anything_else_in_the_text_makes_it_no_number(void **state) {
  (void)state;
  static const char *const cases[] = {"",
                                      " ",
                                      "\n",
                                      ".",
                                      "$",
                                      "$$",
                                      "{}",
                                      "{",
                                      "}",
                                      "{ }",
                                      "\\$",
                                      "\xE2\x82\xAC",
                                      "\xC2\xA3",
                                      "x",
                                      "5x",
                                      "x5",
                                      "5 x",
                                      "5..",
                                      "5. .",
                                      "{5",
                                      "5}",
                                      "{5)",
                                      "(5}",
                                      "(5)",
                                      "5$",
                                      "$5}",
                                      "{5$",
                                      "$\xE2\x82\xAC"
                                      "5",
                                      "\\$$5",
                                      "\xC2\xA3$5",
                                      "\xC2\xA3\xC2\xA3"
                                      "5",
                                      "5%",
                                      "5\xE2\x82\xAC",
                                      "3 5",
                                      "3,5",
                                      "x=5",
                                      "2^5",
                                      "\xE2\x82"
                                      "5",
                                      "-$5"};
  for (size_t i = 0; i < COUNT(cases); i++) {
    double number;
    if (whole(cases[i], &number)) fail_msg("'%s' is taken for %g", cases[i], number);
  }
}

static void a_gold_is_what_follows_its_last_marker(void **state) {
  (void)state;
  static const struct text cases[] = {{"5", 5},         {"####5", 5},          {"#### 5\n", 5},
                                      {"3 #### 5", 5},  {"3\n#### $5.", 5},    {"#### x #### 5", 5},
                                      {"########5", 5}, {"#### 3 ####\n5", 5}, {"####12", 12}};
  struct number n;
  for (size_t i = 0; i < COUNT(cases); i++)
    if (!number_gold(cases[i].text, &n) || n.approximate != cases[i].number) fail_msg("'%s'", cases[i].text);
  static const char *const none[] = {"", "####", "5 ####", "5 #### x", "### 5", "#####5", "#### 3 5"};
  for (size_t i = 0; i < COUNT(none); i++)
    if (number_gold(none[i], &n)) fail_msg("'%s' is taken for %g", none[i], n.approximate);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_last_number_is_the_one),
      cmocka_unit_test(a_sign_behind_an_operand_is_an_operator),
      cmocka_unit_test(a_working_is_read_to_its_last_number),
      cmocka_unit_test(the_last_number_is_that_of_a_reading_from_the_beginning),
      cmocka_unit_test(a_zero_byte_is_a_character_like_others),
      cmocka_unit_test(a_letter_or_a_digit_beside_makes_it_another_word),
      cmocka_unit_test(an_operand_is_no_lone_number),
      cmocka_unit_test(a_bullet_is_no_operator),
      cmocka_unit_test(a_comma_behind_a_number_makes_a_list),
      cmocka_unit_test(a_colon_behind_a_digit_makes_a_ratio),
      cmocka_unit_test(brackets_around_the_number_alone_are_taken_off),
      cmocka_unit_test(unbalanced_brackets_stay),
      cmocka_unit_test(what_shares_brackets_with_the_number_is_one_with_it),
      cmocka_unit_test(delimiters_of_a_formula_are_no_brackets),
      cmocka_unit_test(a_macro_beside_the_number_works_on_it),
      cmocka_unit_test(what_ends_a_formula_or_its_line_leaves_the_number_alone),
      cmocka_unit_test(dollars_are_a_currency_or_delimit_a_formula),
      cmocka_unit_test(emphasis_is_no_operator),
      cmocka_unit_test(a_mark_that_emphasizes_nothing_is_an_operator),
      cmocka_unit_test(signs_of_mathematics_make_operands_and_other_characters_do_not),
      cmocka_unit_test(a_sign_is_whole_and_touches_the_number),
      cmocka_unit_test(a_whole_text_is_a_number_in_what_may_stand_around_one),
      cmocka_unit_test(anything_else_in_the_text_makes_it_no_number),
      cmocka_unit_test(a_gold_is_what_follows_its_last_marker),
  };
  return cmocka_run_group_tests_name("coordinator/lone_number", tests, NULL, NULL);
}

/* Rules of rewards: each verifier's table of cases, sums with weights, and their configuration.  What would break: a
 * wrong completion earns something, a part of a sum is lost or counted twice, a rule reads back as another one, what a
 * verifier has no use for is taken in silence, a pattern takes for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "services/coordinator/verifiers/regex.h"
#include "services/coordinator/verifiers/reward_config.h"
#include "tests/unit/base/cm.h"

static struct arena arena = ARENA_INIT;

static enum rc rule_of(struct reward_rule *out, const char *text, struct err *err) {
  struct json *v = NULL;
  bool shuffle = false;
  reward_rule_of(out, VERIFIER_NUMERIC);
  enum rc rc = json_parse(&v, text, strlen(text), 0, err);
  if (rc == RC_OK) rc = reward_rule_read(out, v, &shuffle, &arena, err);
  json_free(v);
  return rc;
}

static struct reward_verdict judged(const char *rule_text, const char *text, const char *answer, const char *extra,
                                    int64_t tokens) {
  struct reward_rule rule;
  struct reward_verdict v;
  struct err err = {0};
  if (rule_of(&rule, rule_text, &err) != RC_OK) fail_msg("%s: %s: %s", rule_text, err.field, err.message);
  const struct reward_input input = {text, strlen(text), answer, extra, tokens, 100};
  reward_judge(&rule, &input, &v);
  return v;
}

struct line {
  const char *rule, *text, *answer;
  double reward;
  bool well_formed;
};

static void check(const struct line *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct line *c = &cases[i];
    const struct reward_verdict v = judged(c->rule, c->text, c->answer, "{}", 0);
    if (v.reward != c->reward || v.well_formed != c->well_formed)
      fail_msg("%s: '%s' against '%s': reward %g, well formed %d (%s), expected %g, %d", c->rule, c->text, c->answer,
               v.reward, v.well_formed, v.detail, c->reward, c->well_formed);
  }
}
#define CHECK(cases) check(cases, sizeof(cases) / sizeof *(cases))

static void a_choice_is_one_letter(void **state) {
  (void)state;
  static const struct line cases[] = {
#define C "{\"kind\":\"choice\"}"
      {C, "The answer is B.", "B", 1, true},
      {C, "The answer is (B)", "B", 1, true},
      {C, "\\boxed{B}", "B", 1, true},
      {C, "\\boxed{\\text{(B)}}", "B", 1, true},
      {C, "**Answer:** B) Paris", "B", 1, true},
      {C, "so (b)", "(B)", 1, true},
      {C, "A is wrong, and so is (C).\nB", "B", 0, true},
      {C, "It must be\nB.", "B", 1, true},
      {C, "The answer is C", "B", 0, true},
      {C, "\\boxed{A}", "B", 0, true},
      {C, "B or C", "B", 0, false},
      {C, "I do not know", "B", 0, false},
      {C, "", "B", 0, false},
      {C, "The answer is a matter of taste: D", "D", 1, true},
      {C, "The answer is A' or Bee", "B", 0, false},
      {C, "\\boxed{K}", "B", 0, false},
      {C, "answer is \\textbf{D}", "D) 12", 1, true},
      {C, "The answer is: I think it is B", "B", 1, true},
      {C, "The answer is: I think it is B", "I", 0, true},
      {C, "The answer is: I am sure that it is **I**", "I", 1, true},
      {C, "Answer: I\xe2\x80\x99m for B", "B", 1, true},
      {C, "Answer: A closer look says (B)", "B", 1, true},
      {C, "The answer is A because B and C are wrong", "A", 1, true},
      {C, "The answer is A", "A", 1, true},
      {C, "The answer is I.", "I", 1, true},
      {C, "The answer is A obviously", "A", 1, true},
      {C, "The answer is (A) since B is wrong", "A", 1, true},
#undef C
  };
  CHECK(cases);
}

static void exact_is_letter_by_letter(void **state) {
  (void)state;
  static const struct line cases[] = {
      {"{\"kind\":\"exact\"}", " Paris \n", "Paris", 1, true},
      {"{\"kind\":\"exact\"}", "paris", "Paris", 0, true},
      {"{\"kind\":\"exact\",\"ignore_case\":true}", "pARIS", "Paris", 1, true},
      {"{\"kind\":\"exact\",\"ignore_case\":true}", "Pari", "Paris", 0, true},
      {"{\"kind\":\"exact\"}", "It is \\boxed{Paris}", "Paris", 1, true},
      {"{\"kind\":\"exact\"}", "so\n#### Paris", "Paris", 1, true},
      {"{\"kind\":\"exact\",\"whole\":true}", "It is \\boxed{Paris}", "Paris", 0, true},
      {"{\"kind\":\"exact\",\"whole\":true}", "Paris", " Paris", 1, true},
      {"{\"kind\":\"exact\"}", "Paris, France", "Paris", 0, true},
      {"{\"kind\":\"exact\"}", "The answer is St. Louis", "St. Louis", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is **St. Louis**. It lies in Missouri.", "St. Louis", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is St. Paul. It lies in Minnesota.", "St. Louis", 0, true},
      {"{\"kind\":\"exact\"}", "The answer is U.S.A.", "U.S.A.", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is U.S.A. and no other", "U.S.A.", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is U.S.A.", "U.S.A", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is Paris. It lies in France.", "Paris", 1, true},
      {"{\"kind\":\"exact\"}", "The answer is Paris France.", "Paris", 0, true},
      {"{\"kind\":\"exact\"}", "The answer is Parisian.", "Paris", 0, true},
      {"{\"kind\":\"exact\"}", "The answer is 3.5", "3", 0, true},
      {"{\"kind\":\"exact\"}", "", "Paris", 0, false},
      {"{\"kind\":\"exact\"}", "  ", "Paris", 0, false},
  };
  CHECK(cases);
}

static void a_pattern_matches_within_its_bounds(void **state) {
  static char long_text[60002];
  (void)state;
  static const struct line cases[] = {
      {"{\"kind\":\"regex\",\"pattern\":\"^a+$\"}", "aaa", "", 1, true},
      {"{\"kind\":\"regex\",\"pattern\":\"^a+$\"}", "aab", "", 0, true},
      {"{\"kind\":\"regex\",\"pattern\":\"b\"}", "aab", "", 1, true},
      {"{\"kind\":\"regex\",\"pattern\":\"(?i)B\"}", "aab", "", 1, true},
      {"{\"kind\":\"regex\",\"pattern\":\"(?s)<a>.*</a>\"}", "x <a>\n</a>", "", 1, true},
      {"{\"kind\":\"regex\"}", "42 apples", "^\\d+ apples$", 1, true},
      {"{\"kind\":\"regex\"}", "no apples", "^\\d+ apples$", 0, true},
      {"{\"kind\":\"regex\",\"pattern\":\"^.$\"}", "\xc3\xa4", "", 1, true},
      {"{\"kind\":\"regex\",\"pattern\":\"a\"}",
       "\xff\xfe"
       "a",
       "", 1, true},
      {"{\"kind\":\"regex\",\"pattern\":\"(a+)+$\"}", "aaaaaaaaaaaaaaaaaaaab", "", 0, false},
      {"{\"kind\":\"regex\",\"pattern\":\"(a+)+$\"}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "", 0, false},
      {"{\"kind\":\"regex\",\"pattern\":\"^(\\\\w+\\\\s?)*$\"}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
       "", 0, false},
  };
  CHECK(cases);
  memset(long_text, 'a', sizeof long_text - 2);
  long_text[sizeof long_text - 2] = 'b';
  assert_true(judged("{\"kind\":\"regex\",\"pattern\":\"(a|aa)+$\"}", long_text, "", "{}", 0).reward == 0);
  struct err err = {0};
  assert_int_equal(regex_check("a(b", "x", &err), RC_INVALID);
  assert_string_equal(err.field, "x");
  assert_non_null(strstr(err.message, "at byte 3"));
}

static void regex_of_many(const char *pattern, const char *unit, const char *end, double reward, bool well_formed,
                          const char *detail) {
  static char text[1 << 17];
  const size_t len = strlen(unit);
  size_t n = 0;
  struct verdict v;
  for (; n + len + strlen(end) < sizeof text; n += len) memcpy(text + n, unit, len);
  memcpy(text + n, end, strlen(end));
  regex_verify(text, n + strlen(end), pattern, &v);
  if (v.reward != reward || v.well_formed != well_formed || strcmp(v.detail, detail) != 0)
    fail_msg("%s on many '%s': reward %g, well formed %d, %s", pattern, unit, v.reward, v.well_formed, v.detail);
}

/* PCRE2 counts the steps of each start alone: 128 KiB of "<answer>" took the first of these for 14 s. */
static void the_steps_of_all_starts_of_a_pattern_are_counted(void **state) {
  static const char reasoning[] = "(?s)<think>.*</think>\\s*<answer>.*</answer>";
  static const char steps[] = "the match took too many steps";
  (void)state;
  regex_of_many("<answer>.*</answer>", "<answer>", "", 0, false, steps);
  regex_of_many("\\d+\\s*$", "7", "x", 0, false, steps);
  regex_of_many(reasoning, "<think>", "", 0, false, steps);
  regex_of_many("(?i)(a*)\\1c", "a", "bc", 0, false, steps);
  /* but a long completion has its steps */
  regex_of_many(reasoning, "think ", "<think></think> <answer>5</answer>", 1, true, "matches");
  regex_of_many("(?s)^.*<answer>\\d+</answer>$", "7\n", "<answer>5</answer>", 1, true, "matches");
  regex_of_many("(?s)^.*<answer>\\d+</answer>", "7\n", "<answer></answer>", 0, true, "no match");
  regex_of_many("(\\w+) \\1", "ab ", "ac ac", 1, true, "matches");
}

static void a_json_value_fits_its_schema(void **state) {
  (void)state;
  static const struct {
    const char *schema, *text;
    double reward;
    bool well_formed;
  } cases[] = {
      {"{}", "7", 1, true},
      {"{}", "7 8", 0, false},
      {"{}", "", 0, false},
      {"{}", "{\"a\":1,}", 0, false},
      {"{\"type\":\"integer\"}", "7", 1, true},
      {"{\"type\":\"integer\"}", "7.0", 1, true},
      {"{\"type\":\"integer\"}", "7.5", 0, true},
      {"{\"type\":\"integer\"}", "-1e300", 1, true},
      {"{\"type\":\"integer\"}", "4503599627370495.5", 0, true},
      {"{\"type\":\"integer\"}", "\"7\"", 0, true},
      {"{\"type\":[\"null\",\"string\"]}", "null", 1, true},
      {"{\"type\":[\"null\",\"string\"]}", "1", 0, true},
      {"{\"type\":\"boolean\"}", "false", 1, true},
      {"{\"type\":\"number\",\"minimum\":1,\"exclusiveMaximum\":2}", "1", 1, true},
      {"{\"type\":\"number\",\"minimum\":1,\"exclusiveMaximum\":2}", "2", 0, true},
      {"{\"exclusiveMinimum\":1}", "1", 0, true},
      {"{\"maximum\":1}", "1.5", 0, true},
      {"{\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa4\xc3\xb6\"", 1, true},
      {"{\"minLength\":2,\"maxLength\":3}", "\"a\"", 0, true},
      {"{\"maxLength\":3}", "\"abcd\"", 0, true},
      {"{\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}", "[1,2]", 1, true},
      {"{\"items\":{\"type\":\"integer\"}}", "[1,\"2\"]", 0, true},
      {"{\"minItems\":1}", "[]", 0, true},
      {"{\"maxItems\":1}", "[1,2]", 0, true},
      {"{\"enum\":[1,\"a\",[2]]}", "[2]", 1, true},
      {"{\"enum\":[1,\"a\",[2]]}", "[3]", 0, true},
      {"{\"const\":{\"a\":1.0}}", "{\"a\":1}", 1, true},
      {"{\"const\":{\"a\":1}}", "{\"b\":1}", 0, true},
      {"{\"required\":[\"a\"]}", "{\"a\":0}", 1, true},
      {"{\"required\":[\"a\"]}", "{\"b\":0}", 0, true},
      {"{\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":false}", "{\"a\":\"x\"}", 1, true},
      {"{\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":false}", "{\"a\":\"x\",\"b\":1}", 0,
       true},
      {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", "{\"a\":1}", 0, true},
      {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", "{\"b\":1}", 1, true},
      {"{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":5}]}", "6", 1, true},
      {"{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":5}]}", "4", 0, true},
      {"{\"type\":\"object\"}", "Here it is:\n```json\n{\"a\": 1}\n```\nDone.", 1, true},
      {"{\"type\":\"object\"}", "```\n[]\n```\n```json\n{}\n```", 1, true},
      {"{\"type\":\"object\"}", "```json\n{}", 0, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char rule[512], extra[512];
    snprintf(rule, sizeof rule, "{\"kind\":\"json_schema\",\"schema\":%s}", cases[i].schema);
    snprintf(extra, sizeof extra, "{\"schema\":%s}", cases[i].schema);
    const struct reward_verdict v = judged(rule, cases[i].text, "", "{}", 0),
                                of_line = judged("{\"kind\":\"json_schema\"}", cases[i].text, "", extra, 0);
    if (v.reward != cases[i].reward || v.well_formed != cases[i].well_formed || of_line.reward != v.reward ||
        of_line.well_formed != v.well_formed)
      fail_msg("%s: %s: reward %g, well formed %d (%s); by its line %g, %d", cases[i].schema, cases[i].text, v.reward,
               v.well_formed, v.detail, of_line.reward, of_line.well_formed);
  }
}

static void a_format_is_its_tags_in_order(void **state) {
  (void)state;
  static const struct line cases[] = {
#define F "{\"kind\":\"format\"}"
      {F, "<think>a</think><answer>b</answer>", "", 1, true},
      {F, " <think>a</think>\n\n<answer></answer>\n", "", 1, true},
      {F, "<answer>b</answer><think>a</think>", "", 0, true},
      {F, "<think>a</think><answer>b</answer> or so", "", 0, true},
      {F, "Well. <think>a</think><answer>b</answer>", "", 0, true},
      {F, "<think>a</think> so <answer>b</answer>", "", 0, true},
      {F, "<think>a<answer>b</answer>", "", 0, true},
      {F, "<think>a</think><think>a</think><answer>b</answer>", "", 0, true},
      {F, "</think><think><answer>b</answer>", "", 0, true},
      {F, "<think>a<think></think><answer>b</answer>", "", 0, true},
      {F, "", "", 0, true},
#undef F
      {"{\"kind\":\"format\",\"tags\":[\"a\"]}", "<a>1</a>", "", 1, true},
      {"{\"kind\":\"format\",\"tags\":[\"a\"]}", "<think>a</think><answer>b</answer>", "", 0, true},
  };
  CHECK(cases);
}

static void lengths_are_judged_by_tokens(void **state) {
  (void)state;
  static const struct {
    const char *rule;
    int64_t tokens;
    double reward;
  } cases[] = {
      {"{\"kind\":\"length\",\"max\":10}", 10, 1},         {"{\"kind\":\"length\",\"max\":10}", 11, 0},
      {"{\"kind\":\"length\",\"min\":5}", 4, 0},           {"{\"kind\":\"length\",\"min\":5}", 5, 1},
      {"{\"kind\":\"length\",\"min\":5,\"max\":5}", 5, 1}, {"{\"kind\":\"length\",\"min\":5}", 100000, 1},
      {"{\"kind\":\"overlong\",\"buffer\":20}", 80, 0},    {"{\"kind\":\"overlong\",\"buffer\":20}", 85, -0.25},
      {"{\"kind\":\"overlong\",\"buffer\":20}", 100, -1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const double got = judged(cases[i].rule, "", "", "{}", cases[i].tokens).reward;
    if (got != cases[i].reward)
      fail_msg("%s: %lld tokens: %g, expected %g", cases[i].rule, (long long)cases[i].tokens, got, cases[i].reward);
  }
}

static void a_sum_has_all_its_parts(void **state) {
  (void)state;
  const char *rule =
      "{\"terms\":[{\"kind\":\"math\"},{\"kind\":\"format\",\"tags\":[\"a\"],\"weight\":0.25},{\"kind\":\"overlong\","
      "\"buffer\":20,\"weight\":0.5}]}";
  struct reward_verdict v = judged(rule, "<a>\\boxed{\\frac14}</a>", "0.25", "{}", 90);
  assert_true(v.reward == 1 + 0.25 - 0.25);
  assert_true(v.values[0] == 1 && v.values[1] == 1 && v.values[2] == -0.5);
  assert_string_equal(v.detail, "math 1, format 1 x 0.25, overlong -0.5 x 0.5; answer \\frac14, expected 0.25");
  v = judged(rule, "none here, and nothing that could be taken for one either", "0.25", "{}", 0);
  assert_true(v.reward == 0);
  assert_false(v.well_formed);
  v = judged("{\"terms\":[{\"kind\":\"numeric\",\"weight\":-2},{\"kind\":\"numeric\",\"weight\":3}]}", "7", "7", "{}",
             0);
  assert_true(v.reward == 1);
  v = judged("{\"kind\":\"numeric\"}", "7", "8", "{}", 0);
  assert_string_equal(v.detail, "answer 7, expected 8");
}

static void what_a_rule_cannot_be_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *rule, *field;
  } cases[] = {{"{\"kind\":\"maths\"}", "kind"},
               {"{\"kind\":\"math\",\"weight\":2}", "weight"},
               {"{\"kind\":\"math\",\"pattern\":\"a\"}", "pattern"},
               {"{\"kind\":\"regex\",\"pattern\":\"a(\"}", "pattern"},
               {"{\"kind\":\"exact\",\"tags\":[\"a\"]}", "tags"},
               {"{\"kind\":\"math\",\"ignore_case\":true}", "ignore_case"},
               {"{\"kind\":\"math\",\"whole\":false}", "whole"},
               {"{\"kind\":\"format\",\"tags\":[]}", "tags"},
               {"{\"kind\":\"format\",\"tags\":[\"a b\"]}", "tags"},
               {"{\"kind\":\"format\",\"tags\":[\"a\",\"a\"]}", "tags"},
               {"{\"kind\":\"length\"}", "max"},
               {"{\"kind\":\"length\",\"min\":0}", "max"},
               {"{\"kind\":\"length\",\"min\":5,\"max\":4}", "max"},
               {"{\"kind\":\"math\",\"min\":5}", "min"},
               {"{\"kind\":\"overlong\"}", "buffer"},
               {"{\"kind\":\"length\",\"max\":4,\"buffer\":4}", "buffer"},
               {"{\"kind\":\"json_schema\",\"schema\":{\"oneOf\":[]}}", "schema"},
               {"{\"kind\":\"json_schema\",\"schema\":{\"type\":\"text\"}}", "schema"},
               {"{\"kind\":\"json_schema\",\"schema\":{\"minimum\":\"1\"}}", "schema"},
               {"{\"kind\":\"json_schema\",\"schema\":{\"properties\":{\"a\":{\"pattern\":\"b\"}}}}", "schema"},
               {"{\"kind\":\"json_schema\",\"schema\":[]}", "schema"},
               {"{\"terms\":[]}", "terms"},
               {"{\"terms\":[{\"kind\":\"math\"}],\"kind\":\"math\"}", "kind"},
               {"{\"terms\":[{\"weight\":1}]}", "terms[0].kind"},
               {"{\"terms\":[{\"kind\":\"math\"},{\"kind\":\"math\",\"weight\":1e9}]}", "terms[1].weight"},
               {"{\"terms\":[{\"kind\":\"math\",\"shuffle_rewards\":true}]}", "terms[0].shuffle_rewards"},
               {"{\"kind\":\"math\",\"judge\":1}", "judge"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct reward_rule rule;
    struct err err = {0};
    if (rule_of(&rule, cases[i].rule, &err) != RC_INVALID || strcmp(err.field, cases[i].field) != 0)
      fail_msg("%s: field '%s': %s", cases[i].rule, err.field, err.message);
  }
}

static void a_rule_reads_back_as_it_was_written(void **state) {
  (void)state;
  static const char *const rules[] = {
      "{\"kind\":\"numeric\"}",
      "{\"kind\":\"math\"}",
      "{\"kind\":\"regex\",\"pattern\":\"a+\"}",
      "{\"kind\":\"exact\",\"ignore_case\":true,\"whole\":true}",
      "{\"kind\":\"json_schema\",\"schema\":{\"type\":\"object\",\"required\":[\"a\"]}}",
      "{\"kind\":\"format\",\"tags\":[\"think\",\"answer\"]}",
      "{\"kind\":\"length\",\"min\":3,\"max\":9}",
      "{\"terms\":[{\"kind\":\"math\",\"weight\":1},{\"kind\":\"overlong\",\"buffer\":8,\"weight\":0.5}]}",
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    struct reward_rule rule;
    struct buf text = BUF_INIT;
    struct json_writer w;
    assert_int_equal(rule_of(&rule, rules[i], NULL), RC_OK);
    json_writer_init(&w, &text);
    json_object_begin(&w);
    reward_rule_write(&rule, &w);
    json_object_end(&w);
    if (text.len != strlen(rules[i]) || memcmp(text.data, rules[i], text.len) != 0)
      fail_msg("%s: %.*s", rules[i], (int)text.len, text.data);
    buf_free(&text);
  }
}

static int free_arena(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

/* A verifier that has no name, or that the contract does not list in the same order, would be noticed by nobody else
 * before somebody asks for it. */
static void the_contract_lists_every_verifier(void **state) {
  (void)state;
  struct buf contract = BUF_INIT;
  char list[256] = "enum: [";
  struct err err = {0};
  for (int i = 0; i <= VERIFIER_HTTP; i++) {
    const char *name = verifier_name((enum verifier_kind)i);
    assert_non_null(name);
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", name);
  }
  assert_int_equal(file_read(&contract, "openapi/coordinator.yaml", 1 << 24, &err), RC_OK);
  int found = 0;
  for (const char *at = contract.data; (at = strstr(at, list)); at += strlen(list)) found++;
  if (found != 4) fail_msg("openapi/coordinator.yaml has '%s' %d times, 4 were expected", list, found);
  buf_free(&contract);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_choice_is_one_letter),
      cmocka_unit_test(exact_is_letter_by_letter),
      cmocka_unit_test(a_pattern_matches_within_its_bounds),
      cmocka_unit_test(the_steps_of_all_starts_of_a_pattern_are_counted),
      cmocka_unit_test(a_json_value_fits_its_schema),
      cmocka_unit_test(a_format_is_its_tags_in_order),
      cmocka_unit_test(lengths_are_judged_by_tokens),
      cmocka_unit_test(a_sum_has_all_its_parts),
      cmocka_unit_test(what_a_rule_cannot_be_is_refused),
      cmocka_unit_test(a_rule_reads_back_as_it_was_written),
      cmocka_unit_test(the_contract_lists_every_verifier),
  };
  return cmocka_run_group_tests(tests, NULL, free_arena);
}

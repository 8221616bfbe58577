/* Verifiers over hostile completions: the first byte chooses the verifier, then gold, NUL, completion.  A verdict is
 * the same when it is given again, and a gold of math that may be judged by is its own answer.  Verdicts are bounded by
 * counted steps: libFuzzer's -timeout would show one that is not. */
#include <string.h>

#include "services/coordinator/verifiers/reward_config.h"
#include "tests/fuzz/fuzz.h"

enum { KINDS = VERIFIER_OVERLONG + 2, TEXT_MAX = 6000 };
static struct reward_rule rules[KINDS];

static void rules_make(void) {
  if (rules[0].count > 0) return;
  for (int k = 0; k <= VERIFIER_OVERLONG; k++) reward_rule_of(&rules[k], (enum verifier_kind)k);
  reward_rule_of(&rules[VERIFIER_OVERLONG + 1], VERIFIER_REGEX);
  rules[VERIFIER_OVERLONG + 1].terms[0].pattern = "(a|aa)+$|(\\w+\\s?)*x";
}

static void gold_is_its_own_answer(const struct reward_rule *rule, const char *gold, const char *extra) {
  char own[TEXT_MAX + 16];
  struct reward_verdict v;
  if (rule->terms[0].kind != VERIFIER_MATH || reward_line_check(rule, gold, extra, NULL) != RC_OK) return;
  if (strpbrk(gold, "\\{}#$")) return; /* what stands around an answer */
  snprintf(own, sizeof own, "\\boxed{%s}", gold);
  const struct reward_input same = {own, strlen(own), gold, extra, 1, 100};
  reward_judge(rule, &same, &v);
  FUZZ_CHECK(v.reward == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const extras[] = {
      "{}", "{\"schema\":{\"type\":\"object\",\"required\":[\"a\"]},\"numbers\":[1,2],\"target\":3}"};
  struct reward_verdict v, again;
  char gold[TEXT_MAX + 1];
  rules_make();
  if (size < 1 || size > TEXT_MAX) return 0;
  const struct reward_rule *rule = &rules[data[0] % KINDS];
  const char *extra = extras[data[0] / 128], *text = (const char *)data + 1, *end = memchr(text, 0, size - 1);
  const size_t gold_len = end ? (size_t)(end - text) : 0;
  memcpy(gold, text, gold_len);
  gold[gold_len] = 0;
  if (end) text = end + 1;
  const struct reward_input input = {
      text, size - (size_t)(text - (const char *)data), gold, extra, (int64_t)(size % 100), 100};
  reward_judge(rule, &input, &v);
  reward_judge(rule, &input, &again);
  FUZZ_CHECK(v.reward == again.reward && v.vote == again.vote && strcmp(v.detail, again.detail) == 0);
  gold_is_its_own_answer(rule, gold, extra);
  return 0;
}

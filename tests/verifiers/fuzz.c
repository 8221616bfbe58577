/* Fuzzes the verifiers: pairs of the table and a few lines for each other kind, cut, joined and changed by a counted stream of random numbers, for so many seconds.
 * Built with the address and undefined-behaviour sanitizers (make fuzz-verifiers); fails too when a verdict takes longer than a second of processor time, differs when it is given
 * again, or a gold that may be judged by is not its own answer.
 *
 *   fuzz SECONDS [SEED] < tests/verifiers/math_pairs.txt */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "services/coordinator/verifiers/reward_config.h"

enum { SEEDS_MAX = 4096, TEXT_MAX = 6000 };

static char *seeds[SEEDS_MAX];
static int seed_count;
static uint64_t state;

static uint64_t draw(uint64_t below) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t x = state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) % below;
}

static const char *const parts[] = {"\\frac{", "}{", "}", "{", "\\sqrt{", "\\sqrt[3]{", "^", "_", "\\left(", "\\right)", "(", ")", "[", "]", "\\{", "\\}", ",", "|",
                                    "\\text{", "\\boxed{", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "\\pm", "\\cup", "\\infty", "!", "%", "^\\circ", "=", "<",
                                    "\\le", "\\sin", "\\log_", "\\binom{", "-", "+", "*", "/", "0", "9999999999", "1e999", ".", "x", "e", "i", "\\pi", "$", " and ", "####",
                                    "answer is ", "<think>", "</think>", "```json", "```", "{\"a\":[1,{\"b\":null}]}", "\xff\xfe", "\xe2\x88\x9a", "\n", "(B)", "a*", "(a+)+$",
                                    "\\overline{", "1,234", "2^{999}", "\\arcsin", "170!"};

static size_t make(char *out) {
  size_t n = 0;
  const char *from = seeds[draw((uint64_t)seed_count)];
  n = strlen(from) < TEXT_MAX ? strlen(from) : TEXT_MAX;
  memcpy(out, from, n);
  for (uint64_t edits = draw(8); edits > 0; edits--) {
    const size_t at = n ? (size_t)draw(n + 1) : 0;
    switch (draw(5)) {
      case 0: /* a byte */
        if (at < n) out[at] = (char)draw(256);
        break;
      case 1: { /* cut */
        const size_t len = n > at ? (size_t)draw(n - at + 1) : 0;
        memmove(out + at, out + at + len, n - at - len);
        n -= len;
        break;
      }
      case 2: { /* again, many times */
        const size_t len = n > at ? (size_t)draw((n - at < 12 ? n - at : 12) + 1) : 0;
        for (uint64_t times = draw(60); times > 0 && len && n + len < TEXT_MAX; times--) {
          memmove(out + at + len, out + at, n - at);
          n += len;
        }
        break;
      }
      default: { /* a part */
        const char *p = parts[draw(sizeof parts / sizeof *parts)];
        const size_t len = strlen(p);
        if (n + len >= TEXT_MAX) break;
        memmove(out + at + len, out + at, n - at);
        memcpy(out + at, p, len);
        n += len;
      }
    }
  }
  out[n] = 0;
  return n;
}

static int fail(const char *what, const char *text, size_t len, const char *gold) {
  fprintf(stderr, "fuzz: %s: gold '%s', completion '%.*s'\n", what, gold, (int)len, text);
  return 1;
}

static int once(struct reward_rule *rule) {
  static char text[TEXT_MAX + 1], gold[TEXT_MAX + 1], own[TEXT_MAX + 16];
  struct reward_verdict v, again;
  const size_t len = make(text);
  make(gold);
  const char *extra = draw(2) ? "{}" : "{\"schema\":{\"type\":\"object\",\"required\":[\"a\"]},\"numbers\":[1,2],\"target\":3}";
  const struct reward_input input = {text, len, gold, extra, (int64_t)draw(100), 100};
  const clock_t begun = clock(); /* of the processor, so that a busy machine is no fault */
  reward_judge(rule, &input, &v);
  if (clock() - begun > CLOCKS_PER_SEC) return fail("a verdict took more than a second", text, len, gold);
  reward_judge(rule, &input, &again);
  if (v.reward != again.reward || strcmp(v.detail, again.detail) != 0) return fail("another verdict for the same text", text, len, gold);
  if (rule->terms[0].kind != VERIFIER_MATH || reward_line_check(rule, gold, extra, NULL) != RC_OK || strchr(gold, '\\') || strpbrk(gold, "{}#$")) return 0;
  snprintf(own, sizeof own, "\\boxed{%s}", gold);
  const struct reward_input same = {own, strlen(own), gold, extra, 1, 100};
  reward_judge(rule, &same, &v);
  return v.reward == 1 ? 0 : fail("a gold is not its own answer", own, strlen(own), gold);
}

int main(int argc, char **argv) {
  static char line[1 << 14];
  const int64_t seconds = argc > 1 ? atoll(argv[1]) : 10;
  state = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
  while (seed_count < SEEDS_MAX && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    char *comment = strstr(line, "  ## ");
    if (comment) *comment = 0;
    if (strlen(line) > 2 && line[0] != '#') seeds[seed_count++] = strdup(line + 2);
  }
  if (seed_count == 0) return fail("no seeds", "", 0, "");
  struct reward_rule rules[VERIFIER_OVERLONG + 2];
  int count = 0, rc = 0;
  for (int k = 0; k <= VERIFIER_OVERLONG; k++) reward_rule_of(&rules[count++], (enum verifier_kind)k);
  reward_rule_of(&rules[count], VERIFIER_REGEX);
  rules[count++].terms[0].pattern = "(a|aa)+$|(\\w+\\s?)*x";
  int64_t rounds = 0;
  const int64_t until = clock_monotonic_us() + seconds * 1000000;
  while (rc == 0 && clock_monotonic_us() < until) {
    /* half of the rounds are for math */
    rc = once(&rules[draw(2) ? (int)VERIFIER_MATH : (int)draw((uint64_t)count)]);
    rounds++;
  }
  for (int i = 0; i < seed_count; i++) free(seeds[i]);
  printf("fuzz: %lld texts\n", (long long)rounds);
  return rc;
}

/* What is remembered of prompts' samples.  What would break: another prompt's or run's lengths, an expectation that
 * does not follow a policy that says more than it did, memory beyond the dataset. */
#include "services/coordinator/pool/prompt_lengths.h"
#include "tests/unit/base/cm.h"

enum { PROMPTS = 4, RUN = 7 };

static struct prompt_lengths begun(void) {
  struct prompt_lengths p = {0};
  struct err err = {0};
  assert_int_equal(prompt_lengths_begin(&p, RUN, PROMPTS, &err), RC_OK);
  return p;
}

static float expected_of(const struct prompt_lengths *p, int64_t run, int32_t prompt) {
  float out = -1;
  const bool known = prompt_lengths_expect(p, run, &prompt, 1, &out);
  assert_true(known == (out > 0));
  return out;
}

static void each_prompt_is_expected_to_be_as_it_was_last(void **state) {
  (void)state;
  struct prompt_lengths p = begun();
  const int32_t prompts[] = {2, 0, 3, -1, PROMPTS};
  float out[5];
  assert_false(prompt_lengths_expect(&p, RUN, prompts, 5, out));
  prompt_lengths_note(&p, RUN, 2, 40, 0);
  prompt_lengths_note(&p, RUN, 3, 10, 0);
  prompt_lengths_note(&p, RUN, PROMPTS, 99, 0);
  prompt_lengths_note(&p, RUN, -1, 99, 0);
  prompt_lengths_note(&p, RUN, 0, 0, 0); /* nothing was said: that is no length to plan by */
  assert_true(prompt_lengths_expect(&p, RUN, prompts, 5, out));
  assert_true(out[0] == 40 && out[1] == 0 && out[2] == 10 && out[3] == 0 && out[4] == 0);
  prompt_lengths_free(&p);
}

static void other_runs_are_told_apart(void **state) {
  (void)state;
  struct prompt_lengths p = begun();
  struct err err = {0};
  prompt_lengths_note(&p, RUN + 1, 2, 40, 0);
  assert_true(expected_of(&p, RUN, 2) == 0);
  prompt_lengths_note(&p, RUN, 2, 40, 0);
  assert_true(expected_of(&p, RUN + 1, 2) == 0);
  assert_int_equal(prompt_lengths_begin(&p, RUN + 1, PROMPTS, &err), RC_OK);
  assert_true(expected_of(&p, RUN + 1, 2) == 0);
  prompt_lengths_free(&p);
  assert_true(expected_of(&p, RUN + 1, 2) == 0);
}

/* The second epoch's first groups are half as long again; so what was not sampled yet is expected to be. */
static void expectations_follow_the_policy(void **state) {
  (void)state;
  struct prompt_lengths p = begun();
  for (int i = 0; i < PROMPTS; i++) prompt_lengths_note(&p, RUN, i, 100 + i, 0);
  assert_true(expected_of(&p, RUN, 3) == 103);
  prompt_lengths_note(&p, RUN, 0, 150, 1000);
  prompt_lengths_note(&p, RUN, 1, 151.5, 1000);
  assert_float_equal(expected_of(&p, RUN, 3), 103 * 1.5f, 0.1f);
  prompt_lengths_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_prompt_is_expected_to_be_as_it_was_last),
      cmocka_unit_test(other_runs_are_told_apart),
      cmocka_unit_test(expectations_follow_the_policy),
  };
  return cmocka_run_group_tests_name("prompt_lengths", tests, NULL, NULL);
}

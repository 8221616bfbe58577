/* Which version counts as current when the coordinator's answers overtake each other: pure, no server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "services/generation-server/weights/current_policy.h"

static struct current_version version_of(const char *run, int64_t version) {
  return (struct current_version){.has = true, .run = run, .version = version, .trainer_url = "http://trainer"};
}

/* Tells the version; was it believed? */
static bool tell(struct current_policy *c, const char *run, int64_t version) {
  const struct current_version told = version_of(run, version);
  const bool news = current_policy_is_news(c, &told);
  if (news) current_policy_set(c, &told);
  return news;
}

static void the_first_and_every_newer_version_is_believed(void **state) {
  (void)state;
  struct current_policy c = {0};
  assert_true(tell(&c, "r1", 5));
  assert_true(c.known);
  assert_string_equal(c.trainer_url, "http://trainer");
  assert_true(tell(&c, "r1", 5));
  assert_true(tell(&c, "r1", 6));
  assert_true(tell(&c, "r2", 0));
  assert_string_equal(c.policy.run, "r2");
  assert_int_equal(c.policy.version, 0);
}

static void an_older_version_is_believed_only_when_told_three_times_in_a_row(void **state) {
  (void)state;
  struct current_policy c = {0};
  assert_true(tell(&c, "r2", 5));
  assert_false(tell(&c, "r2", 4));
  assert_false(tell(&c, "r1", 9));
  assert_true(tell(&c, "r2", 5)); /* so both were overtaken */
  assert_false(tell(&c, "r1", 9));
  assert_false(tell(&c, "r1", 9));
  assert_true(tell(&c, "r1", 9)); /* so that run was resumed */
  assert_string_equal(c.policy.run, "r1");
  assert_false(tell(&c, "r1", 8)); /* counted anew */
}

static void a_forgotten_version_gives_way_to_any(void **state) {
  (void)state;
  struct current_policy c = {0};
  assert_true(tell(&c, "r9", 5));
  c.known = false;
  assert_true(tell(&c, "r1", 0));
}

static struct policy policy_of(const char *run, int64_t version, uint8_t weights) {
  struct policy p = {.version = version};
  snprintf(p.run, sizeof p.run, "%s", run);
  p.digest.bytes[0] = weights;
  return p;
}

static void an_announced_push_is_current_unless_a_newer_version_is_known(void **state) {
  (void)state;
  struct current_policy c = {0};
  const struct policy first = policy_of("r2", 5, 1), older = policy_of("r2", 4, 2), same = policy_of("r2", 5, 3),
                      newer = policy_of("r2", 7, 4), earlier_run = policy_of("r1", 9, 5),
                      next_run = policy_of("r3", 0, 6);
  current_policy_announced(&c, &first);
  assert_true(c.known);
  assert_string_equal(c.trainer_url, "");
  assert_true(tell(&c, "r2", 6)); /* the coordinator knows where the trainer is */
  const struct policy *const ignored[] = {&first, &older, &same, &earlier_run};
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
    current_policy_announced(&c, ignored[i]);
    assert_int_equal(c.policy.version, 6);
  }
  current_policy_announced(&c, &newer);
  assert_int_equal(c.policy.version, 7);
  assert_true(digest_equal(&c.policy.digest, &newer.digest));
  assert_string_equal(c.trainer_url, "http://trainer");
  assert_false(tell(&c, "r2", 6)); /* an answer that the push has overtaken */
  current_policy_announced(&c, &next_run);
  assert_string_equal(c.policy.run, "r3");
  assert_string_equal(c.trainer_url, ""); /* that of another run's trainer would be wrong */
}

static void the_current_version_comes_first_then_an_announced_one(void **state) {
  (void)state;
  const struct policy v5 = policy_of("r1", 5, 1), v6 = policy_of("r1", 6, 2), v7 = policy_of("r1", 7, 3),
                      twin = policy_of("r1", 7, 1);
  struct current_policy c = {0};
  assert_null(current_policy_next(&c, &v5, &v6, true)); /* nothing is current yet */
  c = (struct current_policy){.known = true, .policy = v7};
  assert_null(current_policy_next(&c, &v7, &v6, true));  /* it decodes already */
  assert_null(current_policy_next(&c, &v5, NULL, true)); /* nothing is staged */
  assert_ptr_equal(current_policy_next(&c, &v5, &v7, false), &c.policy);
  assert_null(current_policy_next(&c, &v5, &v6, false)); /* superseded before it was announced */
  assert_ptr_equal(current_policy_next(&c, &v5, &v6, true), &v6);
  assert_ptr_equal(current_policy_next(&c, NULL, &v6, true), &v6);
  assert_null(current_policy_next(&c, &v6, &v5, true)); /* never back */
  assert_null(current_policy_next(&c, &v6, &v6, true));
  c.policy = twin; /* the active weights under another name */
  assert_ptr_equal(current_policy_next(&c, &v5, &v6, true), &c.policy);
}

static void a_push_is_awaited_for_its_grace(void **state) {
  (void)state;
  assert_true(current_policy_awaits_push(1000, 0, 1000));
  assert_true(current_policy_awaits_push(1000, 0, 999 + PUSH_GRACE_MS));
  assert_false(current_policy_awaits_push(1000, 0, 1000 + PUSH_GRACE_MS));
  assert_true(current_policy_awaits_push(1000, 2000, 1000 + PUSH_GRACE_MS)); /* one began to come meanwhile */
  assert_false(current_policy_awaits_push(1000, 2000, 2000 + PUSH_GRACE_MS));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_and_every_newer_version_is_believed),
      cmocka_unit_test(an_older_version_is_believed_only_when_told_three_times_in_a_row),
      cmocka_unit_test(a_forgotten_version_gives_way_to_any),
      cmocka_unit_test(an_announced_push_is_current_unless_a_newer_version_is_known),
      cmocka_unit_test(the_current_version_comes_first_then_an_announced_one),
      cmocka_unit_test(a_push_is_awaited_for_its_grace),
  };
  return cmocka_run_group_tests_name("current policy", tests, NULL, NULL);
}

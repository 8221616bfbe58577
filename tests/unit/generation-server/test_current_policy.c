/* Which version counts as current when the coordinator's answers overtake each other: pure, no server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_and_every_newer_version_is_believed),
      cmocka_unit_test(an_older_version_is_believed_only_when_told_three_times_in_a_row),
      cmocka_unit_test(a_forgotten_version_gives_way_to_any),
  };
  return cmocka_run_group_tests_name("current policy", tests, NULL, NULL);
}

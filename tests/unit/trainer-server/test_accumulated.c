/* The set of accumulated groups: a full round of them is found again, each once, and none that is not there. */
#include "tests/unit/trainer-server/support.h"

#include "services/trainer-server/engine/accumulated_groups.h"

static void a_full_round_is_found_again(void **state) {
  (void)state;
  struct accumulated *a = calloc(1, sizeof *a);
  char id[LIMIT_NAME_MAX];
  assert_non_null(a);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < LIMIT_GROUPS_PER_ROUND; i++) {
      snprintf(id, sizeof id, "r1.%d.%d", round, i);
      assert_null(accumulated_find(a, id));
      accumulated_add(a, id);
      assert_string_equal(accumulated_find(a, id)->id, id);
      assert_false(accumulated_find(a, id)->answered);
      accumulated_find(a, id)->answered = i % 3 == 0;
    }
    assert_int_equal(a->count, LIMIT_GROUPS_PER_ROUND);
    for (int i = 0; i < LIMIT_GROUPS_PER_ROUND; i++) {
      snprintf(id, sizeof id, "r1.%d.%d", round, i);
      const struct accumulated_group *g = accumulated_find(a, id);
      assert_non_null(g);
      assert_true(g->answered == (i % 3 == 0));
    }
    snprintf(id, sizeof id, "r1.%d.%d", round, LIMIT_GROUPS_PER_ROUND); /* a full table still ends a search */
    assert_null(accumulated_find(a, id));
    accumulated_clear(a);
    assert_int_equal(a->count, 0);
    snprintf(id, sizeof id, "r1.%d.0", round);
    assert_null(accumulated_find(a, id));
  }
  free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_round_is_found_again)};
  return cmocka_run_group_tests_name("trainer-server/accumulated", tests, NULL, NULL);
}

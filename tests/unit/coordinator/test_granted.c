/* The granted leases in memory. What would break: a result is judged by another lease than the one that it names, or by
 * one that has ended. */
#include <stdio.h>
#include <string.h>

#include "services/coordinator/pool/granted.h"
#include "tests/unit/base/cm.h"

static struct granted *table(void) {
  struct granted *g;
  assert_int_equal(granted_create(&g, NULL), RC_OK);
  return g;
}

static struct granted_lease lease(const char *id, int64_t fence) {
  return (struct granted_lease){
      .id = id, .fence = fence, .run = 7, .worker = 3, .answer = "42", .extra = "{}", .max_new_tokens = 16, .set = -1};
}

static void a_granted_lease_is_found_by_id_and_fence(void **state) {
  (void)state;
  struct granted *g = table();
  struct granted_lease l = lease("r7.0.1.0-3", 2), found;
  struct arena arena = ARENA_INIT;
  granted_note(g, &l);
  assert_true(granted_find(g, "r7.0.1.0-3", 2, &found, &arena));
  granted_end(g, "r7.0.1.0-3", 2); /* the copies stay */
  assert_string_equal(found.answer, "42");
  assert_string_equal(found.extra, "{}");
  assert_int_equal(found.run, 7);
  assert_int_equal(found.worker, 3);
  assert_int_equal(found.max_new_tokens, 16);
  assert_int_equal(found.set, -1);
  assert_false(granted_find(g, "r7.0.1.0-3", 2, &found, &arena));
  arena_free(&arena);
  granted_destroy(g);
}

static void another_fence_is_another_lease(void **state) {
  (void)state;
  struct granted *g = table();
  struct granted_lease first = lease("r7.0.1.0-3", 1), second = lease("r7.0.1.0-3", 2), found;
  granted_note(g, &first);
  granted_note(g, &second);
  assert_false(granted_find(g, "r7.0.1.0-3", 1, &found, NULL));
  granted_end(g, "r7.0.1.0-3", 1); /* the first one's end comes late */
  assert_true(granted_find(g, "r7.0.1.0-3", 2, &found, NULL));
  assert_false(granted_find(g, "r7.0.1.0-4", 2, &found, NULL));
  granted_destroy(g);
}

static void thousands_share_the_table(void **state) {
  (void)state;
  struct granted *g = table();
  struct granted_lease found;
  char id[32];
  for (int64_t i = 0; i < GRANTED_MAX + 10; i++) {
    snprintf(id, sizeof id, "r7.0.%d.0", (int)i);
    struct granted_lease l = lease(id, i + 1);
    granted_note(g, &l);
  }
  for (int64_t i = 0; i < GRANTED_MAX + 10; i += 1000) {
    snprintf(id, sizeof id, "r7.0.%d.0", (int)i);
    assert_true(granted_find(g, id, (uint64_t)i + 1, &found, NULL));
    assert_int_equal(found.fence, i + 1);
  }
  assert_false(granted_find(g, id, 1, &found, NULL));
  snprintf(id, sizeof id, "r7.0.%d.0", GRANTED_MAX + 9); /* there was no room: the database is asked */
  assert_false(granted_find(g, id, GRANTED_MAX + 10, &found, NULL));
  granted_destroy(g);
}

static void a_long_answer_is_not_kept(void **state) {
  (void)state;
  struct granted *g = table();
  char text[GRANTED_TEXT_BYTES + 1];
  struct granted_lease l = lease("r7.0.1.0-3", 1), found;
  memset(text, 'x', sizeof text);
  text[GRANTED_TEXT_BYTES] = 0;
  granted_note(g, &l);
  l.extra = text;
  granted_note(g, &l); /* nor what was known of the lease before */
  assert_false(granted_find(g, "r7.0.1.0-3", 1, &found, NULL));
  granted_destroy(g);
  granted_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_granted_lease_is_found_by_id_and_fence),
      cmocka_unit_test(another_fence_is_another_lease),
      cmocka_unit_test(thousands_share_the_table),
      cmocka_unit_test(a_long_answer_is_not_kept),
  };
  return cmocka_run_group_tests_name("coordinator/granted", tests, NULL, NULL);
}

/* Who is pushed to by broadcast: the same servers in the same order keep their communicator, any other list makes
 * another; one that failed by its own fault stays out while it is named; a broadcast that is lost again and again is
 * tried ever more seldom, and at once among others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "services/trainer-server/publish/pool_members.h"

static struct pool_members *members;

static int setup(void **state) {
  (void)state;
  members = calloc(1, sizeof *members);
  return members ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  free(members);
  return 0;
}

#define TARGET(id, at) \
  { .worker_id = (id), .url = "http://h:1", .shares_fabric = true, .fabric_place = (at) }
#define CHOOSE(...)                                                  \
  members_choose(members, (const struct push_target[]){__VA_ARGS__}, \
                 sizeof((const struct push_target[]){__VA_ARGS__}) / sizeof(struct push_target))
static const struct push_target alone = {.worker_id = "w9", .url = "http://h:9", .fabric_place = 3};

static void only_who_shares_the_fabric_is_a_member(void **state) {
  (void)state;
  assert_false(CHOOSE(TARGET("w1", 1), alone, TARGET("w2", 5)));
  assert_int_equal(members->count, 2);
  assert_int_equal(members_index(members, "w1"), 0);
  assert_int_equal(members_index(members, "w2"), 1);
  assert_int_equal(members_index(members, "w9"), -1);
  assert_int_equal(members->members[1].place, 5);
  assert_true(members_ready(members));
  assert_false(CHOOSE(alone));
  assert_false(members_ready(members));
}

static void any_other_list_is_another_membership(void **state) {
  (void)state;
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w2", 2)));
  assert_true(CHOOSE(TARGET("w1", 1), TARGET("w2", 2)));
  assert_true(CHOOSE(TARGET("w1", 1), alone, TARGET("w2", 2)));
  assert_false(CHOOSE(TARGET("w1", 1)));                  /* one less */
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w2", 2))); /* one more */
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w3", 2))); /* another incarnation at its place */
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w3", 4))); /* another place */
  assert_false(CHOOSE(TARGET("w3", 4), TARGET("w1", 1))); /* another order: other ranks */
  assert_true(CHOOSE(TARGET("w3", 4), TARGET("w1", 1)));
}

static void a_doubted_member_is_out_while_it_is_named(void **state) {
  (void)state;
  CHOOSE(TARGET("w1", 1), TARGET("w2", 2));
  members_doubt(members, "w2");
  members_doubt(members, "w2");
  assert_int_equal(members->doubted_count, 1);
  for (int round = 0; round < 3; round++) {
    assert_int_equal(CHOOSE(TARGET("w1", 1), TARGET("w2", 2)), round > 0);
    assert_int_equal(members->count, 1);
    assert_true(members_ready(members));
  }
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w4", 2))); /* it registered anew */
  assert_int_equal(members->count, 2);
  assert_int_equal(members->doubted_count, 0);
}

static int rounds_until_ready(void) {
  int rounds = 0;
  while (CHOOSE(TARGET("w1", 1)) && !members_ready(members)) rounds++;
  return rounds;
}

static void a_lost_broadcast_rests_ever_longer(void **state) {
  (void)state;
  CHOOSE(TARGET("w1", 1));
  assert_true(members_ready(members));
  for (int rest = 1; rest <= 4 * MEMBERS_REST_MAX; rest *= 2) {
    members_lost(members);
    assert_int_equal(rounds_until_ready(), rest < MEMBERS_REST_MAX ? rest : MEMBERS_REST_MAX);
  }
  members_reached(members);
  members_lost(members);
  assert_int_equal(rounds_until_ready(), 1);
  members_lost(members);
  assert_false(CHOOSE(TARGET("w1", 1), TARGET("w2", 2)));
  assert_true(members_ready(members)); /* others are tried at once */
}

static void as_many_as_there_may_be(void **state) {
  (void)state;
  static struct push_target targets[MEMBERS_MAX];
  static char ids[MEMBERS_MAX][16];
  for (int i = 0; i < MEMBERS_MAX; i++) {
    snprintf(ids[i], sizeof ids[i], "w%d", i);
    targets[i] = (struct push_target)TARGET(ids[i], i);
  }
  assert_false(members_choose(members, targets, MEMBERS_MAX));
  assert_true(members_choose(members, targets, MEMBERS_MAX));
  for (int i = 0; i < MEMBERS_MAX; i++) members_doubt(members, ids[i]);
  members_doubt(members, "one more");
  assert_int_equal(members->doubted_count, MEMBERS_MAX);
  assert_false(members_choose(members, targets, MEMBERS_MAX));
  assert_int_equal(members->count, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(only_who_shares_the_fabric_is_a_member, setup, teardown),
      cmocka_unit_test_setup_teardown(any_other_list_is_another_membership, setup, teardown),
      cmocka_unit_test_setup_teardown(a_doubted_member_is_out_while_it_is_named, setup, teardown),
      cmocka_unit_test_setup_teardown(a_lost_broadcast_rests_ever_longer, setup, teardown),
      cmocka_unit_test_setup_teardown(as_many_as_there_may_be, setup, teardown)};
  return cmocka_run_group_tests_name("trainer-server/pool_members", tests, NULL, NULL);
}

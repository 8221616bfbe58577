/* Which groups make a step of `update: minibatch`.  What would break: a group is trained in another step when it
 * completes at another time, so that the same seed gives other weights; a step waits for groups that it does not
 * need. */
#include <stdint.h>

#include "services/coordinator/decide/membership.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

static const enum group_standing O = STANDING_OPEN, S = STANDING_SEALED, B = STANDING_SUBMITTED, X = STANDING_DROPPED;

static void check(const enum group_standing *groups, int n, int groups_per_step, const struct step_members *wanted) {
  struct guarded copy = guarded_copy(groups, (size_t)n * sizeof *groups);
  struct step_members got = {9, 9, 9, true};
  membership_find(&got, copy.at, n, groups_per_step);
  assert_int_equal(got.end, wanted->end);
  assert_int_equal(got.sealed, wanted->sealed);
  assert_int_equal(got.submitted, wanted->submitted);
  assert_int_equal(got.full, wanted->full);
  guarded_free(&copy);
}

static void a_step_takes_its_first_groups_in_order(void **state) {
  (void)state;
  check((const enum group_standing[]){S, S, S, S}, 4, 2, &(struct step_members){2, 2, 0, true});
  check((const enum group_standing[]){S}, 1, 1, &(struct step_members){1, 1, 0, true});
  check((const enum group_standing[]){B, S, B, S}, 4, 3, &(struct step_members){3, 1, 2, true});
  check((const enum group_standing[]){B, B, S}, 3, 2, &(struct step_members){2, 0, 2, true});
}

static void dropped_groups_are_in_no_step(void **state) {
  (void)state;
  check((const enum group_standing[]){X, S, X, X, S, S}, 6, 2, &(struct step_members){5, 2, 0, true});
  check((const enum group_standing[]){X, X}, 2, 1, &(struct step_members){2, 0, 0, false});
}

/* The sealed group behind the open one is rank 0 or 1: of the step either way.  The last one is rank 1 or 2. */
static void a_group_need_not_wait_for_those_before_it(void **state) {
  (void)state;
  check((const enum group_standing[]){O, S, S}, 3, 2, &(struct step_members){2, 1, 0, false});
  check((const enum group_standing[]){O, O, S}, 3, 2, &(struct step_members){2, 0, 0, false});
  check((const enum group_standing[]){X, O, S, S}, 4, 2, &(struct step_members){3, 1, 0, false});
}

static void a_remainder_is_not_full(void **state) {
  (void)state;
  check((const enum group_standing[]){S, X, B}, 3, 3, &(struct step_members){3, 1, 1, false});
  check((const enum group_standing[]){S}, 0, 3, &(struct step_members){0, 0, 0, false});
}

/* ---- whatever the order ---- */

static uint32_t seed;
static int below(int n) {
  seed = seed * 1664525 + 1013904223;
  return (int)((seed >> 8) % (uint32_t)n);
}

enum { GROUPS = 14, NOT_YET = -1 };

/* Takes whatever may be taken: steps one after the other, each as far as its members are known. */
static void take(enum group_standing *groups, int n, int groups_per_step, int *step, int *begin, int *step_of) {
  for (;;) {
    struct step_members m;
    membership_find(&m, groups + *begin, n - *begin, groups_per_step);
    for (int i = *begin; i < *begin + m.end; i++) {
      if (groups[i] != STANDING_SEALED) continue;
      groups[i] = STANDING_SUBMITTED;
      step_of[i] = *step;
    }
    if (!m.full) return;
    *begin += m.end;
    ++*step;
  }
}

static void a_groups_step_does_not_depend_on_when_it_is_complete(void **state) {
  (void)state;
  for (int game = 0; game < 3000; game++) {
    enum group_standing fate[GROUPS], groups[GROUPS];
    int step_of[GROUPS], wanted[GROUPS], rank = 0, step = 0, begin = 0;
    const int per_step = 1 + below(5);
    for (int i = 0; i < GROUPS; i++) {
      fate[i] = below(3) ? STANDING_SEALED : STANDING_DROPPED;
      wanted[i] = fate[i] == STANDING_SEALED ? rank++ / per_step : NOT_YET;
      groups[i] = STANDING_OPEN;
      step_of[i] = NOT_YET;
    }
    int order[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
      const int j = below(i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    for (int i = 0; i < GROUPS; i++) {
      groups[order[i]] = fate[order[i]];
      if (below(2)) take(groups, GROUPS, per_step, &step, &begin, step_of);
    }
    take(groups, GROUPS, per_step, &step, &begin, step_of);
    assert_int_equal(step, rank / per_step);
    assert_memory_equal(step_of, wanted, sizeof wanted);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_takes_its_first_groups_in_order),
      cmocka_unit_test(dropped_groups_are_in_no_step),
      cmocka_unit_test(a_group_need_not_wait_for_those_before_it),
      cmocka_unit_test(a_remainder_is_not_full),
      cmocka_unit_test(a_groups_step_does_not_depend_on_when_it_is_complete),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* decide/passes.h: which groups wait for a preprocessor, and how many passes it is granted. */
#include "services/coordinator/decide/passes.h"

#include "tests/unit/base/cm.h"

enum { TIMEOUT_MS = 1000, GROUPS_MAX = 6 };

#define WAITS         {.state = PASS_WAITING}
#define WAITS_AGAIN   {.state = PASS_WAITING, .granted_before = true, .since_first_grant_ms = 5}
#define BEGUN(for_ms) {.state = PASS_GRANTED, .granted_before = true, .since_first_grant_ms = (for_ms)}
#define DONE          {.state = PASS_DONE, .granted_before = true}
#define REFUSED       {.state = PASS_REFUSED, .granted_before = true}

static void groups_wait_for_passes_that_are_under_way(void **state) {
  (void)state;
  static const struct {
    struct pass_facts passes[GROUPS_MAX];
    int n, preprocessors;
    bool idle;
    unsigned taken; /* a bit per group */
  } cases[] = {
      {{WAITS, BEGUN(0), DONE, REFUSED}, 4, 1, false, 4 | 8},
      {{WAITS, BEGUN(0), DONE, REFUSED}, 4, 0, false, 15}, /* nobody computes them */
      {{WAITS, BEGUN(0), DONE, REFUSED}, 4, 2, true, 4 | 8}, /* it has work: what waits is left to them */
      {{BEGUN(TIMEOUT_MS - 1), BEGUN(TIMEOUT_MS), BEGUN(TIMEOUT_MS + 1)}, 3, 1, false, 2 | 4},
      {{BEGUN(0), BEGUN(0)}, 2, 1, true, 0},                 /* they come soon, or are late soon */
      {{WAITS, BEGUN(0), WAITS, BEGUN(0)}, 4, 1, true, 4},   /* the last that nobody has begun */
      {{WAITS, BEGUN(0), WAITS, BEGUN(0)}, 4, 1, false, 0},
      {{WAITS_AGAIN}, 1, 1, true, 1},
      {{WAITS_AGAIN}, 1, 1, false, 0},
      {{WAITS, DONE, WAITS}, 3, 1, true, 2},
      {{WAITS}, 0, 1, true, 0},
  };
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    bool take[GROUPS_MAX] = {false};
    unsigned taken = 0;
    const int n = passes_select(cases[c].passes, cases[c].n, cases[c].preprocessors, TIMEOUT_MS, cases[c].idle, take);
    for (int i = 0; i < cases[c].n; i++) taken |= (unsigned)take[i] << i;
    if (taken != cases[c].taken || n != __builtin_popcount(taken)) fail_msg("case %zu: %u, %d", c, taken, n);
  }
}

/* Whatever the passes are, an idle trainer has something to do, or each of them is under way and in time. */
static void an_idle_trainer_waits_only_beside_passes_that_end(void **state) {
  (void)state;
  static const struct pass_facts kinds[] = {WAITS, WAITS_AGAIN, BEGUN(0), BEGUN(TIMEOUT_MS), DONE, REFUSED};
  enum { KINDS = sizeof kinds / sizeof kinds[0] };
  for (int code = 0; code < KINDS * KINDS * KINDS; code++) {
    const int at[] = {code % KINDS, code / KINDS % KINDS, code / KINDS / KINDS};
    const struct pass_facts passes[] = {kinds[at[0]], kinds[at[1]], kinds[at[2]]};
    bool take[3], under_way = true;
    for (int i = 0; i < 3; i++) under_way &= at[i] == 2;
    const int n = passes_select(passes, 3, 1, TIMEOUT_MS, true, take);
    if ((n == 0) != under_way) fail_msg("code %d", code);
  }
}

static void a_pass_that_was_never_granted_is_not_late(void **state) {
  (void)state;
  const struct pass_facts never = {.state = PASS_WAITING, .since_first_grant_ms = 10 * TIMEOUT_MS};
  const struct pass_facts late = {.granted_before = true, .since_first_grant_ms = TIMEOUT_MS};
  assert_false(pass_is_late(&never, TIMEOUT_MS));
  assert_true(pass_is_late(&late, TIMEOUT_MS));
}

static void a_poll_is_granted_its_share(void **state) {
  (void)state;
  static const struct {
    int waiting, preprocessors, asked;
    bool holds;
    int granted;
  } cases[] = {{8, 2, 16, true, 4}, {7, 2, 16, true, 4}, {8, 2, 3, true, 3}, {1, 4, 16, true, 1},
               {0, 1, 4, true, 0},  {8, 0, 16, true, 8}, {8, 1, 0, true, 0}, {8, 1, 16, false, 1},
               {0, 1, 4, false, 0}, {5, 1, 5, true, 5},  {8, 1, 1, true, 1}};
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    const int n = passes_share(cases[c].waiting, cases[c].preprocessors, cases[c].asked, cases[c].holds);
    if (n != cases[c].granted) fail_msg("case %zu: %d", c, n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(groups_wait_for_passes_that_are_under_way),
      cmocka_unit_test(an_idle_trainer_waits_only_beside_passes_that_end),
      cmocka_unit_test(a_pass_that_was_never_granted_is_not_late),
      cmocka_unit_test(a_poll_is_granted_its_share),
  };
  return cmocka_run_group_tests_name("coordinator/passes", tests, NULL, NULL);
}

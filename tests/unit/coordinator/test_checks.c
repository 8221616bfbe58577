/* checks/verdict.h: which samples are refused, and who is at fault. */
#include "services/coordinator/checks/verdict.h"

#include <math.h>

#include "tests/unit/base/cm.h"

static void one_difference_refuses_a_sample_where_equality_is_promised(void **state) {
  (void)state;
  static const struct {
    struct checked_sample s;
    enum sample_verdict verdict;
  } cases[] = {
      {{.promised = true, .position = -1}, SAMPLE_HOLDS},
      {{.promised = true, .position = 0}, SAMPLE_REFUSED},
      {{.promised = true, .position = 700}, SAMPLE_REFUSED},
      {{.promised = true, .position = -1, .unequal = 1, .mean_abs = 1e-9}, SAMPLE_REFUSED},
      {{.promised = true, .position = -1, .unequal = 1, .nonfinite = 1, .mean_abs = NAN}, SAMPLE_REFUSED},
      {{.position = -1}, SAMPLE_HOLDS},
      {{.position = 0, .unequal = 9, .mean_abs = 0.01}, SAMPLE_HOLDS}, /* uniforms of its own */
      {{.position = 0, .unequal = 9, .mean_abs = VERDICT_MISMATCH_MOST}, SAMPLE_HOLDS},
      {{.position = -1, .unequal = 9, .mean_abs = 0.2501}, SAMPLE_INEXACT},
      {{.position = -1, .unequal = 9, .nonfinite = 1, .mean_abs = NAN}, SAMPLE_INEXACT},
      {{.position = -1, .unequal = 9, .mean_abs = NAN}, SAMPLE_INEXACT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (verdict_of_sample(&cases[i].s) != cases[i].verdict) fail_msg("case %zu", i);
}

static void a_policy_is_calm_where_enough_older_tokens_are_near(void **state) {
  (void)state;
  static const struct {
    struct older_tokens o;
    bool calm;
  } cases[] = {
      {{0, 0, 0}, false}, /* nobody can tell */
      {{VERDICT_CALM_TOKENS - 1, VERDICT_CALM_TOKENS - 1, 0}, false},
      {{VERDICT_CALM_TOKENS, VERDICT_CALM_TOKENS, 0}, true},
      {{1000, 1000, 99.9}, true},
      {{1000, 1000, 100.1}, false},
      {{1000, 1000, NAN}, false},
      {{1000, 0, 99.9}, false}, /* of a step that was begun before this was counted */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (verdict_is_calm(&cases[i].o, 1) != cases[i].calm) fail_msg("case %zu", i);
}

/* Incidents print it: "inf" was told of a step that was begun before the versions behind were counted. */
static void a_distance_is_a_number_where_older_tokens_can_tell(void **state) {
  (void)state;
  static const struct older_tokens can[] = {{VERDICT_CALM_TOKENS, 1, 0}, {VERDICT_CALM_TOKENS, 500, 1e9}};
  static const struct older_tokens cannot[] = {
      {0, 0, 0}, {VERDICT_CALM_TOKENS - 1, 500, 1}, {VERDICT_CALM_TOKENS, 0, 0}, {1000, 0, 99.9}};
  for (size_t i = 0; i < sizeof can / sizeof can[0]; i++) {
    assert_true(verdict_can_tell(&can[i]));
    assert_true(isfinite(verdict_distance(&can[i], 14)));
  }
  for (size_t i = 0; i < sizeof cannot / sizeof cannot[0]; i++) assert_false(verdict_can_tell(&cannot[i]));
}

/* Found in flight at a rate of 0.0025: a server that had been frozen for 14 versions was 0.93 nats off when others, at
 * most two behind, were 0.095.  What is past the bound of 2 after so many versions may be honest. */
static void tokens_of_the_last_version_accuse_nobody_who_is_many_versions_behind(void **state) {
  (void)state;
  static const struct {
    struct older_tokens o;
    int64_t lag;
    bool calm;
  } cases[] = {
      {{838, 838, 79}, 1, true},
      {{838, 838, 79}, 14, false},
      {{838, 838 * 2, 79}, 14, false},
      {{838, 838 * 14, 79}, 14, true}, /* as far behind as it */
      {{838, 838 * 14, 79}, 1, true},  /* and farther: they are no nearer for that */
      {{838, 838 * 14, 84}, 1, false},
      {{838, 838, 5}, 14, true}, /* so near that they were at 14 */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (verdict_is_calm(&cases[i].o, cases[i].lag) != cases[i].calm) fail_msg("case %zu", i);
}

static void a_worker_is_at_fault_where_others_agree(void **state) {
  (void)state;
  static const struct {
    struct checked_pool p;
    enum worker_verdict verdict;
  } cases[] = {
      {{.others_held = 2, .others_live = 2}, WORKER_QUARANTINED},
      {{.others_held = 1, .others_live = 1, .others_quarantined = 1}, WORKER_QUARANTINED}, /* two liars of three */
      {{.others_live = 2}, WORKER_QUARANTINED},                         /* nobody was asked yet: they will tell */
      {{.others_live = 1, .others_quarantined = 1}, WORKER_UNDECIDED},  /* and told the same: is it the trainer? */
      {{.others_live = 0}, WORKER_UNDECIDED},                           /* alone */
      {{.others_held = 2, .others_live = 0, .others_quarantined = 2}, WORKER_UNDECIDED}, /* never the last one */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (verdict_of_worker(&cases[i].p) != cases[i].verdict) fail_msg("case %zu", i);
}

/* Whoever is at fault, and in whichever order they are heard: a pool never loses its last worker, and a trainer that
 * all disagree with pauses the run at the second. */
static void no_order_of_refusals_empties_the_pool(void **state) {
  (void)state;
  enum { WORKERS = 5 };
  for (unsigned broken = 0; broken < 1u << WORKERS; broken++) {
    int64_t held = 0, quarantined = 0;
    bool paused = false;
    for (int w = 0; w < WORKERS && !paused; w++) {
      if (!(broken >> w & 1)) {
        held++;
        continue;
      }
      const struct checked_pool p = {held, WORKERS - 1 - quarantined, quarantined};
      paused = verdict_of_worker(&p) == WORKER_UNDECIDED;
      quarantined += !paused;
    }
    assert_true(quarantined < WORKERS);
    if (broken == (1u << WORKERS) - 1) assert_true(paused && quarantined == 1);
    if (__builtin_popcount(broken) == 1) assert_true(!paused);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_difference_refuses_a_sample_where_equality_is_promised),
      cmocka_unit_test(a_policy_is_calm_where_enough_older_tokens_are_near),
      cmocka_unit_test(a_distance_is_a_number_where_older_tokens_can_tell),
      cmocka_unit_test(tokens_of_the_last_version_accuse_nobody_who_is_many_versions_behind),
      cmocka_unit_test(a_worker_is_at_fault_where_others_agree),
      cmocka_unit_test(no_order_of_refusals_empties_the_pool),
  };
  return cmocka_run_group_tests_name("coordinator/checks", tests, NULL, NULL);
}

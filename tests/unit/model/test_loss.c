/* The losses against the vectors of REFERENCES, their derivatives against differences, advantages against the
 * published definitions. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/learning/loss.h"

static const float NEW[5] = {-1, -0.5f, -2, -0.3f, -1}, OLD[5] = {-1.2f, -0.5f, -1.5f, -0.9f, -0.8f},
                   REFERENCE[5] = {-1.1f, -0.6f, -1.8f, -0.4f, -1};

static void run(const struct loss_config *c, bool reference, const float *logprob, float *d, struct loss_stats *stats) {
  *stats = (struct loss_stats){0};
  loss_sequence(c, 3, logprob, OLD, reference ? REFERENCE : NULL, 0.5f, d, stats);
  loss_sequence(c, 2, logprob + 3, OLD + 3, reference ? REFERENCE + 3 : NULL, -0.5f, d ? d + 3 : NULL, stats);
}

static void near(double value, double expected, double tolerance) {
  if (!(fabs(value - expected) <= tolerance)) print_message("got %.9g, expected %.9g\n", value, expected);
  assert_true(fabs(value - expected) <= tolerance);
}

static void test_vectors(void **state) {
  (void)state;
  static const struct {
    struct loss_config c;
    bool reference;
    double loss;
    int clipped;
  } cases[] = {
      {{.kind = LOSS_REINFORCE, .clip_high = 0.02f}, false, 0.4020826, 2},
      {{.kind = LOSS_REINFORCE, .clip_high = 0.02f, .kl_coefficient = 0.1f}, true, 0.4038784, 2},
      {{.kind = LOSS_REINFORCE, .clip_high = 4}, false, 0.3922744, 0},
      {{.kind = LOSS_PPO, .clip_low = 0.2f, .clip_high = 0.2f}, false, -0.0414203, 3},
      {{.kind = LOSS_PPO, .clip_low = 0.02f, .clip_high = 0.02f}, false, 0.0438970, 4},
      {{.kind = LOSS_GSPO, .clip_low = 0.2f, .clip_high = 0.2f}, false, -0.0679267, 2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct loss_stats stats;
    run(&cases[i].c, cases[i].reference, NEW, NULL, &stats);
    near(stats.loss / 2, cases[i].loss, 2e-7);
    assert_int_equal(stats.clipped, cases[i].clipped);
    assert_int_equal(stats.tokens, 5);
  }
}

static void test_reinforce_derivatives(void **state) {
  (void)state;
  static const double expected[5] = {-0.255, -0.25, -0.1516327, 0.255, 0.2046827};
  const struct loss_config c = {.kind = LOSS_REINFORCE, .clip_high = 0.02f};
  struct loss_stats stats;
  float d[5];
  run(&c, false, NEW, d, &stats);
  for (int i = 0; i < 5; i++) near((double)d[i] / 2, expected[i], 1e-7);
}

/* ESS of the vectors is that of clamped ratios; ours is of unclamped ones, so that it does not look better than it
 * is. */
static void test_effective_sample_size(void **state) {
  (void)state;
  const struct loss_config c = {.kind = LOSS_REINFORCE, .clip_high = 0.02f};
  struct loss_stats stats;
  run(&c, false, NEW, NULL, &stats);
  near(stats.ratio_sum * stats.ratio_sum / (5 * stats.ratio_squares), 0.8731962, 2e-7);
  double sum = 0, squares = 0;
  for (int i = 0; i < 5; i++) {
    const double w = fmin(exp((double)NEW[i] - (double)OLD[i]), 1.02);
    sum += w;
    squares += w * w;
  }
  near(sum * sum / (5 * squares), 0.9681263, 2e-7);
}

/* d/d new of PPO, GSPO, cross-entropy and the KL term, by central differences; the GSPO ratio couples a sequence's
 * tokens. */
static void test_derivatives_by_difference(void **state) {
  (void)state;
  static const struct loss_config cases[] = {
      {.kind = LOSS_PPO, .clip_low = 0.2f, .clip_high = 0.2f, .kl_coefficient = 0.3f},
      {.kind = LOSS_PPO, .clip_low = 0.02f, .clip_high = 0.02f},
      {.kind = LOSS_GSPO, .clip_low = 0.3f, .clip_high = 0.3f, .kl_coefficient = 0.1f},
      {.kind = LOSS_GSPO, .clip_low = 0.3f, .clip_high = 0.3f, .normalization = NORMALIZE_SEQUENCES},
      {.kind = LOSS_CROSS_ENTROPY, .normalization = NORMALIZE_SEQUENCES},
  };
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    struct loss_stats stats, up, down;
    float d[5], moved[5];
    run(&cases[k], true, NEW, d, &stats);
    for (int i = 0; i < 5; i++) {
      const float step = 0x1p-10f;
      memcpy(moved, NEW, sizeof moved);
      moved[i] = NEW[i] + step;
      run(&cases[k], true, moved, NULL, &up);
      moved[i] = NEW[i] - step;
      run(&cases[k], true, moved, NULL, &down);
      near((double)d[i], (up.loss - down.loss) / 2 / (double)step, 2e-5);
    }
  }
}

/* On-policy (old = new bit for bit) the ratio is exactly 1 and every policy loss has the same derivative, -A. */
static void test_ratio_one(void **state) {
  (void)state;
  for (int kind = LOSS_REINFORCE; kind <= LOSS_GSPO; kind++) {
    const struct loss_config c = {.kind = (enum loss_kind)kind, .clip_low = 0.2f, .clip_high = 0.2f};
    struct loss_stats with = {0}, without = {0};
    float a[5], b[5];
    loss_sequence(&c, 5, NEW, NEW, NULL, 0.625f, a, &with);
    loss_sequence(&c, 5, NEW, NULL, NULL, 0.625f, b, &without);
    for (int i = 0; i < 5; i++) assert_true(a[i] == -0.625f && b[i] == -0.625f);
    assert_true(with.ratio_sum == 5 && with.ratio_squares == 5 && with.clipped == 0 && with.loss == without.loss);
  }
}

static void test_normalization_by_sequence(void **state) {
  (void)state;
  const struct loss_config c = {.kind = LOSS_CROSS_ENTROPY, .normalization = NORMALIZE_SEQUENCES};
  struct loss_stats stats = {0};
  float d[4];
  loss_sequence(&c, 4, NEW, NULL, NULL, 0, d, &stats);
  near(stats.loss, 3.8 / 4, 1e-7);
  for (int i = 0; i < 4; i++) assert_true(d[i] == -0.25f);
  loss_sequence(&c, 0, NEW, NULL, NULL, 0, d, &stats);
  assert_int_equal(stats.tokens, 4);
}

static void test_advantages(void **state) {
  (void)state;
  const double rewards[4] = {1, 0, 0, 1};
  static const struct {
    enum advantage_kind kind;
    double epsilon, expected;
  } cases[] = {
      {ADVANTAGE_GROUP, 0, 1},
      {ADVANTAGE_GROUP_CENTERED, 0, 0.5},
      {ADVANTAGE_LEAVE_ONE_OUT, 0, 0.6666667},
      {ADVANTAGE_LEAVE_ONE_OUT_SCALED, 1e-4, 1.1545006},
      {ADVANTAGE_GROUP, 1e-4, 0.5 / 0.5001},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    float a[4];
    advantages_of(cases[i].kind, rewards, 4, cases[i].epsilon, a);
    for (int k = 0; k < 4; k++) near((double)a[k], rewards[k] > 0.5 ? cases[i].expected : -cases[i].expected, 1e-7);
  }
}

static void test_groups_without_a_signal_are_zero(void **state) {
  (void)state;
  const double equal[3] = {0.1, 0.1, 0.1};
  for (int kind = ADVANTAGE_GROUP; kind <= ADVANTAGE_LEAVE_ONE_OUT_SCALED; kind++) {
    float a[3] = {9, 9, 9};
    advantages_of((enum advantage_kind)kind, equal, 3, 0, a);
    for (int i = 0; i < 3; i++) assert_true(a[i] == 0);
    a[0] = 9;
    advantages_of((enum advantage_kind)kind, equal, 1, 0, a);
    assert_true(a[0] == 0);
  }
}

static void test_names(void **state) {
  (void)state;
  struct err err = {0};
  enum loss_kind kind;
  enum loss_normalization normalization;
  assert_int_equal(loss_kind_parse(&kind, "grpo", &err), RC_OK);
  assert_int_equal(kind, LOSS_PPO);
  assert_int_equal(loss_kind_parse(&kind, "gspo", &err), RC_OK);
  assert_int_equal(kind, LOSS_GSPO);
  assert_int_equal(loss_kind_parse(&kind, "GRPO", &err), RC_INVALID);
  assert_non_null(strstr(err.message, "cross_entropy"));
  assert_int_equal(loss_normalization_parse(&normalization, "sequences", &err), RC_OK);
  assert_int_equal(normalization, NORMALIZE_SEQUENCES);
  assert_int_equal(loss_normalization_parse(&normalization, "token", &err), RC_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_vectors),
      cmocka_unit_test(test_reinforce_derivatives),
      cmocka_unit_test(test_effective_sample_size),
      cmocka_unit_test(test_derivatives_by_difference),
      cmocka_unit_test(test_ratio_one),
      cmocka_unit_test(test_normalization_by_sequence),
      cmocka_unit_test(test_advantages),
      cmocka_unit_test(test_groups_without_a_signal_are_zero),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests_name("model/loss", tests, NULL, NULL);
}

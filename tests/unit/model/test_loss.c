/* The losses against the vectors of REFERENCES, their derivatives against differences, advantages against the
 * published definitions. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/learning/loss.h"

static const float NEW[5] = {-1, -0.5f, -2, -0.3f, -1}, OLD[5] = {-1.2f, -0.5f, -1.5f, -0.9f, -0.8f},
                   REFERENCE[5] = {-1.1f, -0.6f, -1.8f, -0.4f, -1};

static void run(const struct loss_config *c, bool reference, const float *logprob, float *d, struct loss_stats *stats) {
  *stats = (struct loss_stats){0};
  loss_sequence(c, 3, logprob, OLD, NULL, reference ? REFERENCE : NULL, 0.5f, d, stats);
  loss_sequence(c, 2, logprob + 3, OLD + 3, NULL, reference ? REFERENCE + 3 : NULL, -0.5f, d ? d + 3 : NULL, stats);
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
  for (int kind = LOSS_REINFORCE; kind <= LOSS_DECOUPLED_PPO; kind++) {
    const struct loss_config c = {
        .kind = (enum loss_kind)kind, .clip_low = 0.2f, .clip_high = 0.2f, .importance_cap = 1};
    struct loss_stats with = {0}, without = {0};
    float a[5], b[5];
    loss_sequence(&c, 5, NEW, NEW, NEW, NULL, 0.625f, a, &with);
    loss_sequence(&c, 5, NEW, NULL, kind % 2 ? NULL : OLD, NULL, 0.625f, b, &without); /* no old: no proximal either */
    for (int i = 0; i < 5; i++) assert_true(a[i] == -0.625f && b[i] == -0.625f);
    assert_true(with.ratio_sum == 5 && with.ratio_squares == 5 && with.clipped == 0);
    assert_true(with.kl_new_old == 0 && with.difference_new_old == 0);
    assert_memory_equal(&with, &without, sizeof with);
  }
}

/* splitmix64, so that every run of the tests has the same cases. */
static uint64_t draw(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* In low..high, a multiple of 2^-12: a float, and so is what lies 2^-16 beside it. */
static float drawn(uint64_t *state, double low, double high) {
  const double unit = (double)(draw(state) >> 11) * 0x1p-53;
  return (float)(floor((low + unit * (high - low)) * 4096) / 4096);
}

enum { TOKENS_MAX = 5, CASES = 20000 };

struct drawn_case {
  struct loss_config c;
  int n;
  float new[TOKENS_MAX], old[TOKENS_MAX], proximal[TOKENS_MAX], reference[TOKENS_MAX], advantage;
};

static struct drawn_case draw_case(uint64_t *state) {
  static const double spreads[] = {0.05, 0.3, 1.5};
  struct drawn_case k = {.n = 1 + (int)(draw(state) % TOKENS_MAX), .advantage = drawn(state, -2, 2)};
  const double spread = spreads[draw(state) % 3];
  k.c = (struct loss_config){.clip_low = drawn(state, 0.01, 1),
                             .clip_high = drawn(state, 0.01, 2),
                             .kl_coefficient = draw(state) % 2 ? drawn(state, 0, 1) : 0,
                             .normalization = (enum loss_normalization)(draw(state) % 3)};
  for (int i = 0; i < k.n; i++) {
    k.new[i] = drawn(state, -6, -0.01);
    k.old[i] = k.new[i] + drawn(state, -spread, spread);
    k.proximal[i] = k.new[i] + drawn(state, -spread, spread);
    k.reference[i] = k.new[i] + drawn(state, -1, 1);
  }
  return k;
}

static double loss_beside(const struct drawn_case *k, int i, float step) {
  float moved[TOKENS_MAX];
  struct loss_stats stats = {0};
  memcpy(moved, k->new, sizeof moved);
  moved[i] += step;
  loss_sequence(&k->c, k->n, moved, k->old, k->proximal, k->reference, k->advantage, NULL, &stats);
  return stats.loss;
}

/* Objectives without a stop-gradient: the derivative is the slope of the loss that is reported, on both sides of the
 * token.  Where the two sides have not the same slope a bound is being crossed; those few are left out. */
static void test_derivatives_of_random_cases_by_difference(void **state) {
  (void)state;
  static const enum loss_kind kinds[] = {LOSS_PPO, LOSS_GSPO, LOSS_DECOUPLED_PPO, LOSS_CROSS_ENTROPY};
  const float step = 0x1p-16f;
  uint64_t seed = 1;
  int compared = 0, left_out = 0;
  for (int number = 0; number < CASES; number++) {
    struct drawn_case k = draw_case(&seed);
    struct loss_stats stats = {0};
    float d[TOKENS_MAX];
    k.c.kind = kinds[number % 4];
    if (number % 8 == 2) k.c.importance_cap = drawn(&seed, 1, 3);
    loss_sequence(&k.c, k.n, k.new, k.old, k.proximal, k.reference, k.advantage, d, &stats);
    for (int i = 0; i < k.n; i++) {
      const double above = (loss_beside(&k, i, step) - stats.loss) / (double)step,
                   below = (stats.loss - loss_beside(&k, i, -step)) / (double)step, slope = (above + below) / 2;
      if (fabs(above - below) > 1e-3 * (1 + fabs(slope))) {
        left_out++;
        continue;
      }
      compared++;
      near((double)d[i], slope, 1e-6 * (1 + fabs(slope)));
    }
  }
  print_message("%d derivatives compared, %d at a bound\n", compared, left_out);
  assert_true(compared > 50000 && left_out < compared / 1000);
}

static void terms(const struct drawn_case *k, enum loss_kind kind, const float *proximal, float *d,
                  struct loss_stats *stats) {
  struct loss_config c = k->c;
  c.kind = kind;
  *stats = (struct loss_stats){0};
  loss_sequence(&c, k->n, k->new, k->old, proximal, NULL, k->advantage, d, stats);
}

/* What the objectives are to each other: decoupled PPO around the behaviour policy is PPO; around the new policy it is
 * a policy gradient with a constant importance weight, as REINFORCE and CISPO are, whose bound is the cap. */
static void test_objectives_agree_where_their_policies_do(void **state) {
  (void)state;
  uint64_t seed = 2;
  int bounded = 0;
  for (int number = 0; number < CASES; number++) {
    struct drawn_case k = draw_case(&seed);
    struct loss_stats a, b;
    float da[TOKENS_MAX], db[TOKENS_MAX];
    const size_t bytes = (size_t)k.n * sizeof(float);
    k.c.importance_cap = number % 2 ? 1 + k.c.clip_high : 0;
    terms(&k, LOSS_PPO, NULL, da, &a);
    terms(&k, LOSS_DECOUPLED_PPO, number % 3 ? NULL : k.old, db, &b);
    assert_memory_equal(da, db, bytes);
    assert_memory_equal(&a, &b, sizeof a);
    k.c.clip_low = 1;
    terms(&k, LOSS_REINFORCE, NULL, da, &a);
    terms(&k, LOSS_CISPO, NULL, db, &b);
    assert_memory_equal(da, db, bytes);
    assert_memory_equal(&a, &b, sizeof a);
    if (!k.c.importance_cap) k.c.clip_high = 1e6f;
    terms(&k, LOSS_CISPO, NULL, da, &a);
    terms(&k, LOSS_DECOUPLED_PPO, k.new, db, &b);
    for (int i = 0; i < k.n; i++) near((double)da[i], (double)db[i], 1e-6 * fabs((double)da[i]));
    assert_int_equal(a.clipped, b.clipped);
    bounded += a.clipped;
  }
  assert_true(bounded > CASES / 10);
}

/* A token that has become e^3 times as likely, and one that has become e^-3 times as likely, by hand. */
static void test_bounds_from_both_sides(void **state) {
  (void)state;
  const float new[2] = {-1, -4}, old[2] = {-4, -1};
  struct loss_config c = {.kind = LOSS_CISPO, .clip_low = 0.25f, .clip_high = 3};
  struct loss_stats stats = {0};
  float d[2];
  loss_sequence(&c, 2, new, old, NULL, NULL, 2, d, &stats);
  assert_true(d[0] == -8 && d[1] == -1.5f); /* 4 and 0.75 in the place of 20.09 and 0.0498; no token is lost */
  near(stats.loss, 8 + 6, 1e-12);
  assert_int_equal(stats.clipped, 2);
  near(stats.kl_new_old, exp(3) - 3 - 1 + exp(-3) + 3 - 1, 1e-12);
  near(stats.difference_new_old, 6, 0);
  c = (struct loss_config){.kind = LOSS_DECOUPLED_PPO, .clip_low = 0.25f, .clip_high = 0.25f, .importance_cap = 2};
  stats = (struct loss_stats){0};
  loss_sequence(&c, 2, new, old, new, NULL, 2, d, &stats);
  assert_true(d[0] == -4); /* 2, and not 20.09 */
  near((double)d[1], -2 * exp(-3), 1e-7);
  assert_int_equal(stats.clipped, 1);
}

static void test_normalization_by_sequence(void **state) {
  (void)state;
  const struct loss_config c = {.kind = LOSS_CROSS_ENTROPY, .normalization = NORMALIZE_SEQUENCES};
  struct loss_stats stats = {0};
  float d[4];
  loss_sequence(&c, 4, NEW, NULL, NULL, NULL, 0, d, &stats);
  near(stats.loss, 3.8 / 4, 1e-7);
  for (int i = 0; i < 4; i++) assert_true(d[i] == -0.25f);
  loss_sequence(&c, 0, NEW, NULL, NULL, NULL, 0, d, &stats);
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

/* The squares of such differences are zero in doubles.  With epsilon 0 the advantages were infinite, which no trainer
 * takes, with another -0, whose sign was lost in the ledger. */
static void test_differences_that_are_no_deviation_are_zero(void **state) {
  (void)state;
  const double rewards[3] = {1e-300, 0, 0};
  for (int kind = ADVANTAGE_GROUP; kind <= ADVANTAGE_LEAVE_ONE_OUT_SCALED; kind++) {
    for (int e = 0; e < 2; e++) {
      float a[3] = {9, 9, 9};
      advantages_of((enum advantage_kind)kind, rewards, 3, e ? 1e-4 : 0, a);
      for (int i = 0; i < 3; i++) assert_true(a[i] == 0 && !signbit(a[i]));
    }
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

/* A token that the current weights leave out of the cut vocabulary, at any place of a sequence and with every
 * objective: what the sequence is worth without it, it counts as clipped, and nothing is infinite. */
static void test_a_token_that_is_left_out_counts_nothing(void **state) {
  (void)state;
  enum { REST = 4, ALL = REST + 1 };
  static const float rest[REST] = {-1, -0.5f, -2, -0.3f}, old[REST] = {-1.2f, -0.5f, -1.5f, -0.9f},
                     reference[REST] = {-1.1f, -0.6f, -1.8f, -0.4f};
  static const enum loss_kind kinds[] = {LOSS_PPO, LOSS_REINFORCE, LOSS_GSPO, LOSS_CISPO, LOSS_DECOUPLED_PPO};
  for (int k = 0; k < 5 * 2 * ALL; k++) {
    const int at = k % ALL;
    const float advantage = k / ALL % 2 ? 0.5f : -0.5f;
    const struct loss_config c = {
        .kind = kinds[k / ALL / 2], .clip_low = 0.2f, .clip_high = 0.3f, .kl_coefficient = 0.1f, .cut = true};
    float all[3][ALL], d[ALL], expected[REST];
    for (int i = 0, from = 0; i < ALL; i++) {
      const bool out = i == at;
      all[0][i] = out ? -INFINITY : rest[from];
      all[1][i] = out ? -0.7f : old[from];
      all[2][i] = out ? -3 : reference[from];
      from += !out;
    }
    struct loss_stats stats = {0}, without = {0}, faulty = {0};
    loss_sequence(&c, ALL, all[0], all[1], all[0], all[2], advantage, d, &stats);
    loss_sequence(&c, REST, rest, old, rest, reference, advantage, expected, &without);
    for (int i = 0, from = 0; i < ALL; i++) assert_true(d[i] == (i == at ? 0 : expected[from++]));
    without.clipped++;
    without.tokens++;
    assert_true(isfinite(stats.loss) && stats.loss == without.loss && stats.kl_reference == without.kl_reference);
    assert_true(stats.ratio_sum == without.ratio_sum && stats.ratio_squares == without.ratio_squares);
    assert_true(stats.kl_new_old == without.kl_new_old && stats.difference_new_old == without.difference_new_old);
    assert_int_equal(stats.clipped, without.clipped);
    assert_int_equal(stats.tokens, without.tokens);
    struct loss_config whole = c; /* in a row that was not cut it is a fault */
    whole.cut = false;
    loss_sequence(&whole, ALL, all[0], all[1], all[0], all[2], advantage, NULL, &faulty);
    assert_true(!isfinite(faulty.loss));
  }
  struct loss_stats none = {0};
  float alone = -INFINITY, behind = -1, d = 1;
  loss_sequence(&(struct loss_config){.kind = LOSS_GSPO, .cut = true}, 1, &alone, &behind, NULL, NULL, 1, &d, &none);
  assert_true(none.loss == 0 && d == 0 && none.tokens == 1 && none.clipped == 1);
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
  assert_int_equal(loss_kind_parse(&kind, "cispo", &err), RC_OK);
  assert_int_equal(kind, LOSS_CISPO);
  assert_int_equal(loss_kind_parse(&kind, "decoupled_ppo", &err), RC_OK);
  assert_int_equal(kind, LOSS_DECOUPLED_PPO);
  assert_int_equal(loss_kind_parse(&kind, "tis", &err), RC_OK);
  assert_int_equal(kind, LOSS_DECOUPLED_PPO);
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
      cmocka_unit_test(test_derivatives_of_random_cases_by_difference),
      cmocka_unit_test(test_objectives_agree_where_their_policies_do),
      cmocka_unit_test(test_bounds_from_both_sides),
      cmocka_unit_test(test_normalization_by_sequence),
      cmocka_unit_test(test_advantages),
      cmocka_unit_test(test_differences_that_are_no_deviation_are_zero),
      cmocka_unit_test(test_groups_without_a_signal_are_zero),
      cmocka_unit_test(test_a_token_that_is_left_out_counts_nothing),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests_name("model/loss", tests, NULL, NULL);
}

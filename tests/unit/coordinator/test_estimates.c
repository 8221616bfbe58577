/* What an evaluation estimates, each from numbers alone.  What would break: a biased estimate, an interval that claims
 * certainty, a majority that depends on the order of the samples, a bootstrap that does not repeat itself. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/philox.h"
#include "services/coordinator/evaluation/bootstrap.h"
#include "services/coordinator/evaluation/interval.h"
#include "services/coordinator/evaluation/majority.h"
#include "services/coordinator/evaluation/pass_at_k.h"
#include "tests/unit/base/cm.h"

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-12)) print_error("%.17g is not %.17g\n", a, b);
  assert_true(fabs(a - b) <= 1e-12);
}

static void pass_at_k_is_the_share_of_the_subsets(void **state) {
  (void)state;
  near(pass_at_k(5, 2, 1), 0.4);
  near(pass_at_k(5, 2, 2), 0.7); /* 1 - 3/10 */
  near(pass_at_k(5, 2, 3), 0.9);
  near(pass_at_k(5, 2, 4), 1);
  near(pass_at_k(5, 0, 5), 0);
  near(pass_at_k(5, 1, 5), 1);
  near(pass_at_k(1, 1, 1), 1);
  near(pass_at_k(1024, 1, 512), 0.5);
  for (int64_t n = 1; n <= 64; n++)
    for (int64_t passed = 0; passed <= n; passed++) {
      assert_true(pass_at_k(n, passed, 1) == (double)passed / (double)n); /* no rounding of a product */
      for (int64_t k = n - passed + 1; k <= n && passed > 0; k++) assert_true(pass_at_k(n, passed, k) == 1);
    }
}

/* The signal that the process ended with. */
static int dies_of(void (*call)(void)) {
  const pid_t child = fork();
  int status = 0;
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);
    call();
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void passed_fewer_than_none(void) { pass_at_k(4, -1, 2); }
static void passed_more_than_all(void) { pass_at_k(4, 5, 2); }
static void of_no_sample(void) { pass_at_k(4, 2, 0); }
static void of_more_than_all(void) { pass_at_k(4, 2, 5); }
static void without_differences(void) {
  double mean;
  bootstrap_paired((const double[]){1}, 0, 1, &mean, 1);
}
static void without_resamples(void) {
  double mean;
  bootstrap_paired((const double[]){1}, 1, 1, &mean, 0);
}

static void what_cannot_be_estimated_is_our_own_mistake(void **state) {
  (void)state;
  void (*const calls[])(void) = {passed_fewer_than_none, passed_more_than_all, of_no_sample,
                                 of_more_than_all,       without_differences,  without_resamples};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) assert_int_equal(dies_of(calls[i]), SIGABRT);
}

static void ks_are_the_powers_of_two_and_all(void **state) {
  (void)state;
  int64_t ks[PASS_KS_MAX];
  assert_int_equal(pass_ks(1, ks), 1);
  assert_int_equal(ks[0], 1);
  assert_int_equal(pass_ks(6, ks), 4);
  assert_true(ks[0] == 1 && ks[1] == 2 && ks[2] == 4 && ks[3] == 6);
  assert_int_equal(pass_ks(8, ks), 4);
  assert_int_equal(ks[3], 8);
  assert_int_equal(pass_ks(1024, ks), 11);
  assert_true(pass_k_shown(6, 1) && pass_k_shown(6, 2) && pass_k_shown(1, 1) && !pass_k_shown(6, -1) &&
              pass_k_shown(6, 6) && pass_k_shown(6, 4) && !pass_k_shown(6, 3) && !pass_k_shown(6, 8) &&
              !pass_k_shown(6, 0));
}

static void a_majority_knows_no_order(void **state) {
  (void)state;
  static const struct {
    struct vote votes[6];
    int count;
    double value;
  } cases[] = {
      {{{7, true}, {9, false}, {8, true}}, 3, 1},        /* two ways to write what is right */
      {{{9, false}, {7, true}, {9, false}}, 3, 0},       /* outvoted */
      {{{9, false}, {7, true}}, 2, 0.5},                 /* a draw of two */
      {{{9, false}, {7, true}, {8, false}}, 3, 1.0 / 3}, /* of three */
      {{{0, false}, {0, false}, {7, true}}, 3, 1},       /* who has no answer does not vote */
      {{{0, false}, {0, false}}, 2, 0},
      {{{9, false}, {8, false}, {9, false}, {8, false}, {7, true}, {7, true}}, 6, 1.0 / 3},
      {{{8, false}, {8, false}, {8, false}, {9, false}, {7, true}, {7, true}},
       6,
       0}, /* the smaller group comes later */
      {{{9, false}, {9, false}, {9, false}, {8, false}, {7, true}, {7, true}}, 6, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (int turn = 0; turn < cases[i].count; turn++) {
      struct vote votes[6];
      for (int k = 0; k < cases[i].count; k++) votes[k] = cases[i].votes[(k + turn) % cases[i].count];
      near(majority_value(votes, cases[i].count), cases[i].value);
    }
  }
}

/* Wilson's for zeros and ones; narrower where values vary less, and never without width unless many draws stand behind
 * it. */
static void an_interval_is_wilsons(void **state) {
  (void)state;
  struct item_sums ones = {0}, mixed = {0}, halves = {0};
  for (int i = 0; i < 10; i++) item_sums_add(&ones, 1);
  struct figure f = figure_of(&ones, 10);
  near(f.value, 1);
  near(f.high, 1);
  near(f.low, 0.7224672001371107);
  for (int i = 0; i < 10; i++) item_sums_add(&mixed, i < 4);
  f = figure_of(&mixed, 10);
  near(f.value, 0.4);
  near(f.low, 0.16818032970623617);
  near(f.high, 0.6873262302663417);
  const struct figure same = figure_of(&mixed, 80); /* zeros and ones are single draws, whatever is claimed */
  near(same.low, f.low);
  for (int i = 0; i < 10; i++) item_sums_add(&halves, 0.5);
  f = figure_of(&halves, 80);
  assert_true(f.low > 0.39 && f.high < 0.61 && f.low < 0.4); /* as 80 draws */
  const struct figure none = figure_of(&(struct item_sums){0}, 0);
  assert_true(isnan(none.value) && isnan(none.low) && isnan(none.high));
}

/* Wilson's interval of share p of m draws, as it is published. */
static void check_wilson(const struct figure *f, double p, double m) {
  const double z = 1.959963984540054, root = sqrt(p * (1 - p) / m + z * z / (4 * m * m)), all = 1 + z * z / m;
  near(f->low, (p + z * z / (2 * m) - z * root) / all);
  near(f->high, (p + z * z / (2 * m) + z * root) / all);
}

static void an_end_lies_between_0_and_1_and_never_past_the_value(void **state) {
  (void)state;
  for (int n = 1; n <= 200; n++) {
    struct item_sums zeros = {0}, ones = {0};
    for (int i = 0; i < n; i++) item_sums_add(&zeros, 0);
    for (int i = 0; i < n; i++) item_sums_add(&ones, 1);
    const struct figure low = figure_of(&zeros, 8 * n),
                        high = figure_of(&ones, 8 * n); /* all alike tells nothing of more draws */
    assert_true(low.value == 0 && low.low == 0 && high.value == 1 && high.high == 1);
    near(low.high, 1 - high.low);
    check_wilson(&high, 1, n);
  }
}

/* Equal values vary by nothing, or by less than nothing where squares were rounded. */
static void values_without_variance_count_as_their_draws(void **state) {
  (void)state;
  for (int tenths = 1; tenths < 10; tenths++) {
    for (int n = 1; n <= 40; n++) {
      struct item_sums s = {0};
      for (int i = 0; i < n; i++) item_sums_add(&s, tenths / 10.0);
      const struct figure f = figure_of(&s, 4 * n);
      check_wilson(&f, f.value, 4 * n);
    }
  }
}

static void a_bootstrap_repeats_itself(void **state) {
  (void)state;
  enum { N = 40, RESAMPLES = 2000 };
  double differences[N], means[RESAMPLES];
  for (int i = 0; i < N; i++) differences[i] = i % 4 == 0;
  const struct bootstrap b = bootstrap_paired(differences, N, 3, means, RESAMPLES);
  const struct bootstrap again = bootstrap_paired(differences, N, 3, means, RESAMPLES);
  assert_memory_equal(&b, &again, sizeof b);
  near(b.difference, 0.25);
  assert_true(b.low >= 0.1 && b.low <= 0.15 && b.high >= 0.35 && b.high <= 0.425);
  near(b.p_value, 2.0 / (RESAMPLES + 1));
  assert_true(bootstrap_paired(differences, N, 4, means, RESAMPLES).low != 0 && means[0] > 0);
  for (int i = 0; i < N; i++) differences[i] = 0;
  near(bootstrap_paired(differences, N, 3, means, 100).p_value, 1);
  differences[0] = -1;
  assert_true(bootstrap_paired(differences, 1, 3, means, 100).high == -1);
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* The share's quantile between the neighbours of its place. */
static double quantile_of(const double *sorted, int n, double share) {
  const double at = share * (n - 1), part = at - floor(at);
  const int below = (int)floor(at), above = below + 1 < n ? below + 1 : below;
  return sorted[below] * (1 - part) + sorted[above] * part;
}

/* The definition again: word i of the resample's stream draws problem i. */
static void check_bootstrap(const double *differences, int n, uint64_t seed, int resamples) {
  double expected[512], room[514], given[16];
  int not_above = 0, not_below = 0;
  for (int r = 0; r < resamples; r++) {
    const struct rng_key key = {.seed = seed, .purpose = RNG_BOOTSTRAP, .round = (uint32_t)r};
    double sum = 0;
    for (int i = 0; i < n; i++) {
      uint32_t words[4];
      rng_words(words, &key, (uint32_t)i / 4);
      sum += differences[((uint64_t)words[i % 4] * (uint64_t)n) >> 32];
    }
    expected[r] = sum / n;
    not_above += expected[r] <= 1e-12;
    not_below += expected[r] >= -1e-12;
  }
  qsort(expected, (size_t)resamples, sizeof *expected, by_size);
  for (int i = 0; i < 514; i++) room[i] = NAN; /* beside what may be read */
  for (int i = 0; i < 16; i++) given[i] = i >= 1 && i <= n ? differences[i - 1] : NAN;
  const struct bootstrap b = bootstrap_paired(given + 1, n, seed, room + 1, resamples);
  double mean = 0;
  for (int i = 0; i < n; i++) mean += differences[i] / n;
  near(b.difference, mean);
  near(b.low, quantile_of(expected, resamples, 0.025));
  near(b.high, quantile_of(expected, resamples, 0.975));
  near(b.p_value, fmin(1, 2.0 * (1 + (not_above < not_below ? not_above : not_below)) / (1 + resamples)));
}

static void a_bootstrap_is_its_definition(void **state) {
  (void)state;
  static const double up[] = {0.9, -0.3, 0.25, 0.7, -0.1, 0.05, 0.4},
                      down[] = {-0.9, 0.3, -0.25, -0.7, 0.1, -0.05, -0.4};
  static const double many[14] = {1, 0, 0.5, -0.25, 0.125, 3, 0, 0, -2, 0.75, 0.3, 1.5, -0.6, 0.2};
  for (int resamples = 1; resamples <= 512; resamples = resamples < 8 ? resamples + 1 : resamples * 2 - 3) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
      check_bootstrap(up, 7, seed, resamples);
      check_bootstrap(down, 7, seed, resamples);
      check_bootstrap(many, 14, seed, resamples);
      check_bootstrap(up, 1, seed, resamples);
      check_bootstrap((const double[]){1, -1}, 2, seed, resamples);
      check_bootstrap((const double[]){1e-12}, 1, seed, resamples); /* what a sum's rounding leaves is no difference */
      check_bootstrap((const double[]){-1e-12}, 1, seed, resamples);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pass_at_k_is_the_share_of_the_subsets),
      cmocka_unit_test(what_cannot_be_estimated_is_our_own_mistake),
      cmocka_unit_test(ks_are_the_powers_of_two_and_all),
      cmocka_unit_test(a_majority_knows_no_order),
      cmocka_unit_test(an_interval_is_wilsons),
      cmocka_unit_test(an_end_lies_between_0_and_1_and_never_past_the_value),
      cmocka_unit_test(values_without_variance_count_as_their_draws),
      cmocka_unit_test(a_bootstrap_is_its_definition),
      cmocka_unit_test(a_bootstrap_repeats_itself),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

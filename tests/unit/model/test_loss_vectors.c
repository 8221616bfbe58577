/* Every loss, its derivatives and its sums against tests/golden/losses.txt: 480 random sequences that
 * make_loss_vectors.py computed from the papers' formulas, in decimal, by differences. */
#include "tests/unit/model/support.h"

#include <math.h>
#include <stdio.h>

#include "common/model/learning/loss.h"

enum { TOKENS_MAX = 8, UNIT = 1024 };

struct vector {
  char objective[32];
  struct loss_config config;
  int tokens, has_old, has_proximal, has_reference;
  float advantage, new[TOKENS_MAX], old[TOKENS_MAX], proximal[TOKENS_MAX], reference[TOKENS_MAX];
  double derivative[TOKENS_MAX];
  struct loss_stats stats;
};

static float unit(int numerator) { return (float)numerator / UNIT; }

/* false at the end of the file */
static bool vector_read(struct vector *v, FILE *file) {
  char normalization[32], estimator[32];
  int low, high, cap, kl, advantage;
  *v = (struct vector){0};
  const int fields = fscanf(file, " case %31s %d %d %d %d %31s %d %d %d %d %d %31s %d", v->objective, &low, &high, &cap,
                            &kl, normalization, &advantage, &v->tokens, &v->has_old, &v->has_proximal,
                            &v->has_reference, estimator, &v->config.length_max);
  if (fields == EOF) return false;
  assert_int_equal(fields, 13);
  assert_in_range(v->tokens, 1, TOKENS_MAX);
  assert_int_equal(loss_kind_parse(&v->config.kind, v->objective, NULL), RC_OK);
  assert_int_equal(loss_normalization_parse(&v->config.normalization, normalization, NULL), RC_OK);
  assert_int_equal(kl_estimator_parse(&v->config.kl_estimator, estimator, NULL), RC_OK);
  v->config.clip_low = unit(low), v->config.clip_high = unit(high);
  v->config.importance_cap = unit(cap), v->config.kl_coefficient = unit(kl);
  v->advantage = unit(advantage);
  for (int i = 0; i < v->tokens; i++) {
    int at[4];
    assert_int_equal(fscanf(file, " token %d %d %d %d %lf", &at[0], &at[1], &at[2], &at[3], &v->derivative[i]), 5);
    v->new[i] = unit(at[0]), v->old[i] = unit(at[1]), v->proximal[i] = unit(at[2]), v->reference[i] = unit(at[3]);
  }
  struct loss_stats *s = &v->stats;
  assert_int_equal(fscanf(file, " sums %lf %lf %lf %lf %lf %lf %d", &s->loss, &s->kl_reference, &s->ratio_sum,
                          &s->ratio_squares, &s->kl_new_old, &s->difference_new_old, &s->clipped),
                   7);
  return true;
}

static void near(int number, const struct vector *v, const char *what, double value, double expected,
                 double tolerance) {
  if (!(fabs(value - expected) <= tolerance * (1 + fabs(expected))))
    fail_msg("case %d, %s: %s is %.12g, expected %.12g", number, v->objective, what, value, expected);
}

static void test_every_vector(void **state) {
  (void)state;
  static const char *const objectives[] = {"grpo",  "ppo",           "reinforce", "gspo",
                                           "cispo", "decoupled_ppo", "tis",       "cross_entropy"};
  int of[8] = {0}, clipped[8] = {0}, number = 0;
  struct vector v;
  FILE *file = fopen(GOLDEN "/losses.txt", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
  for (; vector_read(&v, file); number++) {
    struct loss_stats got = {0};
    float d[TOKENS_MAX];
    loss_sequence(&v.config, v.tokens, v.new, v.has_old ? v.old : NULL, v.has_proximal ? v.proximal : NULL,
                  v.has_reference ? v.reference : NULL, v.advantage, d, &got);
    for (int i = 0; i < v.tokens; i++) near(number, &v, "a derivative", (double)d[i], v.derivative[i], 1e-7);
    near(number, &v, "the loss", got.loss, v.stats.loss, 1e-11);
    near(number, &v, "kl_reference", got.kl_reference, v.stats.kl_reference, 1e-11);
    near(number, &v, "ratio_sum", got.ratio_sum, v.stats.ratio_sum, 1e-11);
    near(number, &v, "ratio_squares", got.ratio_squares, v.stats.ratio_squares, 1e-11);
    near(number, &v, "kl_new_old", got.kl_new_old, v.stats.kl_new_old, 1e-11);
    near(number, &v, "difference_new_old", got.difference_new_old, v.stats.difference_new_old, 1e-11);
    assert_int_equal(got.clipped, v.stats.clipped);
    assert_int_equal(got.tokens, v.tokens);
    for (int k = 0; k < 8; k++) {
      if (strcmp(v.objective, objectives[k]) != 0) continue;
      of[k]++;
      clipped[k] += got.clipped;
    }
  }
  fclose(file);
  for (int k = 0; k < 8; k++) {
    if (of[k] < 60 || (clipped[k] == 0) != (strcmp(objectives[k], "cross_entropy") == 0))
      fail_msg("%s: %d cases, %d clipped tokens", objectives[k], of[k], clipped[k]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_vector)};
  return cmocka_run_group_tests_name("model/loss_vectors", tests, NULL, NULL);
}

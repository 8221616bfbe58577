/* Plain sampling is ops->sample and ops->logprob bit for bit; truncation keeps exactly the tokens that its definition
 * says. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/network/sampler.h"

enum { V = 300 };

static struct pool *pool;
static struct ops *ops;
static struct sampler *sampler;

static int setup(void **state) {
  (void)state;
  if (pool_create(&pool, 1, NULL) != RC_OK || ops_cpu_create(&ops, FORMAT_BF16, NULL, pool, NULL) != RC_OK) return -1;
  sampler = sampler_create(ops, V);
  return sampler ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  sampler_free(sampler);
  ops_free(ops);
  pool_destroy(pool);
  return 0;
}

static void make_logits(float *logits, uint64_t seed) {
  uint64_t rng = seed;
  for (int v = 0; v < V; v++) logits[v] = (float)random_below(&rng, 10000) * 1e-3f;
}

static void choose(const float *logits, const struct sampling_params *p, float u, int32_t *token, float *logprob) {
  struct draw d = {.u = u};
  sampler_draw(sampler, logits, &p, &d, 1);
  *token = d.token;
  *logprob = d.logprob;
}

static float raw_logprob(const float *logits, int32_t token) {
  double sum = 0;
  for (int v = 0; v < V; v++) sum += exp((double)logits[v]);
  return (float)((double)logits[token] - log(sum));
}

/* Which tokens come up over a grid of uniforms, and how often. */
static void histogram(const float *logits, const struct sampling_params *p, int counts[V]) {
  memset(counts, 0, V * sizeof counts[0]);
  for (int i = 0; i < 4000; i++) {
    int32_t token;
    float logprob;
    choose(logits, p, ((float)i + 0.5f) / 4000, &token, &logprob);
    assert_true(token >= 0 && token < V);
    assert_true(fabsf(logprob - raw_logprob(logits, token)) < 1e-5f);
    counts[token]++;
  }
}

static void test_plain_is_the_kernels(void **state) {
  (void)state;
  float logits[V];
  uint64_t rng = 8;
  for (int i = 0; i < 200; i++) {
    const struct sampling_params p = {.temperature = 0.25f * (float)(1 + i % 6), .top_p = 1, .top_k = i % 2 ? 0 : V};
    const float u = ((float)random_below(&rng, 1 << 20) + 0.5f) * 0x1p-20f;
    int32_t token;
    float logprob, expected, lse;
    make_logits(logits, (uint64_t)i);
    choose(logits, &p, u, &token, &logprob);
    struct draw d = {.temperature = p.temperature, .u = u};
    ops->sample(ops, &d, 1, logits, V);
    assert_int_equal(token, d.token);
    ops->logprob(ops, &expected, &lse, NULL, logits, &token, p.temperature, 1, V);
    assert_memory_equal(&logprob, &expected, sizeof logprob);
  }
}

/* Plain, greedy and truncating draws in one call are those of calls of their own. */
static void test_draws_of_all_kinds_together(void **state) {
  (void)state;
  enum { ROWS = 4, DRAWS = 24 };
  static float logits[ROWS * V];
  const struct sampling_params kinds[] = {{.temperature = 1, .top_p = 1},
                                          {.temperature = 0, .top_p = 1},
                                          {.temperature = 0.8f, .top_p = 0.7f},
                                          {.temperature = 1.5f, .top_p = 1, .top_k = 5}};
  const struct sampling_params *params[DRAWS];
  struct draw draws[DRAWS];
  for (int r = 0; r < ROWS; r++) make_logits(logits + r * V, (uint64_t)r + 90);
  for (int i = 0; i < DRAWS; i++) {
    params[i] = &kinds[i * i % 7 % 4];
    draws[i] = (struct draw){.row = i * 3 % ROWS, .u = ((float)i + 0.5f) / DRAWS};
  }
  sampler_draw(sampler, logits, params, draws, DRAWS);
  for (int i = 0; i < DRAWS; i++) {
    int32_t token;
    float logprob;
    choose(logits + draws[i].row * V, params[i], draws[i].u, &token, &logprob);
    assert_int_equal(draws[i].token, token);
    assert_memory_equal(&draws[i].logprob, &logprob, sizeof logprob);
  }
}

static void test_greedy_takes_the_lowest_of_equals(void **state) {
  (void)state;
  float logits[V];
  const struct sampling_params p = {.temperature = 0, .top_p = 1},
                               with_k = {.temperature = 0, .top_p = 0.5f, .top_k = 3};
  int32_t token;
  float logprob;
  make_logits(logits, 1);
  logits[41] = logits[200] = logits[7] = 12;
  choose(logits, &p, 0.99f, &token, &logprob);
  assert_int_equal(token, 7);
  assert_true(fabsf(logprob - raw_logprob(logits, 7)) < 1e-5f);
  choose(logits, &with_k, 0.99f, &token, &logprob);
  assert_int_equal(token, 7);
}

static void test_top_k_keeps_lower_ids_of_ties(void **state) {
  (void)state;
  float logits[V];
  int counts[V];
  const struct sampling_params p = {.temperature = 1, .top_p = 1, .top_k = 3};
  make_logits(logits, 2);
  logits[90] = 11;
  logits[250] = logits[30] = logits[170] = logits[31] = 10.5f;
  histogram(logits, &p, counts);
  for (int v = 0; v < V; v++) assert_int_equal(counts[v] > 0, v == 90 || v == 30 || v == 31);
  const double total = exp(0.5) + 2;
  assert_true(fabs(counts[90] / 4000.0 - exp(0.5) / total) < 1e-3 && fabs(counts[30] / 4000.0 - 1 / total) < 1e-3);
}

static void test_top_p_keeps_the_token_that_crosses(void **state) {
  (void)state;
  float logits[V];
  int counts[V];
  for (int v = 0; v < V; v++) logits[v] = -30;
  logits[100] = logf(0.5f);
  logits[3] = logf(0.3f);
  logits[200] = logf(0.15f);
  logits[5] = logf(0.05f);
  const struct sampling_params p = {.temperature = 1, .top_p = 0.7f}, small = {.temperature = 1, .top_p = 0.01f};
  histogram(logits, &p, counts);
  for (int v = 0; v < V; v++) assert_int_equal(counts[v] > 0, v == 100 || v == 3);
  assert_true(abs(counts[100] - 2500) <= 2);
  histogram(logits, &small, counts);
  assert_int_equal(counts[100], 4000);
  const struct sampling_params both = {
      .temperature = 1, .top_p = 0.7f, .top_k = 3}; /* 0.5, 0.3, 0.15 of 0.95: 0.526 + 0.316 crosses 0.7 */
  histogram(logits, &both, counts);
  for (int v = 0; v < V; v++) assert_int_equal(counts[v] > 0, v == 100 || v == 3);
}

static void test_min_p_is_relative_to_the_most_likely(void **state) {
  (void)state;
  float logits[V];
  int counts[V];
  for (int v = 0; v < V; v++) logits[v] = -30;
  logits[100] = logf(0.5f);
  logits[3] = logf(0.3f);
  logits[200] = logf(0.15f);
  logits[5] = logf(0.05f);
  const struct sampling_params p = {.temperature = 1, .top_p = 1, .min_p = 0.25f},
                               hot = {.temperature = 2, .top_p = 1, .min_p = 0.25f};
  histogram(logits, &p, counts);
  for (int v = 0; v < V; v++) assert_int_equal(counts[v] > 0, v == 100 || v == 3 || v == 200);
  histogram(logits, &hot, counts); /* sqrt(0.05 / 0.5) = 0.316 */
  for (int v = 0; v < V; v++) assert_int_equal(counts[v] > 0, v == 100 || v == 3 || v == 200 || v == 5);
}

static void test_top_logprobs(void **state) {
  (void)state;
  float logits[V], logprobs[5];
  int32_t tokens[5];
  make_logits(logits, 3);
  logits[77] = 20;
  logits[12] = logits[211] = 15;
  sampler_top(sampler, logits, 5, tokens, logprobs);
  assert_int_equal(tokens[0], 77);
  assert_int_equal(tokens[1], 12);
  assert_int_equal(tokens[2], 211);
  for (int i = 0; i < 5; i++) {
    float expected, lse;
    ops->logprob(ops, &expected, &lse, NULL, logits, &tokens[i], 1, 1, V);
    assert_memory_equal(&logprobs[i], &expected, sizeof expected);
    assert_true(i == 0 || logprobs[i] <= logprobs[i - 1]);
    assert_int_equal(sampler_rank(sampler, logits, tokens[i]), i + 1);
  }
}

/* Broken weights must not crash or hang the server. */
static void test_survives_broken_logits(void **state) {
  (void)state;
  float logits[V];
  const float values[] = {NAN, INFINITY, -INFINITY};
  const struct sampling_params modes[] = {{.temperature = 1, .top_p = 1},
                                          {.temperature = 0, .top_p = 1},
                                          {.temperature = 1, .top_p = 0.9f},
                                          {.temperature = 1, .top_p = 1, .top_k = 5},
                                          {.temperature = 1, .top_p = 1, .min_p = 0.1f}};
  for (int i = 0; i < 3; i++) {
    for (int all = 0; all < 2; all++) {
      make_logits(logits, 4);
      for (int v = 0; v < V; v++)
        if (all || v % 10 == 3) logits[v] = values[i];
      for (size_t k = 0; k < sizeof modes / sizeof modes[0]; k++) {
        int32_t token = -1, top[4];
        float logprob, tops[4];
        choose(logits, &modes[k], 0.5f, &token, &logprob);
        assert_true(token >= 0 && token < V);
        sampler_top(sampler, logits, 4, top, tops);
        for (int j = 0; j < 4; j++) assert_true(top[j] >= 0 && top[j] < V);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_plain_is_the_kernels),
      cmocka_unit_test(test_draws_of_all_kinds_together),
      cmocka_unit_test(test_greedy_takes_the_lowest_of_equals),
      cmocka_unit_test(test_top_k_keeps_lower_ids_of_ties),
      cmocka_unit_test(test_top_p_keeps_the_token_that_crosses),
      cmocka_unit_test(test_min_p_is_relative_to_the_most_likely),
      cmocka_unit_test(test_top_logprobs),
      cmocka_unit_test(test_survives_broken_logits),
  };
  return cmocka_run_group_tests_name("model/sampler", tests, setup, teardown);
}

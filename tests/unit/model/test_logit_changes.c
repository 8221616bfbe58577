/* Biases, penalties and barred tokens by their definitions, written out beside: and what is drawn from a changed
 * row. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/network/sampler.h"

enum { V = 97, PROMPT = 12, TOKENS = 20 };

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
  for (int v = 0; v < V; v++) logits[v] = (float)random_below(&rng, 10000) * 1e-3f - 5;
}

static int count_in(const int32_t *tokens, int count, int32_t token) {
  int n = 0;
  for (int i = 0; i < count; i++) n += tokens[i] == token;
  return n;
}

static float defined(float z, int32_t v, const struct logit_changes *c, const struct token_history *h) {
  for (size_t i = 0; i < c->bias_count; i++)
    if (c->biases[i].token == v) z += c->biases[i].bias;
  const int there = count_in(h->prompt, h->prompt_count, v), here = count_in(h->tokens, h->count, v);
  if ((c->repetition_of_sample ? 0 : there) + here > 0) z = z > 0 ? z / c->repetition : z * c->repetition;
  z -= c->frequency * (float)here + c->presence * (float)(here > 0);
  return h->count < c->min_new && count_in(c->barred, c->barred_count, v) > 0 ? -INFINITY : z;
}

static void test_rows_change_as_defined(void **state) {
  (void)state;
  static unsigned char seen[V], zero[V];
  uint64_t rng = 5;
  for (int trial = 0; trial < 500; trial++) {
    float row[V], was[V];
    int32_t prompt[PROMPT], tokens[TOKENS];
    const int32_t barred[2] = {3, 90};
    struct token_bias biases[3];
    make_logits(row, (uint64_t)trial);
    memcpy(was, row, sizeof row);
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)random_below(&rng, V);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)random_below(&rng, 12);
    for (int i = 0; i < 3; i++) biases[i] = (struct token_bias){10 * i, (float)random_below(&rng, 200) - 100};
    const struct logit_changes c = {.biases = biases,
                                    .bias_count = (size_t)random_below(&rng, 4),
                                    .repetition = trial % 3 ? 1.25f : 1,
                                    .repetition_of_sample = trial % 4 == 0,
                                    .frequency = trial % 2 ? 0.5f : 0,
                                    .presence = trial % 5 ? -1.5f : 0,
                                    .barred = barred,
                                    .barred_count = 2,
                                    .min_new = 10};
    const struct token_history h = {prompt, tokens, PROMPT, (int32_t)random_below(&rng, TOKENS + 1)};
    logit_changes_apply(row, V, &c, &h, seen);
    for (int32_t v = 0; v < V; v++) {
      const float expected = defined(was[v], v, &c, &h);
      if (isinf(expected) || isinf(row[v]))
        assert_true(row[v] == expected);
      else
        assert_true(fabsf(row[v] - expected) < 1e-4f);
    }
    assert_memory_equal(seen, zero, V);
  }
}

static void test_what_changes_nothing_is_known(void **state) {
  (void)state;
  const struct token_bias bias = {1, 1};
  const int32_t barred = 1;
  const struct logit_changes none = LOGIT_CHANGES_NONE;
  const struct logit_changes some[] = {{.repetition = 1, .biases = &bias, .bias_count = 1},
                                       {.repetition = 1.1f},
                                       {.repetition = 1, .frequency = -1},
                                       {.repetition = 1, .presence = 1},
                                       {.repetition = 1, .barred = &barred, .barred_count = 1, .min_new = 1}};
  const struct logit_changes idle[] = {{.repetition = 1, .barred = &barred, .barred_count = 1},
                                       {.repetition = 1, .min_new = 5}};
  assert_false(logit_changes_any(&none));
  for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) assert_true(logit_changes_any(&some[i]));
  for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) assert_false(logit_changes_any(&idle[i]));
}

/* Over a grid of uniforms every token comes as often as the changed row says, with and without cuts; the
 * log-probability is that of the row as it came. */
static void test_draws_follow_the_changed_row(void **state) {
  (void)state;
  enum { DRAWS = 20000 };
  static const struct sampling_params kinds[] = {{.temperature = 1, .top_p = 1},
                                                 {.temperature = 0.7f, .top_p = 1},
                                                 {.temperature = 1, .top_p = 1, .top_k = V - 1}};
  const struct token_bias biases[] = {{7, 4}, {8, -100}};
  const int32_t tokens[] = {1, 1, 2};
  const struct logit_changes c = {.biases = biases, .bias_count = 2, .repetition = 1.5f, .presence = 1};
  const struct token_history h = {tokens, tokens, 3, 3};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    float logits[V], changed[V];
    unsigned char seen[V] = {0};
    int counts[V] = {0};
    double total = 0, raw = 0;
    make_logits(logits, k);
    memcpy(changed, logits, sizeof logits);
    logit_changes_apply(changed, V, &c, &h, seen);
    for (int v = 0; v < V; v++) total += exp((double)changed[v] / kinds[k].temperature);
    for (int v = 0; v < V; v++) raw += exp((double)logits[v]);
    for (int i = 0; i < DRAWS; i++) {
      struct draw d = {.u = ((float)i + 0.5f) / DRAWS};
      sampler_draw_changed(sampler, logits, &kinds[k], &c, &h, &d);
      counts[d.token]++;
      assert_true(fabs((double)d.logprob - ((double)logits[d.token] - log(raw))) < 1e-4);
    }
    for (int v = 0; v < V; v++)
      assert_true(fabs(counts[v] - DRAWS * exp((double)changed[v] / kinds[k].temperature) / total) < 3);
    assert_int_equal(counts[8], 0);
  }
}

static void test_greedy_takes_the_likeliest_of_the_changed_row(void **state) {
  (void)state;
  float logits[V];
  const struct sampling_params greedy = {.temperature = 0, .top_p = 1};
  const struct token_bias biases[] = {{40, 100}, {41, 100}};
  const struct logit_changes c = {.biases = biases, .bias_count = 2, .repetition = 1};
  const struct token_history h = {0};
  for (int v = 0; v < V; v++) logits[v] = 1;
  struct draw d = {.u = 0.99f};
  sampler_draw_changed(sampler, logits, &greedy, &c, &h, &d);
  assert_int_equal(d.token, 40); /* the lowest of equals */
  for (int v = 0; v < V; v++) logits[v] = NAN;
  sampler_draw_changed(sampler, logits, &greedy, &c, &h, &d);
  assert_int_equal(d.token, 0);
  const struct sampling_params plain = {.temperature = 1, .top_p = 1};
  sampler_draw_changed(sampler, logits, &plain, &c, &h, &d);
  assert_int_equal(d.token, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_change_as_defined),
      cmocka_unit_test(test_what_changes_nothing_is_known),
      cmocka_unit_test(test_draws_follow_the_changed_row),
      cmocka_unit_test(test_greedy_takes_the_likeliest_of_the_changed_row),
  };
  return cmocka_run_group_tests_name("model/logit_changes", tests, setup, teardown);
}

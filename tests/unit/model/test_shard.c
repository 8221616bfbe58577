/* Ranks with a shard of the optimizer's state each step to the bits of one rank alone.  Their exchanges are copied by
 * hand here; tests/ranks/ makes them over a comm. */
#include "tests/unit/model/support.h"

#include "common/model/learning/optimizer.h"

enum { RANKS_MAX = 9, UNITS = 11, STEPS = 3 };

static const struct optimizer_config CONFIG = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 0.5, .grad_scale_log2 = 32};

static struct bench b;
static size_t n;

/* Six blocks, the last one short, and parameters that lie across their bounds. */
static int setup(void **state) {
  (void)state;
  struct model_config c = tiny_config(false);
  c.hidden = 120;
  c.ffn = 250;
  c.vocabulary = 600;
  if (!bench_open(&b, &c, FORMAT_BF16, NULL, 2)) return -1;
  n = b.model->params.elements;
  return shard_blocks(n) == 6 && n % SHARD_BLOCK != 0 ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  bench_close(&b);
  return 0;
}

static void test_shards_are_whole_blocks_in_order(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 1, SHARD_BLOCK - 1, SHARD_BLOCK, SHARD_BLOCK + 1, 5 * SHARD_BLOCK, (size_t)3 << 33};
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    for (int ranks = 1; ranks <= 70; ranks++) {
      size_t at = 0, least = SIZE_MAX, most = 0;
      for (int r = 0; r < ranks; r++) {
        const struct shard s = shard_of(sizes[k], r, ranks);
        assert_int_equal(s.begin, at);
        assert_true(s.end >= s.begin && (s.end % SHARD_BLOCK == 0 || s.end == sizes[k]));
        const size_t blocks = shard_blocks(shard_count(s));
        if (blocks < least) least = blocks;
        if (blocks > most) most = blocks;
        at = s.end;
      }
      assert_int_equal(at, sizes[k]);
      assert_true(most - least <= 1);
    }
  }
}

static void add(struct optimizer *o, uint64_t index) {
  float *g = gradient_unit(b.model, index);
  assert_true(optimizer_add_unit(o, g));
  free(g);
}

/* Does the same as reduce_scatter: each rank's shard becomes the sum. */
static void add_up(struct optimizer **o, int ranks) {
  for (int r = 0; r < ranks; r++) {
    const struct shard s = optimizer_shard(o[r]);
    for (int other = 0; other < ranks; other++) {
      for (size_t i = s.begin; other != r && i < s.end; i++) optimizer_sums(o[r])[i] += optimizer_sums(o[other])[i];
    }
  }
}

static void step_together(struct optimizer **o, int ranks, struct step_result *results) {
  double *squares = calloc(shard_blocks(n), sizeof *squares);
  assert_non_null(squares);
  add_up(o, ranks);
  for (int r = 0; r < ranks; r++) optimizer_shard_gradient(o[r], 7, squares);
  for (int r = 0; r < ranks; r++) optimizer_shard_step(o[r], squares, &results[r]);
  free(squares);
}

static void assert_same(struct optimizer *shard, struct optimizer *whole) {
  const struct shard s = optimizer_shard(shard);
  const size_t bytes = shard_count(s) * sizeof(float);
  assert_memory_equal(optimizer_masters(shard), optimizer_masters(whole) + s.begin, bytes);
  assert_memory_equal(optimizer_moment1(shard), optimizer_moment1(whole) + s.begin, bytes);
  assert_memory_equal(optimizer_moment2(shard), optimizer_moment2(whole) + s.begin, bytes);
  assert_int_equal(optimizer_step_count(shard), optimizer_step_count(whole));
}

/* Weights of the ranks' parts against weights of one rank's masters. */
static void assert_same_weights(struct optimizer **o, int ranks, struct optimizer *whole) {
  struct weights *together = NULL, *alone = NULL;
  struct digest x, y;
  uint16_t *operands = calloc(n, sizeof *operands), *again = calloc(n, sizeof *again);
  assert_true(operands && again);
  assert_int_equal(weights_create(&together, b.model, false, NULL), RC_OK);
  assert_int_equal(weights_create(&alone, b.model, false, NULL), RC_OK);
  for (int r = 0; r < ranks; r++) optimizer_shard_operands(o[r], operands);
  weights_from_operands(together, operands);
  weights_from_masters(alone, optimizer_masters(whole));
  assert_int_equal(weights_digest(&x, together, NULL), RC_OK);
  assert_int_equal(weights_digest(&y, alone, NULL), RC_OK);
  assert_true(digest_equal(&x, &y));
  weights_to_operands(alone, again);
  assert_memory_equal(again, operands, n * sizeof *again); /* both are zero in the padding */
  weights_free(together);
  weights_free(alone);
  free(operands);
  free(again);
}

static void test_shards_step_as_one(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
    struct optimizer *whole = NULL, *o[RANKS_MAX] = {NULL};
    struct step_result expected, results[RANKS_MAX];
    assert_int_equal(optimizer_create(&whole, b.model, &CONFIG, NULL), RC_OK);
    masters_random(b.model, optimizer_masters(whole), 1, NULL);
    for (int r = 0; r < ranks; r++) {
      const struct shard s = shard_of(n, r, ranks);
      assert_int_equal(optimizer_create_shard(&o[r], b.model, s, &CONFIG, NULL), RC_OK);
      memcpy(optimizer_masters(o[r]), optimizer_masters(whole) + s.begin, shard_count(s) * sizeof(float));
    }
    for (uint64_t step = 0; step < STEPS; step++) {
      for (uint64_t u = 0; u < UNITS; u++) {
        add(whole, step * UNITS + u);
        add(o[u % (uint64_t)ranks], step * UNITS + u);
      }
      optimizer_step(whole, 7, &expected);
      step_together(o, ranks, results);
      assert_true(expected.grad_norm > CONFIG.clip_norm);
      for (int r = 0; r < ranks; r++) {
        assert_true(results[r].grad_norm == expected.grad_norm && results[r].lr == expected.lr &&
                    results[r].step == expected.step && !results[r].skipped);
        assert_same(o[r], whole);
      }
    }
    assert_same_weights(o, ranks, whole);
    for (int r = 0; r < ranks; r++) optimizer_free(o[r]);
    optimizer_free(whole);
  }
}

/* A shard costs its share of masters and moments, and the whole costs what it did. */
static void test_memory_is_shared_out(void **state) {
  (void)state;
  const size_t whole = optimizer_bytes(b.model, &(struct optimizer_place){.shard = shard_of(n, 0, 1)});
  assert_true(whole >= n * 24 && whole <= n * 24 + 5 * 64);
  const struct shard third = shard_of(n, 1, 3);
  const size_t bytes = optimizer_bytes(b.model, &(struct optimizer_place){.shard = third});
  assert_true(bytes >= n * 12 + shard_count(third) * 12 && bytes <= n * 12 + shard_count(third) * 12 + 5 * 64);
}

/* The rank that is told of another's poison skips its step too, and nothing of its units is left. */
static void test_a_poisoned_step_is_skipped_by_a_shard(void **state) {
  (void)state;
  struct optimizer *o = NULL;
  struct step_result result;
  assert_int_equal(optimizer_create_shard(&o, b.model, shard_of(n, 1, 2), &CONFIG, NULL), RC_OK);
  add(o, 1);
  assert_false(optimizer_poisoned(o));
  optimizer_poison(o);
  assert_true(optimizer_poisoned(o));
  optimizer_step(o, 7, &result);
  assert_true(result.skipped && result.step == 0 && !optimizer_poisoned(o));
  for (size_t i = 0; i < n; i++) assert_true(optimizer_sums(o)[i] == 0);
  optimizer_free(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shards_are_whole_blocks_in_order),
      cmocka_unit_test(test_shards_step_as_one),
      cmocka_unit_test(test_memory_is_shared_out),
      cmocka_unit_test(test_a_poisoned_step_is_skipped_by_a_shard),
  };
  return cmocka_run_group_tests_name("model/shard", tests, setup, teardown);
}

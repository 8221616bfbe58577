/* Philox4x32-10 against Random123's published known answers, and the numbers that Leasehold derives from it. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/base/philox.h"

static void test_known_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], out[4];
  } cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint32_t out[4];
    philox4x32_10(out, cases[i].counter, cases[i].key);
    assert_memory_equal(out, cases[i].out, sizeof out);
  }
}

/* The layout of key and counter is a promise: changing it changes every run. */
static void test_words_follow_the_documented_layout(void **state) {
  (void)state;
  const struct rng_key key = {
      .seed = 0x299f31d0a4093822u, .purpose = RNG_SAMPLE, .round = 7, .group = 5, .sample = 0xABCDEF};
  const uint32_t counter[4] = {9, 0xABCDEFu | 1u << 24, 5, 7}, k[2] = {0xa4093822, 0x299f31d0};
  uint32_t expected[4], got[4];
  philox4x32_10(expected, counter, k);
  rng_words(got, &key, 9);
  assert_memory_equal(got, expected, sizeof got);
}

static void test_uniform_is_open(void **state) {
  (void)state;
  assert_true(rng_uniform(0) == 0x1p-24f);
  assert_true(rng_uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
  assert_true(rng_uniform(0x80000000u) == 0.5f + 0x1p-24f);
}

static void test_below_stays_below_and_covers(void **state) {
  (void)state;
  const struct rng_key key = {.seed = 1, .purpose = RNG_REWARD};
  int seen[7] = {0};
  for (uint32_t i = 0; i < 7000; i++) {
    const uint64_t j = rng_below(&key, i, 7);
    assert_true(j < 7);
    seen[j]++;
  }
  for (int j = 0; j < 7; j++) assert_in_range(seen[j], 800, 1200);
  assert_int_equal(rng_below(&key, 0, 1), 0);
  assert_true(rng_below(&key, 0, UINT64_MAX) < UINT64_MAX);
}

static void test_shuffle_permutes_and_depends_on_epoch(void **state) {
  (void)state;
  enum { N = 1000 };
  uint32_t a[N], b[N], c[N];
  for (uint32_t i = 0; i < N; i++) a[i] = b[i] = c[i] = i;
  rng_shuffle(a, N, 42, 0);
  rng_shuffle(b, N, 42, 0);
  rng_shuffle(c, N, 42, 1);
  assert_memory_equal(a, b, sizeof a);
  assert_memory_not_equal(a, c, sizeof a);
  char seen[N] = {0};
  for (int i = 0; i < N; i++) {
    assert_true(a[i] < N && !seen[a[i]]);
    seen[a[i]] = 1;
  }
  rng_shuffle(a, 0, 42, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_answers),
      cmocka_unit_test(test_words_follow_the_documented_layout),
      cmocka_unit_test(test_uniform_is_open),
      cmocka_unit_test(test_below_stays_below_and_covers),
      cmocka_unit_test(test_shuffle_permutes_and_depends_on_epoch),
  };
  return cmocka_run_group_tests_name("base/philox", tests, NULL, NULL);
}

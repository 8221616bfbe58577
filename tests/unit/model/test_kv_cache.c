/* Pages are counted exactly and shared pages are never written through: otherwise samples of a group would read each
 * other's tokens, or pages would leak. */
#include "tests/unit/model/support.h"

#include "common/model/network/kv_cache.h"

enum { SEQUENCES = 6, TOKENS_MAX = 100, PAGES = 12 };

struct shadow {
  struct kv_sequence s;
  int32_t content[TOKENS_MAX];
};

static struct bench b;

static int setup(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  return bench_open(&b, &c, FORMAT_BF16, NULL, 1) ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  bench_close(&b);
  return 0;
}

/* The tests keep one number per position in the page's memory, in every layer: a page has far more bytes than
 * positions. */
static int32_t *slot(const struct kv_cache *kv, const struct kv_sequence *s, int layer, int position, bool values) {
  const int page_tokens = kv_page_tokens(kv), page = s->pages[position / page_tokens];
  const struct kv_layer l = kv_cache_layer(kv, layer);
  const size_t width = values ? 16 : 32; /* head_dim 12 rounded up to 16 and 32 */
  const size_t page_bytes = (size_t)l.G * (size_t)page_tokens * width * b.ops->operand_bytes;
  return (int32_t *)((char *)(values ? l.values : l.keys) + (size_t)page * page_bytes) + position % page_tokens;
}

static void check_all(const struct kv_cache *kv, const struct shadow *all) {
  bool used[PAGES] = {false};
  int in_use = 0;
  for (int i = 0; i < SEQUENCES; i++) {
    const struct kv_sequence *s = &all[i].s;
    assert_int_equal(s->page_count, (s->length + kv_page_tokens(kv) - 1) / kv_page_tokens(kv));
    for (int p = 0; p < s->page_count; p++) {
      in_use += !used[s->pages[p]];
      used[s->pages[p]] = true;
    }
    for (int t = 0; t < s->length; t++)
      for (int layer = 0; layer < b.model->config.layers; layer++) {
        assert_int_equal(*slot(kv, s, layer, t, false), all[i].content[t]);
        assert_int_equal(*slot(kv, s, layer, t, true), all[i].content[t]);
      }
  }
  assert_int_equal(in_use + kv_pages_free(kv), kv_pages_total(kv));
}

static void write_from(const struct kv_cache *kv, struct shadow *x, int from, int32_t *next) {
  for (int t = from; t < x->s.length; t++) {
    x->content[t] = ++*next;
    for (int layer = 0; layer < b.model->config.layers; layer++)
      *slot(kv, &x->s, layer, t, false) = *slot(kv, &x->s, layer, t, true) = x->content[t];
  }
}

static void random_operation(struct kv_cache *kv, struct shadow *all, uint64_t *rng, int32_t *next) {
  struct shadow *x = &all[random_below(rng, SEQUENCES)];
  const int free_before = kv_pages_free(kv);
  const int what = random_below(rng, 4);
  if (what <= 1) {
    const int length = x->s.length + random_below(rng, TOKENS_MAX - x->s.length + 1);
    const int old = x->s.length, needed = kv_pages_needed(kv, &x->s, length);
    const enum rc rc = kv_reserve(kv, &x->s, length);
    assert_int_equal(rc, needed <= free_before ? RC_OK : RC_FULL);
    if (rc == RC_OK) write_from(kv, x, old, next);
    /* a copy on write takes a page and leaves the other readers theirs */
    assert_int_equal(kv_pages_free(kv), rc == RC_OK ? free_before - needed : free_before);
  } else if (what == 2) {
    kv_truncate(kv, &x->s, random_below(rng, x->s.length + 1));
  } else {
    struct shadow *parent = &all[random_below(rng, SEQUENCES)];
    if (parent == x) return;
    kv_truncate(kv, &x->s, 0);
    const int length = random_below(rng, parent->s.length + 1);
    kv_fork(kv, &x->s, &parent->s, length);
    memcpy(x->content, parent->content, (size_t)length * sizeof x->content[0]);
  }
}

static void test_random_life(void **state) {
  (void)state;
  static const int page_sizes[] = {16, 32, 48};
  for (int k = 0; k < 3; k++) {
    struct kv_cache *kv = NULL;
    struct shadow all[SEQUENCES] = {0};
    uint64_t rng = 5 + (uint64_t)k;
    int32_t next = 0;
    assert_int_equal(kv_cache_create(&kv, b.model, PAGES, page_sizes[k], NULL), RC_OK);
    for (int i = 0; i < SEQUENCES; i++) assert_int_equal(kv_sequence_init(&all[i].s, kv, TOKENS_MAX, NULL), RC_OK);
    for (int step = 0; step < 1500; step++) {
      random_operation(kv, all, &rng, &next);
      check_all(kv, all);
    }
    for (int i = 0; i < SEQUENCES; i++) kv_sequence_release(kv, &all[i].s);
    assert_int_equal(kv_pages_free(kv), PAGES);
    kv_cache_free(kv);
  }
}

static void test_a_group_shares_its_prompt(void **state) {
  (void)state;
  struct kv_cache *kv = NULL;
  struct kv_sequence prompt, sample[3];
  assert_int_equal(kv_cache_create(&kv, b.model, PAGES, 16, NULL), RC_OK);
  assert_int_equal(kv_sequence_init(&prompt, kv, TOKENS_MAX, NULL), RC_OK);
  assert_int_equal(kv_reserve(kv, &prompt, 40), RC_OK);
  assert_int_equal(kv_pages_free(kv), PAGES - 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kv_sequence_init(&sample[i], kv, TOKENS_MAX, NULL), RC_OK);
    kv_fork(kv, &sample[i], &prompt, 40);
  }
  kv_sequence_release(kv, &prompt);
  assert_int_equal(kv_pages_free(kv), PAGES - 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kv_pages_needed(kv, &sample[i], 41), i < 2 ? 1 : 0); /* the last reader keeps the page itself */
    assert_int_equal(kv_reserve(kv, &sample[i], 41), RC_OK);
  }
  assert_int_equal(kv_pages_free(kv), PAGES - 5);
  for (int i = 0; i < 3; i++) kv_sequence_release(kv, &sample[i]);
  assert_int_equal(kv_pages_free(kv), PAGES);
  kv_cache_free(kv);
}

static void test_refuses_bad_sizes(void **state) {
  (void)state;
  struct kv_cache *kv = NULL;
  struct err err = {0};
  assert_int_equal(kv_cache_create(&kv, b.model, 4, 24, &err), RC_INVALID);
  assert_int_equal(kv_cache_create(&kv, b.model, 4, 2048, &err), RC_INVALID);
  assert_int_equal(kv_cache_create(&kv, b.model, 0, 16, &err), RC_INVALID);
  assert_null(kv);
}

/* A token's slot of each of the sequence's pages, in every layer. */
static void stain(const struct kv_cache *kv, const struct kv_sequence *s, int32_t stain) {
  for (int t = 0; t < s->length; t += kv_page_tokens(kv))
    for (int layer = 0; layer < b.model->config.layers; layer++)
      *slot(kv, s, layer, t, false) = *slot(kv, s, layer, t, true) = stain;
}

static void check_stain(const struct kv_cache *kv, const struct kv_sequence *s, int page, int32_t expected) {
  for (int layer = 0; layer < b.model->config.layers; layer++) {
    assert_int_equal(*slot(kv, s, layer, page * kv_page_tokens(kv), false), expected);
    assert_int_equal(*slot(kv, s, layer, page * kv_page_tokens(kv), true), expected);
  }
}

/* A NaN that a run with exploded weights left in a page became the next run's: 0 x NaN is NaN. */
static void test_what_is_not_finite_is_cleared_before_others_take_it(void **state) {
  (void)state;
  struct kv_cache *kv;
  struct kv_sequence first = {0}, copy = {0}, next = {0};
  assert_int_equal(kv_cache_create(&kv, b.model, 4, 16, NULL), RC_OK);
  assert_int_equal(kv_sequence_init(&first, kv, 64, NULL), RC_OK);
  assert_int_equal(kv_sequence_init(&copy, kv, 64, NULL), RC_OK);
  assert_int_equal(kv_sequence_init(&next, kv, 64, NULL), RC_OK);
  assert_int_equal(kv_reserve(kv, &first, 40), RC_OK);
  stain(kv, &first, -1);
  kv_sequence_release(kv, &first);
  assert_int_equal(kv_reserve(kv, &next, 48), RC_OK); /* nobody has distrusted these */
  for (int page = 0; page < 3; page++) check_stain(kv, &next, page, -1);
  kv_distrust(kv, &next);
  for (int page = 0; page < 3; page++) check_stain(kv, &next, page, -1); /* still its own */
  kv_fork(kv, &copy, &next, 8);
  assert_int_equal(kv_reserve(kv, &copy, 9), RC_OK); /* copies the page on the write */
  check_stain(kv, &copy, 0, -1);
  kv_sequence_release(kv, &copy);
  kv_truncate(kv, &next, 0);
  assert_int_equal(kv_reserve(kv, &next, 64), RC_OK);
  for (int page = 0; page < 4; page++) check_stain(kv, &next, page, 0);
  stain(kv, &next, 7);
  kv_truncate(kv, &next, 0);
  assert_int_equal(kv_reserve(kv, &next, 64), RC_OK);
  for (int page = 0; page < 4; page++) check_stain(kv, &next, page, 7); /* once was enough */
  kv_clear(kv);
  for (int page = 0; page < 4; page++) check_stain(kv, &next, page, 0);
  kv_sequence_release(kv, &next);
  kv_cache_free(kv);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_life),
      cmocka_unit_test(test_a_group_shares_its_prompt),
      cmocka_unit_test(test_what_is_not_finite_is_cleared_before_others_take_it),
      cmocka_unit_test(test_refuses_bad_sizes),
  };
  return cmocka_run_group_tests_name("model/kv_cache", tests, setup, teardown);
}

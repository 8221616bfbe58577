/* A token's logits are the same bits whatever else is in the call, however its sequence was cut into calls, whatever
 * the page size, the number of threads and the instruction set.  If this fails, sampler and trainer disagree and
 * importance ratios are no longer exactly 1. */
#include "tests/unit/model/support.h"

#include <stdio.h>

#include "common/model/learning/backward.h"

enum { SEQUENCES = 4, ROWS_MAX = 44, LENGTH_MAX = 80, PAGES = 40 };

struct text {
  int length;
  int32_t tokens[LENGTH_MAX];
};

/* Sequence 2 begins like sequence 1, so that the mixtures can fork it. */
enum { SHARED = 37 };

static void make_texts(struct text *texts, int vocabulary) {
  static const int lengths[SEQUENCES] = {71, 49, 66, 5};
  uint64_t rng = 99;
  for (int s = 0; s < SEQUENCES; s++) {
    texts[s].length = lengths[s];
    for (int t = 0; t < lengths[s]; t++) texts[s].tokens[t] = random_below(&rng, vocabulary);
  }
  memcpy(texts[2].tokens, texts[1].tokens, SHARED * sizeof(int32_t));
}

struct run {
  const struct weights *w;
  struct kv_cache *kv;
  struct workspace *ws;
  struct kv_sequence sequences[SEQUENCES];
  float *logits; /* [ROWS_MAX, V] of the last call */
};

static void run_open(struct run *r, const struct model *m, const struct weights *w, int page_tokens) {
  *r = (struct run){.w = w};
  assert_int_equal(kv_cache_create(&r->kv, m, PAGES, page_tokens, NULL), RC_OK);
  assert_int_equal(workspace_create(&r->ws, m, ROWS_MAX, 0, NULL), RC_OK);
  for (int s = 0; s < SEQUENCES; s++)
    assert_int_equal(kv_sequence_init(&r->sequences[s], r->kv, LENGTH_MAX, NULL), RC_OK);
  r->logits = calloc((size_t)ROWS_MAX * (size_t)m->config.vocabulary, sizeof *r->logits);
}

static void run_close(struct run *r) {
  for (int s = 0; s < SEQUENCES; s++) kv_sequence_release(r->kv, &r->sequences[s]);
  kv_cache_free(r->kv);
  workspace_free(r->ws);
  free(r->logits);
}

/* One call: which[i], position[i] name the rows. */
static void run_rows(struct run *r, const struct text *texts, int T, const int32_t *which, const int32_t *position) {
  int32_t pages[SEQUENCES * LENGTH_MAX] = {0}, tokens[ROWS_MAX];
  int widest = 1;
  for (int s = 0; s < SEQUENCES; s++)
    if (r->sequences[s].page_count > widest) widest = r->sequences[s].page_count;
  for (int s = 0; s < SEQUENCES; s++)
    memcpy(pages + s * widest, r->sequences[s].pages, (size_t)r->sequences[s].page_count * sizeof *pages);
  for (int i = 0; i < T; i++) tokens[i] = texts[which[i]].tokens[position[i]];
  const struct rows rows = {.T = T,
                            .sequence = which,
                            .position = position,
                            .pages = pages,
                            .pages_per_sequence = widest,
                            .sequences = SEQUENCES};
  const void *hidden = NULL;
  forward_run(r->w, &rows, tokens, r->kv, r->ws, NULL, &hidden);
  forward_logits(r->w, hidden, NULL, T, r->ws, r->logits);
}

/* Reference: every sequence alone, token by token (decode). */
static float *reference_logits(const struct model *m, const struct weights *w, const struct text *texts) {
  const size_t V = (size_t)m->config.vocabulary;
  float *all = calloc(SEQUENCES * LENGTH_MAX * V, sizeof *all);
  struct run r;
  run_open(&r, m, w, 16);
  for (int32_t s = 0; s < SEQUENCES; s++) {
    for (int32_t t = 0; t < texts[s].length; t++) {
      assert_int_equal(kv_reserve(r.kv, &r.sequences[s], t + 1), RC_OK);
      run_rows(&r, texts, 1, &s, &t);
      memcpy(all + (size_t)(s * LENGTH_MAX + t) * V, r.logits, V * sizeof *all);
    }
  }
  run_close(&r);
  return all;
}

static void check_rows(const struct run *r, const float *reference, size_t V, int T, const int32_t *which,
                       const int32_t *position, const char *what) {
  for (int i = 0; i < T; i++) {
    const float *expected = reference + (size_t)(which[i] * LENGTH_MAX + position[i]) * V;
    if (memcmp(r->logits + (size_t)i * V, expected, V * sizeof *expected) != 0)
      fail_msg("%s: sequence %d, position %d differs", what, which[i], position[i]);
  }
}

/* A random mixture: in each call every sequence advances by 0 to 11 tokens, rows of different sequences interleaved;
 * sequence 2 is forked off sequence 1. */
static void run_mixture(const struct model *m, const struct weights *w, const struct text *texts,
                        const float *reference, int page_tokens, uint64_t seed, const char *what) {
  struct run r;
  uint64_t rng = seed;
  bool forked = false;
  run_open(&r, m, w, page_tokens);
  for (;;) {
    int32_t which[ROWS_MAX], position[ROWS_MAX];
    int T = 0, done = 0;
    const int written = r.sequences[1].length; /* what this call reserves is not written yet */
    for (int32_t s = 0; s < SEQUENCES; s++) {
      struct kv_sequence *q = &r.sequences[s];
      done += q->length == texts[s].length;
      if (s == 2 && !forked && written >= SHARED) {
        kv_fork(r.kv, q, &r.sequences[1], SHARED);
        forked = true;
      }
      if (s == 2 && !forked) continue;
      int take = random_below(&rng, 12);
      if (take > texts[s].length - q->length) take = texts[s].length - q->length;
      const int first = q->length;
      assert_int_equal(kv_reserve(r.kv, q, first + take), RC_OK);
      for (int t = 0; t < take; t++, T++) {
        which[T] = s;
        position[T] = first + t;
      }
    }
    if (done == SEQUENCES) break;
    for (int i = T - 1; i > 0; i--) { /* rows in any order */
      const int j = random_below(&rng, i + 1);
      const int32_t a = which[i], c = position[i];
      which[i] = which[j], position[i] = position[j];
      which[j] = a, position[j] = c;
    }
    if (T == 0) continue;
    run_rows(&r, texts, T, which, position);
    check_rows(&r, reference, (size_t)m->config.vocabulary, T, which, position, what);
  }
  run_close(&r);
}

/* The trainer's log-probabilities equal those of the sampler's logits. */
static void check_learner(const struct model *m, const struct weights *w, const struct text *texts,
                          const float *reference, int chunk_tokens) {
  const int V = m->config.vocabulary;
  struct train_sample samples[SEQUENCES];
  uint8_t scored[LENGTH_MAX];
  float ours[SEQUENCES * LENGTH_MAX], entropy[SEQUENCES * LENGTH_MAX];
  struct learner *l = NULL;
  const float temperature = 0.7f;
  memset(scored, 1, sizeof scored);
  scored[0] = 0;
  for (int s = 0; s < SEQUENCES; s++)
    samples[s] = (struct train_sample){.tokens = texts[s].tokens, .length = texts[s].length, .scored = scored};
  assert_int_equal(learner_create(&l, m, &(struct learner_options){.chunk_tokens = chunk_tokens}, NULL), RC_OK);
  assert_int_equal(learner_logprobs(l, w, samples, SEQUENCES, temperature, ours, entropy, NULL), RC_OK);
  int at = 0;
  for (int s = 0; s < SEQUENCES; s++) {
    for (int t = 1; t < texts[s].length; t++, at++) {
      float logprob, lse, e;
      m->ops->logprob(m->ops, &logprob, &lse, &e, reference + (size_t)(s * LENGTH_MAX + t - 1) * (size_t)V,
                      &texts[s].tokens[t], temperature, 1, V);
      assert_memory_equal(&logprob, &ours[at], sizeof logprob);
      assert_memory_equal(&e, &entropy[at], sizeof e);
    }
  }
  learner_free(l);
}

static void check_format(enum number_format format, bool tied, int family) {
  const struct model_config c = family_config(family, tied);
  static const int page_sizes[] = {16, 32, 48, 160};
  struct text texts[SEQUENCES];
  struct bench first;
  make_texts(texts, c.vocabulary);
  assert_true(bench_open(&first, &c, format, "v2", 1));
  struct weights *w = random_weights(first.model, false, 3);
  float *reference = reference_logits(first.model, w, texts);
  check_learner(first.model, w, texts, reference, 80);
  weights_free(w);
  bench_close(&first);
  for (int level = 0; level < LEVEL_COUNT; level++) {
    for (int threads = 1; threads <= 3; threads++) {
      struct bench b;
      char what[96];
      if (!bench_open(&b, &c, format, LEVELS[level], threads)) continue;
      w = random_weights(b.model, false, 3);
      for (int p = 0; p < 4; p++) {
        snprintf(what, sizeof what, "%s, %d threads, pages of %d", b.ops->name, threads, page_sizes[p]);
        run_mixture(b.model, w, texts, reference, page_sizes[p], (uint64_t)(level * 100 + threads * 10 + p), what);
      }
      check_learner(b.model, w, texts, reference, threads == 1 ? 80 : 200);
      weights_free(w);
      bench_close(&b);
    }
  }
  free(reference);
}

static void test_rows_are_invariant_bf16(void **state) {
  (void)state;
  check_format(FORMAT_BF16, true, 0);
  for (int family = 0; family < FAMILY_CONFIGS; family++) check_format(FORMAT_BF16, false, family);
}
static void test_rows_are_invariant_f32(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++)
    if (family == 0 || family >= 3) check_format(FORMAT_F32, true, family);
}

/* A mutant must be seen: one flipped low bit in one key of the cache changes a later row's logits. */
static void test_a_flipped_key_bit_is_seen(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct text texts[SEQUENCES];
  struct bench b;
  make_texts(texts, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 1));
  struct weights *w = random_weights(b.model, false, 3);
  float *reference = reference_logits(b.model, w, texts);
  struct run r;
  run_open(&r, b.model, w, 16);
  const size_t V = (size_t)c.vocabulary;
  const int32_t which[6] = {0}, position[6] = {0, 1, 2, 3, 4, 5};
  assert_int_equal(kv_reserve(r.kv, &r.sequences[0], 6), RC_OK);
  run_rows(&r, texts, 5, which, position);
  const struct kv_layer layer = kv_cache_layer(r.kv, 0);
  uint32_t *keys = layer.keys;
  keys[(size_t)r.sequences[0].pages[0] * (size_t)layer.G * 16 * 32 + 2] ^= 1u << 20; /* key 1, element 0 */
  const int32_t last = 5;
  run_rows(&r, texts, 1, which, &last);
  assert_true(memcmp(r.logits, reference + 5 * V, V * sizeof(float)) != 0);
  run_close(&r);
  free(reference);
  weights_free(w);
  bench_close(&b);
}

static void test_picked_rows_and_sizes(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct text texts[SEQUENCES];
  struct bench b;
  make_texts(texts, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
  struct weights *w = random_weights(b.model, false, 3);
  struct run r;
  run_open(&r, b.model, w, 16);
  const size_t V = (size_t)c.vocabulary;
  int32_t which[8] = {0}, position[8], tokens[8], pages[1];
  for (int i = 0; i < 8; i++) {
    position[i] = i;
    tokens[i] = texts[0].tokens[i];
  }
  assert_int_equal(kv_reserve(r.kv, &r.sequences[0], 8), RC_OK);
  pages[0] = r.sequences[0].pages[0];
  const struct rows rows = {
      .T = 8, .sequence = which, .position = position, .pages = pages, .pages_per_sequence = 1, .sequences = 1};
  const void *hidden = NULL;
  float *picked = calloc(2 * V, sizeof *picked);
  const int32_t pick[2] = {6, 1};
  forward_run(w, &rows, tokens, r.kv, r.ws, NULL, &hidden);
  forward_logits(w, hidden, NULL, 8, r.ws, r.logits);
  forward_logits(w, hidden, pick, 2, r.ws, picked);
  assert_memory_equal(picked, r.logits + 6 * V, V * sizeof(float));
  assert_memory_equal(picked + V, r.logits + V, V * sizeof(float));
  free(picked);
  run_close(&r);
  struct workspace *none = NULL;
  assert_int_equal(workspace_create(&none, b.model, 0, 0, NULL), RC_INVALID);
  assert_true(workspace_bytes(b.model, 64, 0) > workspace_bytes(b.model, 32, 0) &&
              activations_bytes(b.model, 32, false) > workspace_bytes(b.model, 32, 0));
  weights_free(w);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_are_invariant_bf16),
      cmocka_unit_test(test_rows_are_invariant_f32),
      cmocka_unit_test(test_a_flipped_key_bit_is_seen),
      cmocka_unit_test(test_picked_rows_and_sizes),
  };
  return cmocka_run_group_tests_name("model/forward", tests, NULL, NULL);
}

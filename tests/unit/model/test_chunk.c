/* Chunks of a forward pass alone: a prompt that samples share is computed and kept once, however many samples there
 * are, and the log-probabilities are those of each sample by itself, to the bit. */
#include "tests/unit/model/support.h"

#include "common/model/learning/backward.h"
#include "common/model/learning/chunk.h"

enum {
  SAMPLES = 6,
  PROMPT = 70,
  COMPLETION = 9,
  LENGTH = PROMPT + COMPLETION,
  TOKENS = 128,
  SCORED = SAMPLES * COMPLETION
};

struct group {
  int32_t tokens[SAMPLES][LENGTH];
  uint8_t scored[SAMPLES][LENGTH];
  struct train_sample samples[SAMPLES];
};

/* One prompt; completions that differ from their first token on, but for the last two, which are equal. */
static void make_group(struct group *g, int vocabulary) {
  uint64_t rng = 23;
  memset(g, 0, sizeof *g);
  for (int s = 0; s < SAMPLES; s++) {
    for (int t = 0; t < LENGTH; t++) {
      g->tokens[s][t] = s > 0 && t < PROMPT ? g->tokens[0][t] : random_below(&rng, vocabulary);
      g->scored[s][t] = t >= PROMPT;
    }
    g->tokens[s][PROMPT] = s < SAMPLES - 1 ? s : s - 1;
    if (s == SAMPLES - 1) memcpy(g->tokens[s], g->tokens[s - 1], sizeof g->tokens[s]);
    g->samples[s] = (struct train_sample){.tokens = g->tokens[s], .length = LENGTH, .scored = g->scored[s]};
  }
}

struct filled {
  struct chunk chunk;
  void *memory;
  int32_t pages[256];
};

static void make_chunk(struct filled *f, int chunk_tokens) {
  f->memory = aligned_alloc(64, (chunk_bytes(chunk_tokens) + 63) / 64 * 64);
  chunk_init(&f->chunk, f->memory, chunk_tokens);
  for (int i = 0; i < 256; i++) f->pages[i] = 1000 + i;
}

static void test_a_prompt_is_computed_and_kept_once(void **state) {
  (void)state;
  struct group g;
  struct filled f;
  make_group(&g, 200);
  make_chunk(&f, TOKENS);
  struct chunk *c = &f.chunk;
  assert_int_equal(chunk_fill(c, g.samples, SAMPLES, f.pages), 1); /* a gradient's chunk: two samples do not fit */
  assert_int_equal(chunk_fill_forward(c, g.samples, SAMPLES, f.pages), 4);
  assert_int_equal(c->computed, PROMPT + 4 * COMPLETION);
  assert_int_equal(c->T, LENGTH + 3 * (LENGTH - 2 * CHUNK_PAGE_TOKENS)); /* but two whole pages, all is written */
  assert_int_equal(c->scored, 4 * COMPLETION);
  for (int s = 0; s < 4; s++) {
    const int32_t *pages = c->pages + s * c->pages_per_sequence;
    assert_int_equal(pages[0], 1000);
    assert_int_equal(pages[1], 1001);
    assert_int_equal(pages[2], 1002 + s);
    for (int i = 0; i < COMPLETION; i++) {
      const int at = s * COMPLETION + i;
      assert_int_equal(c->target[at], g.tokens[s][PROMPT + i]);
      assert_int_equal(c->own_position[c->hidden_row[at]], PROMPT + i - 1);
      assert_int_equal(c->own_tokens[c->hidden_row[at]], g.tokens[s][PROMPT + i - 1]);
    }
  }
  /* An equal sample adds no row; its last page, which is not whole, is its own. */
  assert_int_equal(chunk_fill_forward(c, g.samples + SAMPLES - 2, 2, f.pages), 2);
  assert_int_equal(c->computed, LENGTH);
  assert_int_equal(c->pages[c->pages_per_sequence + 2], 1003);
  free(f.memory);
}

/* Two prompts by turns: each sample's pages are those of its own prompt. */
static void test_each_sample_finds_its_own_prompt(void **state) {
  (void)state;
  struct group g, other;
  struct filled f;
  make_group(&g, 200);
  make_group(&other, 190);
  make_chunk(&f, 4 * TOKENS);
  struct chunk *c = &f.chunk;
  const struct train_sample samples[] = {g.samples[0], other.samples[0], g.samples[1], other.samples[1]};
  assert_int_equal(chunk_fill_forward(c, samples, 4, f.pages), 4);
  assert_int_equal(c->computed, 2 * (PROMPT + 2 * COMPLETION));
  static const int32_t expected[4][3] = {{0, 1, 2}, {3, 4, 5}, {0, 1, 6}, {3, 4, 7}};
  for (int s = 0; s < 4; s++)
    for (int page = 0; page < 3; page++)
      assert_int_equal(c->pages[s * c->pages_per_sequence + page], 1000 + expected[s][page]);
  free(f.memory);
}

/* Each bound ends a chunk: rows that are written, samples. */
static void test_a_chunk_is_full(void **state) {
  (void)state;
  static const uint8_t scored[LENGTH] = {0, 1};
  struct filled f;
  struct train_sample samples[40];
  int32_t tokens[40][LENGTH];
  make_chunk(&f, TOKENS);
  memset(tokens, 0, sizeof tokens);
  for (int i = 0; i < 40; i++) {
    tokens[i][0] = i % 2;
    samples[i] = (struct train_sample){.tokens = tokens[i], .length = 2, .scored = scored};
  }
  assert_int_equal(chunk_fill_forward(&f.chunk, samples, 40, f.pages), f.chunk.sequences_max);
  samples[1].length = samples[2].length =
      60; /* 2 + 60 computed; the third has 60 written, none of it on a whole page */
  tokens[2][0] = 1;
  assert_int_equal(chunk_fill_forward(&f.chunk, samples, 3, f.pages), 3);
  assert_int_equal(f.chunk.computed, 62);
  samples[2].length = 64 + 2;
  tokens[2][40] = 7;
  assert_int_equal(chunk_fill_forward(&f.chunk, samples, 3, f.pages), 3);
  assert_int_equal(f.chunk.T, 2 + 60 + 66 - 32);
  tokens[2][0] = 3;
  samples[2].length = 67; /* 2 + 60 + 67 */
  assert_int_equal(chunk_fill_forward(&f.chunk, samples, 3, f.pages), 2);
  samples[2].length = 66;
  assert_int_equal(chunk_fill_forward(&f.chunk, samples, 3, f.pages), 3);
  free(f.memory);
}

static void test_the_same_bits_as_each_sample_alone(void **state) {
  (void)state;
  const struct model_config config = tiny_config(true);
  static const int chunks[] = {LENGTH, TOKENS, 1024};
  struct group g;
  struct bench b;
  make_group(&g, config.vocabulary);
  assert_true(bench_open(&b, &config, FORMAT_BF16, NULL, 2));
  struct weights *w = random_weights(b.model, false, 4);
  for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
    float alone[SCORED], together[SCORED], entropy_alone[SCORED], entropy[SCORED];
    struct learner *l = NULL;
    assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = chunks[i]}, NULL), RC_OK);
    for (int s = 0; s < SAMPLES; s++)
      assert_int_equal(
          learner_logprobs(l, w, &g.samples[s], 1, 0.9f, alone + s * COMPLETION, entropy_alone + s * COMPLETION, NULL),
          RC_OK);
    assert_int_equal(learner_logprobs(l, w, g.samples, SAMPLES, 0.9f, together, entropy, NULL), RC_OK);
    assert_memory_equal(alone, together, sizeof alone);
    assert_memory_equal(entropy_alone, entropy, sizeof entropy);
    learner_free(l);
  }
  weights_free(w);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_prompt_is_computed_and_kept_once),
      cmocka_unit_test(test_each_sample_finds_its_own_prompt),
      cmocka_unit_test(test_a_chunk_is_full),
      cmocka_unit_test(test_the_same_bits_as_each_sample_alone),
  };
  return cmocka_run_group_tests_name("model/chunk", tests, NULL, NULL);
}

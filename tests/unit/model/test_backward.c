/* Gradients are the same bits on every level and with any number of threads, chunks are cut by configuration alone,
 * and bad samples are refused. */
#include "tests/unit/model/support.h"

#include <math.h>
#include <stdio.h>

#include "common/model/learning/backward.h"

enum { SAMPLES = 7, LENGTH_MAX = 150, TOTAL_MAX = SAMPLES * LENGTH_MAX };

struct unit {
  int count;
  struct train_sample samples[SAMPLES];
  int32_t tokens[SAMPLES][LENGTH_MAX];
  uint8_t scored[SAMPLES][LENGTH_MAX];
  int scored_count;
};

/* Sample lengths around block borders; about two thirds of the tokens scored. */
static void make_unit(struct unit *u, int vocabulary) {
  static const int lengths[SAMPLES] = {33, 150, 1, 64, 2, 97, 120};
  uint64_t rng = 17;
  *u = (struct unit){.count = SAMPLES};
  for (int s = 0; s < SAMPLES; s++) {
    for (int t = 0; t < lengths[s]; t++) {
      u->tokens[s][t] = random_below(&rng, vocabulary);
      u->scored[s][t] = t > 0 && random_below(&rng, 3) != 0;
      u->scored_count += u->scored[s][t];
    }
    u->samples[s] = (struct train_sample){.tokens = u->tokens[s], .length = lengths[s], .scored = u->scored[s]};
  }
}

struct recorder {
  int next;
  int calls;
};

/* An arbitrary loss whose derivative depends on the log-probability and on the token's index in the unit. */
static void some_loss(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct recorder *r = context;
  assert_int_equal(first, r->next);
  r->next += count;
  r->calls++;
  for (int i = 0; i < count; i++) dlogprob[i] = (float)((first + i) % 5 - 1) * 0.25f + 0.0625f * logprob[i];
}

static float *gradients(const struct model *m, const struct unit *u, const struct learner_options *options,
                        float *logprob, int *calls) {
  struct learner *l = NULL;
  struct recorder r = {0};
  float *grads = calloc(m->params.elements, sizeof *grads);
  struct weights *w = random_weights(m, true, 4);
  assert_int_equal(learner_create(&l, m, options, NULL), RC_OK);
  assert_int_equal(learner_gradients(l, w, u->samples, u->count, 0.9f, some_loss, &r, grads, logprob, NULL), RC_OK);
  assert_int_equal(r.next, u->scored_count);
  *calls = r.calls;
  if (logprob) {
    float again[TOTAL_MAX];
    assert_int_equal(learner_logprobs(l, w, u->samples, u->count, 0.9f, again, NULL, NULL), RC_OK);
    assert_memory_equal(logprob, again, (size_t)u->scored_count * sizeof *logprob);
  }
  learner_free(l);
  weights_free(w);
  return grads;
}

static void check_same_bits(enum number_format format, bool tied, int family) {
  const struct model_config c = family_config(family, tied);
  struct unit u;
  float *expected = NULL, expected_logprob[TOTAL_MAX], logprob[TOTAL_MAX];
  make_unit(&u, c.vocabulary);
  for (int level = 0; level < LEVEL_COUNT; level++) {
    for (int threads = 1; threads <= 3; threads++) {
      struct bench b;
      int calls;
      if (!bench_open(&b, &c, format, LEVELS[level], threads)) continue;
      const struct learner_options options = {.chunk_tokens = 200, .recompute_activations = threads == 2};
      float *grads = gradients(b.model, &u, &options, expected ? logprob : expected_logprob, &calls);
      if (!expected) {
        expected = grads;
      } else {
        if (memcmp(grads, expected, b.model->params.elements * sizeof *grads) != 0)
          fail_msg("%s, %d threads: gradients differ", b.ops->name, threads);
        assert_memory_equal(logprob, expected_logprob, (size_t)u.scored_count * sizeof *logprob);
        free(grads);
      }
      bench_close(&b);
    }
  }
  free(expected);
}

static void test_same_bits_everywhere(void **state) {
  (void)state;
  check_same_bits(FORMAT_BF16, false, 0);
  for (int family = 0; family < FAMILY_CONFIGS; family++) {
    check_same_bits(FORMAT_BF16, true, family);
    if (family == 0 || family >= 3) check_same_bits(FORMAT_F32, true, family);
  }
}

/* Into the sums as one array, or tensor by tensor from weights without transposes: the same integers. */
static void check_parts(int family, bool tied, size_t transposes_bytes, int chunk_tokens) {
  const struct model_config c = family_config(family, tied);
  static const struct optimizer_config config = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale_log2 = 40};
  struct learner_options options = {.chunk_tokens = chunk_tokens};
  struct optimizer *whole = NULL, *sums = NULL;
  struct gradient_parts *parts = NULL;
  struct weights *lean = NULL;
  struct learner *l = NULL;
  struct recorder r = {0};
  struct unit u;
  struct bench b;
  float logprob[2][TOTAL_MAX];
  int calls;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
  const struct model *m = b.model;
  const struct optimizer_place place = {.shard = shard_of(m->params.elements, 0, 1), .in_parts = true};
  float *grads = gradients(m, &u, &options, logprob[0], &calls), *masters = calloc(m->params.elements, sizeof *masters);
  assert_int_equal(optimizer_create(&whole, m, &config, NULL), RC_OK);
  assert_int_equal(optimizer_create_at(&sums, m, &place, &config, NULL), RC_OK);
  assert_int_equal(gradient_parts_create(&parts, m, "/tmp", NULL), RC_OK);
  assert_int_equal(weights_create_without_transposes(&lean, m, NULL), RC_OK);
  struct weights *w = random_weights(m, true, 4); /* as in gradients */
  weights_to_masters(w, masters);
  weights_from_masters(lean, masters);
  weights_free(w);
  options.transposes_bytes = transposes_bytes;
  assert_int_equal(learner_create(&l, m, &options, NULL), RC_OK);
  assert_true(optimizer_add_unit(whole, grads));
  for (int unit = 0; unit < 2; unit++) { /* the second is in the sums already */
    r = (struct recorder){0};
    gradient_parts_begin(parts, unit == 0 ? sums : NULL);
    assert_int_equal(
        learner_gradients_in_parts(l, lean, u.samples, u.count, 0.9f, some_loss, &r, parts, logprob[1], NULL), RC_OK);
    assert_true(gradient_parts_end(parts));
    assert_int_equal(r.calls, calls);
    assert_memory_equal(logprob[0], logprob[1], (size_t)u.scored_count * sizeof *logprob[0]);
    if (memcmp(optimizer_sums(whole), optimizer_sums(sums), m->params.elements * sizeof(int64_t)) != 0)
      fail_msg("family %d, tied %d, %zu bytes for transposes, chunks of %d: the sums differ", family, tied,
               transposes_bytes, chunk_tokens);
  }
  free(grads);
  free(masters);
  learner_free(l);
  weights_free(lean);
  gradient_parts_free(parts);
  optimizer_free(whole);
  optimizer_free(sums);
  bench_close(&b);
}

static void test_gradients_in_parts_make_the_same_sums(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++)
    for (int chunk_tokens = 150; chunk_tokens <= 512; chunk_tokens += 362) {
      check_parts(family, family % 2 == 0, 1, chunk_tokens);
      check_parts(family, family % 2 == 1, LEARNER_TRANSPOSES_BYTES, chunk_tokens);
    }
}

/* Recomputed activations equal the discarded ones, with and without shared rows, with a last layer that is cut short,
 * and with logits of one head block or of several. */
static void check_recomputed(int family) {
  const struct model_config c = family_config(family, true);
  struct unit u;
  struct bench b;
  float logprob[2][TOTAL_MAX];
  int calls;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  const size_t bytes = b.model->params.elements * sizeof(float);
  for (int chunk_tokens = 150; chunk_tokens <= 512; chunk_tokens += 362) {
    struct learner_options options = {.chunk_tokens = chunk_tokens};
    float *kept = gradients(b.model, &u, &options, logprob[0], &calls);
    options.recompute_activations = true;
    float *again = gradients(b.model, &u, &options, logprob[1], &calls);
    assert_memory_equal(kept, again, bytes);
    assert_memory_equal(logprob[0], logprob[1], (size_t)u.scored_count * sizeof *logprob[0]);
    free(kept);
    free(again);
  }
  bench_close(&b);
}

static void test_recomputed_activations_give_the_same_bits(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++) check_recomputed(family);
}

/* Samples with the same tokens and the same loss have the same gradients in every row, which are computed once.
 * `kinds` says which samples are alike: letter by letter the tokens (a or A: the same), and the loss (a is another than
 * A).  C is as long as A, and E has the tokens of A, of which others are scored, as many. */
static void make_repeats(struct unit *u, const char *kinds, int vocabulary) {
  static const int lengths[] = {33, 70, 33, 64, 33};
  *u = (struct unit){.count = (int)strlen(kinds)};
  for (int s = 0; s < u->count; s++) {
    const int kind = (kinds[s] | 32) - 'a';
    uint64_t rng = 17 + (uint64_t)kind % 4;
    for (int t = 0; t < lengths[kind]; t++) {
      u->tokens[s][t] = t < 4 ? t : random_below(&rng, vocabulary);
      u->scored[s][t] = t > 3 && (t + (kind == 4 ? 2 : 1)) % 3 != 0;
      u->scored_count += u->scored[s][t];
    }
    u->samples[s] = (struct train_sample){.tokens = u->tokens[s], .length = lengths[kind], .scored = u->scored[s]};
  }
}

/* Depends on the letter, and on the token's index in its sample: samples of other tokens have the same. */
struct repeats_loss {
  const struct unit *u;
  const char *kinds;
  int sample;
};

static void loss_of_kinds(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct repeats_loss *c = context;
  (void)first, (void)logprob;
  for (int i = 0; i < count; c->sample++) {
    const float weight = c->kinds[c->sample] < 'a' ? 0.5f : -0.25f;
    for (int t = 0, n = 0; t < c->u->samples[c->sample].length; t++)
      if (c->u->scored[c->sample][t]) {
        dlogprob[i++] = weight * (1 + (float)(n++ % 3));
      }
  }
}

static float *gradients_of_kinds(const struct model *m, const struct unit *u, const char *kinds,
                                 const struct learner_options *options, bool share) {
  struct learner *l = NULL;
  struct repeats_loss c = {.u = u, .kinds = kinds};
  float *grads = calloc(m->params.elements, sizeof *grads);
  struct weights *w = random_weights(m, true, 4);
  assert_int_equal(learner_create(&l, m, options, NULL), RC_OK);
  learner_share_rows(l, share);
  assert_int_equal(learner_gradients(l, w, u->samples, u->count, 0.9f, loss_of_kinds, &c, grads, NULL, NULL), RC_OK);
  assert_int_equal(c.sample, u->count);
  learner_free(l);
  weights_free(w);
  return grads;
}

/* Every step-th of them: v2 has no fused multiply-add and takes its time. */
static void check_repeats(int family, const char *level, size_t step) {
  static const char *const all_kinds[] = {"AaBbCcA", "AAAAAAA", "AAaaAaA", "ECCAEAE", "DCBAabc", "BACBACD"};
  const struct model_config c = family_config(family, true);
  struct bench b;
  struct unit u;
  if (!bench_open(&b, &c, FORMAT_BF16, level, 2)) return;
  for (size_t i = 0; i < sizeof all_kinds / sizeof all_kinds[0]; i += step)
    for (int chunk_tokens = step == 1 ? 100 : 512; chunk_tokens <= 512; chunk_tokens += 412) {
      const struct learner_options options = {.chunk_tokens = chunk_tokens, .recompute_activations = i % 2 == 1};
      make_repeats(&u, all_kinds[i], c.vocabulary);
      float *alone = gradients_of_kinds(b.model, &u, all_kinds[i], &options, false);
      float *once = gradients_of_kinds(b.model, &u, all_kinds[i], &options, true);
      if (memcmp(alone, once, b.model->params.elements * sizeof *once) != 0)
        fail_msg("family %d, %s, samples %s, chunks of %d: gradients differ", family, b.ops->name, all_kinds[i],
                 chunk_tokens);
      free(alone);
      free(once);
    }
  bench_close(&b);
}

static void test_samples_that_repeat_others_have_their_gradients(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++) check_repeats(family, NULL, family == 0 ? 1 : 2);
  for (int level = 0; level < LEVEL_COUNT; level++) check_repeats(0, LEVELS[level], 3);
}

/* A learner without room for a backward pass gives the log-probabilities that others do, and keeps nothing a layer. */
static void test_a_learner_that_only_goes_forward_gives_the_same_bits(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct unit u;
  struct bench b;
  float full[TOTAL_MAX], lean[TOTAL_MAX];
  int calls;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct learner_options options = {.chunk_tokens = 150};
  free(gradients(b.model, &u, &options, full, &calls));
  const struct learner_memory kept = learner_memory(b.model, &options);
  options.forward_only = true;
  const struct learner_memory needed = learner_memory(b.model, &options);
  assert_int_equal(needed.activations, 0);
  assert_true(needed.scratch < kept.scratch);
  struct learner *l;
  struct weights *w = random_weights(b.model, false, 4);
  assert_int_equal(learner_create(&l, b.model, &options, NULL), RC_OK);
  assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 0.9f, lean, NULL, NULL), RC_OK);
  assert_memory_equal(full, lean, (size_t)u.scored_count * sizeof *full);
  weights_free(w);
  learner_free(l);
  bench_close(&b);
}

/* Twice the rows are twice the memory and no more (but for one block of logits), at the lengths of reasoning traces;
 * and of a layer only its input is kept where it is computed again. */
static void test_memory_grows_with_rows_and_not_with_their_square(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct bench b;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct learner_options options = {.chunk_tokens = 16384};
  const struct learner_memory short_ones = learner_memory(b.model, &options);
  options.chunk_tokens *= 2;
  const struct learner_memory kept = learner_memory(b.model, &options);
  assert_true(kept.activations <=
              2 * short_ones.activations + (size_t)HEAD_ROWS * (size_t)c.vocabulary * sizeof(float));
  assert_true(kept.scratch <= 2 * short_ones.scratch);
  options.recompute_activations = true;
  const struct learner_memory again = learner_memory(b.model, &options);
  const size_t residual = (size_t)options.chunk_tokens * (size_t)c.hidden * sizeof(float);
  assert_int_equal(again.scratch, kept.scratch);
  assert_true(again.activations <= ((size_t)c.layers + 2) * residual + (size_t)options.chunk_tokens * sizeof(float));
  assert_true(again.activations < kept.activations / 3);
  bench_close(&b);
}

static double relative_distance(const float *a, const float *b, size_t n) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < n; i++) {
    difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    size += (double)b[i] * (double)b[i];
  }
  return sqrt(difference / size);
}

/* One chunk (two head blocks, logits recomputed) and many chunks are the same sum in another order; log-probabilities
 * do not notice. */
static void test_chunks_only_change_the_order_of_sums(void **state) {
  (void)state;
  const struct model_config c = tiny_config(false);
  struct unit u;
  struct bench b;
  float one_logprob[TOTAL_MAX], many_logprob[TOTAL_MAX];
  int one_calls, many_calls;
  make_unit(&u, c.vocabulary);
  assert_true(u.scored_count > HEAD_ROWS);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 2));
  float *one = gradients(b.model, &u, &(struct learner_options){.chunk_tokens = 512}, one_logprob, &one_calls);
  float *many = gradients(b.model, &u, &(struct learner_options){.chunk_tokens = 150}, many_logprob, &many_calls);
  assert_int_equal(one_calls, 1);
  assert_int_equal(many_calls, 5); /* 33 | 150 | 1 64 2 | 97 | 120 */
  assert_memory_equal(one_logprob, many_logprob, (size_t)u.scored_count * sizeof *one_logprob);
  assert_true(relative_distance(one, many, b.model->params.elements) < 1e-5);
  assert_true(memcmp(one, many, b.model->params.elements * sizeof *one) != 0);
  free(one);
  free(many);
  bench_close(&b);
}

static double loss_of(const struct learner *l, const struct weights *w, const struct unit *u) {
  float logprob[TOTAL_MAX];
  double sum = 0;
  assert_int_equal(learner_logprobs((struct learner *)(uintptr_t)l, w, u->samples, u->count, 1, logprob, NULL, NULL),
                   RC_OK);
  for (int i = 0; i < u->scored_count; i++) sum += (double)logprob[i] * (double)(i % 3 - 1);
  return sum;
}

static void linear_loss(void *context, int first, int count, const float *logprob, float *dlogprob) {
  (void)context, (void)logprob;
  for (int i = 0; i < count; i++) dlogprob[i] = (float)((first + i) % 3 - 1);
}

/* And less the entropies, by turns 1.5 and 0.5 of them; its derivative. */
static void some_entropy(void *context, int first, int count, const float *entropy, float *dentropy) {
  (void)context, (void)entropy;
  for (int i = 0; i < count; i++) dentropy[i] = (first + i) % 2 ? -0.5f : -1.5f;
}

static double entropy_loss_of(struct learner *l, const struct weights *w, const struct unit *u) {
  float logprob[TOTAL_MAX], entropy[TOTAL_MAX];
  double sum = 0;
  assert_int_equal(learner_logprobs(l, w, u->samples, u->count, 1, logprob, entropy, NULL), RC_OK);
  for (int i = 0; i < u->scored_count; i++) sum -= (i % 2 ? 0.5 : 1.5) * (double)entropy[i];
  return sum + loss_of(l, w, u);
}

/* Per parameter tensor, the gradient along itself agrees with a central difference of the loss.  All experts are
 * taken: else a moved weight sends some row to another expert, and the loss jumps. */
static void check_every_tensor(int family, bool entropy) {
  struct model_config c = family_config(family, true);
  struct unit u;
  struct bench b;
  struct learner *l = NULL;
  c.chosen = c.experts;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 2));
  struct weights *w = random_weights(b.model, true, 4);
  const size_t n = b.model->params.elements;
  float *grads = calloc(n, sizeof *grads), *masters = calloc(n, sizeof *masters), *moved = calloc(n, sizeof *moved);
  assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 512}, NULL), RC_OK);
  if (entropy) learner_entropy_term(l, some_entropy);
  assert_int_equal(learner_gradients(l, w, u.samples, u.count, 1, linear_loss, NULL, grads, NULL, NULL), RC_OK);
  weights_to_masters(w, masters);
  for (int i = 0; i < b.model->params.count; i++) {
    const struct param *p = &b.model->params.items[i];
    double square = 0, value[2];
    for (size_t k = 0; k < p->count; k++) square += (double)grads[p->offset + k] * (double)grads[p->offset + k];
    assert_true(square > 0);
    const double step = 3e-3 / sqrt(square);
    for (int side = 0; side < 2; side++) {
      memcpy(moved, masters, n * sizeof *moved);
      for (size_t k = 0; k < p->count; k++)
        moved[p->offset + k] += (float)((side ? -step : step) * (double)grads[p->offset + k]);
      weights_from_masters(w, moved);
      value[side] = entropy ? entropy_loss_of(l, w, &u) : loss_of(l, w, &u);
    }
    const double slope = (value[0] - value[1]) / (2 * step);
    if (fabs(slope / square - 1) > 2e-2) fail_msg("%s: slope %g, squared gradient %g", p->name, slope, square);
  }
  learner_free(l);
  weights_free(w);
  free(grads);
  free(masters);
  free(moved);
  bench_close(&b);
}

static void test_every_tensor_by_difference(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++) check_every_tensor(family, false);
  check_every_tensor(0, true);
}

/* The entropies that come out beside a gradient are those of a forward pass alone, bit for bit, in one chunk and in
 * several. */
static void test_entropies_come_out_beside_the_gradient(void **state) {
  (void)state;
  const struct model_config c = tiny_config(false);
  struct unit u;
  struct bench b;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 2));
  struct weights *w = random_weights(b.model, true, 4);
  float *grads = calloc(b.model->params.elements, sizeof *grads);
  for (int chunk_tokens = 150; chunk_tokens <= 512; chunk_tokens += 362) {
    struct learner *l = NULL;
    float alone[TOTAL_MAX], beside[TOTAL_MAX + 1], logprob[TOTAL_MAX];
    double sum = 0;
    assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = chunk_tokens}, NULL), RC_OK);
    assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 0.9f, logprob, alone, NULL), RC_OK);
    beside[u.scored_count] = 7;
    learner_entropies(l, beside);
    assert_int_equal(learner_gradients(l, w, u.samples, u.count, 0.9f, linear_loss, NULL, grads, NULL, NULL), RC_OK);
    assert_memory_equal(beside, alone, (size_t)u.scored_count * sizeof *alone);
    for (int i = 0; i < u.scored_count; i++) sum += (double)beside[i];
    assert_true(beside[u.scored_count] == 7 && sum == learner_entropy_sum(l) && sum > 0);
    beside[0] = -1;
    learner_entropies(l, NULL);
    assert_int_equal(learner_gradients(l, w, u.samples, u.count, 0.9f, linear_loss, NULL, grads, NULL, NULL), RC_OK);
    assert_true(beside[0] == -1);
    learner_free(l);
  }
  weights_free(w);
  free(grads);
  bench_close(&b);
}

static void cut_loss(void *context, int first, int count, const float *logprob, float *dlogprob) {
  (void)context;
  for (int i = 0; i < count; i++) dlogprob[i] = logprob[i] < -1e30f ? 0 : (float)((first + i) % 3 + 1) * 0.25f;
}

/* With rows cut, every level, number of threads and cut into chunks has the same log-probabilities, and the first three
 * the same gradients; tokens that are kept have finite ones that are no lower than without the cut. */
static void test_cut_rows_have_the_same_bits_everywhere(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  static const struct sampling_params cut = {.top_k = 180, .top_p = 0.9f, .min_p = 0.01f};
  struct unit u;
  float *expected = NULL, whole[TOTAL_MAX], expected_logprob[TOTAL_MAX], logprob[TOTAL_MAX];
  make_unit(&u, c.vocabulary);
  for (int level = 0; level < LEVEL_COUNT; level++) {
    for (int threads = 1; threads <= 3; threads++) {
      struct bench b;
      struct learner *l = NULL;
      if (!bench_open(&b, &c, FORMAT_BF16, LEVELS[level], threads)) continue;
      const size_t n = b.model->params.elements;
      float *grads = calloc(n, sizeof *grads);
      struct weights *w = random_weights(b.model, true, 4);
      for (int chunk_tokens = 512; chunk_tokens >= 150; chunk_tokens -= 362) {
        assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = chunk_tokens}, NULL),
                         RC_OK);
        assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 0.9f, whole, NULL, NULL), RC_OK);
        learner_set_cut(l, &cut);
        if (chunk_tokens == 512)
          assert_int_equal(learner_gradients(l, w, u.samples, u.count, 0.9f, cut_loss, NULL, grads, logprob, NULL),
                           RC_OK);
        else
          assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 0.9f, logprob, NULL, NULL), RC_OK);
        if (!expected) memcpy(expected_logprob, logprob, sizeof logprob);
        assert_memory_equal(logprob, expected_logprob, (size_t)u.scored_count * sizeof *logprob);
        if (!expected) expected = grads;
        learner_free(l);
      }
      if (memcmp(grads, expected, n * sizeof *grads) != 0)
        fail_msg("%s, %d threads: gradients differ", b.ops->name, threads);
      if (grads != expected) free(grads);
      weights_free(w);
      bench_close(&b);
    }
  }
  int kept = 0;
  for (int i = 0; i < u.scored_count; i++) {
    kept += isfinite(expected_logprob[i]);
    assert_true(!isfinite(expected_logprob[i]) || expected_logprob[i] > whole[i]);
  }
  assert_in_range(kept, u.scored_count / 4, u.scored_count * 9 / 10);
  free(expected);
}

/* With rows cut as without: logits that are computed again for the backward pass are cut again. */
static void test_chunks_of_cut_rows_only_change_the_order_of_sums(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct unit u;
  struct bench b;
  float *grads[2], logprob[TOTAL_MAX];
  make_unit(&u, c.vocabulary);
  assert_true(u.scored_count > HEAD_ROWS);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 2));
  struct weights *w = random_weights(b.model, true, 4);
  for (int many = 0; many < 2; many++) {
    struct learner *l = NULL;
    grads[many] = calloc(b.model->params.elements, sizeof **grads);
    assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = many ? 150 : 512}, NULL),
                     RC_OK);
    learner_set_cut(l, &(struct sampling_params){.top_p = 0.8f});
    assert_int_equal(learner_gradients(l, w, u.samples, u.count, 1, cut_loss, NULL, grads[many], logprob, NULL), RC_OK);
    learner_free(l);
  }
  const double distance = relative_distance(grads[0], grads[1], b.model->params.elements);
  if (!(distance < 1e-5)) fail_msg("the gradients are %g apart", distance);
  free(grads[0]);
  free(grads[1]);
  weights_free(w);
  bench_close(&b);
}

enum { MANY_ROWS = 1024 };

/* The gradient of a unit's samples twice over, all tokens scored, in one chunk. */
static float *gradients_of_many(const struct model *m, const struct unit *u, bool recompute,
                                const struct sampling_params *cut) {
  struct train_sample samples[2 * SAMPLES];
  uint8_t scored[LENGTH_MAX];
  struct learner *l = NULL;
  float *grads = calloc(m->params.elements, sizeof *grads);
  struct weights *w = random_weights(m, true, 4);
  memset(scored, 1, sizeof scored);
  scored[0] = 0;
  for (int s = 0; s < 2 * SAMPLES; s++) {
    samples[s] = u->samples[s % SAMPLES];
    samples[s].scored = scored;
  }
  const struct learner_options options = {.chunk_tokens = MANY_ROWS, .recompute_activations = recompute};
  assert_int_equal(learner_create(&l, m, &options, NULL), RC_OK);
  if (cut) learner_set_cut(l, cut);
  assert_int_equal(learner_gradients(l, w, samples, 2 * SAMPLES, 0.9f, cut_loss, NULL, grads, NULL, NULL), RC_OK);
  learner_free(l);
  weights_free(w);
  return grads;
}

/* The head's blocks find their logits again, or make them again, whether there is room for all, for some or for one of
 * them; and that room is planned. */
static void test_logits_that_are_kept_give_the_bits_of_those_made_again(void **state) {
  static const struct sampling_params cut = {.top_p = 0.8f};
  static const int vocabularies[] = {100, 200, 257};
  bool all = false, some = false, one = false;
  (void)state;
  for (int i = 0; i < 3; i++) {
    struct model_config c = tiny_config(true);
    struct unit u;
    struct bench b;
    c.vocabulary = vocabularies[i];
    make_unit(&u, c.vocabulary);
    assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
    const struct learner_options options = {.chunk_tokens = MANY_ROWS};
    const size_t planned = learner_memory(b.model, &options).activations;
    const size_t kept = 1 + (planned - activations_bytes(b.model, MANY_ROWS, false)) /
                                ((size_t)HEAD_ROWS * (size_t)c.vocabulary * sizeof(float));
    all |= kept == MANY_ROWS / HEAD_ROWS;
    some |= kept > 1 && kept < MANY_ROWS / HEAD_ROWS;
    one |= kept == 1;
    for (int cuts = 0; cuts < 2; cuts++) {
      float *found = gradients_of_many(b.model, &u, false, cuts ? &cut : NULL);
      float *again = gradients_of_many(b.model, &u, true, cuts ? &cut : NULL);
      assert_memory_equal(found, again, b.model->params.elements * sizeof *found);
      free(found);
      free(again);
    }
    bench_close(&b);
  }
  assert_true(all && some && one);
}

/* The gradient along itself agrees with a central difference of the renormalized log-probabilities.  Only tokens well
 * inside of what is kept are scored; where the border moves, equal logits change places, and the sums do not jump. */
static void test_the_gradient_of_cut_rows_by_difference(void **state) {
  (void)state;
  enum { WELL_INSIDE = 40, KEPT = 80 };
  const struct model_config c = tiny_config(true);
  struct unit u;
  struct bench b;
  struct learner *l = NULL;
  float logprob[TOTAL_MAX];
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_F32, NULL, 2));
  struct weights *w = random_weights(b.model, true, 4);
  const size_t n = b.model->params.elements;
  float *grads = calloc(n, sizeof *grads), *masters = calloc(n, sizeof *masters), *moved = calloc(n, sizeof *moved);
  assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 512}, NULL), RC_OK);
  learner_set_cut(l, &(struct sampling_params){.top_k = WELL_INSIDE});
  assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 1, logprob, NULL, NULL), RC_OK);
  for (int s = 0, i = 0; s < u.count; s++)
    for (int t = 0; t < u.samples[s].length; t++) {
      if (!u.scored[s][t] || isfinite(logprob[i++])) continue;
      u.scored[s][t] = 0;
      u.scored_count--;
    }
  assert_true(u.scored_count > 20);
  learner_set_cut(l, &(struct sampling_params){.top_k = KEPT});
  assert_int_equal(learner_gradients(l, w, u.samples, u.count, 1, linear_loss, NULL, grads, NULL, NULL), RC_OK);
  weights_to_masters(w, masters);
  double square = 0, value[2];
  for (size_t k = 0; k < n; k++) square += (double)grads[k] * (double)grads[k];
  const double step = 1e-3 / sqrt(square);
  for (int side = 0; side < 2; side++) {
    for (size_t k = 0; k < n; k++) moved[k] = masters[k] + (float)((side ? -step : step) * (double)grads[k]);
    weights_from_masters(w, moved);
    value[side] = loss_of(l, w, &u);
  }
  const double slope = (value[0] - value[1]) / (2 * step);
  if (!(fabs(slope / square - 1) < 2e-2)) fail_msg("slope %g, squared gradient %g", slope, square);
  learner_free(l);
  weights_free(w);
  free(grads);
  free(masters);
  free(moved);
  bench_close(&b);
}

static void test_unscored_tokens_leave_no_gradient(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct unit u;
  struct bench b;
  int calls;
  make_unit(&u, c.vocabulary);
  memset(u.scored, 0, sizeof u.scored);
  u.scored_count = 0;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  float *grads = gradients(b.model, &u, &(struct learner_options){.chunk_tokens = 200}, NULL, &calls);
  for (size_t i = 0; i < b.model->params.elements; i++) assert_true(grads[i] == 0);
  assert_int_equal(calls, 0);
  free(grads);
  bench_close(&b);
}

/* A flipped bit of one weight shows in the log-probabilities of the trainer. */
static void test_a_flipped_weight_bit_is_seen(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct unit u;
  struct bench b;
  struct learner *l = NULL;
  make_unit(&u, c.vocabulary);
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct weights *w = random_weights(b.model, false, 4);
  float before[TOTAL_MAX], after[TOTAL_MAX];
  assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 200}, NULL), RC_OK);
  assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 1, before, NULL, NULL), RC_OK);
  uint16_t *packed = w->matrices[param_table_index(&b.model->params, PARAM_UP, 1)].data;
  packed[0] ^= 1; /* element (0, 0) */
  assert_int_equal(learner_logprobs(l, w, u.samples, u.count, 1, after, NULL, NULL), RC_OK);
  assert_true(memcmp(before, after, (size_t)u.scored_count * sizeof *before) != 0);
  learner_free(l);
  weights_free(w);
  bench_close(&b);
}

static void test_refuses_bad_samples(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  const uint8_t scored[200] = {0, 1, 1}, first_scored[3] = {1, 1, 1};
  int32_t tokens[200] = {0, 1, 2}, bad[3] = {0, 257, 2}, negative[3] = {0, 1, -1};
  const struct {
    struct train_sample s;
    float temperature;
    enum rc rc;
  } cases[] = {
      {{tokens, 3, scored}, 1, RC_OK},        {{tokens, 101, scored}, 1, RC_TOO_LARGE},
      {{tokens, 0, scored}, 1, RC_INVALID},   {{tokens, 3, first_scored}, 1, RC_INVALID},
      {{bad, 3, scored}, 1, RC_INVALID},      {{negative, 3, scored}, 1, RC_INVALID},
      {{tokens, 3, scored}, 0, RC_INVALID},   {{tokens, 3, scored}, -1, RC_INVALID},
      {{tokens, 3, scored}, NAN, RC_INVALID},
  };
  struct bench b;
  struct learner *l = NULL;
  struct err err = {0};
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct weights *w = random_weights(b.model, true, 4);
  float *grads = calloc(b.model->params.elements, sizeof *grads), logprob[200];
  assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 1}, &err), RC_INVALID);
  assert_int_equal(learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 100}, &err), RC_OK);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(learner_logprobs(l, w, &cases[i].s, 1, cases[i].temperature, logprob, NULL, &err), cases[i].rc);
    if (cases[i].rc == RC_OK) continue;
    assert_int_equal(
        learner_gradients(l, w, &cases[i].s, 1, cases[i].temperature, linear_loss, NULL, grads, NULL, &err),
        cases[i].rc);
  }
  for (size_t i = 0; i < b.model->params.elements; i++) assert_true(grads[i] == 0);
  learner_free(l);
  learner_create(&l, b.model, &(struct learner_options){.chunk_tokens = 400}, NULL);
  const struct train_sample beyond_context = {tokens, 161, scored};
  assert_int_equal(learner_logprobs(l, w, &beyond_context, 1, 1, logprob, NULL, &err), RC_TOO_LARGE);
  learner_free(l);
  weights_free(w);
  free(grads);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_bits_everywhere),
      cmocka_unit_test(test_recomputed_activations_give_the_same_bits),
      cmocka_unit_test(test_gradients_in_parts_make_the_same_sums),
      cmocka_unit_test(test_samples_that_repeat_others_have_their_gradients),
      cmocka_unit_test(test_a_learner_that_only_goes_forward_gives_the_same_bits),
      cmocka_unit_test(test_memory_grows_with_rows_and_not_with_their_square),
      cmocka_unit_test(test_chunks_only_change_the_order_of_sums),
      cmocka_unit_test(test_every_tensor_by_difference),
      cmocka_unit_test(test_entropies_come_out_beside_the_gradient),
      cmocka_unit_test(test_cut_rows_have_the_same_bits_everywhere),
      cmocka_unit_test(test_chunks_of_cut_rows_only_change_the_order_of_sums),
      cmocka_unit_test(test_logits_that_are_kept_give_the_bits_of_those_made_again),
      cmocka_unit_test(test_the_gradient_of_cut_rows_by_difference),
      cmocka_unit_test(test_unscored_tokens_leave_no_gradient),
      cmocka_unit_test(test_a_flipped_weight_bit_is_seen),
      cmocka_unit_test(test_refuses_bad_samples),
  };
  return cmocka_run_group_tests_name("model/backward", tests, NULL, NULL);
}

/* The model's own code over the device's table: no host code touches the device's memory (over the emulated device that
 * ends the process), weights and steps are what they are on the CPU, and what sampler and trainer promise each other
 * holds: a token's log-probability has the same bits decoded, prefilled, in whatever company, and in training. */
#include "tests/cuda/support.h"

#include <math.h>

#include "common/model/learning/backward.h"
#include "common/model/learning/optimizer.h"
#include "common/model/network/sampler.h"

enum { V = 257, PAGES = 60, ROWS_MAX = 310, SAMPLES = 5 };

/* Of which families the models are: qwen3; biases, a sliding layer and no head norms instead, as llama and others have
 * them; gemma3 */
static enum { QWEN, LLAMA, GEMMA } family;

static struct model_config config_of(bool tied) {
  return (struct model_config){.layers = 2,
                               .hidden = 40,
                               .heads = 6,
                               .kv_heads = 2,
                               .head_dim = 12,
                               .ffn = 56,
                               .vocabulary = V,
                               .positions_max = 512,
                               .rms_eps = 1e-6f,
                               .rope_theta = 10000,
                               .head_norms = family != LLAMA,
                               .qkv_bias = family == LLAMA,
                               .o_bias = family == LLAMA,
                               .mlp_bias = family == LLAMA,
                               .plus_one = family == GEMMA,
                               .out_norms = family == GEMMA,
                               .gelu = family == GEMMA,
                               .root_embedding = family == GEMMA,
                               .query_scalar = family == GEMMA ? 10 : 0,
                               .rope_local_theta = family == GEMMA ? 700 : 0,
                               .window = family == QWEN ? 0 : 50,
                               .sliding = {family == QWEN ? 0 : 2},
                               .initializer_range = 0.15f,
                               .tied = tied};
}

/* One model on one table. */
struct side {
  const struct ops *ops;
  struct model *model;
  struct weights *weights;
};

static void side_open(struct side *s, const struct ops *ops, const struct model_config *config) {
  struct err err = {0};
  s->ops = ops;
  assert_int_equal(model_create(&s->model, config, ops, 0, &err), RC_OK);
  assert_int_equal(weights_create(&s->weights, s->model, true, &err), RC_OK);
  const size_t bytes = s->model->params.elements * sizeof(float);
  float *masters = ops->alloc(ops, bytes);
  assert_int_equal(masters_random(s->model, masters, 11, &err), RC_OK);
  for (int i = 0; i < s->model->params.count; i++) {
    const struct param *p = &s->model->params.items[i];
    float b[64];
    for (size_t k = 0; k < 64; k++) b[k] = ((float)(k * 7 % 11) - 5) * 0.0625f;
    if (param_kind_is_bias(p->kind))
      ops->upload(ops, masters + p->offset, b, (p->count < 64 ? p->count : 64) * sizeof *b);
  }
  weights_from_masters(s->weights, masters);
  ops->release(ops, masters);
}

static void side_close(struct side *s) {
  weights_free(s->weights);
  model_free(s->model);
}

static void pair_open(struct side pair[2], bool tied) {
  const struct model_config config = config_of(tied);
  side_open(&pair[0], cpu, &config);
  side_open(&pair[1], gpu, &config);
}
static void pair_close(struct side pair[2]) {
  side_close(&pair[0]);
  side_close(&pair[1]);
  arrays_free();
}

/* --- weights --- */

static void same_weights(const struct side pair[2]) {
  struct digest host, device;
  assert_int_equal(weights_digest(&host, pair[0].weights, NULL), RC_OK);
  assert_int_equal(weights_digest(&device, pair[1].weights, NULL), RC_OK);
  assert_true(digest_equal(&host, &device));
}

/* Random weights, digests, files and what comes out of files are the CPU's, byte for byte. */
static void test_weights(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    struct side pair[2];
    struct buf files[2] = {BUF_INIT, BUF_INIT};
    struct st_file *file;
    struct digest written;
    struct err err = {0};
    pair_open(pair, tied != 0);
    same_weights(pair);
    for (int i = 0; i < pair[0].model->params.count; i++)
      assert_true(pair[0].weights->largest[i] == pair[1].weights->largest[i]);
    for (int i = 0; i < 2; i++)
      assert_int_equal(weights_to_safetensors(&files[i], &written, pair[i].weights, NULL, "weights", &err), RC_OK);
    assert_int_equal(files[0].len, files[1].len);
    assert_memory_equal(files[0].data, files[1].data, files[0].len);
    struct weights *filled;
    assert_int_equal(weights_create(&filled, pair[1].model, false, &err), RC_OK);
    assert_int_equal(st_open_memory(&file, files[1].data, files[1].len, &err), RC_OK);
    assert_int_equal(weights_from_safetensors(filled, file, &err), RC_OK);
    st_close(file);
    weights_free(pair[1].weights);
    pair[1].weights = filled;
    same_weights(pair);
    buf_free(&files[0]);
    buf_free(&files[1]);
    pair_close(pair);
  }
}

/* A file of float32 is rounded on the device as on the CPU. */
static void test_float_file(void **state) {
  const struct model_config config = config_of(true);
  struct side pair[2];
  struct err err = {0};
  struct ops *wide;
  struct side source;
  struct digest written;
  struct buf bytes = BUF_INIT;
  struct st_file *file;
  (void)state;
  pair_open(pair, true);
  assert_int_equal(ops_cpu_create(&wide, FORMAT_F32, NULL, pool, &err), RC_OK);
  side_open(&source, wide, &config);
  assert_int_equal(weights_to_safetensors(&bytes, &written, source.weights, NULL, "weights", &err), RC_OK);
  assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, &err), RC_OK);
  for (int i = 0; i < 2; i++) assert_int_equal(weights_from_safetensors(pair[i].weights, file, &err), RC_OK);
  same_weights(pair);
  st_close(file);
  buf_free(&bytes);
  side_close(&source);
  ops_free(wide);
  pair_close(pair);
}

/* --- one forward pass --- */

struct text {
  int length;
  int32_t tokens[270];
};

struct engine {
  const struct side *side;
  struct kv_cache *kv;
  struct workspace *ws;
  struct kv_sequence sequences[SAMPLES];
  float *logits; /* [ROWS_MAX,V], the table's */
};

static void engine_open(struct engine *e, const struct side *side) {
  struct err err = {0};
  *e = (struct engine){.side = side};
  assert_int_equal(kv_cache_create(&e->kv, side->model, PAGES, 16, &err), RC_OK);
  assert_int_equal(workspace_create(&e->ws, side->model, ROWS_MAX, PAGES * SAMPLES, &err), RC_OK);
  for (int i = 0; i < SAMPLES; i++) assert_int_equal(kv_sequence_init(&e->sequences[i], e->kv, 512, &err), RC_OK);
  e->logits = side->ops->alloc(side->ops, (size_t)ROWS_MAX * V * sizeof(float));
}

static void engine_close(struct engine *e) {
  for (int i = 0; i < SAMPLES; i++) kv_sequence_release(e->kv, &e->sequences[i]);
  e->side->ops->release(e->side->ops, e->logits);
  workspace_free(e->ws);
  kv_cache_free(e->kv);
}

/* The next counts[s] positions of every text, together; their logits are in e->logits. */
static int engine_step(struct engine *e, const struct text *texts, const int counts[SAMPLES]) {
  static int32_t tokens[ROWS_MAX], sequence[ROWS_MAX], position[ROWS_MAX], pages[SAMPLES * 32];
  const void *hidden;
  int T = 0;
  memset(pages, 0, sizeof pages);
  for (int s = 0; s < SAMPLES; s++) {
    const int first = e->sequences[s].length;
    assert_int_equal(kv_reserve(e->kv, &e->sequences[s], first + counts[s]), RC_OK);
    memcpy(pages + s * 32, e->sequences[s].pages, (size_t)e->sequences[s].page_count * sizeof *pages);
    for (int i = 0; i < counts[s]; i++, T++) {
      tokens[T] = texts[s].tokens[first + i];
      sequence[T] = s;
      position[T] = first + i;
    }
  }
  const struct rows rows = {.T = T,
                            .sequence = sequence,
                            .position = position,
                            .pages = pages,
                            .pages_per_sequence = 32,
                            .sequences = SAMPLES};
  forward_run(e->side->weights, &rows, tokens, e->kv, e->ws, NULL, &hidden);
  forward_logits(e->side->weights, hidden, NULL, T, e->ws, e->logits);
  return T;
}

static void make_texts(struct text *texts) {
  static const int lengths[SAMPLES] = {262, 17, 7, 21, 2};
  for (int s = 0; s < SAMPLES; s++) {
    texts[s].length = lengths[s];
    for (int t = 0; t < lengths[s]; t++) texts[s].tokens[t] = random_below(V);
  }
}

/* One text's logits by `chunk` positions at a time, in company or alone. */
static float *logits_of(const struct side *side, const struct text *texts, int which, int chunk, bool alone) {
  struct engine e;
  float *all = floats((size_t)texts[which].length * V);
  engine_open(&e, side);
  for (int done = 0; done < texts[which].length;) {
    int counts[SAMPLES] = {0}, before = 0;
    for (int s = 0; s < SAMPLES; s++) {
      const int left = texts[s].length - e.sequences[s].length, some = s == which ? chunk : 1 + s;
      counts[s] = alone && s != which ? 0 : left < some ? left : some;
      if (s < which) before += counts[s];
    }
    engine_step(&e, texts, counts);
    side->ops->download(side->ops, all + (size_t)done * V, e.logits + (size_t)before * V,
                        (size_t)counts[which] * V * sizeof *all);
    done += counts[which];
  }
  engine_close(&e);
  return all;
}

static void same_bits(const char *what, const float *got, const float *want, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (lit_bits(got[i]) != lit_bits(want[i]))
      fail_msg("%s: element %zu is %.9g, expected %.9g", what, i, (double)got[i], (double)want[i]);
}

static double furthest(const float *got, const float *want, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) {
    const double apart = fabs((double)got[i] - (double)want[i]);
    most = apart > most || apart != apart ? apart : most;
  }
  return most;
}

static void test_forward(void **state) {
  static struct text texts[SAMPLES];
  struct side pair[2];
  (void)state;
  make_texts(texts);
  pair_open(pair, false);
  const size_t n = (size_t)texts[0].length * V;
  const float *host = logits_of(&pair[0], texts, 0, 262, true), *device = logits_of(&pair[1], texts, 0, 262, true);
  assert_true(furthest(device, host, n) < 0.1); /* logits of about 5, their bf16 operands rounded elsewhere */
  same_bits("logits of a long prefill in company", logits_of(&pair[1], texts, 0, 262, false), device, n);
  same_bits("logits by chunks of 87 in company", logits_of(&pair[1], texts, 0, 87, false), device, n);
  for (int s = 1; s < SAMPLES; s++) {
    const float *whole = logits_of(&pair[1], texts, s, texts[s].length, true);
    same_bits("logits of decoding in company", logits_of(&pair[1], texts, s, 1, false), whole,
              (size_t)texts[s].length * V);
  }
  pair_close(pair);
}

/* --- sampling --- */

static void test_sampler(void **state) {
  static struct text texts[SAMPLES];
  struct side pair[2];
  struct engine e;
  int32_t top[4];
  float top_logprob[4];
  (void)state;
  make_texts(texts);
  pair_open(pair, true);
  engine_open(&e, &pair[1]);
  const int T = engine_step(&e, texts, (int[]){9, 9, 7, 9, 2});
  float *logits = floats((size_t)T * V);
  gpu->download(gpu, logits, e.logits, (size_t)T * V * sizeof *logits);
  struct sampler *samplers[2] = {sampler_create(cpu, V), sampler_create(gpu, V)};
  static const struct sampling_params kinds[] = {{.temperature = 1, .top_p = 1},
                                                 {.temperature = 0, .top_p = 1},
                                                 {.temperature = 0.8f, .top_k = 5, .top_p = 1},
                                                 {.temperature = 1.2f, .top_p = 0.7f},
                                                 {.temperature = 0.6f, .top_p = 1},
                                                 {.temperature = 1, .top_p = 1, .min_p = 0.2f}};
  const struct sampling_params *params[60];
  struct draw draws[2][60];
  for (int i = 0; i < 60; i++) {
    params[i] = &kinds[i % 6];
    draws[0][i] = draws[1][i] =
        (struct draw){.row = random_below(T), .u = ((float)(random_u32() >> 9) + 0.5f) * 0x1p-23f};
  }
  sampler_draw(samplers[0], logits, params, draws[0], 60);
  sampler_draw(samplers[1], e.logits, params, draws[1], 60);
  for (int i = 0; i < 60; i++) {
    assert_int_equal(draws[0][i].token, draws[1][i].token);
    assert_int_equal(lit_bits(draws[0][i].logprob), lit_bits(draws[1][i].logprob));
  }
  sampler_top(samplers[1], e.logits + V, 4, top, top_logprob);
  for (int i = 0; i < 4; i++)
    assert_int_equal(lit_bits(sampler_logprob(samplers[0], logits + V, top[i])), lit_bits(top_logprob[i]));
  assert_true(top_logprob[0] >= top_logprob[1] && top_logprob[2] >= top_logprob[3]);
  sampler_free(samplers[0]);
  sampler_free(samplers[1]);
  engine_close(&e);
  pair_close(pair);
}

/* Copy on write: the first sequence goes on in a copy of the page that both have, the forked one in the page itself. */
static void test_fork(void **state) {
  enum { SHARED = 12, LENGTH = 17, REST = LENGTH - SHARED };
  static struct text texts[SAMPLES];
  struct side pair[2];
  struct engine e;
  (void)state;
  make_texts(texts);
  texts[0].length = texts[1].length = LENGTH;
  memcpy(texts[1].tokens, texts[0].tokens, SHARED * sizeof(int32_t));
  pair_open(pair, false);
  const float *own[2] = {logits_of(&pair[1], texts, 0, LENGTH, true), logits_of(&pair[1], texts, 1, LENGTH, true)};
  engine_open(&e, &pair[1]);
  engine_step(&e, texts, (int[]){SHARED, 0, 0, 0, 0});
  kv_fork(e.kv, &e.sequences[1], &e.sequences[0], SHARED);
  for (int s = 0; s < 2; s++) {
    engine_step(&e, texts, (int[]){s == 0 ? REST : 0, s == 1 ? REST : 0, 0, 0, 0});
    same_bits("logits behind a fork", got_floats(e.logits, REST * V), own[s] + SHARED * V, REST * V);
  }
  engine_close(&e);
  pair_close(pair);
}

/* --- training --- */

static void flat_loss(void *context, int first, int count, const float *logprob, float *dlogprob) {
  (void)context, (void)logprob;
  for (int i = 0; i < count; i++) dlogprob[i] = (first + i) % 3 ? -1.0f : 0.5f;
}

struct learning {
  float *logprob, *gradient; /* the host's */
};

/* Log-probabilities and gradients of texts 0 .. count - 1, whose later halves are scored; the gradient is left in
 * grads. */
static struct learning learn(const struct side *side, const struct text *texts, int count, bool recompute, bool share,
                             float *grads) {
  struct learner *l;
  struct err err = {0};
  struct train_sample samples[SAMPLES];
  int scored_count = 0;
  const size_t elements = side->model->params.elements;
  for (int s = 0; s < count; s++) {
    uint8_t *scored = host_array((size_t)texts[s].length);
    for (int t = texts[s].length / 2; t < texts[s].length; t++) scored[t] = t > 0;
    for (int t = 0; t < texts[s].length; t++) scored_count += scored[t];
    samples[s] = (struct train_sample){.tokens = texts[s].tokens, .length = texts[s].length, .scored = scored};
  }
  struct learning out = {floats((size_t)scored_count), floats(elements)};
  float *first = floats((size_t)scored_count), *entropy = floats((size_t)scored_count);
  const struct learner_options options = {.chunk_tokens = ROWS_MAX, .recompute_activations = recompute};
  assert_int_equal(learner_create(&l, side->model, &options, &err), RC_OK);
  learner_share_rows(l, share);
  side->ops->clear(side->ops, grads, elements * sizeof *grads);
  assert_int_equal(learner_logprobs(l, side->weights, samples, count, 0.9f, first, entropy, &err), RC_OK);
  assert_int_equal(learner_gradients(l, side->weights, samples, count, 0.9f, flat_loss, NULL, grads, out.logprob, &err),
                   RC_OK);
  same_bits("log-probabilities with and without gradients", out.logprob, first, (size_t)scored_count);
  side->ops->download(side->ops, out.gradient, grads, elements * sizeof *grads);
  learner_free(l);
  return out;
}

static double length_of(const float *x, const float *y, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += ((double)x[i] - (y ? (double)y[i] : 0)) * ((double)x[i] - (y ? (double)y[i] : 0));
  return sqrt(sum);
}

/* Samples of a group begin alike. */
static void make_group(struct text *texts) {
  make_texts(texts);
  texts[3] = texts[1];
  texts[3].tokens[15] ^= 1;
}

static void near_gradients(const struct model *m, const struct learning *got, const struct learning *want) {
  const size_t elements = m->params.elements;
  assert_true(length_of(got->gradient, want->gradient, elements) < 0.02 * length_of(want->gradient, NULL, elements));
  for (int i = 0; i < m->params.count; i++) { /* of every tensor by itself, too */
    const struct param *p = &m->params.items[i];
    const double apart = length_of(got->gradient + p->offset, want->gradient + p->offset, p->count);
    if (!(apart < 0.05 * length_of(want->gradient + p->offset, NULL, p->count)))
      fail_msg("the gradient of %s is %g off", p->name, apart);
  }
}

/* Log-probabilities are those of decoding, to the bit; gradients the CPU's, but for roundings. */
static void test_training(void **state) {
  static struct text texts[SAMPLES];
  struct side pair[2];
  (void)state;
  make_group(texts);
  pair_open(pair, false);
  const size_t elements = pair[0].model->params.elements;
  float *host_grads = floats(elements), *grads = device_array(elements * sizeof *grads);
  const struct learning host = learn(&pair[0], texts, SAMPLES, false, true, host_grads);
  const struct learning device = learn(&pair[1], texts, SAMPLES, false, true, grads);
  near_gradients(pair[0].model, &device, &host);
  const float *decoded = logits_of(&pair[1], texts, 1, 1, false);
  const int scored_before = texts[0].length - texts[0].length / 2;
  for (int t = texts[1].length / 2; t < texts[1].length; t++) {
    const size_t scored = (size_t)(scored_before + t - texts[1].length / 2);
    float logprob, lse;
    cpu->logprob(cpu, &logprob, &lse, NULL, decoded + (size_t)(t - 1) * V, &texts[1].tokens[t], 0.9f, 1, V);
    assert_int_equal(lit_bits(logprob), lit_bits(device.logprob[scored]));
  }
  pair_close(pair);
}

/* The same bits again and with recomputed activations; nearly the same where beginnings are computed apart. */
static void test_training_again(void **state) {
  static struct text texts[SAMPLES];
  struct side pair[2];
  (void)state;
  make_group(texts);
  pair_open(pair, true);
  const struct text *group = texts + 1;
  const int count = SAMPLES - 1;
  const size_t elements = pair[0].model->params.elements;
  float *host_grads = floats(elements), *grads = device_array(elements * sizeof *grads);
  const struct learning host = learn(&pair[0], group, count, false, true, host_grads);
  const struct learning device = learn(&pair[1], group, count, false, true, grads);
  near_gradients(pair[0].model, &device, &host);
  same_bits("a gradient computed again", learn(&pair[1], group, count, false, true, grads).gradient, device.gradient,
            elements);
  same_bits("a gradient with recomputed activations", learn(&pair[1], group, count, true, true, grads).gradient,
            device.gradient, elements);
  const struct learning apart = learn(&pair[1], group, count, false, false, grads);
  near_gradients(pair[1].model, &apart, &device);
  pair_close(pair);
}

/* A step with the same gradient ends at the CPU's weights, bit for bit. */
static void test_step(void **state) {
  static const struct optimizer_config config = {
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 1, .grad_scale_log2 = 32};
  struct side pair[2];
  struct step_result results[2];
  struct err err = {0};
  (void)state;
  pair_open(pair, true);
  const size_t elements = pair[0].model->params.elements;
  float *gradient = random_floats(elements, 0.5f), *grads = put_floats(gradient, elements);
  for (int i = 0; i < 2; i++) {
    struct optimizer *o;
    assert_int_equal(optimizer_create(&o, pair[i].model, &config, &err), RC_OK);
    weights_to_masters(pair[i].weights, optimizer_masters(o));
    assert_true(optimizer_add_unit(o, i ? grads : gradient));
    assert_true(optimizer_take_unit(o, i ? grads : gradient));
    optimizer_step(o, 7, &results[i]);
    weights_from_masters(pair[i].weights, optimizer_masters(o));
    optimizer_free(o);
  }
  assert_true(results[0].grad_norm == results[1].grad_norm && results[0].grad_norm > 0);
  same_weights(pair);
  pair_close(pair);
}

static void test_other_families(void **state) {
  for (family = LLAMA; family <= GEMMA; family++) {
    test_weights(state);
    test_forward(state);
    test_training(state);
    test_training_again(state);
  }
  family = QWEN;
}

/* What the device's table cannot compute is refused by name before any memory is taken. */
static void test_refusals(void **state) {
  struct model_config experts = config_of(true), capped = config_of(true), wide = config_of(true);
  struct model *m = NULL;
  struct err err = {0};
  (void)state;
  experts.experts = 4;
  experts.chosen = 2;
  experts.expert_ffn = 16;
  experts.sparse[0] = 1;
  assert_int_equal(model_create(&m, &experts, gpu, 0, &err), RC_UNSUPPORTED);
  assert_string_equal(err.field, "num_experts");
  assert_int_equal(model_create(&m, &experts, cpu, 0, &err), RC_OK);
  model_free(m);
  capped.scores_cap = 50;
  assert_int_equal(model_create(&m, &capped, gpu, 0, &err), RC_UNSUPPORTED);
  assert_string_equal(err.field, "attn_logit_softcapping");
  capped.scores_cap = 0;
  capped.logits_cap = 30;
  assert_int_equal(model_create(&m, &capped, gpu, 0, &err), RC_UNSUPPORTED);
  assert_string_equal(err.field, "final_logit_softcapping");
  wide.head_dim = 256;
  assert_int_equal(model_create(&m, &wide, gpu, 0, &err), RC_UNSUPPORTED);
  assert_string_equal(err.field, "head_dim");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_weights),        cmocka_unit_test(test_float_file), cmocka_unit_test(test_forward),
      cmocka_unit_test(test_sampler),        cmocka_unit_test(test_fork),       cmocka_unit_test(test_training),
      cmocka_unit_test(test_training_again), cmocka_unit_test(test_step),       cmocka_unit_test(test_other_families),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, tables_open, tables_close);
}

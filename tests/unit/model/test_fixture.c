/* Our forward, losses, gradients and AdamW against PyTorch and transformers (tests/golden/make_model_fixture.py), in
 * fp32; and the distance of bf16 from that, measured and bounded. */
#include "tests/unit/model/support.h"

#include <math.h>
#include <stdio.h>

#include "common/model/learning/backward.h"
#include "common/model/learning/loss.h"
#include "common/model/learning/optimizer.h"

enum { TOKENS = 50, SEQUENCES = 2, SCORED_MAX = 48, STEPS = 10 };

struct fixture {
  struct bench b;
  struct st_file *reference;
  struct weights *w;
  struct learner *learner;
  struct train_sample all[SEQUENCES], masked[SEQUENCES]; /* every token scored; the policy loss's tokens only */
  uint8_t every[TOKENS];
};

static const float *floats(const struct fixture *f, const char *name, size_t count) {
  const struct st_tensor *t = st_find(f->reference, name);
  if (!t) fail_msg("the fixture lacks %s", name);
  assert_int_equal(t->bytes, count * sizeof(float));
  return st_data(f->reference, t);
}

static void load_samples(struct fixture *f) {
  const int32_t *tokens = st_data(f->reference, st_find(f->reference, "tokens"));
  const int32_t *lengths = st_data(f->reference, st_find(f->reference, "lengths"));
  const uint8_t *scored = st_data(f->reference, st_find(f->reference, "scored"));
  memset(f->every, 1, sizeof f->every);
  f->every[0] = 0;
  for (int s = 0, at = 0; s < SEQUENCES; at += lengths[s++]) {
    f->all[s] = (struct train_sample){.tokens = tokens + at, .length = lengths[s], .scored = f->every};
    f->masked[s] = (struct train_sample){.tokens = tokens + at, .length = lengths[s], .scored = scored + at};
  }
}

static void fixture_open(struct fixture *f, bool tied, enum number_format format) {
  const char *dir = tied ? GOLDEN "/qwen3_tied" : GOLDEN "/qwen3_untied";
  char path[256];
  struct model_config config;
  struct st_file *file = NULL;
  struct err err = {0};
  assert_int_equal(model_config_load(&config, dir, &err), RC_OK);
  assert_int_equal(config.tied, tied);
  assert_true(bench_open(&f->b, &config, format, NULL, 2));
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  assert_int_equal(st_open_file(&file, path, &err), RC_OK);
  assert_int_equal(weights_create(&f->w, f->b.model, true, &err), RC_OK);
  const enum rc rc = weights_from_safetensors(f->w, file, &err);
  if (rc != RC_OK) fail_msg("%s", err.message);
  st_close(file);
  snprintf(path, sizeof path, "%s/reference.safetensors", dir);
  assert_int_equal(st_open_file(&f->reference, path, &err), RC_OK);
  assert_int_equal(learner_create(&f->learner, f->b.model, &(struct learner_options){.chunk_tokens = 64}, &err), RC_OK);
  load_samples(f);
}

static void fixture_close(struct fixture *f) {
  learner_free(f->learner);
  weights_free(f->w);
  st_close(f->reference);
  bench_close(&f->b);
}

/* ||a * scale - b|| / ||b|| */
static double distance(const float *a, double scale, const float *b, size_t n) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < n; i++) {
    const double d = (double)a[i] * scale - (double)b[i];
    difference += d * d;
    size += (double)b[i] * (double)b[i];
  }
  return sqrt(difference) / sqrt(size);
}

static double logits_distance(struct fixture *f) {
  const struct model *m = f->b.model;
  const size_t V = (size_t)m->config.vocabulary;
  struct kv_cache *kv = NULL;
  struct workspace *ws = NULL;
  float *logits = calloc(TOKENS * V, sizeof *logits);
  int32_t tokens[TOKENS], which[TOKENS], position[TOKENS];
  const int32_t pages[6] = {4, 0, 3, 2, 5, 1}; /* two sequences, pages of 16 in any order */
  int T = 0;
  for (int32_t s = 0; s < SEQUENCES; s++)
    for (int t = 0; t < f->all[s].length; t++, T++) {
      tokens[T] = f->all[s].tokens[t];
      which[T] = s;
      position[T] = t;
    }
  assert_int_equal(kv_cache_create(&kv, m, 6, 16, NULL), RC_OK);
  assert_int_equal(workspace_create(&ws, m, TOKENS, 0, NULL), RC_OK);
  const struct rows rows = {
      .T = T, .sequence = which, .position = position, .pages = pages, .pages_per_sequence = 3, .sequences = SEQUENCES};
  const void *hidden = NULL;
  forward_run(f->w, &rows, tokens, kv, ws, NULL, &hidden);
  forward_logits(f->w, hidden, NULL, T, ws, logits);
  const double d = distance(logits, 1, floats(f, "logits", TOKENS * V), TOKENS * V);
  free(logits);
  workspace_free(ws);
  kv_cache_free(kv);
  return d;
}

struct cross_entropy {
  double sum;
};

static void cross_entropy_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct cross_entropy *c = context;
  (void)first;
  for (int i = 0; i < count; i++) {
    c->sum -= (double)logprob[i];
    dlogprob[i] = -1;
  }
}

struct policy {
  const struct fixture *f;
  struct loss_stats stats;
  int lengths[SEQUENCES];
};

static void policy_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct policy *p = context;
  const struct loss_config config = {.kind = LOSS_PPO, .clip_low = 0.2f, .clip_high = 0.2f, .kl_coefficient = 0.1f};
  const size_t n = (size_t)(p->lengths[0] + p->lengths[1]);
  const float *old = floats(p->f, "old", n), *reference = floats(p->f, "reference", n),
              *advantage = floats(p->f, "advantage", SEQUENCES);
  assert_int_equal(first, 0); /* one chunk */
  assert_int_equal(count, n);
  for (int s = 0, at = 0; s < SEQUENCES; at += p->lengths[s++])
    loss_sequence(&config, p->lengths[s], logprob + at, old + at, NULL, reference + at, advantage[s], dlogprob + at,
                  &p->stats);
}

/* The worst parameter's distance. */
static double gradients_distance(const struct fixture *f, const float *grads, double denominator, const char *prefix) {
  const struct param_table *t = &f->b.model->params;
  double worst = 0;
  for (int i = 0; i < t->count; i++) {
    char name[160];
    snprintf(name, sizeof name, "%s/%s", prefix, t->items[i].name);
    const double d =
        distance(grads + t->items[i].offset, 1 / denominator, floats(f, name, t->items[i].count), t->items[i].count);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

static double cross_entropy_distance(struct fixture *f, double *loss_error) {
  struct cross_entropy c = {0};
  float *grads = calloc(f->b.model->params.elements, sizeof *grads);
  assert_int_equal(
      learner_gradients(f->learner, f->w, f->all, SEQUENCES, 1, cross_entropy_gradient, &c, grads, NULL, NULL), RC_OK);
  *loss_error = fabs(c.sum / SCORED_MAX - (double)*floats(f, "loss_ce", 1));
  const double d = gradients_distance(f, grads, SCORED_MAX, "grad_ce");
  free(grads);
  return d;
}

static double policy_distance(struct fixture *f, double *loss_error) {
  struct policy p = {.f = f};
  float logprob[SCORED_MAX];
  float *grads = calloc(f->b.model->params.elements, sizeof *grads);
  for (int s = 0; s < SEQUENCES; s++)
    for (int t = 0; t < f->masked[s].length; t++) p.lengths[s] += f->masked[s].scored[t] != 0;
  const size_t n = (size_t)(p.lengths[0] + p.lengths[1]);
  assert_int_equal(
      learner_gradients(f->learner, f->w, f->masked, SEQUENCES, 0.8f, policy_gradient, &p, grads, logprob, NULL),
      RC_OK);
  assert_true(distance(logprob, 1, floats(f, "logprob", n), n) <= (f->b.ops->format == FORMAT_F32 ? 1e-6 : 3e-2));
  *loss_error = fabs(p.stats.loss / (double)n - (double)*floats(f, "loss_grpo", 1));
  const double d = gradients_distance(f, grads, (double)n, "grad_grpo");
  free(grads);
  return d;
}

static void check_f32(bool tied) {
  struct fixture f = {0};
  double ce_error, policy_error;
  fixture_open(&f, tied, FORMAT_F32);
  const double logits = logits_distance(&f), ce = cross_entropy_distance(&f, &ce_error),
               policy = policy_distance(&f, &policy_error);
  print_message("fp32 %s: logits %.2e, gradients %.2e and %.2e\n", tied ? "tied" : "untied", logits, ce, policy);
  assert_true(logits <= 1e-5);
  assert_true(ce <= 1e-4 && ce_error <= 1e-5);
  assert_true(policy <= 1e-4 && policy_error <= 1e-5);
  fixture_close(&f);
}

static void test_f32_tied(void **state) {
  (void)state;
  check_f32(true);
}
static void test_f32_untied(void **state) {
  (void)state;
  check_f32(false);
}

static void test_bf16_stays_near(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    struct fixture f = {0};
    double ce_error, policy_error;
    fixture_open(&f, tied, FORMAT_BF16);
    const double logits = logits_distance(&f), ce = cross_entropy_distance(&f, &ce_error),
                 policy = policy_distance(&f, &policy_error);
    print_message("bf16 %s: logits %.2e, gradients %.2e and %.2e\n", tied ? "tied" : "untied", logits, ce, policy);
    assert_true(logits <= 3e-2 && logits > 1e-4); /* zero would mean that it was fp32 */
    assert_true(ce <= 5e-2 && policy <= 1e-1);
    fixture_close(&f);
  }
}

static void check_adamw(bool tied) {
  struct fixture f = {0};
  struct optimizer *o = NULL;
  const struct optimizer_config config = {.lr = 3e-3,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .clip_norm = 1.0,
                                          .grad_scale_log2 = 32};
  fixture_open(&f, tied, FORMAT_F32);
  const float *losses = floats(&f, "losses", STEPS);
  const size_t elements = f.b.model->params.elements;
  float *grads = calloc(elements, sizeof *grads);
  assert_int_equal(optimizer_create(&o, f.b.model, &config, NULL), RC_OK);
  weights_to_masters(f.w, optimizer_masters(o));
  for (int step = 0; step < STEPS; step++) {
    struct cross_entropy c = {0};
    struct step_result result;
    memset(grads, 0, elements * sizeof *grads);
    assert_int_equal(
        learner_gradients(f.learner, f.w, f.all, SEQUENCES, 1, cross_entropy_gradient, &c, grads, NULL, NULL), RC_OK);
    const double loss = c.sum / SCORED_MAX, error = fabs(loss / (double)losses[step] - 1);
    if (error > 1e-4) fail_msg("step %d: loss %.7f, PyTorch's %.7f", step, loss, (double)losses[step]);
    assert_true(optimizer_add_unit(o, grads));
    optimizer_step(o, SCORED_MAX, &result);
    assert_true(!result.skipped && result.step == step + 1);
    weights_from_masters(f.w, optimizer_masters(o));
  }
  optimizer_free(o);
  free(grads);
  fixture_close(&f);
}

static void test_ten_steps_of_adamw(void **state) {
  (void)state;
  check_adamw(true);
  check_adamw(false);
}

/* Losses of cross-entropy steps with moments in 32 and in 8 bits, from the same weights on. */
static void train_beside(double first[2], double last[2], int steps) {
  for (int k = 0; k < 2; k++) {
    struct fixture f = {0};
    struct optimizer *o = NULL;
    const struct optimizer_config config = {.lr = 3e-3,
                                            .beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .clip_norm = 1.0,
                                            .grad_scale_log2 = 32};
    fixture_open(&f, true, FORMAT_BF16);
    const size_t elements = f.b.model->params.elements;
    const struct optimizer_place place = {.shard = shard_of(elements, 0, 1), .moments8 = k == 1};
    float *grads = calloc(elements, sizeof *grads);
    assert_int_equal(optimizer_create_at(&o, f.b.model, &place, &config, NULL), RC_OK);
    weights_to_masters(f.w, optimizer_masters(o));
    for (int step = 0; step < steps; step++) {
      struct cross_entropy c = {0};
      struct step_result result;
      memset(grads, 0, elements * sizeof *grads);
      assert_int_equal(
          learner_gradients(f.learner, f.w, f.all, SEQUENCES, 1, cross_entropy_gradient, &c, grads, NULL, NULL), RC_OK);
      if (step == 0) first[k] = c.sum / SCORED_MAX;
      last[k] = c.sum / SCORED_MAX;
      assert_true(optimizer_add_unit(o, grads));
      optimizer_step(o, SCORED_MAX, &result);
      assert_false(result.skipped);
      weights_from_masters(f.w, optimizer_masters(o));
    }
    optimizer_free(o);
    free(grads);
    fixture_close(&f);
  }
}

/* As far as with 32 bits, by another way. */
static void test_moments_in_8_bits_learn_as_well(void **state) {
  (void)state;
  double first[2], last[2];
  train_beside(first, last, 60);
  print_message("cross-entropy of 60 steps: %.4f to %.4f with moments of 32 bits, %.4f of 8\n", first[0], last[0],
                last[1]);
  assert_true(first[0] == first[1] && last[0] < first[0] / 2);
  assert_true(last[1] != last[0] && last[1] < last[0] + 0.05 * (first[0] - last[0]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_f32_tied),
      cmocka_unit_test(test_f32_untied),
      cmocka_unit_test(test_bf16_stays_near),
      cmocka_unit_test(test_ten_steps_of_adamw),
      cmocka_unit_test(test_moments_in_8_bits_learn_as_well),
  };
  return cmocka_run_group_tests_name("model/fixture", tests, NULL, NULL);
}

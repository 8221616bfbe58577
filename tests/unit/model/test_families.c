/* Every family against transformers, in fp32: logits, gradients, ten steps of AdamW and a greedy continuation of the
 * models of tests/golden/make_family_fixtures.py; bf16 stays near them.  And on each of them what no family may lose: a
 * token's logits are the same bits in a decode step as in a prefill, and the trainer's log-probability is the
 * sampler's.
 *
 * LEASEHOLD_FAMILIES names another folder of such models, as `make families` does. */
#include "tests/unit/model/support.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>

#include "common/model/learning/backward.h"
#include "common/model/learning/optimizer.h"
#include "common/model/network/weights_internal.h"

enum { SEQUENCES = 2, STEPS = 10, PROMPT = 9, GREEDY = 20, TOKENS_MAX = 128, PAGE = 16, PAGES = TOKENS_MAX / PAGE };

struct fixture {
  const char *name;
  struct bench b;
  struct st_file *reference;
  struct weights *w;
  struct learner *learner;
  struct train_sample samples[SEQUENCES];
  uint8_t every[TOKENS_MAX];
  int tokens, predicted;
};

static const void *found(const struct fixture *f, const char *name, size_t bytes) {
  const struct st_tensor *t = st_find(f->reference, name);
  if (!t || t->bytes != bytes) fail_msg("%s: no %s of %zu bytes", f->name, name, bytes);
  return st_data(f->reference, t);
}

static void fixture_open(struct fixture *f, const char *dir, const char *name, enum number_format format) {
  char path[1024];
  struct model_config config;
  struct st_file *file = NULL;
  struct err err = {0};
  *f = (struct fixture){.name = name};
  snprintf(path, sizeof path, "%s/%s", dir, name);
  if (model_config_load(&config, path, &err) != RC_OK) fail_msg("%s: %s", path, err.message);
  assert_true(bench_open(&f->b, &config, format, NULL, 2));
  snprintf(path, sizeof path, "%s/%s/model.safetensors", dir, name);
  assert_int_equal(st_open_file(&file, path, &err), RC_OK);
  assert_int_equal(weights_create(&f->w, f->b.model, true, &err), RC_OK);
  if (weights_from_safetensors(f->w, file, &err) != RC_OK) fail_msg("%s: %s", path, err.message);
  st_close(file);
  snprintf(path, sizeof path, "%s/%s/reference.safetensors", dir, name);
  assert_int_equal(st_open_file(&f->reference, path, &err), RC_OK);
  assert_int_equal(learner_create(&f->learner, f->b.model, &(struct learner_options){.chunk_tokens = TOKENS_MAX}, &err),
                   RC_OK);
  const int32_t *lengths = found(f, "lengths", SEQUENCES * sizeof *lengths);
  f->tokens = lengths[0] + lengths[1];
  f->predicted = f->tokens - SEQUENCES;
  assert_true(f->tokens <= TOKENS_MAX);
  const int32_t *tokens = found(f, "tokens", (size_t)f->tokens * sizeof *tokens);
  memset(f->every, 1, sizeof f->every);
  f->every[0] = 0;
  for (int s = 0; s < SEQUENCES; tokens += lengths[s++])
    f->samples[s] = (struct train_sample){.tokens = tokens, .length = lengths[s], .scored = f->every};
}

static void fixture_close(struct fixture *f) {
  learner_free(f->learner);
  weights_free(f->w);
  st_close(f->reference);
  bench_close(&f->b);
}

static double norm(const float *x, size_t n) {
  double square = 0;
  for (size_t i = 0; i < n; i++) square += (double)x[i] * (double)x[i];
  return sqrt(square);
}

/* ||a * scale - b|| */
static double apart(const float *a, double scale, const float *b, size_t n) {
  double square = 0;
  for (size_t i = 0; i < n; i++) {
    const double d = (double)a[i] * scale - (double)b[i];
    square += d * d;
  }
  return sqrt(square);
}

/* --- forward --- */

/* One sequence over a pool of its own. */
struct run {
  const struct fixture *f;
  struct kv_cache *kv;
  struct workspace *ws;
  int32_t sequence[TOKENS_MAX], position[TOKENS_MAX], pages[PAGES];
};

static void run_open(struct run *r, const struct fixture *f) {
  *r = (struct run){.f = f};
  assert_int_equal(kv_cache_create(&r->kv, f->b.model, PAGES, PAGE, NULL), RC_OK);
  assert_int_equal(workspace_create(&r->ws, f->b.model, TOKENS_MAX, 0, NULL), RC_OK);
  for (int i = 0; i < TOKENS_MAX; i++) r->position[i] = i;
  for (int i = 0; i < PAGES; i++) r->pages[i] = (3 * i + 1) % PAGES;
}

static void run_close(struct run *r) {
  workspace_free(r->ws);
  kv_cache_free(r->kv);
}

/* Logits [count,V] of positions first .. first + count - 1. */
static void run_tokens(struct run *r, const int32_t *tokens, int first, int count, float *logits) {
  const struct rows rows = {.T = count,
                            .sequence = r->sequence,
                            .position = r->position + first,
                            .pages = r->pages,
                            .pages_per_sequence = PAGES,
                            .sequences = 1};
  const void *hidden = NULL;
  forward_run(r->f->w, &rows, tokens + first, r->kv, r->ws, NULL, &hidden);
  forward_logits(r->f->w, hidden, NULL, count, r->ws, logits);
}

/* [tokens,V] of both sequences, each in one call. */
static float *prefill_logits(const struct fixture *f) {
  const size_t V = (size_t)f->b.model->config.vocabulary;
  float *logits = calloc((size_t)f->tokens * V, sizeof *logits), *at = logits;
  for (int s = 0; s < SEQUENCES; s++) {
    struct run r;
    run_open(&r, f);
    run_tokens(&r, f->samples[s].tokens, 0, f->samples[s].length, at);
    at += (size_t)f->samples[s].length * V;
    run_close(&r);
  }
  return logits;
}

static void check_decode_equals_prefill(const struct fixture *f, const float *logits) {
  const size_t V = (size_t)f->b.model->config.vocabulary;
  float *one = calloc(V, sizeof *one);
  for (int s = 0; s < SEQUENCES; s++) {
    struct run r;
    run_open(&r, f);
    for (int t = 0; t < f->samples[s].length; t++, logits += V) {
      run_tokens(&r, f->samples[s].tokens, t, 1, one);
      if (memcmp(one, logits, V * sizeof *one) != 0)
        fail_msg("%s: token %d of sequence %d decodes otherwise", f->name, t, s);
    }
    run_close(&r);
  }
  free(one);
}

static void check_trainer_equals_sampler(const struct fixture *f, const float *logits) {
  const struct ops *ops = f->b.ops;
  const int V = f->b.model->config.vocabulary;
  float ours[TOKENS_MAX];
  assert_int_equal(learner_logprobs(f->learner, f->w, f->samples, SEQUENCES, 0.7f, ours, NULL, NULL), RC_OK);
  int at = 0;
  for (int s = 0; s < SEQUENCES; s++, logits += V)
    for (int t = 1; t < f->samples[s].length; t++, at++, logits += V) {
      float logprob, lse;
      ops->logprob(ops, &logprob, &lse, NULL, logits, &f->samples[s].tokens[t], 0.7f, 1, V);
      if (memcmp(&logprob, &ours[at], sizeof logprob) != 0)
        fail_msg("%s: the trainer has %.9g for token %d of sequence %d, the sampler %.9g", f->name, (double)ours[at], t,
                 s, (double)logprob);
    }
  assert_int_equal(at, f->predicted);
}

static void check_greedy(const struct fixture *f) {
  const int V = f->b.model->config.vocabulary;
  const int32_t *want = found(f, "greedy", GREEDY * sizeof *want);
  int32_t tokens[PROMPT + GREEDY];
  float *logits = calloc((size_t)(PROMPT * V), sizeof *logits);
  struct run r;
  run_open(&r, f);
  memcpy(tokens, f->samples[0].tokens, PROMPT * sizeof *tokens);
  for (int done = 0; done < GREEDY; done++) {
    const int first = done == 0 ? 0 : PROMPT + done - 1, count = done == 0 ? PROMPT : 1;
    struct draw d = {.row = count - 1, .temperature = 0, .u = 0.5f};
    run_tokens(&r, tokens, first, count, logits);
    f->b.ops->sample(f->b.ops, &d, 1, logits, V);
    tokens[PROMPT + done] = d.token;
    if (d.token != want[done])
      fail_msg("%s: greedy token %d is %d, transformers' %d", f->name, done, d.token, want[done]);
  }
  run_close(&r);
  free(logits);
}

/* --- gradients --- */

static void cross_entropy_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  double *sum = context;
  (void)first;
  for (int i = 0; i < count; i++) {
    *sum -= (double)logprob[i];
    dlogprob[i] = -1;
  }
}

/* The worst parameter's distance, relative to its size.  Where the true gradient is zero (of q and k, when a row
 * attends to itself alone) both have roundings: a thousandth of the whole gradient's size counts as well. */
static double gradients_distance(const struct fixture *f, double *loss_error) {
  const struct param_table *t = &f->b.model->params;
  double sum = 0, worst = 0, whole;
  float *grads = calloc(t->elements, sizeof *grads);
  assert_int_equal(
      learner_gradients(f->learner, f->w, f->samples, SEQUENCES, 1, cross_entropy_gradient, &sum, grads, NULL, NULL),
      RC_OK);
  *loss_error = fabs(sum / f->predicted - (double)*(const float *)found(f, "loss", sizeof(float)));
  whole = norm(grads, t->elements) / f->predicted;
  for (int i = 0; i < t->count; i++) {
    const struct param *p = &t->items[i];
    char name[160];
    snprintf(name, sizeof name, "grad/%s", p->file_name);
    const float *want = found(f, name, (size_t)p->file_rows * (size_t)p->cols * sizeof *want);
    want += (size_t)p->file_row * (size_t)p->cols;
    const double d =
        apart(grads + p->offset, 1.0 / f->predicted, want, p->count) / (norm(want, p->count) + 1e-3 * whole);
    if (!(d <= worst)) worst = d;
  }
  free(grads);
  return worst;
}

static void check_adamw(const struct fixture *f) {
  const struct optimizer_config config = {.lr = 3e-3,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .clip_norm = 1.0,
                                          .grad_scale_log2 = 32};
  struct optimizer *o = NULL;
  const float *losses = found(f, "losses", STEPS * sizeof *losses);
  const double *exact = found(f, "losses_f64", STEPS * sizeof *exact);
  const size_t elements = f->b.model->params.elements;
  float *grads = calloc(elements, sizeof *grads);
  assert_int_equal(optimizer_create(&o, f->b.model, &config, NULL), RC_OK);
  weights_to_masters(f->w, optimizer_masters(o));
  for (int step = 0; step < STEPS; step++) {
    struct step_result result;
    double sum = 0;
    memset(grads, 0, elements * sizeof *grads);
    assert_int_equal(
        learner_gradients(f->learner, f->w, f->samples, SEQUENCES, 1, cross_entropy_gradient, &sum, grads, NULL, NULL),
        RC_OK);
    const double loss = sum / f->predicted, error = fabs(loss / exact[step] - 1);
    const double theirs = fabs((double)losses[step] / exact[step] - 1);
    if (!(error <= 1e-4 + 2 * theirs))
      fail_msg("%s, step %d: loss %.7f, PyTorch's %.7f, exactly %.7f", f->name, step, loss, (double)losses[step],
               exact[step]);
    assert_true(optimizer_add_unit(o, grads));
    optimizer_step(o, f->predicted, &result);
    assert_true(!result.skipped);
    weights_from_masters(f->w, optimizer_masters(o));
  }
  optimizer_free(o);
  free(grads);
}

/* What is written is what transformers would write: the same tensors, and the same weights when it is read again. */
static void check_file(const struct fixture *f, const char *dir) {
  char path[1024];
  struct buf bytes = BUF_INIT;
  struct digest digest, again;
  struct st_file *file = NULL, *theirs = NULL;
  struct weights *w = NULL;
  assert_int_equal(weights_to_safetensors(&bytes, &digest, f->w, NULL, "digest", NULL), RC_OK);
  assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, NULL), RC_OK);
  snprintf(path, sizeof path, "%s/%s/model.safetensors", dir, f->name);
  assert_int_equal(st_open_file(&theirs, path, NULL), RC_OK);
  assert_int_equal(st_count(file), st_count(theirs));
  for (size_t i = 0; i < st_count(theirs); i++) {
    const struct st_tensor *a = st_at(theirs, i), *b = st_find(file, a->name);
    if (!b || a->dims != b->dims || memcmp(a->shape, b->shape, (size_t)a->dims * sizeof a->shape[0]) != 0)
      fail_msg("%s: %s is not written as it was", f->name, a->name);
    if (f->b.ops->format == FORMAT_BF16) assert_memory_equal(st_data(theirs, a), st_data(file, b), a->bytes);
  }
  assert_int_equal(weights_create(&w, f->b.model, false, NULL), RC_OK);
  assert_int_equal(weights_from_safetensors(w, file, NULL), RC_OK);
  assert_int_equal(weights_digest(&again, w, NULL), RC_OK);
  assert_memory_equal(&digest, &again, sizeof digest);
  weights_free(w);
  st_close(theirs);
  st_close(file);
  buf_free(&bytes);
}

/* --- every model --- */

static void check_model(const char *dir, const char *name, enum number_format format) {
  const bool f32 = format == FORMAT_F32;
  struct fixture f;
  double loss_error;
  fixture_open(&f, dir, name, format);
  const size_t n = (size_t)f.tokens * (size_t)f.b.model->config.vocabulary;
  float *logits = prefill_logits(&f);
  const float *want = found(&f, "logits", n * sizeof *logits);
  const double forward = apart(logits, 1, want, n) / norm(want, n), gradients = gradients_distance(&f, &loss_error);
  print_message("%s %s: logits %.2e, gradients %.2e\n", f32 ? "fp32" : "bf16", name, forward, gradients);
  check_decode_equals_prefill(&f, logits);
  check_trainer_equals_sampler(&f, logits);
  check_file(&f, dir);
  if (f32) {
    assert_true(forward <= 1e-5 && gradients <= 1e-4 && loss_error <= 1e-5);
    check_greedy(&f);
    check_adamw(&f);
  } else {
    /* Zero would mean that it was fp32; and a row that is near a tie may take another expert. */
    assert_true(forward <= (f.b.model->config.experts > 0 ? 0.25 : 5e-2) && forward > 1e-4);
  }
  free(logits);
  fixture_close(&f);
}

static void every_model(enum number_format format) {
  const char *other = getenv("LEASEHOLD_FAMILIES"), *dir = other ? other : GOLDEN "/families";
  DIR *d = opendir(dir);
  int count = 0;
  assert_non_null(d);
  for (const struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    check_model(dir, e->d_name, format);
    count++;
  }
  closedir(d);
  assert_true(count > 0);
}

static void test_fp32_is_transformers(void **state) {
  (void)state;
  every_model(FORMAT_F32);
}
static void test_bf16_stays_near(void **state) {
  (void)state;
  every_model(FORMAT_BF16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fp32_is_transformers),
      cmocka_unit_test(test_bf16_stays_near),
  };
  return cmocka_run_group_tests_name("model/families", tests, NULL, NULL);
}

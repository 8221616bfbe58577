/* What the CUDA table is worth on the device at hand: every figure beside the ceiling that the same call measured.
 *
 *   ceilings   the largest product of matrices by cuBLASLt; a copy within the device's memory
 *   decode     one token for each of 1 and of 64 sequences that are CONTEXT long: forward, logits, draws.  The floor is
 *              what must be read: weights once, and each sequence's keys and values
 *   training   SAMPLES x LENGTH tokens: log-probabilities, gradients, one optimizer step
 *
 * Models have the shapes of Qwen3-0.6B and Qwen3-1.7B and random weights.  Each figure is the best and the median of
 * REPEATS.  Usage: bench [device].  Run by check.sh; exit status 1 when the device fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/model/cuda/ops_cuda.h"
#include "common/model/learning/backward.h"
#include "common/model/learning/optimizer.h"
#include "common/model/network/sampler.h"

enum { CONTEXT = 1024, BATCH_MAX = 64, PAGE_TOKENS = 32, SAMPLES = 16, LENGTH = 2048, REPEATS = 9, HOST_THREADS = 16 };

/* The two differ in their widths alone. */
static const struct shape {
  const char *name;
  int hidden, ffn;
  bool recompute; /* activations: what fits one device of 141 GB */
} SHAPES[] = {{"Qwen3-0.6B", 1024, 3072, false}, {"Qwen3-1.7B", 2048, 6144, true}};

static struct model_config config_of(const struct shape *s) {
  return (struct model_config){.layers = 28,
                               .hidden = s->hidden,
                               .heads = 16,
                               .kv_heads = 8,
                               .head_dim = 128,
                               .ffn = s->ffn,
                               .vocabulary = 151936,
                               .positions_max = 4096,
                               .rms_eps = 1e-6f,
                               .rope_theta = 1000000,
                               .head_norms = true,
                               .initializer_range = 0.02f,
                               .tied = true};
}

struct ceilings {
  double flops, bytes; /* per second */
};

/* --- time --- */

struct times {
  double seconds[REPEATS];
  int count;
};

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double best_of(struct times *t) {
  qsort(t->seconds, (size_t)t->count, sizeof t->seconds[0], by_size);
  return t->seconds[0];
}
static double median_of(struct times *t) {
  qsort(t->seconds, (size_t)t->count, sizeof t->seconds[0], by_size);
  return t->seconds[t->count / 2];
}

/* Seconds of `work`, which is complete when they are over; one run before is not counted. */
static enum rc measure(struct times *t, const struct ops *ops, int repeats, void (*work)(void *), void *context,
                       struct err *err) {
  enum rc rc = RC_OK;
  t->count = 0;
  for (int i = -1; i < repeats && rc == RC_OK; i++) {
    const int64_t begin_us = clock_monotonic_us();
    work(context);
    rc = ops->status(ops, err);
    if (i >= 0) t->seconds[t->count++] = (double)(clock_monotonic_us() - begin_us) * 1e-6;
  }
  return rc;
}

/* --- ceilings --- */

struct product {
  const struct ops *ops;
  struct matrix W;
  void *x;
  float *y;
};
enum { SIDE = 8192 };

static void multiply(void *context) {
  struct product *p = context;
  p->ops->gemm(p->ops, p->y, p->x, &p->W, SIDE, false);
}

struct copying {
  const struct ops *ops;
  char *from, *to;
};
enum { COPY_BYTES = 1 << 30 };

static void copy(void *context) {
  struct copying *c = context;
  c->ops->copy(c->ops, c->to, c->from, COPY_BYTES);
}

/* The rate of a large product by this table. */
static enum rc product_rate(double *flops, const struct ops *ops, struct err *err) {
  const size_t n = (size_t)SIDE * SIDE;
  struct times t;
  struct product p = {
      ops, {ops->alloc(ops, n * 2), SIDE, SIDE}, ops->alloc(ops, n * 2), ops->alloc(ops, n * sizeof(float))};
  if (!p.W.data || !p.x || !p.y)
    return err_set(err, RC_NO_MEMORY, NULL, "matrices of %d x %d were refused", SIDE, SIDE);
  const enum rc rc = measure(&t, ops, REPEATS, multiply, &p, err);
  ops->release(ops, p.W.data);
  ops->release(ops, p.x);
  ops->release(ops, p.y);
  if (rc == RC_OK) *flops = 2.0 * SIDE * SIDE * SIDE / best_of(&t);
  return rc;
}

static enum rc find_ceilings(struct ceilings *out, const struct ops *invariant, const struct ops *fastest,
                             struct err *err) {
  struct times t;
  double own = 0;
  enum rc rc = product_rate(&out->flops, fastest, err);
  if (rc == RC_OK) rc = product_rate(&own, invariant, err);
  struct copying c = {fastest, fastest->alloc(fastest, COPY_BYTES), fastest->alloc(fastest, COPY_BYTES)};
  if (rc == RC_OK && (!c.from || !c.to)) rc = err_set(err, RC_NO_MEMORY, NULL, "2 GiB were refused");
  if (rc == RC_OK) rc = measure(&t, fastest, REPEATS, copy, &c, err);
  if (rc != RC_OK) return rc;
  out->bytes = 2.0 * COPY_BYTES / best_of(&t);
  fastest->release(fastest, c.from);
  fastest->release(fastest, c.to);
  printf("%-46s %10.1f TFLOP/s\n", "ceiling: product of 8192 x 8192, cuBLASLt", out->flops * 1e-12);
  printf("%-46s %10.1f TFLOP/s %5.1f %%\n", "the same by the invariant product", own * 1e-12, 100 * own / out->flops);
  printf("%-46s %10.1f GB/s\n", "ceiling: copy of 1 GiB, read and written", out->bytes * 1e-9);
  return rc;
}

/* --- decode --- */

struct decoding {
  const struct model *model;
  struct weights *weights;
  struct kv_cache *kv;
  struct workspace *ws;
  struct sampler *sampler;
  float *logits;
  int batch, pages_each;
  int32_t *pages, tokens[BATCH_MAX], sequence[BATCH_MAX], position[BATCH_MAX];
};

static void decode(void *context) {
  struct decoding *d = context;
  static const struct sampling_params plain = {.temperature = 1, .top_p = 1};
  const struct sampling_params *params[BATCH_MAX];
  struct draw draws[BATCH_MAX];
  const void *hidden;
  const struct rows rows = {.T = d->batch,
                            .sequence = d->sequence,
                            .position = d->position,
                            .pages = d->pages,
                            .pages_per_sequence = d->pages_each,
                            .sequences = BATCH_MAX};
  forward_run(d->weights, &rows, d->tokens, d->kv, d->ws, NULL, &hidden);
  forward_logits(d->weights, hidden, NULL, d->batch, d->ws, d->logits);
  for (int i = 0; i < d->batch; i++) {
    params[i] = &plain;
    draws[i] = (struct draw){.row = i, .u = 0.5f};
  }
  sampler_draw(d->sampler, d->logits, params, draws, d->batch);
  for (int i = 0; i < d->batch; i++) d->tokens[i] = draws[i].token;
}

static enum rc decode_open(struct decoding *d, const struct model *m, struct err *err) {
  const struct ops *ops = m->ops;
  *d = (struct decoding){.model = m, .pages_each = CONTEXT / PAGE_TOKENS};
  const int pages = BATCH_MAX * d->pages_each;
  enum rc rc = weights_create(&d->weights, m, false, err);
  if (rc == RC_OK) rc = kv_cache_create(&d->kv, m, pages, PAGE_TOKENS, err);
  if (rc == RC_OK) rc = workspace_create(&d->ws, m, BATCH_MAX, pages, err);
  if (rc != RC_OK) return rc;
  d->logits = ops->alloc(ops, (size_t)BATCH_MAX * (size_t)m->config.vocabulary * sizeof *d->logits);
  d->sampler = sampler_create(ops, m->config.vocabulary);
  d->pages = calloc((size_t)pages, sizeof *d->pages);
  if (!d->logits || !d->sampler || !d->pages)
    return err_set(err, RC_NO_MEMORY, NULL, "decoding was refused its buffers");
  for (int i = 0; i < pages; i++) d->pages[i] = i;
  for (int i = 0; i < BATCH_MAX; i++) {
    d->sequence[i] = i;
    d->position[i] = CONTEXT - 1;
  }
  return RC_OK;
}

static void decode_close(struct decoding *d) {
  const struct ops *ops = d->model->ops;
  if (d->logits) ops->release(ops, d->logits);
  sampler_free(d->sampler);
  workspace_free(d->ws);
  kv_cache_free(d->kv);
  weights_free(d->weights);
  free(d->pages);
}

static enum rc decode_times(const char *name, const struct model *m, const struct ceilings *c, const float *masters,
                            struct err *err) {
  static const int batches[] = {1, BATCH_MAX};
  struct decoding d;
  enum rc rc = decode_open(&d, m, err);
  if (rc == RC_OK) weights_from_masters(d.weights, masters);
  for (int b = 0; b < 2 && rc == RC_OK; b++) {
    struct times t;
    d.batch = batches[b];
    rc = measure(&t, m->ops, REPEATS, decode, &d, err);
    if (rc != RC_OK) break;
    const double read =
        2.0 * (double)m->params.parameters + (double)d.batch * d.pages_each * (double)kv_page_bytes(m, PAGE_TOKENS);
    const double floor_s = read / c->bytes, median_s = median_of(&t);
    printf("%s %-14s decode, batch %-13d %10.1f tokens/s %8.0f us, floor %6.0f us: %5.1f %%\n", name, m->ops->name,
           d.batch, d.batch / median_s, median_s * 1e6, floor_s * 1e6, 100 * floor_s / median_s);
  }
  decode_close(&d);
  return rc;
}

/* --- training --- */

struct training {
  const struct model *model;
  struct weights *weights;
  struct learner *learner;
  struct optimizer *optimizer;
  struct train_sample samples[SAMPLES];
  struct err err;
};

static void any_loss(void *context, int first, int count, const float *logprob, float *dlogprob) {
  (void)context, (void)first, (void)logprob;
  for (int i = 0; i < count; i++) dlogprob[i] = -1;
}

static void train(void *context) {
  struct training *t = context;
  struct step_result result;
  float *gradient = optimizer_gradient(t->optimizer);
  const struct ops *ops = t->model->ops;
  ops->clear(ops, gradient, t->model->params.elements * sizeof *gradient);
  learner_gradients(t->learner, t->weights, t->samples, SAMPLES, 1, any_loss, NULL, gradient, NULL, &t->err);
  optimizer_take_unit(t->optimizer, gradient);
  optimizer_step(t->optimizer, SAMPLES * LENGTH, &result);
  weights_from_masters(t->weights, optimizer_masters(t->optimizer));
}

/* Products of matrices three times each, and attention's four products of a causal half, three and a half times. */
static double training_flops(const struct model_config *c) {
  const double D = c->hidden, E = c->head_dim, F = c->ffn, T = SAMPLES * LENGTH;
  const double layer = D * (2 * c->heads * E + 2 * c->kv_heads * E) + 3 * D * F;
  return 6 * T * (c->layers * layer + D * c->vocabulary) + 3.5 * 4 * c->layers * c->heads * E * T * LENGTH / 2;
}

static enum rc training_times(const struct shape *s, const struct model *m, const struct ceilings *c, struct err *err) {
  static int32_t tokens[LENGTH];
  static uint8_t scored[LENGTH];
  const struct optimizer_config config = {
      .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip_norm = 1, .grad_scale_log2 = 32};
  const struct learner_options options = {.chunk_tokens = SAMPLES * LENGTH, .recompute_activations = s->recompute};
  struct training t = {.model = m};
  struct times times;
  for (int i = 0; i < LENGTH; i++) {
    tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)m->config.vocabulary);
    scored[i] = i > 0;
  }
  static int32_t own[SAMPLES][LENGTH]; /* samples that begin apart, so that nothing is computed once for two */
  for (int k = 0; k < SAMPLES; k++) {
    memcpy(own[k], tokens, sizeof tokens);
    own[k][0] = k;
    t.samples[k] = (struct train_sample){.tokens = own[k], .length = LENGTH, .scored = scored};
  }
  enum rc rc = weights_create(&t.weights, m, true, err);
  if (rc == RC_OK) rc = optimizer_create(&t.optimizer, m, &config, err);
  if (rc == RC_OK) rc = masters_random(m, optimizer_masters(t.optimizer), 1, err);
  if (rc == RC_OK) rc = learner_create(&t.learner, m, &options, err);
  if (rc == RC_OK) weights_from_masters(t.weights, optimizer_masters(t.optimizer));
  if (rc == RC_OK) rc = measure(&times, m->ops, 3, train, &t, err);
  if (rc == RC_OK) {
    const double seconds = median_of(&times), rate = training_flops(&m->config) / seconds;
    printf("%s %-14s training %d x %d%-7s %10.0f tokens/s %8.3f s, %6.1f TFLOP/s of the model: %5.1f %%\n", s->name,
           m->ops->name, SAMPLES, LENGTH, s->recompute ? ", again" : "", SAMPLES * LENGTH / seconds, seconds,
           rate * 1e-12, 100 * rate / c->flops);
  }
  learner_free(t.learner);
  optimizer_free(t.optimizer);
  weights_free(t.weights);
  return rc;
}

static enum rc shape_times(const struct shape *s, const struct ops *ops, const struct ceilings *c, struct err *err) {
  struct model *m;
  const struct model_config config = config_of(s);
  enum rc rc = model_create(&m, &config, ops, 0, err);
  if (rc != RC_OK) return rc;
  float *masters = ops->alloc(ops, m->params.elements * sizeof *masters);
  if (!masters) rc = err_set(err, RC_NO_MEMORY, NULL, "masters of %zu parameters were refused", m->params.parameters);
  if (rc == RC_OK) rc = masters_random(m, masters, 1, err);
  if (rc == RC_OK) rc = decode_times(s->name, m, c, masters, err);
  if (masters) ops->release(ops, masters);
  if (rc == RC_OK) rc = training_times(s, m, c, err);
  model_free(m);
  return rc;
}

int main(int argc, char **argv) {
  const int device = argc > 1 ? atoi(argv[1]) : 0;
  struct pool *pool;
  struct ops *invariant = NULL, *fastest = NULL;
  struct ceilings ceilings;
  struct err err = {0};
  enum rc rc = pool_create(&pool, HOST_THREADS, &err);
  if (rc == RC_OK) rc = ops_cuda_create(&invariant, FORMAT_BF16, device, EXACTNESS_INVARIANT, pool, &err);
  if (rc == RC_OK) rc = ops_cuda_create(&fastest, FORMAT_BF16, device, EXACTNESS_FASTEST, pool, &err);
  if (rc == RC_OK) rc = find_ceilings(&ceilings, invariant, fastest, &err);
  for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++)
    for (int which = 0; which < 2 && rc == RC_OK; which++) {
      rc = shape_times(&SHAPES[s], which ? fastest : invariant, &ceilings, &err);
      fflush(stdout);
    }
  if (rc != RC_OK) fprintf(stderr, "bench: %s\n", err.message);
  ops_free(invariant);
  ops_free(fastest);
  pool_destroy(pool);
  return rc == RC_OK ? 0 : 1;
}

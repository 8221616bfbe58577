/* What one gradient unit costs on one core: the demo's model with random weights, a fixed set of GRPO units (8 samples
 * of one prompt, about 20 sampled tokens each, KL term against a reference), over and over through the trainer's own
 * calls.
 *
 *   bench_unit [rounds] [level] [threads] [model folder]
 *   -> "best_us 1234.5 median_us 1240.1 ... sum 0123456789abcdef": microseconds of the thread's CPU time per unit, and a
 *      checksum of everything that was computed, which no change of the kernels may change
 *
 * Run it from the repository's root.  Compare two builds by running them in turn, pinned to one core. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/pool.h"
#include "common/model/optimizer.h"
#include "services/trainer-server/unit.h"

enum { UNITS = 16, SAMPLES = 8, PROMPT = 8, COMPLETION_MIN = 16, COMPLETION_SPAN = 9, CHUNK_TOKENS = 2048 };

struct bench {
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct weights *weights, *reference;
  struct learner *learner;
  struct optimizer *optimizer;
  float *grads;
  struct timeline timeline;
  struct batch_group groups[UNITS];
  struct arena arena;
  uint64_t sum;
};

static uint32_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(*state >> 33);
}

static void fold(uint64_t *sum, const void *data, size_t bytes) {
  const uint8_t *p = data;
  for (size_t i = 0; i < bytes; i++) *sum = (*sum ^ p[i]) * 1099511628211ull;
}

static bool make_group(struct bench *b, struct batch_group *g, uint64_t seed) {
  uint64_t state = seed;
  int32_t prompt[PROMPT];
  *g = (struct batch_group){
      .id = "g", .samples = arena_alloc(&b->arena, SAMPLES, sizeof *g->samples), .sample_count = SAMPLES};
  if (!g->samples) return false;
  for (int t = 0; t < PROMPT; t++) prompt[t] = (int32_t)(next_random(&state) % (uint32_t)b->config.vocabulary);
  for (int i = 0; i < SAMPLES; i++) {
    struct batch_sample *s = &g->samples[i];
    const int completion = COMPLETION_MIN + (int)(next_random(&state) % COMPLETION_SPAN);
    s->id = "s";
    s->prompt_length = PROMPT;
    s->tokens.count = (size_t)(PROMPT + completion);
    s->tokens.items = arena_alloc(&b->arena, s->tokens.count, sizeof *s->tokens.items);
    s->segments = arena_alloc(&b->arena, 1, sizeof *s->segments);
    if (!s->tokens.items || !s->segments) return false;
    memcpy(s->tokens.items, prompt, sizeof prompt);
    for (int t = PROMPT; t < PROMPT + completion; t++)
      s->tokens.items[t] = (int32_t)(next_random(&state) % (uint32_t)b->config.vocabulary);
    s->segments[0] = (struct sample_segment){.start = 0, .count = completion, .loss_mask = true};
    s->segment_count = 1;
    s->advantage = (float)((int)(next_random(&state) % 5) - 2) * 0.5f;
  }
  return true;
}

static enum rc make_weights(struct bench *b, struct err *err) {
  float *masters = calloc(b->model->params.elements, sizeof *masters);
  enum rc rc = masters ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "masters were refused");
  if (rc == RC_OK) rc = weights_create(&b->weights, b->model, true, err);
  if (rc == RC_OK) rc = weights_create(&b->reference, b->model, false, err);
  if (rc == RC_OK) {
    masters_random(b->model, masters, 1);
    weights_from_masters(b->reference, masters);
    masters_random(b->model, masters, 2);
    weights_from_masters(b->weights, masters);
    memcpy(optimizer_masters(b->optimizer), masters, b->model->params.elements * sizeof *masters);
  }
  free(masters);
  return rc;
}

static enum rc make(struct bench *b, const char *dir, const char *level, int threads, struct err *err) {
  const struct optimizer_config optimizer = {
      .lr = 4e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .clip_norm = 1, .grad_scale_log2 = 32};
  enum rc rc = model_config_load(&b->config, dir, err);
  if (rc == RC_OK) rc = pool_create(&b->pool, threads, err);
  if (rc == RC_OK) rc = ops_cpu_create(&b->ops, FORMAT_BF16, level, b->pool, err);
  if (rc == RC_OK) rc = model_create(&b->model, &b->config, b->ops, 0, err);
  if (rc == RC_OK)
    rc = learner_create(&b->learner, b->model, &(struct learner_options){.chunk_tokens = CHUNK_TOKENS}, err);
  if (rc == RC_OK) rc = optimizer_create(&b->optimizer, b->model, &optimizer, err);
  if (rc == RC_OK) rc = make_weights(b, err);
  if (rc != RC_OK) return rc;
  b->grads = b->ops->alloc(b->ops, b->model->params.elements * sizeof *b->grads);
  for (int i = 0; i < UNITS; i++)
    if (!b->grads || !make_group(b, &b->groups[i], (uint64_t)i + 1))
      return err_set(err, RC_NO_MEMORY, NULL, "the units were refused memory");
  timeline_begin(&b->timeline, clock_monotonic_us());
  return RC_OK;
}

/* What the trainer does with a group. */
static enum rc one_unit(struct bench *b, const struct batch_group *group, bool check, struct err *err) {
  static const struct unit_config config = {
      .temperature = 1, .loss = {.kind = LOSS_PPO, .clip_low = 0.2f, .clip_high = 0.2f, .kl_coefficient = 0.05f}};
  const size_t elements = b->model->params.elements;
  struct unit_result result;
  struct arena arena = ARENA_INIT;
#ifndef UNIT_TAKES
  memset(b->grads, 0, elements * sizeof *b->grads);
#endif
  enum rc rc = unit_compute(b->learner, b->model, b->weights, b->reference, &config, group, b->grads, &result,
                            &b->timeline, &arena, err);
  if (rc == RC_OK && check) {
    fold(&b->sum, b->grads, elements * sizeof *b->grads);
    fold(&b->sum, &result.stats, sizeof result.stats);
    fold(&b->sum, &result.entropy_sum, sizeof result.entropy_sum);
    for (int i = 0; i < SAMPLES; i++)
      fold(&b->sum, result.samples[i].logprobs.items, result.samples[i].logprobs.count * sizeof(float));
  }
#ifdef UNIT_TAKES
  if (rc == RC_OK && !optimizer_take_unit(b->optimizer, b->grads))
#else
  if (rc == RC_OK && !optimizer_add_unit(b->optimizer, b->grads))
#endif
    rc = err_set(err, RC_INVALID, NULL, "a unit poisoned the step");
  arena_free(&arena);
  return rc;
}

static double cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The checksum: every unit once, and the masters after a step over them. */
static enum rc check(struct bench *b, struct err *err) {
  struct step_result step;
  enum rc rc = RC_OK;
  b->sum = 14695981039346656037ull;
  for (int i = 0; i < UNITS && rc == RC_OK; i++) rc = one_unit(b, &b->groups[i], true, err);
  if (rc != RC_OK) return rc;
  optimizer_step(b->optimizer, 1000, &step);
  fold(&b->sum, optimizer_masters(b->optimizer), b->model->params.elements * sizeof(float));
  return RC_OK;
}

int main(int argc, char **argv) {
  static struct bench b;
  struct err err = {0};
  const int rounds = argc > 1 ? atoi(argv[1]) : 40, threads = argc > 3 ? atoi(argv[3]) : 1;
  const char *level = argc > 2 && argv[2][0] ? argv[2] : NULL, *dir = argc > 4 ? argv[4] : "deploy/demo/model";
  double *took = calloc((size_t)rounds + 1, sizeof *took);
  enum rc rc = took && rounds > 0 ? RC_OK : err_set(&err, RC_INVALID, "rounds", "expected at least 1");
  if (rc == RC_OK) rc = make(&b, dir, level, threads, &err);
  if (rc == RC_OK) rc = check(&b, &err);
  for (int r = 0; r < rounds && rc == RC_OK; r++) {
    const double begun = cpu_us();
    for (int i = 0; i < UNITS && rc == RC_OK; i++) rc = one_unit(&b, &b.groups[i], false, &err);
    took[r] = (cpu_us() - begun) / UNITS;
    optimizer_discard(b.optimizer);
  }
  if (rc != RC_OK) {
    fprintf(stderr, "bench_unit: %s\n", err.message);
    return 1;
  }
  qsort(took, (size_t)rounds, sizeof *took, by_value);
  printf("best_us %.1f median_us %.1f rounds %d kernels %s threads %d sum %016llx\n", took[0], took[rounds / 2], rounds,
         b.ops->name, threads, (unsigned long long)b.sum);
  free(took);
  optimizer_free(b.optimizer);
  learner_free(b.learner);
  weights_free(b.weights);
  weights_free(b.reference);
  b.ops->release(b.ops, b.grads);
  model_free(b.model);
  ops_free(b.ops);
  pool_destroy(b.pool);
  arena_free(&b.arena);
  return 0;
}

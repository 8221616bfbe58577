/* What the engine's tests share: a tiny random model, an engine driven step by step in the test's thread, and jobs
 * whose outcome is kept for comparing. */
#ifndef LEASEHOLD_TESTS_ENGINE_TEST_H
#define LEASEHOLD_TESTS_ENGINE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "services/generation-server/engine/engine.h"

#ifndef RIG_TABLE /* what computes: tests/cuda has another */
#define RIG_TABLE(ops, pool, err) ops_cpu_create(ops, FORMAT_BF16, NULL, pool, err)
#endif

enum { RIG_STEPS_MAX = 20000, RIG_SAMPLES_MAX = 512, OUTCOME_TOKENS_MAX = 160, OUTCOME_SAMPLES_MAX = 16 };

static inline struct model_config tiny_config(void) {
  return (struct model_config){.layers = 2,
                               .hidden = 32,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .ffn = 48,
                               .vocabulary = 61,
                               .positions_max = 160,
                               .rms_eps = 1e-6f,
                               .rope_theta = 10000,
                               .head_norms = true,
                               .initializer_range = 0.3f,
                               .tied = true};
}

struct rig {
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct engine *engine;
  struct weights *weights[2];
  struct policy policy[2];
};

/* What is left of a job after it ended. */
struct outcome {
  bool ended;
  enum decode_job_end end;
  struct policy policy;
  bool nonfinite;
  int64_t nonfinite_version;
  int samples;
  struct {
    int32_t index, count, tokens[OUTCOME_TOKENS_MAX];
    float logprobs[OUTCOME_TOKENS_MAX];
    int64_t versions[OUTCOME_TOKENS_MAX];
    bool fresh[OUTCOME_TOKENS_MAX];
    enum finish_reason finish;
  } sample[OUTCOME_SAMPLES_MAX];
};

static inline void rig_backend(struct rig *r, int threads) {
  struct err err = {0};
  const struct model_config config = tiny_config();
  *r = (struct rig){0};
  assert_int_equal(pool_create(&r->pool, threads, &err), RC_OK);
  assert_int_equal(RIG_TABLE(&r->ops, r->pool, &err), RC_OK);
  assert_int_equal(model_create(&r->model, &config, r->ops, 0, &err), RC_OK);
}

static inline void rig_weights(struct rig *r, int which, uint64_t seed, int64_t version) {
  struct err err = {0};
  float *masters = r->ops->alloc(r->ops, r->model->params.elements * sizeof *masters);
  assert_non_null(masters);
  assert_int_equal(masters_random(r->model, masters, seed, &err), RC_OK);
  assert_int_equal(weights_create(&r->weights[which], r->model, false, &err), RC_OK);
  weights_from_masters(r->weights[which], masters);
  r->ops->release(r->ops, masters);
  r->policy[which].version = version;
  snprintf(r->policy[which].run, sizeof r->policy[which].run, "r1");
  assert_int_equal(weights_digest(&r->policy[which].digest, r->weights[which], &err), RC_OK);
}

static inline void rig_open_threads(struct rig *r, int threads, int slots, int pages, int page_tokens, int chunk) {
  struct err err = {0};
  rig_backend(r, threads);
  const struct engine_options o = {.model = r->model,
                                   .slots = slots,
                                   .pages = pages,
                                   .page_tokens = page_tokens,
                                   .prefill_chunk = chunk,
                                   .samples_max = RIG_SAMPLES_MAX,
                                   .inbox_max = 256};
  if (engine_create(&r->engine, &o, &err) != RC_OK) fail_msg("%s", err.message);
  rig_weights(r, 0, 1, 3);
  rig_weights(r, 1, 2, 4);
  assert_int_equal(engine_activate(r->engine, r->weights[0], &r->policy[0]), RC_OK);
}

static inline void rig_open(struct rig *r, int slots, int pages, int page_tokens, int chunk) {
  rig_open_threads(r, 1, slots, pages, page_tokens, chunk);
}

static inline void rig_close(struct rig *r) {
  if (r->engine) engine_stop(r->engine);
  engine_free(r->engine);
  weights_free(r->weights[0]);
  weights_free(r->weights[1]);
  model_free(r->model);
  ops_free(r->ops);
  pool_destroy(r->pool);
}

static inline void keep_outcome(struct decode_job *job, void *context) {
  struct outcome *o = context;
  assert_false(o->ended);
  o->ended = true;
  o->end = job->end;
  o->policy = job->policy;
  o->nonfinite = job->nonfinite;
  o->nonfinite_version = job->nonfinite_version;
  o->samples = job->sample_count;
  for (int32_t i = 0; i < job->sample_count; i++) {
    const struct sample *s = &job->samples[i];
    assert_int_equal(s->kv.length, 0);
    assert_true(s->count <= OUTCOME_TOKENS_MAX);
    o->sample[i].index = s->index;
    o->sample[i].count = s->count;
    o->sample[i].finish = s->finish;
    memcpy(o->sample[i].tokens, s->tokens, (size_t)s->count * sizeof *s->tokens);
    memcpy(o->sample[i].logprobs, s->logprobs, (size_t)s->count * sizeof *s->logprobs);
    memcpy(o->sample[i].versions, s->versions, (size_t)s->count * sizeof *s->versions);
    memcpy(o->sample[i].fresh, s->fresh, (size_t)s->count * sizeof *s->fresh);
  }
  decode_job_free(job);
}

/* For jobs of more samples than an outcome holds. */
static inline void note_end(struct decode_job *job, void *context) {
  struct outcome *o = context;
  o->ended = true;
  o->end = job->end;
  decode_job_free(job);
}

/* A prompt of `length` ids that depends on `salt`. */
static inline struct decode_job_spec spec_of(int32_t *prompt, int length, int salt, int samples, int max_new) {
  for (int i = 0; i < length; i++) prompt[i] = (int32_t)((i * 17 + salt * 29 + i * i % 7) % 61);
  return (struct decode_job_spec){.kind = DECODE_JOB_OF_REQUEST,
                                  .id = "gen",
                                  .prompt = prompt,
                                  .prompt_count = length,
                                  .max_new = max_new,
                                  .sampling = {.temperature = 1, .top_p = 1},
                                  .key = {.seed = 42, .purpose = RNG_REQUEST, .group = (uint32_t)salt},
                                  .sample_count = samples};
}

static inline struct decode_job *submit(struct rig *r, const struct decode_job_spec *spec, struct outcome *o) {
  struct err err = {0};
  struct decode_job *job;
  memset(o, 0, sizeof *o);
  if (decode_job_create(&job, spec, r->model, engine_kv(r->engine), &err) != RC_OK) fail_msg("%s", err.message);
  job->context = o;
  job->done = keep_outcome;
  assert_int_equal(engine_submit(r->engine, job, &err), RC_OK);
  return job;
}

static inline void run_until_idle(struct rig *r) {
  for (int i = 0; i < RIG_STEPS_MAX; i++)
    if (!engine_step(r->engine)) return;
  fail_msg("the engine did not come to rest within %d steps", RIG_STEPS_MAX);
}

static inline void assert_pages_home(struct rig *r) {
  struct engine_counters n;
  engine_read_counters(r->engine, &n);
  assert_int_equal(n.pages_free, n.pages_total);
  assert_int_equal(n.slots_busy, 0);
  assert_int_equal(n.samples_waiting, 0);
}

/* Tokens, log-probability bits and finish reasons. */
static inline void assert_same_outcome(const struct outcome *a, const struct outcome *b) {
  assert_true(a->ended && b->ended);
  assert_int_equal(a->end, b->end);
  assert_int_equal(a->samples, b->samples);
  for (int i = 0; i < a->samples; i++) {
    assert_int_equal(a->sample[i].count, b->sample[i].count);
    assert_int_equal(a->sample[i].finish, b->sample[i].finish);
    assert_memory_equal(a->sample[i].tokens, b->sample[i].tokens, (size_t)a->sample[i].count * sizeof(int32_t));
    assert_memory_equal(a->sample[i].logprobs, b->sample[i].logprobs, (size_t)a->sample[i].count * sizeof(float));
  }
}

#endif

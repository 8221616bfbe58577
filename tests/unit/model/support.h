/* Fixtures of the model's tests: a tiny model with awkward sizes, kernels of every level this CPU has, fixture
 * files. */
#ifndef LEASEHOLD_TESTS_MODEL_SUPPORT_H
#define LEASEHOLD_TESTS_MODEL_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/network/model.h"
#include "common/threads/pool.h"

#define GOLDEN "tests/golden"

static const char *const LEVELS[] = {"v2", "v3", "v4", "v4-bf16", NULL}; /* NULL: the best */
enum { LEVEL_COUNT = 5 };

struct bench {
  struct pool *pool;
  struct ops *ops;
  struct model *model;
};

static inline struct model_config tiny_config(bool tied) {
  return (struct model_config){.layers = 2,
                               .hidden = 40,
                               .heads = 6,
                               .kv_heads = 2,
                               .head_dim = 12,
                               .ffn = 56,
                               .vocabulary = 257,
                               .positions_max = 160,
                               .rms_eps = 1e-6f,
                               .rope_theta = 10000,
                               .head_norms = true,
                               .initializer_range = 0.15f,
                               .tied = tied};
}

/* The arithmetic of other families in the same sizes: what each of them adds shows in some of these. */
enum { FAMILY_CONFIGS = 6 };
static inline struct model_config family_config(int which, bool tied) {
  static const struct fused_tensor fused[FUSED_MAX] = {{"qkv.weight", PARAM_Q, PARAM_V},
                                                       {"gate_up.weight", PARAM_GATE, PARAM_UP}};
  struct model_config c = tiny_config(tied);
  if (which == 0) return c; /* qwen3 */
  if (which == 4) {         /* qwen3_moe: experts, an MLP, experts */
    c.layers = 3;
    c.sparse[0] = 5;
    c.experts = 5;
    c.chosen = 2;
    c.expert_ffn = 36;
    c.normalizes_chosen = true;
    return c;
  }
  if (which == 5) {         /* gemma2 */
    c.head_norms = false;
    c.plus_one = c.out_norms = c.gelu = c.root_embedding = true;
    c.query_scalar = 10;
    c.scores_cap = 1.5f;
    c.logits_cap = 4;
    c.window = 21;
    c.sliding[0] = 1;
    return c;
  }
  if (which == 3) { /* gemma3 */
    c.plus_one = c.out_norms = c.gelu = c.root_embedding = true;
    c.query_scalar = 10;
    c.rope_local_theta = 700;
    c.window = 21;
    c.sliding[0] = 1;
    return c;
  }
  c.head_norms = false;
  c.qkv_bias = true;
  c.window = 21;
  c.sliding[0] = 2;
  if (which == 1) { /* llama, qwen2 */
    c.o_bias = c.mlp_bias = true;
    c.rope = (struct rope_scaling){.kind = ROPE_YARN,
                                   .factor = 4,
                                   .beta_fast = 32,
                                   .beta_slow = 1,
                                   .attention_factor = 1.14,
                                   .truncate = true,
                                   .original_positions = 40};
  } else { /* mistral, phi3 */
    c.qkv_bias = false;
    c.window = 9;
    c.sliding[0] = 3;
    c.rope = (struct rope_scaling){.kind = ROPE_LINEAR, .factor = 2};
    c.fused = fused;
  }
  return c;
}

/* false when this CPU lacks the level, or LEASEHOLD_TEST_LEVEL (ops_support.h) leaves v2 and the best alone. */
static inline bool bench_open(struct bench *b, const struct model_config *config, enum number_format format,
                              const char *level, int threads) {
  struct err err = {0};
  if (level && strcmp(level, "v2") != 0 && getenv("LEASEHOLD_TEST_LEVEL")) return false;
  *b = (struct bench){0};
  assert_int_equal(pool_create(&b->pool, threads, &err), RC_OK);
  const enum rc rc = ops_cpu_create(&b->ops, format, level, b->pool, &err);
  if (rc == RC_UNSUPPORTED) {
    pool_destroy(b->pool);
    return false;
  }
  if (rc != RC_OK) print_message("%s\n", err.message);
  assert_int_equal(rc, RC_OK);
  assert_int_equal(model_create(&b->model, config, b->ops, 0, &err), RC_OK);
  return true;
}

static inline void bench_close(struct bench *b) {
  model_free(b->model);
  ops_free(b->ops);
  pool_destroy(b->pool);
}

static inline float *masters_of(const struct model *m, uint64_t seed) {
  float *masters = calloc(m->params.elements, sizeof *masters);
  assert_non_null(masters);
  masters_random(m, masters, seed, NULL);
  return masters;
}

/* Random weights with norms that are not 1, so that a forgotten norm weight shows. */
static inline struct weights *random_weights(const struct model *m, bool for_training, uint64_t seed) {
  struct weights *w = NULL;
  struct err err = {0};
  float *masters = masters_of(m, seed);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    for (size_t k = 0; p->rows == 1 && k < p->count; k++)
      masters[p->offset + k] = 0.75f + 0.125f * (float)((k * 7 + (size_t)i) % 5);
  }
  assert_int_equal(weights_create(&w, m, for_training, &err), RC_OK);
  weights_from_masters(w, masters);
  free(masters);
  return w;
}

/* A small generator for test data; not the product's. */
static inline uint32_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(*state >> 33);
}
static inline int random_below(uint64_t *state, int bound) { return (int)(next_random(state) % (uint32_t)bound); }

/* Gradient unit `index` [params.elements], zero in the padding as units are; freed by the caller. */
static inline float *gradient_unit(const struct model *m, uint64_t index) {
  float *g = calloc(m->params.elements, sizeof *g);
  uint64_t rng = index * 1000003 + 1;
  assert_non_null(g);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    for (size_t k = 0; k < p->count; k++) g[p->offset + k] = ((float)random_below(&rng, 2001) - 1000) * 1.234567e-4f;
  }
  return g;
}

#endif

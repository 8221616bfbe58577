/* Makes the measured models, and holds the helpers that all parts of the benchmark use. */
#include "tests/bench/bench.h"

#include <string.h>

#include "common/base/clock.h"

enum rc bench_config(struct model_config *out, const char *name, struct err *err) {
  static const struct {
    const char *name;
    int layers, hidden, ffn, heads, kv_heads, head_dim, vocabulary;
  } models[] = {{"42M", 12, 512, 1536, 8, 4, 64, 8192}, {"0.6B", 28, 1024, 3072, 16, 8, 128, 151936}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    if (strcmp(name, models[i].name) != 0) continue;
    *out = (struct model_config){.layers = models[i].layers,
                                 .hidden = models[i].hidden,
                                 .ffn = models[i].ffn,
                                 .heads = models[i].heads,
                                 .kv_heads = models[i].kv_heads,
                                 .head_dim = models[i].head_dim,
                                 .vocabulary = models[i].vocabulary,
                                 .positions_max = 1024,
                                 .rms_eps = 1e-6f,
                                 .rope_theta = 1e6,
                                 .head_norms = true,
                                 .initializer_range = 0.02f,
                                 .tied = true};
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "model", "expected 42M or 0.6B, got %s", name);
}

enum { TURN_US = 8000, BATCH_US = 500 };

double bench_repeat(void (*call)(void *context), void *context) {
  const int64_t begun_us = clock_monotonic_us();
  call(context);
  const int64_t first_us = clock_monotonic_us() - begun_us;
  const int calls = first_us < BATCH_US ? (int)(BATCH_US / (first_us + 1)) + 1 : 1;
  double best = 1e9;
  int64_t now_us;
  do {
    const int64_t batch_us = clock_monotonic_us();
    for (int i = 0; i < calls; i++) call(context);
    now_us = clock_monotonic_us();
    const double each = (double)(now_us - batch_us) * 1e-6 / calls;
    if (each < best) best = each;
  } while (now_us - begun_us < TURN_US);
  return best;
}

uint32_t bench_random(uint64_t *state, uint32_t bound) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)((*state >> 32) * bound >> 32);
}

/* Uniform instead of normal, of the same deviation: 0.6B normals would take longer than what is measured. */
void bench_masters(const struct model *m, float *masters) {
  const float width = m->config.initializer_range * 3.4641016f;
  uint64_t state = 1;
  memset(masters, 0, m->params.elements * sizeof *masters);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const bool norm = p->rows == 1;
    for (size_t k = 0; k < p->count; k++)
      masters[p->offset + k] = norm ? 1 : ((float)bench_random(&state, 1 << 24) * 0x1p-24f - 0.5f) * width;
  }
}

/* Elements of one layer's matrices. */
static double layer_elements(const struct model_config *c) {
  const double D = c->hidden, E = c->head_dim;
  return D * (2 * E * c->heads + 2 * E * c->kv_heads + 3.0 * c->ffn);
}

double bench_forward_operations(const struct model_config *c, double rows, double keys, double head_rows) {
  const double attention = 4.0 * c->heads * c->head_dim * keys;
  return c->layers * (2 * rows * layer_elements(c) + attention) + 2 * head_rows * c->hidden * c->vocabulary;
}

double bench_matrix_bytes(const struct model *m) {
  const struct model_config *c = &m->config;
  const double elements = c->layers * layer_elements(c) + (double)c->hidden * c->vocabulary;
  return elements * (double)m->ops->operand_bytes;
}

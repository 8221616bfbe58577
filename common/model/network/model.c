/* Makes a model on a backend: checks the sizes, makes the parameter table and the rope table.
 *
 * The rope table rounds exactly as transformers does: the exponent 2i/E, theta to that power, its inverse (rope.c) and
 * position x inverse are each rounded to float32; sine and cosine of that float32 angle are taken in double by our
 * own functions and rounded once, before the magnitude (NUMERICS.md). */
#include "common/model/network/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/elementary.h"
#include "common/model/network/rope.h"

struct rope_job {
  float *rope;
  const float *inverse_frequency; /* [E/2] */
  float magnitude;
  int positions, half;
};

static void rope_part(void *context, int part) {
  const struct rope_job *job = context;
  enum { POSITIONS_PER_PART = 256 };
  const int first = part * POSITIONS_PER_PART;
  const int end = first + POSITIONS_PER_PART < job->positions ? first + POSITIONS_PER_PART : job->positions;
  for (int position = first; position < end; position++) {
    for (int i = 0; i < job->half; i++) {
      const float angle = (float)position * job->inverse_frequency[i];
      float *pair = job->rope + ((size_t)position * (size_t)job->half + (size_t)i) * 2;
      pair[0] = (float)elementary_cos((double)angle) * job->magnitude;
      pair[1] = (float)elementary_sin((double)angle) * job->magnitude;
    }
  }
}

static size_t table_bytes(const struct model *m) {
  return (size_t)m->context_max * (size_t)(m->config.head_dim / 2) * 2 * sizeof(float);
}

size_t model_rope_bytes(const struct model *m) { return table_bytes(m) * (m->config.rope_local_theta > 0 ? 2 : 1); }

const float *model_rope(const struct model *m, int layer) {
  return m->rope_local && model_config_window(&m->config, layer) > 0 ? m->rope_local : m->rope;
}

float model_attention_scale(const struct model *m) {
  return 1.0f / __builtin_sqrtf(m->config.query_scalar > 0 ? m->config.query_scalar : (float)m->config.head_dim);
}

float model_embedding_scale(const struct model *m) {
  const float root = __builtin_sqrtf((float)m->config.hidden);
  uint32_t bits;
  if (!m->config.root_embedding) return 1;
  if (m->ops->format == FORMAT_F32) return root;
  memcpy(&bits, &root, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; /* to the nearest operand, even */
  float rounded;
  memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

size_t model_file_bytes(const struct model *m) { return m->params.parameters * m->ops->operand_bytes; }

static enum rc make_table(struct model *m, float **table, bool local, struct err *err) {
  const int half = m->config.head_dim / 2;
  const size_t bytes = table_bytes(m), place_bytes = ops_place_bytes(m->ops, bytes);
  float *inverse_frequency = calloc((size_t)half, sizeof *inverse_frequency);
  float *place = place_bytes ? malloc(place_bytes) : NULL;
  *table = m->ops->alloc(m->ops, bytes);
  if (!inverse_frequency || !*table || (place_bytes && !place)) {
    free(inverse_frequency);
    free(place);
    return err_set(err, RC_NO_MEMORY, NULL, "the rope table of %d positions needs %zu bytes, which were refused",
                   m->context_max, bytes);
  }
  if (local)
    rope_frequencies_local(inverse_frequency, &m->config);
  else
    rope_frequencies(inverse_frequency, &m->config);
  struct rope_job job = {.rope = place ? place : *table,
                         .inverse_frequency = inverse_frequency,
                         .magnitude = local ? 1.0f : rope_magnitude(&m->config),
                         .positions = m->context_max,
                         .half = half};
  pool_run(m->ops->pool, rope_part, &job, (m->context_max + 255) / 256);
  if (place) m->ops->upload(m->ops, *table, place, bytes);
  free(inverse_frequency);
  free(place);
  return m->ops->status(m->ops, err);
}

enum rc model_create(struct model **out, const struct model_config *config, const struct ops *ops, int context_max,
                     struct err *err) {
  *out = NULL;
  assert(!(config->experts > 0 && (config->out_norms || config->gelu || config->mlp_bias)));
  assert(config->layers > 0 && config->heads % config->kv_heads == 0 && config->head_dim % 2 == 0);
  if (context_max < 0)
    return err_set(err, RC_INVALID, "context_max", "expected a positive number of tokens, got %d", context_max);
  if (config->head_dim > ops->head_dim_max)
    return err_set(err, RC_UNSUPPORTED, "head_dim", "the kernels on %s take heads of up to %d, this model has %d",
                   ops->device, ops->head_dim_max, config->head_dim);
  if (config->experts > 0 && !ops->route)
    return err_set(err, RC_UNSUPPORTED, "num_experts",
                   "the kernels on %s have no layers of experts; those of the CPU have", ops->device);
  if (config->scores_cap > 0 && !ops->caps_scores)
    return err_set(err, RC_UNSUPPORTED, "attn_logit_softcapping",
                   "the kernels on %s do not cap scores; those of the CPU do", ops->device);
  if (config->logits_cap > 0 && !ops->soft_cap)
    return err_set(err, RC_UNSUPPORTED, "final_logit_softcapping",
                   "the kernels on %s do not cap logits; those of the CPU do", ops->device);
  struct model *m = calloc(1, sizeof *m);
  if (!m) return err_set(err, RC_NO_MEMORY, NULL, "a model record of %zu bytes was refused", sizeof *m);
  m->config = *config;
  m->ops = ops;
  m->context_max = config->positions_max;
  if (context_max > 0 && context_max < m->context_max) m->context_max = context_max;
  if (m->context_max > LIMIT_SEQUENCE_TOKENS) m->context_max = LIMIT_SEQUENCE_TOKENS;
  enum rc rc = param_table_make(&m->params, config, err);
  if (rc == RC_OK) rc = make_table(m, &m->rope, false, err);
  if (rc == RC_OK && config->rope_local_theta > 0) rc = make_table(m, &m->rope_local, true, err);
  if (rc != RC_OK) {
    model_free(m);
    return rc;
  }
  *out = m;
  return RC_OK;
}

void model_free(struct model *m) {
  if (!m) return;
  if (m->rope) m->ops->release(m->ops, m->rope);
  if (m->rope_local) m->ops->release(m->ops, m->rope_local);
  param_table_free(&m->params);
  free(m);
}

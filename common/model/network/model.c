/* Makes a model on a backend: checks the sizes, makes the parameter table and the rope table.
 *
 * The rope table rounds exactly as transformers does: the exponent 2i/E, theta to that power, its inverse (rope.c) and
 * position x inverse are each rounded to float32; sine and cosine of that float32 angle are taken in double by our
 * own functions and rounded once, before the magnitude (NUMERICS.md). */
#include "common/model/network/model.h"

#include <assert.h>
#include <stdlib.h>

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

size_t model_rope_bytes(const struct model *m) {
  return (size_t)m->context_max * (size_t)(m->config.head_dim / 2) * 2 * sizeof(float);
}

size_t model_file_bytes(const struct model *m) { return m->params.parameters * m->ops->operand_bytes; }

static enum rc make_rope(struct model *m, struct err *err) {
  const int half = m->config.head_dim / 2;
  const size_t bytes = model_rope_bytes(m), place_bytes = ops_place_bytes(m->ops, bytes);
  float *inverse_frequency = calloc((size_t)half, sizeof *inverse_frequency);
  float *place = place_bytes ? malloc(place_bytes) : NULL;
  m->rope = m->ops->alloc(m->ops, bytes);
  if (!inverse_frequency || !m->rope || (place_bytes && !place)) {
    free(inverse_frequency);
    free(place);
    return err_set(err, RC_NO_MEMORY, NULL, "the rope table of %d positions needs %zu bytes, which were refused",
                   m->context_max, bytes);
  }
  rope_frequencies(inverse_frequency, &m->config);
  struct rope_job job = {.rope = place ? place : m->rope,
                         .inverse_frequency = inverse_frequency,
                         .magnitude = rope_magnitude(&m->config),
                         .positions = m->context_max,
                         .half = half};
  pool_run(m->ops->pool, rope_part, &job, (m->context_max + 255) / 256);
  if (place) m->ops->upload(m->ops, m->rope, place, bytes);
  free(inverse_frequency);
  free(place);
  return m->ops->status(m->ops, err);
}

enum rc model_create(struct model **out, const struct model_config *config, const struct ops *ops, int context_max,
                     struct err *err) {
  *out = NULL;
  assert(config->layers > 0 && config->heads % config->kv_heads == 0 && config->head_dim % 2 == 0);
  if (context_max < 0)
    return err_set(err, RC_INVALID, "context_max", "expected a positive number of tokens, got %d", context_max);
  if (config->head_dim > ops->head_dim_max)
    return err_set(err, RC_UNSUPPORTED, "head_dim", "the kernels on %s take heads of up to %d, this model has %d",
                   ops->device, ops->head_dim_max, config->head_dim);
  struct model *m = calloc(1, sizeof *m);
  if (!m) return err_set(err, RC_NO_MEMORY, NULL, "a model record of %zu bytes was refused", sizeof *m);
  m->config = *config;
  m->ops = ops;
  m->context_max = config->positions_max;
  if (context_max > 0 && context_max < m->context_max) m->context_max = context_max;
  if (m->context_max > LIMIT_SEQUENCE_TOKENS) m->context_max = LIMIT_SEQUENCE_TOKENS;
  enum rc rc = param_table_make(&m->params, config, err);
  if (rc == RC_OK) rc = make_rope(m, err);
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
  param_table_free(&m->params);
  free(m);
}

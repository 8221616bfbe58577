/* Creates one policy version in the kernels' memory, fills it from fp32 masters, reads it back, and makes random
 * masters.
 *
 * Every tensor passes through `staging`, a row-major operand array as large as the largest tensor, so that filling
 * never allocates and cannot fail (a device's failure waits in ops->status).  Each set of weights has its own staging,
 * so that a set that is being staged does not disturb the set that decodes. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "common/model/network/elementary.h"
#include "common/model/network/array_layout.h"
#include "common/model/network/model.h"
#include "common/model/network/weights_internal.h"

bool param_is_vector(const struct param *p) { return param_kind_is_norm(p->kind) || param_kind_is_bias(p->kind); }

/* The backward multiplies by the transpose of every matrix; by the embedding's only if it is also the head. */
static bool needs_transpose(const struct model *m, const struct param *p) {
  return !param_is_vector(p) && (p->kind != PARAM_EMBED || m->config.tied);
}

static size_t tensor_bytes(const struct model *m, const struct param *p) {
  return param_is_vector(p) ? p->count * m->ops->operand_bytes : m->ops->matrix_bytes(m->ops, p->rows, p->cols);
}

size_t weights_largest_count(const struct model *m) {
  size_t largest = 0;
  for (int i = 0; i < m->params.count; i++)
    if (m->params.items[i].count > largest) largest = m->params.items[i].count;
  return largest;
}

/* Everything in one allocation, large enough for huge pages: a decode step reads all of it once, and with small pages
 * would wait for address translations.  w: NULL while measuring. */
static size_t place(struct weights *w, char *base, const struct model *m, bool transposes) {
  struct array_layout l = {base, 0};
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    void *matrix = array_layout_take(&l, tensor_bytes(m, p), 1);
    if (w) w->matrices[i] = (struct matrix){.data = matrix, .N = p->rows, .K = p->cols};
  }
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    if (!needs_transpose(m, p)) continue;
    void *matrix = transposes ? array_layout_take(&l, m->ops->matrix_bytes(m->ops, p->cols, p->rows), 1) : NULL;
    if (w && w->transposed) w->transposed[i] = (struct matrix){.data = matrix, .N = p->cols, .K = p->rows};
  }
  void *staging = array_layout_take(&l, weights_largest_count(m), m->ops->operand_bytes);
  void *converting = array_layout_take(&l, ops_place_bytes(m->ops, WEIGHTS_CONVERTED_AT_ONCE * sizeof(float)), 1);
  if (w) w->staging = staging;
  if (w) w->converting = converting;
  return l.used;
}

size_t weights_host_bytes(const struct model *m) {
  return ops_place_bytes(m->ops, weights_largest_count(m) * m->ops->operand_bytes);
}

size_t weights_bytes(const struct model *m, bool for_training) { return place(NULL, NULL, m, for_training); }

static bool allocate(struct weights *w, bool for_training, bool transposes) {
  const struct model *m = w->model;
  const size_t count = (size_t)m->params.count;
  w->matrices = calloc(count, sizeof *w->matrices);
  w->transposed = for_training ? calloc(count, sizeof *w->transposed) : NULL;
  w->largest = for_training ? calloc(count, sizeof *w->largest) : NULL;
  w->memory = m->ops->alloc(m->ops, weights_bytes(m, transposes));
  if (!w->matrices || (for_training && (!w->transposed || !w->largest)) || !w->memory) return false;
  place(w, w->memory, m, transposes);
  w->host = m->ops->host_memory ? NULL : malloc(weights_host_bytes(m));
  return w->host || m->ops->host_memory;
}

static enum rc create(struct weights **out, const struct model *m, bool for_training, bool transposes,
                      struct err *err) {
  *out = NULL;
  struct weights *w = calloc(1, sizeof *w);
  if (w) w->model = m;
  if (!w || !allocate(w, for_training, transposes)) {
    weights_free(w);
    return err_set(err, RC_NO_MEMORY, NULL, "weights of %zu parameters%s need %zu bytes, which were refused",
                   m->params.parameters, transposes ? " and their transposes" : "", weights_bytes(m, transposes));
  }
  *out = w;
  return RC_OK;
}

enum rc weights_create(struct weights **out, const struct model *m, bool for_training, struct err *err) {
  return create(out, m, for_training, for_training, err);
}

enum rc weights_create_without_transposes(struct weights **out, const struct model *m, struct err *err) {
  return create(out, m, true, false, err);
}

void weights_free(struct weights *w) {
  if (!w) return;
  const struct ops *ops = w->model->ops;
  if (w->memory) ops->release(ops, w->memory);
  free(w->host);
  free(w->matrices);
  free(w->transposed);
  free(w->largest);
  free(w);
}

void weights_fill(struct weights *w, int index, const void *operands) {
  const struct ops *ops = w->model->ops;
  const struct param *p = &w->model->params.items[index];
  if (w->largest) w->largest[index] = ops->largest(ops, operands, p->count);
  if (param_is_vector(p)) {
    ops->copy(ops, w->matrices[index].data, operands, p->count * ops->operand_bytes);
    return;
  }
  ops->matrix_pack(ops, &w->matrices[index], operands);
  if (w->transposed && w->transposed[index].data)
    ops->matrix_pack_transposed(ops, &w->transposed[index], operands, p->rows, p->cols);
}

enum rc weights_check_finite(const struct weights *w, struct err *err) {
  for (int i = 0; i < w->model->params.count; i++)
    if (!(w->largest[i] <= FLT_MAX))
      return err_set(err, RC_CORRUPT, w->model->params.items[i].name, "tensor %s has an infinity or a NaN",
                     w->model->params.items[i].name);
  return RC_OK;
}

/* Into staging from its element `at` on, where the tensor has room; a vector is where it is. */
static const void *stage_at(const struct weights *w, int index, size_t at) {
  const struct ops *ops = w->model->ops;
  const struct param *p = &w->model->params.items[index];
  if (param_is_vector(p)) return w->matrices[index].data;
  void *to = (char *)w->staging + at * ops->operand_bytes;
  ops->matrix_unpack_rows(ops, to, &w->matrices[index], 0, p->rows);
  return to;
}

const void *weights_read_at(const struct weights *w, int index, size_t at) {
  const struct ops *ops = w->model->ops;
  void *to = w->host ? (char *)w->host + at * ops->operand_bytes : NULL;
  return ops_fetch(ops, to, stage_at(w, index, at), w->model->params.items[index].count * ops->operand_bytes);
}

const void *weights_stage(const struct weights *w, int index) { return stage_at(w, index, 0); }

void weights_from_masters(struct weights *w, const float *masters) {
  const struct model *m = w->model;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    m->ops->to_operand(m->ops, w->staging, masters + p->offset, p->count);
    weights_fill(w, i, w->staging);
  }
}

void weights_from_operands(struct weights *w, const void *operands) {
  const struct model *m = w->model;
  const size_t bytes = m->ops->operand_bytes;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    m->ops->copy(m->ops, w->staging, (const char *)operands + p->offset * bytes, p->count * bytes);
    weights_fill(w, i, w->staging);
  }
}

void weights_to_operands(const struct weights *w, void *operands) {
  const struct model *m = w->model;
  const size_t bytes = m->ops->operand_bytes;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    m->ops->copy(m->ops, (char *)operands + p->offset * bytes, weights_stage(w, i), p->count * bytes);
  }
}

void weights_copy(struct weights *to, const struct weights *from) {
  for (int i = 0; i < to->model->params.count; i++) weights_fill(to, i, weights_stage(from, i));
}

void weights_to_masters(const struct weights *w, float *masters) {
  const struct model *m = w->model;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    m->ops->from_operand(m->ops, masters + p->offset, weights_stage(w, i), p->count);
  }
}

void weights_entry(struct st_entry *out, const struct model *m, int index) {
  const struct param *p = &m->params.items[index];
  *out = (struct st_entry){.name = p->name, .dtype = m->ops->format == FORMAT_BF16 ? ST_BF16 : ST_F32};
  if (!param_is_vector(p)) out->shape[out->dims++] = p->rows;
  out->shape[out->dims++] = p->cols;
}

void weights_file_entry(struct st_entry *out, const struct model *m, int index) {
  const struct param *p = &m->params.items[index];
  weights_entry(out, m, index);
  out->name = p->file_name;
  if (!param_is_vector(p)) out->shape[0] = p->file_rows;
}

/* --- random masters --- */

struct random_job {
  const struct param *param;
  float *values, vector; /* what a vector's elements are */
  double deviation;
  struct rng_key key;
};

enum { RANDOM_PER_PART = 1 << 16 };

/* A uniform strictly between 0 and 1 from one word, in double. */
static double uniform_of(uint32_t word) { return ((double)word + 0.5) * 0x1p-32; }

/* Box-Muller: four words make the four normals of elements 4i .. 4i+3. */
static void random_part(void *context, int part) {
  const struct random_job *job = context;
  const double two_pi = 0x1.921fb54442d18p+2;
  const size_t first = (size_t)part * RANDOM_PER_PART;
  const size_t end = first + RANDOM_PER_PART < job->param->count ? first + RANDOM_PER_PART : job->param->count;
  for (size_t i = first; i < end; i += 4) {
    struct rng_key key = job->key;
    key.sample = (uint32_t)((i / 4) >> 32);
    uint32_t words[4];
    rng_words(words, &key, (uint32_t)(i / 4));
    for (size_t pair = 0; pair < 2; pair++) {
      const double radius = __builtin_sqrt(-2 * elementary_log(uniform_of(words[2 * pair]))) * job->deviation;
      const double angle = two_pi * uniform_of(words[2 * pair + 1]);
      const size_t at = i + 2 * pair;
      if (at < end) job->values[at] = (float)(radius * elementary_cos(angle));
      if (at + 1 < end) job->values[at + 1] = (float)(radius * elementary_sin(angle));
    }
  }
}

static void random_tensor(struct random_job *job, struct pool *pool) {
  const struct param *p = job->param;
  if (param_is_vector(p))
    for (size_t k = 0; k < p->count; k++) job->values[k] = job->vector;
  else
    pool_run(pool, random_part, job, (int)((p->count + RANDOM_PER_PART - 1) / RANDOM_PER_PART));
}

void master_random(const struct model *m, int param, float *values, uint64_t seed) {
  struct random_job job = {
      .param = &m->params.items[param],
      .values = values,
      .vector = m->config.plus_one || param_kind_is_bias(m->params.items[param].kind) ? 0 : 1,
      .deviation = (double)m->config.initializer_range,
      .key = {.seed = seed, .purpose = RNG_INIT, .round = 0, .group = (uint32_t)param, .sample = 0}};
  random_tensor(&job, m->ops->pool);
}

enum rc masters_random(const struct model *m, float *masters, uint64_t seed, struct err *err) {
  const struct ops *ops = m->ops;
  const size_t bytes = ops_place_bytes(ops, weights_largest_count(m) * sizeof *masters);
  float *between = bytes ? malloc(bytes) : NULL;
  if (bytes && !between)
    return err_set(err, RC_NO_MEMORY, NULL, "random weights need a buffer of %zu bytes, which were refused", bytes);
  ops->clear(ops, masters, m->params.elements * sizeof *masters);
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    master_random(m, i, between ? between : masters + p->offset, seed);
    if (between) ops->upload(ops, masters + p->offset, between, p->count * sizeof *between);
  }
  free(between);
  return RC_OK;
}

/* Reads weights from safetensors and writes them.
 *
 * Reading checks the whole file against the parameter table before the first byte is written, so that a wrong file
 * leaves the weights as they were.  A file with infinite or NaN weights is refused too: nothing can be sampled from
 * them, and no digest would show it.  BF16 and F32 are read; F32 is rounded to the operand format, BF16 widened where
 * operands are F32.  A tied model's file may carry lm_head.weight too (published Qwen3 files do): then it must equal
 * the embedding, byte for byte. */
#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/model.h"
#include "common/model/network/weights_internal.h"

static const char TIED_HEAD[] = "lm_head.weight";
enum { CHECKED_PER_PART = 1 << 18 };

static void describe_shape(char *out, size_t size, int dims, const int64_t *shape) {
  size_t used = 0;
  out[0] = '\0';
  for (int i = 0; i < dims && used < size; i++) {
    const int n = snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    used += n > 0 ? (size_t)n : 0;
  }
}

static enum rc check_tensor(const struct st_tensor *t, const struct st_entry *expected, struct err *err) {
  char want[64], got[256];
  if (!t) return err_set(err, RC_INVALID, expected->name, "the file lacks tensor %s", expected->name);
  describe_shape(want, sizeof want, expected->dims, expected->shape);
  describe_shape(got, sizeof got, t->dims, t->shape);
  if (t->dtype != ST_BF16 && t->dtype != ST_F32)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected BF16 or F32, got %s", t->name,
                   st_dtype_name(t->dtype));
  if (t->dims != expected->dims || memcmp(t->shape, expected->shape, (size_t)t->dims * sizeof t->shape[0]) != 0)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected shape [%s], got [%s]", t->name, want, got);
  return RC_OK;
}

static enum rc check_tied_head(const struct st_file *file, struct err *err) {
  const struct st_tensor *head = st_find(file, TIED_HEAD), *embedding = st_find(file, "model.embed_tokens.weight");
  assert(head && embedding);
  if (head->dtype != embedding->dtype || head->bytes != embedding->bytes ||
      memcmp(st_data(file, head), st_data(file, embedding), head->bytes) != 0)
    return err_set(err, RC_INVALID, TIED_HEAD,
                   "tensor %s: the model is tied, so it must equal model.embed_tokens.weight, and does not", TIED_HEAD);
  return RC_OK;
}

/* In lanes of a constant number, which compile to vectors.  Adding to an exponent of all ones carries into the place of
 * the sign. */
static bool all_finite_bf16(const unsigned char *bytes, size_t count) {
  enum { LANES = 32, AHEAD = 2048, EXPONENT = 0x7F80, ONE = 0x0080, SIGN = 0x8000 };
  uint16_t wrong[LANES] = {0}, all = 0;
  for (size_t i = 0; i < count; i += LANES) {
    uint16_t x[LANES] = {0};
    __builtin_prefetch(bytes + (i + AHEAD) * sizeof *x);
    if (count - i >= LANES)
      memcpy(x, bytes + i * sizeof *x, sizeof x);
    else
      memcpy(x, bytes + i * sizeof *x, (count - i) * sizeof *x);
    for (int l = 0; l < LANES; l++) wrong[l] = (uint16_t)(wrong[l] | ((x[l] & EXPONENT) + ONE));
  }
  for (int l = 0; l < LANES; l++) all |= wrong[l];
  return (all & SIGN) == 0;
}

/* Also after rounding to BF16, which takes an F32 from 0x7F7F8000 on to infinity.  Bytes of any alignment. */
static bool all_finite(const struct st_tensor *t, const unsigned char *bytes, size_t count) {
  uint32_t wrong = 0;
  if (t->dtype == ST_BF16) return all_finite_bf16(bytes, count);
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    wrong |= (bits & 0x7FFFFFFF) >= 0x7F7F8000;
  }
  return wrong == 0;
}

struct finite_job {
  const struct st_tensor *tensor;
  const unsigned char *bytes;
  size_t count;
  atomic_bool wrong;
};

static void finite_part(void *context, int part) {
  struct finite_job *job = context;
  const size_t first = (size_t)part * CHECKED_PER_PART, left = job->count - first;
  const size_t count = left < CHECKED_PER_PART ? left : CHECKED_PER_PART;
  if (!all_finite(job->tensor, job->bytes + first * (job->tensor->bytes / job->count), count))
    atomic_store(&job->wrong, true);
}

static enum rc check_values(const struct model *m, const struct st_file *file, struct err *err) {
  for (int i = 0; i < m->params.count; i++) {
    const struct st_tensor *t = st_find(file, m->params.items[i].name);
    struct finite_job job = {.tensor = t, .bytes = st_data(file, t), .count = m->params.items[i].count};
    pool_run(m->ops->pool, finite_part, &job, (int)((job.count + CHECKED_PER_PART - 1) / CHECKED_PER_PART));
    if (atomic_load(&job.wrong))
      return err_set(err, RC_INVALID, t->name, "tensor %s: expected finite numbers, got an infinity or a NaN", t->name);
    st_drop(file, t);
  }
  return RC_OK;
}

static enum rc check_file(const struct model *m, const struct st_file *file, struct err *err) {
  for (int i = 0; i < m->params.count; i++) {
    struct st_entry expected;
    weights_entry(&expected, m, i);
    const enum rc rc = check_tensor(st_find(file, expected.name), &expected, err);
    if (rc != RC_OK) return rc;
  }
  for (size_t i = 0; i < st_count(file); i++) {
    const char *name = st_at(file, i)->name;
    if (param_table_find(&m->params, name) >= 0) continue;
    if (!m->config.tied || strcmp(name, TIED_HEAD) != 0)
      return err_set(err, RC_INVALID, name, "tensor %s is not one of this model's %d", name, m->params.count);
    const enum rc rc = check_tied_head(file, err);
    if (rc != RC_OK) return rc;
  }
  return check_values(m, file, err);
}

/* F32 -> bf16. */
static void stage_rounded(struct weights *w, const unsigned char *bytes, size_t count) {
  const struct ops *ops = w->model->ops;
  _Alignas(64) float part[WEIGHTS_CONVERTED_AT_ONCE];
  for (size_t i = 0; i < count; i += WEIGHTS_CONVERTED_AT_ONCE) {
    const size_t n = count - i < WEIGHTS_CONVERTED_AT_ONCE ? count - i : WEIGHTS_CONVERTED_AT_ONCE;
    memcpy(part, bytes + i * sizeof *part, n * sizeof *part);
    const float *staged = ops_stage(ops, w->converting, part, n * sizeof *part);
    ops->to_operand(ops, (char *)w->staging + i * ops->operand_bytes, staged, n);
  }
}

/* BF16 -> float. */
static void stage_widened(struct weights *w, const unsigned char *bytes, size_t count) {
  const struct ops *ops = w->model->ops;
  uint32_t part[WEIGHTS_CONVERTED_AT_ONCE];
  for (size_t i = 0; i < count; i += WEIGHTS_CONVERTED_AT_ONCE) {
    const size_t n = count - i < WEIGHTS_CONVERTED_AT_ONCE ? count - i : WEIGHTS_CONVERTED_AT_ONCE;
    for (size_t k = 0; k < n; k++)
      part[k] = (uint32_t)bytes[2 * (i + k)] << 16 | (uint32_t)bytes[2 * (i + k) + 1] << 24;
    ops->upload(ops, (float *)w->staging + i, part, n * sizeof *part);
  }
}

/* Row-major bytes of any alignment -> staging, in the operand format. */
static void stage_bytes(struct weights *w, const struct st_tensor *t, const unsigned char *bytes, size_t count) {
  const struct ops *ops = w->model->ops;
  if ((t->dtype == ST_BF16) == (ops->format == FORMAT_BF16))
    ops->upload(ops, w->staging, bytes, count * ops->operand_bytes);
  else if (t->dtype == ST_BF16)
    stage_widened(w, bytes, count);
  else
    stage_rounded(w, bytes, count);
}

/* Operands that lie in memory as the table takes them need no staging. */
static void fill_from(struct weights *w, int index, const struct st_tensor *t, const unsigned char *bytes) {
  const struct ops *ops = w->model->ops;
  const bool same = (t->dtype == ST_BF16) == (ops->format == FORMAT_BF16);
  if (same && ops->host_memory && (uintptr_t)bytes % ops->operand_bytes == 0) {
    weights_fill(w, index, bytes);
    return;
  }
  stage_bytes(w, t, bytes, w->model->params.items[index].count);
  weights_fill(w, index, w->staging);
}

enum rc weights_from_safetensors(struct weights *w, const struct st_file *file, struct err *err) {
  const struct model *m = w->model;
  const enum rc rc = check_file(m, file, err);
  if (rc != RC_OK) return rc;
  for (int i = 0; i < m->params.count; i++) {
    const struct st_tensor *t = st_find(file, m->params.items[i].name);
    fill_from(w, i, t, st_data(file, t));
    st_drop(file, t);
  }
  return m->ops->status(m->ops, err);
}

/* key, value: one pair more. */
static enum rc write_header(struct buf *out, const struct model *m, const char *const *metadata, const char *key,
                            const char *value, size_t *data_bytes, struct err *err) {
  size_t pairs = 0;
  while (metadata && metadata[pairs]) pairs++;
  const char **all = calloc(pairs + 5, sizeof *all);
  struct st_entry *entries = calloc((size_t)m->params.count, sizeof *entries);
  enum rc rc = RC_OK;
  if (!all || !entries) {
    rc = err_set(err, RC_NO_MEMORY, NULL, "a header of %d tensors was refused its memory", m->params.count);
    goto out;
  }
  all[0] = "format";
  all[1] = "pt";
  for (size_t i = 0; i < pairs; i++) all[i + 2] = metadata[i];
  all[pairs + 2] = key;
  all[pairs + 3] = value;
  for (int i = 0; i < m->params.count; i++) {
    weights_entry(&entries[i], m, i);
    *data_bytes += m->params.items[i].count * m->ops->operand_bytes;
  }
  rc = st_write_header(out, entries, (size_t)m->params.count, all, err);
out:
  free(all);
  free(entries);
  return rc;
}

/* The digest is known when the tensors have been written, so its place in the header is filled last. */
static void name_digest(char *header, size_t len, const char *key, const char *zeros, const struct digest *digest) {
  char member[256], hex[DIGEST_HEX_MAX];
  const int found = snprintf(member, sizeof member, "\"%s\":\"%s\"", key, zeros);
  assert(found > 0 && (size_t)found < sizeof member);
  char *at = memmem(header, len, member, (size_t)found);
  assert(at);
  digest_hex(hex, digest);
  memcpy(at + strlen(key) + 4, hex, strlen(hex));
}

enum rc weights_to_safetensors_from(struct buf *out, struct digest *digest, const struct weights *w,
                                    const char *const *metadata, const char *digest_key,
                                    const struct weights_base *base, struct buf *changes, struct err *err) {
  char zeros[DIGEST_HEX_MAX];
  const size_t before = out->len;
  size_t data_bytes = 0;
  digest_hex(zeros, &(struct digest){0});
  enum rc rc = write_header(out, w->model, metadata, digest_key, zeros, &data_bytes, err);
  if (rc != RC_OK) return rc;
  const size_t start = out->len;
  buf_reserve(out, data_bytes);
  if (out->failed)
    return err_set(err, RC_NO_MEMORY, NULL, "a safetensors file of %zu bytes of tensors was refused its memory",
                   data_bytes);
  const bool comparable = base && base->bytes == data_bytes && w->model->ops->format == FORMAT_BF16;
  rc = weights_digest_and_read(digest, w, out->data + start, comparable ? base : NULL, changes, err);
  if (rc != RC_OK) return rc;
  out->len += data_bytes;
  out->data[out->len] = '\0';
  name_digest(out->data + before, start - before, digest_key, zeros, digest);
  return RC_OK;
}

enum rc weights_to_safetensors(struct buf *out, struct digest *digest, const struct weights *w,
                               const char *const *metadata, const char *digest_key, struct err *err) {
  return weights_to_safetensors_from(out, digest, w, metadata, digest_key, NULL, NULL, err);
}

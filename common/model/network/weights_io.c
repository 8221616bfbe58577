/* Reads weights from safetensors and writes them.
 *
 * Reading checks the whole file against the parameter table before the first byte is written, so that a wrong file
 * leaves the weights as they were.  A file with infinite or NaN weights is refused too: nothing can be sampled from
 * them, and no digest would show it.  BF16, F16 and F32 are read, and rounded to the operand format or widened.  The
 * pool checks, converts and packs a parameter together; a mapped file's pages leave memory tensor by tensor.  A tensor
 * that holds several parameters (params.h) is read and written in parts; a file's bytes are in table order either way.
 * A tied model's file may carry lm_head.weight too (published Qwen3 files do): then it must equal the embedding, byte
 * for byte. */
#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/model.h"
#include "common/model/network/weights_internal.h"
#include "common/safetensors/progress.h"

static const char TIED_HEAD[] = "lm_head.weight";
enum { CHECKED_PER_PART = 1 << 18, CONVERTED_PER_PART = 1 << 18 };

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
  if (t->dtype != ST_BF16 && t->dtype != ST_F16 && t->dtype != ST_F32)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected BF16, F16 or F32, got %s", t->name,
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
  st_drop(file, head);
  st_drop(file, embedding);
  return RC_OK;
}

/* In lanes of a constant number, which compile to vectors.  exponent: the format's exponent bits; one: the lowest of
 * them.  Adding to an exponent of all ones carries into the place of the sign. */
static bool all_finite_16(const unsigned char *bytes, size_t count, uint16_t exponent, uint16_t one) {
  enum { LANES = 32, AHEAD = 2048, SIGN = 0x8000 };
  uint16_t wrong[LANES] = {0}, all = 0;
  for (size_t i = 0; i < count; i += LANES) {
    uint16_t x[LANES] = {0};
    __builtin_prefetch(bytes + (i + AHEAD) * sizeof *x);
    if (count - i >= LANES)
      memcpy(x, bytes + i * sizeof *x, sizeof x);
    else
      memcpy(x, bytes + i * sizeof *x, (count - i) * sizeof *x);
    for (int l = 0; l < LANES; l++) wrong[l] = (uint16_t)(wrong[l] | ((x[l] & exponent) + one));
  }
  for (int l = 0; l < LANES; l++) all |= wrong[l];
  return (all & SIGN) == 0;
}

/* Also after rounding to BF16, which takes an F32 from 0x7F7F8000 on to infinity.  Bytes of any alignment. */
static bool all_finite(const struct st_tensor *t, const unsigned char *bytes, size_t count) {
  uint32_t wrong = 0;
  if (t->dtype == ST_BF16) return all_finite_16(bytes, count, 0x7F80, 0x0080);
  if (t->dtype == ST_F16) return all_finite_16(bytes, count, 0x7C00, 0x0400);
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
  size_t element; /* bytes of one */
  size_t count;
  atomic_bool wrong;
};

static void finite_part(void *context, int part) {
  struct finite_job *job = context;
  const size_t first = (size_t)part * CHECKED_PER_PART, left = job->count - first;
  const size_t count = left < CHECKED_PER_PART ? left : CHECKED_PER_PART;
  if (!all_finite(job->tensor, job->bytes + first * job->element, count)) atomic_store(&job->wrong, true);
}

/* The bytes of `rows` rows of the file's tensor that holds the parameter. */
static size_t bytes_of_rows(const struct st_tensor *t, const struct param *p, int64_t rows) {
  return (size_t)rows * (size_t)p->cols * st_dtype_bytes(t->dtype);
}

/* The parameter's bytes in that tensor. */
static const unsigned char *bytes_of(const struct st_file *file, const struct st_tensor *t, const struct param *p) {
  return (const unsigned char *)st_data(file, t) + bytes_of_rows(t, p, p->file_row);
}

/* The parameter's tensor behind parameter i's begins to come while that one is worked on. */
static void prefetch_next(const struct model *m, const struct st_file *file, int i) {
  if (i + 1 < m->params.count) st_prefetch(file, st_find(file, m->params.items[i + 1].file_name));
}

static enum rc check_values(const struct model *m, const struct st_file *file, struct progress *progress,
                            struct err *err) {
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const struct st_tensor *t = st_find(file, p->file_name);
    prefetch_next(m, file, i);
    struct finite_job job = {.tensor = t,
                             .bytes = bytes_of(file, t, p),
                             .element = st_dtype_bytes(t->dtype),
                             .count = p->count};
    pool_run(m->ops->pool, finite_part, &job, (int)((job.count + CHECKED_PER_PART - 1) / CHECKED_PER_PART));
    if (atomic_load(&job.wrong))
      return err_set(err, RC_INVALID, t->name, "tensor %s: expected finite numbers, got an infinity or a NaN", t->name);
    st_drop(file, t);
    progress_add(progress, bytes_of_rows(t, p, p->rows) / 2);
  }
  return RC_OK;
}

/* Frequencies that older files of Llama carry, and that nothing reads. */
static bool is_rotary_buffer(const char *name) {
  static const char end[] = ".rotary_emb.inv_freq";
  const size_t length = strlen(name);
  return length >= sizeof end && strcmp(name + length - (sizeof end - 1), end) == 0;
}

static enum rc check_file(const struct model *m, const struct st_file *file, struct err *err) {
  for (int i = 0; i < m->params.count; i++) {
    struct st_entry expected;
    weights_file_entry(&expected, m, i);
    const enum rc rc = check_tensor(st_find(file, expected.name), &expected, err);
    if (rc != RC_OK) return rc;
  }
  for (size_t i = 0; i < st_count(file); i++) {
    const char *name = st_at(file, i)->name;
    if (param_table_find(&m->params, name) >= 0 || is_rotary_buffer(name)) continue;
    if (!m->config.tied || strcmp(name, TIED_HEAD) != 0)
      return err_set(err, RC_INVALID, name, "tensor %s is not one of this model's %d", name, m->params.count);
    const enum rc rc = check_tied_head(file, err);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

/* A finite F16: its subnormals are normal floats, which the arithmetic here does not flush. */
static float float_of_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFF, bits = (magnitude << 13) + (112u << 23);
  float x;
  memcpy(&x, &bits, sizeof x);
  if (magnitude < 0x0400) x = (float)magnitude * 0x1p-24f;
  return half & 0x8000 ? -x : x;
}

/* n elements of any alignment -> floats, each exactly. */
static void widen(float *out, enum st_dtype dtype, const unsigned char *bytes, size_t n) {
  uint16_t narrow;
  if (dtype == ST_F32) {
    memcpy(out, bytes, n * sizeof *out);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    memcpy(&narrow, bytes + i * sizeof narrow, sizeof narrow);
    const uint32_t bits = (uint32_t)narrow << 16;
    if (dtype == ST_BF16)
      memcpy(out + i, &bits, sizeof bits);
    else
      out[i] = float_of_half(narrow);
  }
}

struct convert_job {
  struct weights *w;
  enum st_dtype dtype;
  const unsigned char *bytes;
  size_t count;
};

/* Elements [first, end) -> staging, in the operand format. */
static void convert(const struct convert_job *job, size_t first, size_t end) {
  const struct ops *ops = job->w->model->ops;
  const size_t size = st_dtype_bytes(job->dtype);
  _Alignas(64) float part[WEIGHTS_CONVERTED_AT_ONCE];
  for (size_t i = first; i < end; i += WEIGHTS_CONVERTED_AT_ONCE) {
    const size_t n = end - i < WEIGHTS_CONVERTED_AT_ONCE ? end - i : WEIGHTS_CONVERTED_AT_ONCE;
    char *to = (char *)job->w->staging + i * ops->operand_bytes;
    widen(part, job->dtype, job->bytes + i * size, n);
    if (ops->format == FORMAT_F32)
      ops->upload(ops, to, part, n * sizeof *part);
    else
      ops->to_operand(ops, to, ops_stage(ops, job->w->converting, part, n * sizeof *part), n);
  }
}

static void convert_part(void *context, int part) {
  const struct convert_job *job = context;
  const size_t first = (size_t)part * CONVERTED_PER_PART, left = job->count - first;
  convert(job, first, first + (left < CONVERTED_PER_PART ? left : CONVERTED_PER_PART));
}

static void convert_all(struct convert_job *job) {
  const struct ops *ops = job->w->model->ops;
  if (ops->host_memory)
    pool_run(ops->pool, convert_part, job, (int)((job->count + CONVERTED_PER_PART - 1) / CONVERTED_PER_PART));
  else
    convert(job, 0, job->count); /* one place for all parts on their way */
}

/* Operands that lie in memory as the table takes them need no staging. */
static void fill_from(struct weights *w, int index, const struct st_tensor *t, const unsigned char *bytes) {
  const struct ops *ops = w->model->ops;
  const size_t count = w->model->params.items[index].count;
  const bool same = t->dtype == (ops->format == FORMAT_BF16 ? ST_BF16 : ST_F32);
  if (same && ops->host_memory && (uintptr_t)bytes % ops->operand_bytes == 0) {
    weights_fill(w, index, bytes);
    return;
  }
  if (same)
    ops->upload(ops, w->staging, bytes, count * ops->operand_bytes);
  else
    convert_all(&(struct convert_job){.w = w, .dtype = t->dtype, .bytes = bytes, .count = count});
  weights_fill(w, index, w->staging);
}

static enum rc fill_all(struct weights *w, const struct st_file *file, struct progress *progress, struct err *err) {
  const struct model *m = w->model;
  enum rc rc = check_file(m, file, err);
  if (rc == RC_OK) rc = check_values(m, file, progress, err);
  for (int i = 0; rc == RC_OK && i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const struct st_tensor *t = st_find(file, p->file_name);
    prefetch_next(m, file, i);
    fill_from(w, i, t, bytes_of(file, t, p));
    st_drop(file, t);
    const size_t bytes = bytes_of_rows(t, p, p->rows);
    progress_add(progress, bytes - bytes / 2);
  }
  return rc == RC_OK ? m->ops->status(m->ops, err) : rc;
}

enum rc weights_from_safetensors(struct weights *w, const struct st_file *file, struct err *err) {
  return fill_all(w, file, NULL, err);
}

enum rc weights_load(struct weights *w, const struct st_file *file, const char *what, struct err *err) {
  struct progress progress;
  size_t bytes = 0;
  for (size_t i = 0; i < st_count(file); i++) bytes += st_at(file, i)->bytes;
  progress_begin(&progress, what, bytes);
  return fill_all(w, file, &progress, err);
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
  size_t tensors = 0;
  for (int i = 0; i < m->params.count; i++) {
    if (m->params.items[i].file_row == 0) weights_file_entry(&entries[tensors++], m, i);
    *data_bytes += m->params.items[i].count * m->ops->operand_bytes;
  }
  rc = st_write_header(out, entries, tensors, all, err);
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
  struct weights_base from = base ? *base : (struct weights_base){0};
  if (from.bytes != data_bytes || w->model->ops->format != FORMAT_BF16) from.operands = NULL;
  rc = weights_digest_and_read(digest, w, out->data + start, &from, changes, err);
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

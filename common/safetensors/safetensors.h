/* safetensors files: 8 bytes little-endian header length, a JSON header, tensor bytes.  Format: the `safetensors`
 * project's README.
 *
 * Reading works on bytes in memory (a mapped file or a request body) and checks everything before a tensor is handed
 * out: header length, JSON, dtype, shape product, offsets in bounds, without overlap or holes, size = product of
 * shape x element size.  A file whose header is wrong is RC_INVALID.
 */
#ifndef LEASEHOLD_SAFETENSORS_SAFETENSORS_H
#define LEASEHOLD_SAFETENSORS_SAFETENSORS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/base/rc.h"

enum st_dtype { ST_BF16, ST_F16, ST_F32, ST_F64, ST_I64, ST_I32, ST_I16, ST_I8, ST_U8, ST_BOOL };
enum { ST_DIMS_MAX = 8, ST_NAME_MAX = 256 };

struct st_tensor {
  char name[ST_NAME_MAX];
  enum st_dtype dtype;
  int dims;
  int64_t shape[ST_DIMS_MAX];
  int shard;     /* of several files: which one holds it */
  size_t offset; /* of the first byte within its file's data section */
  size_t bytes;
};

struct st_file; /* opaque: parsed headers over borrowed or mapped bytes, of one file or of a folder's shards */

/* Borrows bytes until st_close. */
enum rc st_open_memory(struct st_file **out, const void *bytes, size_t len, struct err *err);
/* mmap's the file (read-only). */
enum rc st_open_file(struct st_file **out, const char *path, struct err *err);
/* The weights of a Hugging Face folder as if they were one file: model.safetensors, else the shards that
 * model.safetensors.index.json names.  Every tensor of the index must be in the shard that it names, and no tensor in
 * two: RC_INVALID; RC_NOT_FOUND when the folder holds neither. */
enum rc st_open_folder(struct st_file **out, const char *dir, struct err *err);
bool st_folder_has_weights(const char *dir);
void st_close(struct st_file *f); /* NULL is fine */
size_t st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, size_t index);       /* in header order */
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* NULL when absent */
/* The caller is done with a tensor's bytes for now.  The pages of a mapped file leave this process's memory and come
 * back when they are read again, so that the whole file and the copies made of it are never in memory together. */
void st_drop(const struct st_file *f, const struct st_tensor *t);
/* The caller is about to read a tensor's bytes: of a mapped file the kernel may begin to bring them in. */
void st_prefetch(const struct st_file *f, const struct st_tensor *t);
const void *st_data(const struct st_file *f, const struct st_tensor *t);
/* Rows [from, to) of a tensor as a tensor that st_data, st_drop and st_prefetch take like any other: several matrices
 * may lie one below the other in one tensor.  The range must be within its first dimension. */
static inline struct st_tensor st_rows(const struct st_tensor *t, int64_t from, int64_t to) {
  struct st_tensor rows = *t;
  const size_t row_bytes = t->shape[0] > 0 ? t->bytes / (size_t)t->shape[0] : 0;
  assert(t->dims > 0 && 0 <= from && from <= to && to <= t->shape[0]);
  rows.shape[0] = to - from;
  rows.offset += (size_t)from * row_bytes;
  rows.bytes = (size_t)(to - from) * row_bytes;
  return rows;
}
/* A metadata value ("__metadata__"), or NULL; of shards NULL. */
const char *st_metadata(const struct st_file *f, const char *key);

size_t st_dtype_bytes(enum st_dtype d);
const char *st_dtype_name(enum st_dtype d); /* "BF16" */

/* Writing, to a file or to memory.  The header is padded with spaces so that data starts 8-aligned; tensors are laid
 * out in the order given. */
struct st_entry {
  const char *name;
  enum st_dtype dtype;
  int dims;
  int64_t shape[ST_DIMS_MAX];
};
/* Appends the 8 bytes and the header to out; the caller then writes each tensor's bytes in order.  metadata: key,
 * value, ..., NULL; may be NULL. */
enum rc st_write_header(struct buf *out, const struct st_entry *entries, size_t count, const char *const *metadata,
                        struct err *err);

/* SHA-256 over name, dtype, shape and bytes of one tensor: the leaf of a weights digest (DESIGN section 3).
 * Canonical bytes: text(name), text(dtype name), u32 dims, u64 each dim, then the raw little-endian bytes. */
void st_tensor_digest(struct digest *out, const struct st_entry *entry, const void *bytes);
/* Its beginning, for bytes that come in pieces: digest_update and digest_end are the rest. */
void st_tensor_digest_begin(struct digest_state *s, const struct st_entry *entry);
/* The weights digest: SHA-256 over the leaves in order. */
void st_combine_digests(struct digest *out, const struct digest *leaves, size_t count);

#endif

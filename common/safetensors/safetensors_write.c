/* Writes safetensors headers, names element types, and computes the digests of tensors.
 *
 * Only the header is made here: the tensors' bytes go from the memory that the kernels use straight to a file, a
 * socket or a digest.  The header is checked against the limits of the reader (safetensors_read.c), so that we can read
 * every file that we write.  Stateless; any thread.
 *
 * The digest is over a canonical byte string of our own and not over the file, because a file's header may be spelled
 * in many ways. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/safetensors/safetensors.h"

enum { LENGTH_BYTES = 8, ALIGN = 8 };
#define METADATA "__metadata__"

static const struct dtype_info {
  const char *name;
  size_t bytes;
} dtypes[] = {
    [ST_BF16] = {"BF16", 2}, [ST_F16] = {"F16", 2},   [ST_F32] = {"F32", 4}, [ST_F64] = {"F64", 8},
    [ST_I64] = {"I64", 8},   [ST_I32] = {"I32", 4},   [ST_I16] = {"I16", 2}, [ST_I8] = {"I8", 1},
    [ST_U8] = {"U8", 1},     [ST_BOOL] = {"BOOL", 1},
};

size_t st_dtype_bytes(enum st_dtype d) {
  assert(d <= ST_BOOL);
  return dtypes[d].bytes;
}

const char *st_dtype_name(enum st_dtype d) {
  assert(d <= ST_BOOL);
  return dtypes[d].name;
}

/* The tensor's size in bytes, after every member of its entry has been checked. */
static enum rc entry_bytes(size_t *out, const struct st_entry *e, struct err *err) {
  const size_t name_len = strlen(e->name);
  if (name_len >= ST_NAME_MAX || strcmp(e->name, METADATA) == 0)
    return err_set(err, RC_INVALID, NULL,
                   "expected a tensor name of at most %d bytes other than " METADATA ", got %zu bytes: %.64s",
                   ST_NAME_MAX - 1, name_len, e->name);
  if (e->dtype > ST_BOOL)
    return err_set(err, RC_INVALID, e->name, "tensor %s: expected a dtype, got the number %d", e->name, (int)e->dtype);
  if (e->dims < 0 || e->dims > ST_DIMS_MAX)
    return err_set(err, RC_INVALID, e->name, "tensor %s: expected 0 to %d dimensions, got %d", e->name, ST_DIMS_MAX,
                   e->dims);
  size_t bytes = dtypes[e->dtype].bytes;
  for (int i = 0; i < e->dims; i++) {
    if (e->shape[i] < 0 || __builtin_mul_overflow(bytes, (size_t)e->shape[i], &bytes))
      return err_set(err, RC_INVALID, e->name,
                     "tensor %s: expected a shape of non-negative numbers whose size fits 64 bits, got %" PRId64
                     " in dimension %d",
                     e->name, e->shape[i], i);
  }
  *out = bytes;
  return RC_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum rc check_distinct(const struct st_entry *entries, size_t count, struct err *err) {
  const char **names = calloc(count + 1, sizeof *names);
  if (!names) return err_set(err, RC_NO_MEMORY, NULL, "%zu tensor names to sort were refused memory", count);
  for (size_t i = 0; i < count; i++) names[i] = entries[i].name;
  qsort(names, count, sizeof *names, compare_names);
  enum rc rc = RC_OK;
  for (size_t i = 1; i < count && rc == RC_OK; i++)
    if (strcmp(names[i - 1], names[i]) == 0)
      rc = err_set(err, RC_INVALID, names[i], "tensor %s: expected each name once, got it twice", names[i]);
  free(names);
  return rc;
}

static void write_metadata(struct json_writer *w, const char *const *metadata) {
  json_key(w, METADATA);
  json_object_begin(w);
  for (size_t i = 0; metadata[i] && metadata[i + 1]; i += 2) json_kv_string(w, metadata[i], metadata[i + 1]);
  json_object_end(w);
}

static enum rc write_entry(struct json_writer *w, const struct st_entry *e, size_t *offset, struct err *err) {
  size_t bytes, end;
  const enum rc rc = entry_bytes(&bytes, e, err);
  if (rc != RC_OK) return rc;
  if (__builtin_add_overflow(*offset, bytes, &end) || end > INT64_MAX)
    return err_set(err, RC_INVALID, e->name,
                   "tensor %s: expected data that ends below 2^63 bytes, this one begins at %zu and takes %zu", e->name,
                   *offset, bytes);
  json_key(w, e->name);
  json_object_begin(w);
  json_kv_string(w, "dtype", dtypes[e->dtype].name);
  json_key(w, "shape");
  json_array_begin(w);
  for (int i = 0; i < e->dims; i++) json_write_int(w, e->shape[i]);
  json_array_end(w);
  json_key(w, "data_offsets");
  json_array_begin(w);
  json_write_u64(w, *offset);
  json_write_u64(w, end);
  json_array_end(w);
  json_object_end(w);
  *offset = end;
  return RC_OK;
}

enum rc st_write_header(struct buf *out, const struct st_entry *entries, size_t count, const char *const *metadata,
                        struct err *err) {
  if (count >= LIMIT_TENSORS)
    return err_set(err, RC_INVALID, NULL, "expected fewer than %d tensors, got %zu", LIMIT_TENSORS, count);
  enum rc rc = check_distinct(entries, count, err);
  if (rc != RC_OK) return rc;
  struct buf header = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &header);
  json_object_begin(&w);
  if (metadata && metadata[0]) write_metadata(&w, metadata);
  size_t offset = 0;
  for (size_t i = 0; i < count && rc == RC_OK; i++) rc = write_entry(&w, &entries[i], &offset, err);
  json_object_end(&w);
  while (header.len % ALIGN != 0 && !header.failed) buf_append(&header, " ", 1);
  if (rc == RC_OK) rc = buf_check(&header, err);
  if (rc == RC_OK && header.len > LIMIT_SAFETENSORS_HEADER)
    rc =
        err_set(err, RC_INVALID, NULL, "expected a header of at most %u bytes, %zu tensors and their metadata take %zu",
                LIMIT_SAFETENSORS_HEADER, count, header.len);
  if (rc == RC_OK) {
    unsigned char length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)((uint64_t)header.len >> 8 * i);
    buf_append(out, length, sizeof length);
    buf_append(out, header.data, header.len);
    rc = buf_check(out, err);
  }
  buf_free(&header);
  return rc;
}

void st_tensor_digest_begin(struct digest_state *s, const struct st_entry *entry) {
  digest_begin(s);
  digest_update_text(s, entry->name);
  digest_update_text(s, dtypes[entry->dtype].name);
  digest_update_u32(s, (uint32_t)entry->dims);
  for (int i = 0; i < entry->dims; i++) digest_update_u64(s, (uint64_t)entry->shape[i]);
}

void st_tensor_digest(struct digest *out, const struct st_entry *entry, const void *bytes) {
  size_t len = 0;
  const enum rc rc = entry_bytes(&len, entry, NULL);
  assert(rc == RC_OK); /* entries come from our own parameter table */
  (void)rc;
  struct digest_state s;
  st_tensor_digest_begin(&s, entry);
  digest_update(&s, bytes, len);
  digest_end(out, &s);
}

void st_combine_digests(struct digest *out, const struct digest *leaves, size_t count) {
  _Static_assert(sizeof(struct digest) == DIGEST_BYTES, "leaves lie side by side");
  digest_of(out, leaves, count * sizeof *leaves);
}

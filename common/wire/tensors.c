/* Reads and writes the parts that messages with tensors share. */
#include "common/wire/tensors.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

enum rc wire_tensors_begin(struct buf *out, const struct st_entry *entries, size_t count, const char *key,
                           struct buf *metadata, struct err *err) {
  const enum rc rc = buf_check(metadata, err);
  const char *const pairs[] = {key, metadata->data, NULL};
  return rc == RC_OK ? st_write_header(out, entries, count, pairs, err) : rc;
}

void wire_append_segments(struct buf *out, const struct sample_segment *segments, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const int32_t row[TENSOR_SEGMENT_COLUMNS] = {segments[i].start, segments[i].count, segments[i].loss_mask};
    buf_append(out, row, sizeof row);
  }
}

enum rc wire_tensors_metadata(struct json **out, const struct st_file *f, const char *key, struct err *err) {
  const char *text = st_metadata(f, key);
  if (!text)
    return err_set(err, RC_INVALID, "__metadata__", "expected the message without its tensors under \"%s\"", key);
  return json_parse(out, text, strlen(text), 0, err);
}

enum rc wire_tensors_counted(const struct st_file *f, size_t tensors, struct err *err) {
  if (st_count(f) == tensors) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "expected %zu tensors, got %zu", tensors, st_count(f));
}

static enum rc find(const struct st_tensor **out, const struct st_file *f, const char *name, enum st_dtype dtype,
                    int columns, struct err *err) {
  const struct st_tensor *t = *out = st_find(f, name);
  const int dims = columns ? 2 : 1;
  if (t && t->dtype == dtype && t->dims == dims && (!columns || t->shape[1] == columns)) return RC_OK;
  return err_set(err, RC_INVALID, name, "expected a tensor %s of %s with %d dimensions and %d columns, got %s", name,
                 st_dtype_name(dtype), dims, columns ? columns : 1, t ? "another" : "none");
}

enum rc wire_tensor_read(void **out, size_t *rows, const struct st_file *f, const char *name, enum st_dtype dtype,
                         int columns, struct arena *arena, struct err *err) {
  const struct st_tensor *t;
  const enum rc rc = find(&t, f, name, dtype, columns, err);
  if (rc != RC_OK) return rc;
  *rows = (size_t)t->shape[0];
  *out = arena_alloc_bytes(arena, t->bytes + 1);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "a tensor of %zu bytes was refused memory", t->bytes);
  memcpy(*out, st_data(f, t), t->bytes);
  return RC_OK;
}

enum rc wire_tensor_borrow(void **out, size_t *rows, const struct st_file *f, const char *name,
                           enum st_dtype dtype, struct arena *arena, struct err *err) {
  const struct st_tensor *t;
  const enum rc rc = find(&t, f, name, dtype, 0, err);
  if (rc != RC_OK) return rc;
  const uintptr_t at = (uintptr_t)st_data(f, t);
  if (at % st_dtype_bytes(dtype) != 0) return wire_tensor_read(out, rows, f, name, dtype, 0, arena, err);
  *rows = (size_t)t->shape[0];
  *out = (void *)at;
  return RC_OK;
}

enum rc wire_logprobs_check(const char *field, const float *items, size_t count, struct err *err) {
  for (size_t i = 0; i < count; i++) {
    if (!(items[i] >= -FLT_MAX && items[i] <= 0)) /* a NaN is neither */
      return err_set(err, RC_INVALID, field, "expected a finite number of at most 0, got %.9g at trained token %zu",
                     (double)items[i], i);
  }
  return RC_OK;
}

enum rc wire_take_segments(struct sample_segment **out, size_t *count, struct segment_rows *from, size_t tokens,
                           struct arena *arena, struct err *err) {
  const size_t first = from->taken;
  for (int64_t covered = 0; covered < (int64_t)tokens && from->taken < from->count;) {
    const int32_t *row = from->rows[from->taken++];
    if (row[1] < 1 || row[2] < 0 || row[2] > 1)
      return err_set(err, RC_INVALID, "segments",
                     "expected a count of at least 1 and a loss_mask of 0 or 1, got %d and %d", row[1], row[2]);
    covered += row[1];
  }
  *count = from->taken - first;
  *out = arena_alloc(arena, *count + 1, sizeof **out);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "%zu segments were refused memory", *count);
  for (size_t i = 0; i < *count; i++) {
    const int32_t *row = from->rows[first + i];
    (*out)[i] = (struct sample_segment){row[0], row[1], row[2] != 0};
  }
  return wire_segments_check(*out, *count, tokens, err);
}

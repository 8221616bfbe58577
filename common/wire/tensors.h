/* Parts that messages with tensors share: a safetensors body whose metadata is the message's small members as JSON and
 * whose tensors are its long rows of numbers.
 *
 * Private to common/wire.  Everything lies sample after sample, and a reader takes as many rows as each sample needs;
 * rows that are left over make the message malformed.  Tensors are copied into the caller's arena, because the body may
 * be unaligned and is freed early. */
#ifndef LEASEHOLD_WIRE_TENSORS_H
#define LEASEHOLD_WIRE_TENSORS_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/json/json.h"
#include "common/safetensors/safetensors.h"
#include "common/wire/segments.h"

enum { TENSOR_SEGMENT_COLUMNS = 3 }; /* of I32 [segments, 3]: start, count, loss_mask (0 or 1) */

/* Appends the header; `metadata` is the JSON under `key`, of which an error is reported too. */
enum rc wire_tensors_begin(struct buf *out, const struct st_entry *entries, size_t count, const char *key,
                           struct buf *metadata, struct err *err);
void wire_append_segments(struct buf *out, const struct sample_segment *segments, size_t count);

/* The JSON under `key` of the metadata; the caller frees it. */
enum rc wire_tensors_metadata(struct json **out, const struct st_file *f, const char *key, struct err *err);
enum rc wire_tensors_counted(const struct st_file *f, size_t tensors, struct err *err);
/* A copy in the arena; columns 0: one dimension; else two, the second of `columns`. */
enum rc wire_tensor_read(void **out, size_t *rows, const struct st_file *f, const char *name, enum st_dtype dtype,
                         int columns, struct arena *arena, struct err *err);
/* The same of one dimension, where it lies in the file's bytes, not to be changed; copied only where it lies askew for
 * its type. */
enum rc wire_tensor_borrow(void **out, size_t *rows, const struct st_file *f, const char *name,
                           enum st_dtype dtype, struct arena *arena, struct err *err);

/* RC_INVALID unless every number is finite and at most 0. */
enum rc wire_logprobs_check(const char *field, const float *items, size_t count, struct err *err);

/* Rows of which samples take theirs, one after the other. */
struct segment_rows {
  const int32_t (*rows)[TENSOR_SEGMENT_COLUMNS];
  size_t count, taken;
};
/* As many as lie over `tokens` tokens; RC_INVALID unless they cover them exactly. */
enum rc wire_take_segments(struct sample_segment **out, size_t *count, struct segment_rows *from, size_t tokens,
                           struct arena *arena, struct err *err);

#endif

/* Encodes, decodes and checks a sample's segments. */
#include "common/wire/segments.h"

#include "common/base/limits.h"
#include "common/wire/fields.h"

void wire_kv_segments(struct json_writer *w, const struct sample_segment *segments, size_t count) {
  json_key(w, "segments");
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    json_object_begin(w);
    json_kv_int(w, "start", segments[i].start);
    json_kv_int(w, "count", segments[i].count);
    json_kv_bool(w, "loss_mask", segments[i].loss_mask);
    json_object_end(w);
  }
  json_array_end(w);
}

static enum rc segment_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct sample_segment *s = item;
  const struct json_field fields[] = {
      WIRE_I32("start", s->start, 0, LIMIT_SEQUENCE_TOKENS - 1),
      WIRE_I32("count", s->count, 1, LIMIT_SEQUENCE_TOKENS),
      WIRE_BOOL("loss_mask", s->loss_mask),
  };
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}

enum rc wire_segments_read(struct sample_segment **out, size_t *count, const struct json *value, size_t tokens,
                           struct arena *arena, struct err *err) {
  const struct wire_list list = {
      .name = "segments", .min = tokens ? 1 : 0, .max = tokens, .item_size = sizeof **out, .read = segment_read};
  void *items;
  const enum rc rc = wire_items(&list, &items, count, value, arena, err);
  if (rc) return rc;
  *out = items;
  return wire_segments_check(*out, *count, tokens, err);
}

enum rc wire_segments_check(const struct sample_segment *segments, size_t count, size_t tokens, struct err *err) {
  int64_t covered = 0;
  for (size_t i = 0; i < count; i++) {
    const struct sample_segment *s = &segments[i];
    if (s->start != covered)
      return err_set(err, RC_INVALID, "segments",
                     "expected segment %zu to start at token %lld, where the one before ends, got %d", i,
                     (long long)covered, s->start);
    covered += s->count;
  }
  if (covered != (int64_t)tokens)
    return err_set(err, RC_INVALID, "segments", "expected segments that cover %zu tokens exactly, got %lld", tokens,
                   (long long)covered);
  return RC_OK;
}

size_t wire_segments_trained(const struct sample_segment *segments, size_t count) {
  size_t tokens = 0;
  for (size_t i = 0; i < count; i++) tokens += segments[i].loss_mask ? (size_t)segments[i].count : 0;
  return tokens;
}

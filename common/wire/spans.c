/* Encodes, decodes and checks the version spans of a sample's tokens.
 *
 * Results and leases share this JSON; a result's safetensors form has its own reader (lease_result_tensors.c) and the
 * same check.  Pure: no threads, memory from the caller's arena.
 *
 * Previous hop of a rollout: generation-server/engine/decode_job.c.  Next: coordinator/api/route_results.c. */
#include "common/wire/spans.h"

#include "common/base/limits.h"
#include "common/wire/fields.h"

#define FIELD "version_spans"

void wire_kv_version_spans(struct json_writer *w, const struct version_span *spans, size_t count) {
  json_key(w, FIELD);
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    json_object_begin(w);
    json_kv_int(w, "version", spans[i].version);
    json_kv_int(w, "start", spans[i].start);
    json_kv_int(w, "count", spans[i].count);
    if (!spans[i].fresh) json_kv_bool(w, "fresh", false);
    json_object_end(w);
  }
  json_array_end(w);
}

static enum rc span_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct version_span *s = item;
  const struct json_field fields[] = {
      WIRE_I64("version", s->version),
      WIRE_I32("start", s->start, 0, LIMIT_NEW_TOKENS - 1),
      WIRE_I32("count", s->count, 1, LIMIT_NEW_TOKENS),
      {.name = "fresh", .kind = FIELD_BOOL, .target = &s->fresh},
  };
  s->fresh = true;
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}

enum rc wire_version_spans_read(struct version_span **out, size_t *count, const struct json *value, size_t tokens,
                                struct arena *arena, struct err *err) {
  const struct wire_list list = {
      .name = FIELD, .min = tokens ? 1 : 0, .max = tokens, .item_size = sizeof **out, .read = span_read};
  void *items;
  const enum rc rc = wire_items(&list, &items, count, value, arena, err);
  if (rc) return rc;
  *out = items;
  return wire_version_spans_check(*out, *count, tokens, err);
}

enum rc wire_version_spans_check(const struct version_span *spans, size_t count, size_t tokens, struct err *err) {
  int64_t covered = 0;
  for (size_t i = 0; i < count; i++) {
    const struct version_span *span = &spans[i];
    if (span->start != covered)
      return err_set(err, RC_INVALID, FIELD,
                     "expected span %zu to start at token %lld, where the one before ends, got %d", i,
                     (long long)covered, span->start);
    if (i > 0 && span->version < spans[i - 1].version)
      return err_set(err, RC_INVALID, FIELD, "expected versions that never fall, got %lld after %lld",
                     (long long)span->version, (long long)spans[i - 1].version);
    covered += span->count;
  }
  if (covered != (int64_t)tokens)
    return err_set(err, RC_INVALID, FIELD, "expected spans that cover %zu tokens exactly, got %lld", tokens,
                   (long long)covered);
  return RC_OK;
}

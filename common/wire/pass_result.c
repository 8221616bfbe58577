/* Encodes and decodes a pass's result as safetensors, the form that preprocessors send, and digests its content.
 *
 *   __metadata__   {"result": "<JSON: worker_id, epoch, fence, weights_digest, handed_back, refused, samples: ids>"}
 *   trained        I32 [samples]   trained tokens of each sample
 *   logprobs       F32 [trained]   sample after sample
 *
 * A pass that is handed back has no samples: both tensors are empty, weights_digest is null. */
#include "common/wire/passes.h"

#include <stdio.h>

#include "common/wire/tensors.h"
#include "common/wire/training_batch_internal.h"

#define HEAD_KEY "result"

enum rc pass_result_encode(const struct pass_result *m, struct buf *out, struct err *err) {
  struct st_entry entries[LOGPROB_TENSORS];
  size_t tensors;
  struct buf head = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &head);
  json_object_begin(&w);
  json_kv_string(&w, "worker_id", m->worker_id);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  wire_kv_digest_or_null(&w, "weights_digest", &m->weights_digest);
  json_kv_bool(&w, "handed_back", m->handed_back);
  if (m->refused) json_kv_string(&w, "refused", m->refused);
  json_key(&w, "samples");
  json_array_begin(&w);
  for (size_t i = 0; i < m->sample_count; i++) json_write_string(&w, m->samples[i].id);
  json_array_end(&w);
  json_object_end(&w);
  sample_logprobs_entries(entries, &tensors, m->samples, m->sample_count, STATUS_LOGPROBS);
  const enum rc rc = wire_tensors_begin(out, entries, tensors, HEAD_KEY, &head, err);
  buf_free(&head);
  if (rc != RC_OK) return rc;
  sample_logprobs_append(out, m->samples, m->sample_count, STATUS_LOGPROBS);
  return buf_check(out, err);
}

static enum rc sample_read_id(void *item, const struct json *value, struct arena *arena, struct err *err) {
  return wire_read_name(&((struct sample_logprobs *)item)->id, value, arena, err);
}

static enum rc samples_distinct(const struct pass_result *m, struct arena *arena, struct err *err) {
  const char *ids[LIMIT_SAMPLES_PER_GROUP];
  for (size_t i = 0; i < m->sample_count; i++) ids[i] = m->samples[i].id;
  return wire_distinct("samples", ids, m->sample_count, arena, err);
}

/* What belongs to a result that is handed back, and what to one that is not. */
static enum rc head_check(const struct pass_result *m, bool has_digest, struct err *err) {
  if (m->refused && !m->handed_back)
    return err_set(err, RC_INVALID, "refused", "expected it only of a pass that is handed back");
  if (m->handed_back != (m->sample_count == 0))
    return err_set(err, RC_INVALID, "samples", "expected %s, got %zu",
                   m->handed_back ? "none of a pass that is handed back" : "at least 1", m->sample_count);
  if (m->handed_back == has_digest)
    return err_set(err, RC_INVALID, "weights_digest", "expected %s",
                   m->handed_back ? "none of a pass that is handed back" : "that of the weights that computed");
  return RC_OK;
}

static enum rc read_head(struct pass_result *m, const struct st_file *f, struct arena *arena, struct err *err) {
  struct json *head = NULL;
  const struct json *samples = NULL;
  bool has_digest = false;
  const struct json_field fields[] = {
      WIRE_NAME("worker_id", m->worker_id),
      WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),
      {.name = "weights_digest", .kind = FIELD_DIGEST, .target = &m->weights_digest, .present = &has_digest},
      WIRE_BOOL("handed_back", m->handed_back),
      {.name = "refused", .kind = FIELD_STRING, .target = &m->refused, .min = 1, .max = WIRE_REFUSED_BYTES},
      WIRE_VALUE("samples", samples),
  };
  const struct wire_list list = {
      .name = "samples", .max = LIMIT_SAMPLES_PER_GROUP, .item_size = sizeof *m->samples, .read = sample_read_id};
  void *items = NULL;
  enum rc rc = wire_tensors_metadata(&head, f, HEAD_KEY, err);
  if (rc == RC_OK) rc = wire_fields(head, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->sample_count, samples, arena, err);
  json_free(head);
  m->samples = items;
  if (rc == RC_OK) rc = samples_distinct(m, arena, err);
  return rc == RC_OK ? head_check(m, has_digest, err) : rc;
}

enum rc pass_result_decode(struct pass_result *m, const void *bytes, size_t len, struct arena *arena, struct err *err) {
  struct st_file *f;
  *m = (struct pass_result){0};
  enum rc rc = st_open_memory(&f, bytes, len, err);
  if (rc != RC_OK) return rc;
  rc = read_head(m, f, arena, err);
  if (rc == RC_OK) rc = sample_logprobs_take(m->samples, m->sample_count, STATUS_LOGPROBS, f, arena, err);
  for (size_t i = 0; rc == RC_OK && i < m->sample_count; i++) {
    const struct json_f32s *logprobs = &m->samples[i].logprobs;
    char place[32];
    rc = wire_logprobs_check("logprobs", logprobs->items, logprobs->count, err);
    snprintf(place, sizeof place, "samples[%zu]", i);
    if (rc != RC_OK) err_in_field(err, place);
  }
  st_close(f);
  return rc;
}

void pass_result_digest(struct digest *out, const struct pass_result *m) {
  struct digest_state d;
  struct digest samples;
  logprobs_digest(&samples, m->samples, m->sample_count);
  digest_begin(&d);
  digest_update_u32(&d, m->handed_back);
  digest_update_text(&d, m->refused ? m->refused : "");
  digest_update(&d, m->weights_digest.bytes, DIGEST_BYTES);
  digest_update(&d, samples.bytes, DIGEST_BYTES);
  digest_end(out, &d);
}

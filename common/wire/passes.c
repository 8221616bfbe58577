/* Encodes and decodes the request for passes and the passes that are granted, as JSON.
 *
 * Called by both ends of the exchange on any thread: nothing here has state.  A pass's group is written as its id and
 * its samples, beside the members of the lease. */
#include "common/wire/passes.h"

#include "common/wire/training_batch_internal.h"

void pass_request_encode(const struct pass_request *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_int(&w, "groups_max", m->groups_max);
  json_kv_int(&w, "wait_ms", m->wait_ms);
  json_object_end(&w);
}

enum rc pass_request_decode(struct pass_request *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct pass_request){0};
  const struct json_field fields[] = {
      WIRE_U64("epoch", m->epoch),
      WIRE_I32("groups_max", m->groups_max, 1, LIMIT_PASSES_PER_REQUEST),
      WIRE_I32("wait_ms", m->wait_ms, 0, LIMIT_WAIT_MS_MAX),
  };
  return wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
}

static void sample_write(const struct batch_sample *s, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", s->id);
  json_kv_i32s(w, "tokens", s->tokens.items, s->tokens.count);
  json_kv_int(w, "prompt_length", s->prompt_length);
  wire_kv_segments(w, s->segments, s->segment_count);
  json_object_end(w);
}

static enum rc sample_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct batch_sample *s = item;
  const struct json *segments = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("id", s->id),
      WIRE_TOKENS("tokens", s->tokens, LIMIT_SEQUENCE_TOKENS),
      WIRE_I32("prompt_length", s->prompt_length, 1, LIMIT_PROMPT_TOKENS),
      WIRE_VALUE("segments", segments),
  };
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = batch_sample_check(s, err);
  if (rc != RC_OK) return rc;
  return wire_segments_read(&s->segments, &s->segment_count, segments, s->tokens.count - (size_t)s->prompt_length,
                            arena, err);
}

static void pass_write(const struct pass *m, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "pass_id", m->group.id);
  json_kv_string(w, "run", m->run);
  json_kv_u64(w, "fence", m->fence);
  json_kv_int(w, "version", m->version);
  wire_kv_digest(w, "weights_digest", &m->weights_digest);
  json_kv_string(w, "weights_from", m->weights_from);
  json_kv_int(w, "chunk_tokens", m->chunk_tokens);
  json_kv_f32(w, "temperature", m->temperature);
  json_key(w, "samples");
  json_array_begin(w);
  for (size_t i = 0; i < m->group.sample_count; i++) sample_write(&m->group.samples[i], w);
  json_array_end(w);
  json_object_end(w);
}

static enum rc pass_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct pass *m = item;
  const struct json *samples = NULL;
  double temperature = 0;
  const struct json_field fields[] = {
      WIRE_NAME("pass_id", m->group.id),
      WIRE_NAME("run", m->run),
      WIRE_U64("fence", m->fence),
      WIRE_I64("version", m->version),
      WIRE_DIGEST("weights_digest", m->weights_digest),
      WIRE_URL("weights_from", m->weights_from),
      WIRE_I32("chunk_tokens", m->chunk_tokens, 1, LIMIT_SEQUENCE_TOKENS),
      WIRE_F64("temperature", temperature, 0, WIRE_TEMPERATURE_MAX),
      WIRE_VALUE("samples", samples),
  };
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_float(&m->temperature, "temperature", temperature, err);
  if (rc == RC_OK && !(m->temperature > 0))
    rc = err_set(err, RC_INVALID, "temperature", "expected a positive temperature, got %.9g", (double)m->temperature);
  return rc == RC_OK ? batch_samples_read(&m->group, samples, sample_read, arena, err) : rc;
}

void pass_answer_encode(const struct pass_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  json_key(&w, "passes");
  json_array_begin(&w);
  for (size_t i = 0; i < m->pass_count; i++) pass_write(&m->passes[i], &w);
  json_array_end(&w);
  json_object_end(&w);
}

enum rc pass_answer_decode(struct pass_answer *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct pass_answer){0};
  const struct json *passes = NULL;
  const struct json_field fields[] = {WIRE_U64("epoch", m->epoch), WIRE_VALUE("passes", passes)};
  const struct wire_list list = {
      .name = "passes", .max = LIMIT_PASSES_PER_REQUEST, .item_size = sizeof *m->passes, .read = pass_read};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->pass_count, passes, arena, err);
  m->passes = items;
  return rc;
}
